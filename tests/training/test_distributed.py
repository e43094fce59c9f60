"""Several processes: the losses of one, resumed without a trace, errors told once."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from conftest import made_once, tensors_of, tiny_yaml, trainer_of
from forked import COMMAND, Ended, Forked

from toytrans.evaluation import evaluate
from toytrans.training import trainer as trainer_module
from toytrans.training.checkpoint import load_checkpoint
from toytrans.training.devices import tune_process
from toytrans.training.distributed import connect, rank_and_processes
from toytrans.training.run import Run
from toytrans.training.trainer import Trainer

HERE = Path(__file__).parent
FAILS_SOON = f"from toytrans.cli import terminal; terminal.SECONDS_FOR_REPORTER = 0.5; {COMMAND}"
"""The command, whose silent process does not wait long for the one that prints the error."""

IN_TWO = "from test_distributed import in_two_processes; in_two_processes()"

# What one process and two train ----------------------------------------------------------------

SMALL = {"batch_tokens": 256, "train_length": [1, 8], "valid_examples": 51}
STEPS, SHRUNK = 12, 5
"""Of the longer scenarios, and after how many of them one process goes on alone."""

SCENARIOS: dict[str, dict] = {
    "fp64": {"train": {"max_steps": STEPS, "eval_every": 8}},
    "few rows": {"data": SMALL | {"batch_tokens": 20, "valid_examples": 1}},
    "accumulated": {"train": {"accumulate": 2}},
}
"""Under which one process and two have the same losses."""

DROPOUT = {
    "model": {"dropout": 0.2},
    "train": {"max_steps": STEPS, "eval_every": 4, "log_every": 3, "precision": "fp32"},
}


def trainer_in(run: Path, **sections: dict) -> Trainer:
    train = {"max_steps": 6, "eval_every": 6, "log_every": 1, "precision": "fp64"}
    sections["train"] = train | sections.get("train", {})
    sections["data"] = SMALL | sections.get("data", {})
    return trainer_of(run, "reverse", **sections)


def train_all(folder: Path) -> None:
    for name, sections in SCENARIOS.items():
        list(trainer_in(folder / name, **sections).train())


def train_until(trainer: Trainer, step: int, rank: int) -> None:
    """Stop after a step because one process was told to."""
    take_step = trainer.take_step

    def interrupted(dealt):
        take_step(dealt)
        if trainer.progress.step == step and rank_and_processes()[0] == rank:
            trainer.stop()

    trainer.take_step = interrupted
    list(trainer.train())
    assert trainer.stop_reason == "interrupted" and trainer.progress.step == step


def interrupt_and_resume(folder: Path) -> None:
    list(trainer_in(folder / "dropout", **DROPOUT).train())
    train_until(trainer_in(folder / "interrupted", **DROPOUT), step=7, rank=1)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # the first process has saved
    again = trainer_in(folder / "interrupted", **DROPOUT)
    again.resume(folder / "interrupted")
    assert again.progress.step == 7
    list(again.train())
    train_until(trainer_in(folder / "shrunk", **SCENARIOS["fp64"]), step=SHRUNK, rank=1)


def evaluate_for_long(run: Path) -> None:
    """Train for few of the seconds that are allowed, with one evaluation that takes more."""
    train = {"max_steps": 4, "eval_every": 2, "max_seconds": 2.0}
    trainer = trainer_in(run, train=train)

    def evaluate_slowly(*given):
        if trainer.progress.step == 2:
            time.sleep(2.5)
        return evaluate(*given)

    with patch.object(trainer_module, "evaluate", evaluate_slowly):
        list(trainer.train())
    seconds = trainer.progress
    assert seconds.elapsed_s < 2.0 < 2.5 <= seconds.evaluation_s
    assert trainer.stop_reason == "max_steps" and seconds.step == 4


def in_two_processes() -> None:
    """The program of each of two processes; its argument is the folder to write to."""
    folder = Path(sys.argv[1])
    tune_process()  # as the command does, whose numbers are to be these
    with connect("cpu"):
        train_all(folder)
        interrupt_and_resume(folder)
        evaluate_for_long(folder / "evaluated for long")


# What is seen of it ------------------------------------------------------------------------------

# The second process kills itself in step 10, after a checkpoint and a record.
KILLED = """
import os, signal
from toytrans.cli import main
from toytrans.training.distributed import rank_and_processes
from toytrans.training.trainer import Trainer

take_step = Trainer.take_step

def step(self, dealt):
    if self.progress.step == 9 and rank_and_processes()[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    take_step(self, dealt)

Trainer.take_step = step
main()
"""


def environment(rank: int, port: int) -> dict[str, str]:
    """As torchrun sets it for one of two processes, without its store."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": HERE.parent}
    return os.environ | {name: str(value) for name, value in names.items()}


