"""The wheel and the sdist hold what the commands need, and what the files about them say is so."""

import contextlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

import toytrans

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github/workflows"


def built(kind: str, project: Path, folder: Path) -> Path:
    """The wheel or the sdist of a project, built into a folder."""
    hatchling = pytest.importorskip("hatchling.build")
    with contextlib.chdir(project), contextlib.redirect_stdout(io.StringIO()):
        return folder / getattr(hatchling, f"build_{kind}")(str(folder))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built("wheel", ROOT, tmp_path_factory.mktemp("dist")))


def test_the_wheel_works_in_an_empty_folder(wheel: zipfile.ZipFile, tmp_path: Path):
    """Where the project is not: with configs and templates that it brings along."""
    wheel.extractall(tmp_path / "installed")
    folder = tmp_path / "folder"
    folder.mkdir()
    code = (
        "import toytrans; run = toytrans.train('textbook', changes={'train.max_steps': 1}); "
        "print(toytrans.__file__, len(toytrans.live(run)._repr_html_()) > 10_000)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(tmp_path / "installed/toytrans/__init__.py"), "True"], done


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile):
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "toytrans").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {
        f"toytrans/{path.relative_to(ROOT).as_posix()}"
        for folder in ("configs", "boards")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(shipped) > 15
    assert held == package | shipped


def test_the_sdist_makes_the_same_wheel(wheel: zipfile.ZipFile, tmp_path: Path):
    sdist = built("sdist", ROOT, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    project = tmp_path / sdist.name.removesuffix(".tar.gz")
    again = zipfile.ZipFile(built("wheel", project, tmp_path))
    assert {name: again.read(name) for name in again.namelist()} == {
        name: wheel.read(name) for name in wheel.namelist()
    }


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == toytrans.__version__
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_no_python_is_claimed_that_the_whole_suite_does_not_run_with():
    claimed = re.findall(r"Python :: (3\.\d+)'", str(PROJECT["classifiers"]))
    matrix = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]["ci"]["strategy"]["matrix"]
    assert claimed == matrix["python"]
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_issue_templates_ask_for_what_doctor_says():
    forms = [
        path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"
    ]
    assert len(forms) >= 2
    for form in forms:
        fields = {field["id"]: field for field in yaml.safe_load(form.read_text())["body"]}
        assert fields["machine"]["attributes"]["label"] == "toytrans doctor --machine"
        assert fields["machine"]["validations"]["required"]
