"""Trials of a sweep that fail, are too many, or read a lot: each costs no more than itself."""

import json
import os
from pathlib import Path

import pytest
import torch
from conftest import Command, tiny_yaml

from toytrans.sweeps import processes
from toytrans.training import devices

LOUD = """\
import multiprocessing
def f(source):
    if multiprocessing.parent_process():
        raise type("Loud" * 100_000, (Exception,), {})
    return source[::-1]
def g(source):
    return source[::-1]
"""
"""A task that fails in the process of a trial alone, where the sweep has been checked already."""


def test_a_very_long_error_costs_its_own_trial_alone(here: Path, command: Command):
    Path("own.py").write_text(LOUD)
    answer = command("sweep", "c.yaml", "--set", "data.task=own.py:f,own.py:g")
    assert answer.code == 1, answer.err
    (failed,) = (line for line in answer.err.splitlines() if "failed: " in line)
    assert "raises LoudLoud" in failed and len(failed) < 2_500
    groups = json.loads(Path("results/sweeps/c.json").read_text())["groups"]
    assert [bool(group["runs"][0]["trouble"]) for group in groups] == [True, False]
    assert "0 of 1" in answer.out and "raises LoudLoud" in answer.out


def at_once(command: Command, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """How many processes a sweep would run at once, and what it says."""
    asked = []

    def run_trials(trials, number):
        asked.append(number)
        return (each for each in ())

    monkeypatch.setattr(processes, "run_trials", run_trials)
    answer = command("sweep", "c.yaml", *words)
    return asked[0], answer.err


def test_no_more_runs_at_once_than_cores(here: Path, command: Command, monkeypatch):
    cores = len(os.sched_getaffinity(0))
    number, said = at_once(command, monkeypatch, "--seeds", "0:99", "--jobs", "10000")
    assert number == cores
    assert f"--jobs 10000: {cores} at once, one a core\n" in said
    number, said = at_once(command, monkeypatch, "--seeds", "0:99", "--jobs", "1")
    assert number == 1 and "--jobs" not in said


@pytest.mark.parametrize("grid", ["device=cpu,cuda", "device=cuda,cpu", "device=cuda"])
def test_one_run_at_once_where_any_is_on_a_gpu(grid, here: Path, command: Command, monkeypatch):
    choose = lambda name, *_: torch.device(name)  # noqa: E731  # as if there were a GPU
    monkeypatch.setattr(devices, "choose_device", choose)
    monkeypatch.setattr("toytrans.sweeps.grid.choose_device", choose)
    monkeypatch.setattr("toytrans.sweeps.processes.usable_cores", lambda: 8)
    assert at_once(command, monkeypatch, "--seeds", "0:9", "--set", grid)[0] == 1
    assert at_once(command, monkeypatch, "--seeds", "0:9", "--jobs", "3", "--set", grid)[0] == 3
    assert at_once(command, monkeypatch, "--seeds", "0:9", "--set", "device=cpu")[0] == 8


def test_data_files_are_read_once_however_many_trials(here: Path, refused, monkeypatch):
    Path("train.tsv").write_text("1 2\t2 1\n2 1\t1 2\n")
    files = {"train": "train.tsv", "valid": "train.tsv", "test": "train.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}))
    Path("results/sweeps").mkdir(parents=True)
    about = {"sweep": "c", "folder": "elsewhere/c"}  # refused once the sweep is planned
    Path("results/sweeps/c.json").write_text(json.dumps(about))
    opened, system = [], os.open

    def counting(path, *given, **more):
        opened.append(Path(path).name)
        return system(path, *given, **more)

    monkeypatch.setattr(os, "open", counting)
    counts = []
    for seeds in ("0:0", "0:19"):
        opened.clear()
        assert "another sweep" in refused("sweep", "c.yaml", "--seeds", seeds)
        counts.append(opened.count("train.tsv"))
    assert counts[0] == counts[1] > 0
