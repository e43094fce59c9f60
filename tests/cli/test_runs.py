"""`toytrans runs`: what is listed."""

import json
import os
import re
import shutil
from pathlib import Path

from conftest import Command

from toytrans.config.faults import hide
from toytrans.training.writer import RunWriter


def test_every_run_is_listed_with_its_state(run: Path, command: Command, monkeypatch):
    runs = run.parent
    states = {
        "good": "finished",
        "sweeps/lr/a": "finished",
        "started": "unfinished",
        "damaged": "damaged",
        "locked": "being written",
    }
    for age, name in enumerate(states):
        path = Path(shutil.copytree(run, runs / name))
        config = path / "resolved.yaml"
        fault = {"good": "no_causal", "started": hide("no_norm")}.get(name, "null")
        config.write_text(config.read_text().replace("fault: null", f"fault: {fault}"))
        if name == "started":
            shutil.rmtree(path / "checkpoints")
        if name == "damaged":
            (path / "data.json").write_text("{")
        for file in path.rglob("*"):
            os.utime(file, (1e9 - age, 1e9 - age))
    shutil.rmtree(run)
    Path("runs/lone").mkdir()
    Path("runs/lone/config.yaml").write_text("of: another program")
    with RunWriter(runs / "locked").locked():
        listed = json.loads(command("runs", "--json").out)["runs"]
    found = {each["run"].removeprefix("runs/"): each for each in listed}
    assert {name: each["state"] for name, each in found.items()} == states
    assert list(found)[0] == "good" and list(found)[-1] == "locked", "the newest first"
    size = sum(path.stat().st_size for path in (runs / "good").rglob("*") if path.is_file())
    good, damaged = found["good"], found["damaged"]
    assert good["bytes"] == size and good["step"] == 6
    assert 0 <= good["exact_match"] <= 1 and good["age_s"] > 86400
    assert damaged["problem"].startswith("runs/damaged/data.json: damaged")
    assert good["fault"] == "no_causal" and damaged["fault"] is None
    monkeypatch.setenv("COLUMNS", "200")
    out = command("runs").out
    assert re.search("runs/good  .*finished; broken on purpose: no_causal", out)
    assert re.search("runs/started  .*unfinished, no checkpoint; an exercise", out)
    assert "no_norm" not in out and out.count("on purpose") == 1


def test_what_runs_refuses(here: Path, refused, command: Command):
    assert "runs: no such folder" in refused("runs")
    assert "c.yaml: this is a file" in refused("runs", "c.yaml")
    (here / "runs").mkdir()
    assert command("runs") == (0, "", "runs: no runs here\n")
    assert json.loads(command("runs", "--json").out)["runs"] == []
