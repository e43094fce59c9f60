"""`toytrans runs`: what is listed."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import Command, call, tiny_yaml

from toytrans.config.sealed import seal
from toytrans.training.folder import locked_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "c.yaml").write_text(tiny_yaml())
    assert call("train", str(folder / "c.yaml"), "--out", str(folder / "run")) == 0
    return folder / "run"


@pytest.fixture
def runs(trained: Path, here: Path) -> Path:
    """Runs in every state, the last of the list the oldest."""
    states = ("good", "sweeps/lr/a", "boards/b/c", "started", "damaged", "locked")
    for age, name in enumerate(states):
        path = Path(shutil.copytree(trained, here / "runs" / name))
        if name == "started":
            shutil.rmtree(path / "checkpoints")
        if name == "damaged":
            (path / "data.json").write_text("{")
        for file in path.rglob("*"):
            os.utime(file, (1e9 - age, 1e9 - age))
    (here / "runs/sweeps/lr/.toytrans-lock").touch()  # which a sweep leaves beside its runs
    (here / "runs/sweeps/lr/sweep.json").write_text("{}")
    (here / "runs/lone").mkdir()
    (here / "runs/lone/config.yaml").write_text("of: another program")
    return here / "runs"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_every_run_is_listed_with_its_state(runs, command: Command, monkeypatch):
    with locked_folder(runs / "locked"):
        listed = json.loads(command("runs", "--json").out)
    assert listed["folder"] == "runs"
    states = {run["run"]: run["state"] for run in listed["runs"]}
    assert states == {
        "runs/good": "finished",
        "runs/sweeps/lr/a": "finished",
        "runs/boards/b/c": "finished",
        "runs/started": "unfinished",
        "runs/damaged": "damaged",
        "runs/locked": "being written",
    }, "the newest first"
    assert list(states)[0] == "runs/good" and list(states)[-1] == "runs/locked"
    files = contents(runs / "good")
    good, damaged = listed["runs"][0], listed["runs"][4]
    assert good["bytes"] == sum(map(len, files.values())) and good["step"] == 6
    assert 0 <= good["exact_match"] <= 1 and good["age_s"] > 86400
    assert damaged["problem"].startswith("runs/damaged/data.json: damaged")


def test_a_planted_fault_is_named(runs, command: Command, monkeypatch):
    for name, fault in (("good", "no_causal"), ("started", seal("no_norm", bytes(8)))):
        config = runs / name / "config.yaml"
        config.write_text(config.read_text().replace("fault: null", f"fault: {fault}"))
    monkeypatch.setenv("COLUMNS", "200")
    listed = {run["run"]: run for run in json.loads(command("runs", "--json").out)["runs"]}
    assert listed["runs/good"]["fault"] == "no_causal"
    assert listed["runs/boards/b/c"]["fault"] is None
    out = command("runs").out
    (good,) = re.findall("runs/good  .*", out)
    (started,) = re.findall("runs/started  .*", out)
    assert "finished; broken on purpose: no_causal" in good
    assert "unfinished, no checkpoint; a sealed exercise" in started
    assert "no_norm" not in out and out.count("on purpose") == 1


def test_a_run_without_its_config_is_damaged(runs, command: Command):
    (runs / "good/config.yaml").unlink()
    listed = json.loads(command("runs", "--json").out)["runs"]
    good = next(run for run in listed if run["run"] == "runs/good")
    assert good["state"] == "damaged" and "lacks" in good["problem"]


def test_what_runs_refuses(here, refused, command: Command, monkeypatch):
    assert "runs: no such folder" in refused("runs")
    assert "c.yaml: this is a file" in refused("runs", "c.yaml")
    (here / "runs").mkdir()
    assert command("runs") == (0, "", "runs: no runs here\n")
    assert json.loads(command("runs", "--json").out)["runs"] == []
