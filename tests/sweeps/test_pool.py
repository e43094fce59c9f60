"""Processes of a sweep: how many, and that one that dies costs no more than itself."""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Command, tiny_yaml
from safetensors.torch import load_file

from toytrans.config.load import load_config
from toytrans.sweeps import trial
from toytrans.sweeps.sweep import Sweep, plan
from toytrans.training import devices
from toytrans.training.folder import locked_folder

LOUD = """\
import multiprocessing
def f(source):
    if multiprocessing.parent_process():
        raise type("Loud" * 250_000, (Exception,), {})
    return source[::-1]
def g(source):
    return source[::-1]
"""
"""A task that fails in the process of a trial alone, where the sweep has been checked already."""


def planned(*sets: str, seeds: range = range(1)) -> Sweep:
    load = lambda changes: load_config(Path("c.yaml"), changes)  # noqa: E731
    return plan(Path("runs/sweeps/c"), load, sets, seeds)


def test_a_megabyte_of_error_costs_its_own_run_alone(here: Path, command: Command):
    Path("own.py").write_text(LOUD)
    answer = command("sweep", "c.yaml", "--set", "data.task=own.py:f,own.py:g")
    assert answer.code == 1, answer.err
    (failed,) = (line for line in answer.err.splitlines() if "failed: " in line)
    assert "raises LoudLoud" in failed and len(failed) < 2_500
    (written,) = Path("runs/sweeps/c").glob("*/failed.json")
    assert len(json.loads(written.read_text())["reason"]) <= 2_000
    assert "not counted: " in answer.out
    assert len(list(Path("runs/sweeps/c").glob("*/eval.json"))) == 1


def test_a_process_that_is_killed_fails_alone(here: Path, monkeypatch):
    """As the system kills one that needs too much memory; and the server that starts them."""
    context = multiprocessing.get_context("forkserver")
    starts = iter([EOFError("the server is gone"), None])
    start = context.Process.start

    def failing(process) -> None:
        if (error := next(starts)) is not None:
            raise error
        start(process)

    monkeypatch.setattr(context.Process, "start", failing)
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("max_steps: 6", "max_steps: 9999"))
    lost, doomed = planned(seeds=range(2)).trials
    failures = {}
    for ended in trial.run_here([lost, doomed], 1):
        if doomed.share_done() > 0:
            for process in multiprocessing.active_children():
                process.kill()
        failures |= {each.path: failure for each, failure in ended}
    assert "no process could be started" in failures[lost.path].reason
    assert "exit code -9 (killed; out of memory?)" in failures[doomed.path].reason
    for each in (lost, doomed):
        assert trial.read_failure(each.path) == failures[each.path] and not each.is_done()


def test_as_many_processes_as_asked_and_one_a_core_at_most(here: Path, monkeypatch):
    """One in all where any run is on a GPU."""
    choose = lambda name, *_: torch.device(name)  # noqa: E731  # as if there were a GPU
    monkeypatch.setattr(devices, "choose_device", choose)
    monkeypatch.setattr("toytrans.sweeps.sweep.choose_device", choose)
    monkeypatch.setattr(trial, "usable_cores", lambda: 8)
    for grid in ("device=cpu,cuda", "device=cuda,cpu", "device=cuda"):
        trials = planned(grid, seeds=range(10)).trials
        assert [trial.processes_for(trials, asked) for asked in (None, 3, 99)] == [1, 3, 8]
    trials = planned("device=cpu", seeds=range(10)).trials
    assert [trial.processes_for(trials, asked) for asked in (None, 3, 99)] == [8, 3, 8]


def test_data_files_are_read_once_however_many_trials(here: Path, monkeypatch):
    Path("train.tsv").write_text("1 2\t2 1\n2 1\t1 2\n")
    files = {"train": "train.tsv", "valid": "train.tsv", "test": "train.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}))
    opened, system = [], os.open

    def counting(path, *given, **more):
        opened.append(Path(path).name)
        return system(path, *given, **more)

    monkeypatch.setattr(os, "open", counting)
    counts = []
    for seeds in (1, 20):
        opened.clear()
        planned(seeds=range(seeds))
        counts.append(opened.count("train.tsv"))
    assert counts[0] == counts[1] > 0


def test_a_training_that_still_saves_is_waited_for(here: Path, monkeypatch):
    """As after a kill of the parent alone: its processes save, and only then leave."""
    (each,) = planned().trials
    monkeypatch.setattr(trial, "SECONDS_FOR_LOCK", 0.3)
    each.path.mkdir(parents=True)
    with locked_folder(each.path):
        began = time.monotonic()
        failure = trial.run(each)
        assert time.monotonic() - began >= 0.3
    assert failure is not None and "another training is writing here" in failure.reason
    assert trial.run(each) is None and each.results()


def test_a_sweep_on_ray_ends_like_one_on_this_machine(here: Path, command: Command):
    """Bit for bit, a failure included, and Ray prints nothing."""
    pytest.importorskip("ray")
    words = ("sweep", "c.yaml", "--seeds", "0:0", "--set", "train.lr=1e-3,1e30")
    line = [sys.executable, "-m", "toytrans", *words, "--on", "ray", "--out", "runs/sweeps/ray"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    known = r"[12]/2 train.lr=|written: |runs/sweeps/ray: 2 runs"
    assert [line for line in done.stderr.splitlines() if not re.match(known, line)] == []
    local = command(*words, "--out", "runs/sweeps/local")
    assert local.out.replace("sweeps/local", "sweeps/ray") == done.stdout
    ours, theirs = (
        {path.parts[3:]: load_file(path) for path in Path("runs/sweeps", name).rglob("*.safet*")}
        for name in ("ray", "local")
    )
    assert ours.keys() == theirs.keys() and len(ours) >= 2
    for place, tensors in ours.items():
        assert all(theirs[place][name].equal(tensor) for name, tensor in tensors.items())
