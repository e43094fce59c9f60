"""Pairs of a slow task are computed ahead in worker processes: the same pairs, and no process is
left behind."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Command, config_of, tiny_yaml

from toytrans import user_code
from toytrans.config import Config
from toytrans.data import ahead, open_source
from toytrans.data import batches as batching
from toytrans.data.batches import training_batches
from toytrans.errors import UserError
from toytrans.training.run import read_records

TASK = """\
import os, time

def slow(source):
    open(f"{os.path.dirname(__file__)}/pids/{os.getpid()}", "w").close()
    return source[::-1]

def refuses(source):
    slow(source)
    return source if source[:5] != [1, 2, 3, 4, 5] else [1 / 0]
"""

CONFIG = tiny_yaml(data={"task": "own.py:slow", "train_length": [1, 6]})


@pytest.fixture(autouse=True)
def pids(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file a process that has computed pairs. Pools are small."""
    monkeypatch.setattr(batching, "SMALLEST_POOL", 1)
    (here / "own.py").write_text(TASK)
    (here / "pids").mkdir()
    return here / "pids"


def config(name: str = "slow", **data: object) -> Config:
    made = config_of(f"own.py:{name}", data={"batch_tokens": 256, "train_length": [1, 6], **data})
    user_code.trust(made.references.values())
    return made


def others(pids: Path) -> list[int]:
    return [int(path.name) for path in pids.iterdir() if int(path.name) != os.getpid()]


def until_gone(numbers: list[int]) -> bool:
    """Whether the processes end within a few seconds."""
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{number}") for number in numbers):
            return True
        time.sleep(0.05)
    return False


def batches(made: Config, count: int) -> list[list[list[int]]]:
    """The first batches of three pools and more."""
    stream = training_batches(open_source(made), made)
    taken = [batch for batch, _ in itertools.islice(stream, count)]
    stream.close()
    return [ids.tolist() for batch in taken for ids in batch]


def test_pairs_and_their_order_are_the_same(monkeypatch, pids: Path):
    made = config(train_examples=900)
    monkeypatch.setattr(ahead, "PATIENCE", 1e9)
    alone = batches(made, 100)
    assert not others(pids)
    monkeypatch.setattr(ahead, "PATIENCE", 0.0)
    monkeypatch.setattr(ahead, "worker_count", lambda: 2)
    assert batches(made, 100) == alone
    assert len(others(pids)) == 2, "both workers have computed pairs"
    assert until_gone(others(pids))


def test_losses_are_the_same_bit_for_bit(monkeypatch, command: Command, pids: Path):
    losses = []
    for name, patience in (("alone", 1e9), ("ahead", 0.0)):
        monkeypatch.setattr(ahead, "PATIENCE", patience)
        limits = ("--set", "train.max_steps=100", "--set", "train.eval_every=100")
        assert command("train", "c.yaml", "--out", name, *limits).code == 0
        losses.append([record["loss"] for record in read_records(Path(name))])
    assert losses[0] == losses[1] and others(pids)
    assert until_gone(others(pids))


def test_a_worker_that_dies_is_not_missed(monkeypatch, pids: Path):
    made = config()
    monkeypatch.setattr(ahead, "PATIENCE", 1e9)
    expected = batches(made, 100)
    monkeypatch.setattr(ahead, "PATIENCE", 0.0)
    stream = training_batches(open_source(made), made)
    taken = []
    for batch, _ in itertools.islice(stream, 100):
        taken += [ids.tolist() for ids in batch]
        if len(taken) == 3 * 40:
            for number in others(pids):
                os.kill(number, signal.SIGKILL)
    stream.close()
    assert taken == expected and others(pids)


def test_an_error_in_a_worker_is_the_error_of_the_function(monkeypatch, pids: Path):
    monkeypatch.setattr(ahead, "PATIENCE", 0.0)
    made = config("refuses", train_length=[6, 6])
    with pytest.raises(UserError, match=r"target\(\[1, 2, 3, 4, 5.* raises ZeroDivisionError"):
        batches(made, 2000)
    assert others(pids) and until_gone(others(pids))


def test_fast_functions_have_no_workers(pids: Path):
    source = open_source(config_of())
    assert ahead.seconds_per_pair(source) == 0.0
    stream = ahead.pools_ahead(source, iter([torch.arange(3), torch.arange(2)]), config_of())
    assert [len(pairs) for pairs in stream] == [3, 2]
    assert not others(pids)


def test_no_worker_outlives_a_training_that_is_killed(here: Path, pids: Path):
    slow = TASK.replace("return source[::-1]", "time.sleep(0.002)\n    return source")
    (here / "own.py").write_text(slow)
    sets = ("train.max_steps=9999", "data.train_examples=100", "data.valid_examples=1")
    command = [sys.executable, "-m", "toytrans", "train", "c.yaml"]
    command += [word for setting in sets for word in ("--set", setting)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        for _ in range(600):
            workers = [n for n in others(pids) if n != process.pid]
            if workers:
                break
            time.sleep(0.1)
        process.kill()
    assert workers and until_gone(workers)