def started(code: str, *words: str, folder: Path, second: Path | None = None) -> list[Forked]:
    """A program in two processes. second: the folder of the second, if it is another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folders = (folder, second or folder)
    return [
        Forked(code, *words, folder=folder, environment=environment(rank, port))
        for rank, folder in enumerate(folders)
    ]


def ended(processes: list[Forked]) -> list[Ended]:
    return [process.ended() for process in processes]


@pytest.fixture(scope="session")
def two(tmp_path_factory) -> Path:
    """Every scenario, trained by two processes."""

    def train(folder: Path) -> None:
        for code, _, err in ended(started(IN_TWO, str(folder), folder=HERE)):
            assert code == 0, err

    return made_once(tmp_path_factory, "two", train)


@pytest.fixture(scope="session")
def one(tmp_path_factory) -> Path:
    return made_once(tmp_path_factory, "one", train_all)


def without_time(run: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.endswith("_s")} for r in Run.open(run).records]


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_have_the_losses_of_one(one, two, name):
    ours, theirs = without_time(two / name), without_time(one / name)
    steps = STEPS if name == "fp64" else len(theirs)
    assert len(ours) == len(theirs) == steps >= 2
    exact = ("step", "lr", "padding", "target_tokens")
    for our, their in zip(ours, theirs, strict=True):
        assert [our[key] for key in exact] == [their[key] for key in exact]
        assert our.keys() == their.keys()
        for key in our.keys() - set(exact):
            assert our[key] == pytest.approx(their[key], abs=1e-9, rel=1e-9), key
    assert any("valid_loss" in our for our in ours)
    last = theirs[-1]["step"]
    mine, other = (load_checkpoint(folder / name, last)[0] for folder in (two, one))
    assert mine.pairs_used == other.pairs_used > 0


def assert_same(ours: Path, theirs: Path) -> None:
    """Weights, moments and random states bit for bit, and the records."""
    assert tensors_of(ours, STEPS) == tensors_of(theirs, STEPS)
    assert without_time(ours) == without_time(theirs)


def test_a_signal_to_one_process_stops_all_and_nothing_shows_after_resuming(two):
    assert_same(two / "interrupted", two / "dropout")


def test_no_process_counts_the_evaluation_as_training(two):
    """A process that did would stop them all, for want of time; each looks at its own seconds."""
    steps = [record["step"] for record in Run.open(two / "evaluated for long").records]
    assert steps == [1, 2, 3, 4]


def test_a_run_goes_on_with_fewer_processes(two, one):
    trainer = trainer_in(two / "shrunk", **SCENARIOS["fp64"])
    trainer.resume(two / "shrunk")
    assert trainer.progress.step == SHRUNK
    list(trainer.train())
    ours, theirs = Run.open(two / "shrunk").records, Run.open(one / "fp64").records
    assert [record["step"] for record in ours] == list(range(1, STEPS + 1))
    for our, their in zip(ours, theirs, strict=True):
        assert our["target_tokens"] == their["target_tokens"]
        assert our["loss"] == pytest.approx(their["loss"], abs=1e-9)
    assert trainer.progress.pairs_used == load_checkpoint(one / "fp64", STEPS)[0].pairs_used


def test_a_killed_process_ends_the_others_in_one_line_and_nothing_shows_after_resuming(
    two, tmp_path
):
    (tmp_path / "c.yaml").write_text((two / "dropout" / "config.yaml").read_text())
    words = ("train", "c.yaml", "--out", "r")
    first, second = ended(started(KILLED, *words, folder=tmp_path))
    assert (first.code, second.code) == (2, -signal.SIGKILL), first.err
    assert first.err.splitlines()[-1].startswith("toytrans: another process of this training has")
    assert "--resume" in first.err and "Traceback" not in first.err + second.err
    both = ended(started(FAILS_SOON, *words, "--resume", folder=tmp_path))
    assert [code for code, *_ in both] == [0, 0], both
    assert_same(tmp_path / "r", two / "dropout")
    (_, out, err), (_, *silence) = both
    assert "r: cpu, fp32, 2 processes\n" in err and err.count("resumed at step 8") == 1
    assert out.count("translations") == 1 and silence == ["", ""]
    rows = re.findall(r"^ *valid \d+ to \d+ +([\d,]+) ", out, re.MULTILINE)
    assert rows == [str(SMALL["valid_examples"])], "each pair is measured once"


OWN = """
from torch import nn

class Spoilt(nn.Module):
    def __init__(self, config, vocabulary_size):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, 8)
        self.output = nn.Linear(8, vocabulary_size)

    def forward(self, src, tgt_in):
        logits = self.output(self.tokens(tgt_in))
        return logits if self.training else logits * float("nan")
"""


def test_divergence_that_the_first_process_alone_measures_ends_all(tmp_path):
    """Its validation loss is no number; what the processes train on is fine."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "c.yaml").write_text(tiny_yaml(model={"class": "own.py:Spoilt"}))
    both = ended(started(FAILS_SOON, "train", "c.yaml", "--out", "r", folder=tmp_path))
    assert [code for code, *_ in both] == [1, 1], both
    (_, _, err), (_, *silence) = both
    assert "diverged: the validation loss is not finite by step 2" in err.splitlines()[-1]
    assert silence == ["", ""]
    assert [record["step"] for record in Run.open(tmp_path / "r").records] == [1, 2]


def test_torchrun_starts_the_processes(tmp_path):
    (tmp_path / "c.yaml").write_text(tiny_yaml())
    words = "-m torch.distributed.run --nproc-per-node 2 -m toytrans train c.yaml --out r"
    done = subprocess.run(
        [sys.executable, *words.split()], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("r: cpu, fp32, 2 processes") == 1
    assert [record["step"] for record in Run.open(tmp_path / "r").records] == [1, 2, 3, 4, 5, 6]


def test_what_all_processes_find_wrong_is_printed_once(tmp_path):
    (tmp_path / "c.yaml").write_text("data: {task: copy}\nfault: batch_mean_of_means")
    for words, said in ((("--confg", "c.yaml"), "no such option"), (("c.yaml",), "in one process")):
        (code, out, err), (other, *silence) = ended(
            started(FAILS_SOON, "train", *words, folder=tmp_path)
        )
        assert code == other == 2 and silence == ["", ""], words
        assert out == "" and err.count(said) == 1, words
    assert not (tmp_path / "runs").exists()


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)

    def device_of(name: str) -> str:
        with connect(name) as device:
            return device

    assert [device_of(name) for name in ("auto", "cpu")] == ["auto", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [device_of(name) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
