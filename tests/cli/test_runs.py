"""`toytrans runs`: what is listed."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import Command

from toytrans.config.names import seal
from toytrans.training.session import locked_folder


@pytest.fixture
def runs(run: Path) -> Path:
    """Runs in every state, the last of the list the oldest."""
    for age, name in enumerate(("good", "sweeps/lr/a", "started", "damaged", "locked")):
        path = Path(shutil.copytree(run, run.parent / name))
        if name == "started":
            shutil.rmtree(path / "checkpoints")
        if name == "damaged":
            (path / "data.json").write_text("{")
        for file in path.rglob("*"):
            os.utime(file, (1e9 - age, 1e9 - age))
    shutil.rmtree(run)
    Path("runs/lone").mkdir()
    Path("runs/lone/config.yaml").write_text("of: another program")
    return run.parent


def listed(command: Command) -> dict[str, dict]:
    return {found["run"]: found for found in json.loads(command("runs", "--json").out)["runs"]}


def test_every_run_is_listed_with_its_state(runs: Path, command: Command):
    with locked_folder(runs / "locked"):
        found = listed(command)
    assert {name: each["state"] for name, each in found.items()} == {
        "runs/good": "finished",
        "runs/sweeps/lr/a": "finished",
        "runs/started": "unfinished",
        "runs/damaged": "damaged",
        "runs/locked": "being written",
    }
    assert list(found)[0] == "runs/good" and list(found)[-1] == "runs/locked", "the newest first"
    size = sum(path.stat().st_size for path in (runs / "good").rglob("*") if path.is_file())
    good = found["runs/good"]
    assert good["bytes"] == size and good["step"] == 6
    assert 0 <= good["exact_match"] <= 1 and good["age_s"] > 86400
    assert found["runs/damaged"]["problem"].startswith("runs/damaged/data.json: damaged")


def test_a_planted_fault_is_named(runs: Path, command: Command, monkeypatch):
    for name, fault in (("good", "no_causal"), ("started", seal("no_norm", bytes(8)))):
        config = runs / name / "config.yaml"
        config.write_text(config.read_text().replace("fault: null", f"fault: {fault}"))
    monkeypatch.setenv("COLUMNS", "200")
    found = listed(command)
    assert found["runs/good"]["fault"] == "no_causal" and found["runs/damaged"]["fault"] is None
    out = command("runs").out
    assert re.search("runs/good  .*finished; broken on purpose: no_causal", out)
    assert re.search("runs/started  .*unfinished, no checkpoint; a sealed exercise", out)
    assert "no_norm" not in out and out.count("on purpose") == 1


def test_what_runs_refuses(here: Path, refused, command: Command):
    assert "runs: no such folder" in refused("runs")
    assert "c.yaml: this is a file" in refused("runs", "c.yaml")
    (here / "runs").mkdir()
    assert command("runs") == (0, "", "runs: no runs here\n")
    assert json.loads(command("runs", "--json").out)["runs"] == []
