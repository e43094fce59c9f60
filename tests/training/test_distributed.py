"""Several processes: the losses of one, resumed and restarted without a trace, errors told once."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import call, made_once, tensors_of, tiny_yaml, trainer_of
from forked import COMMAND, Ended, Forked

from toytrans.errors import UserError
from toytrans.training.checkpoint import load_checkpoint
from toytrans.training.devices import tune_process
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext, init_distributed
from toytrans.training.run import RunFolder
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


def trainer_in(
    run: Path, context: DistributedContext = SINGLE_PROCESS, **sections: dict
) -> Trainer:
    train = {"max_steps": 6, "eval_every": 6, "log_every": 1, "precision": "fp64"}
    sections["train"] = train | sections.get("train", {})
    sections["data"] = SMALL | sections.get("data", {})
    return trainer_of(run, "reverse", context=context, **sections)


def train_all(folder: Path, context: DistributedContext = SINGLE_PROCESS) -> None:
    for name, sections in SCENARIOS.items():
        list(trainer_in(folder / name, context, **sections).train())


def train_until(trainer: Trainer, step: int, rank: int) -> None:
    """Stop after a step because one process was told to."""
    take_step = trainer._step

    def interrupted(dealt) -> None:
        take_step(dealt)
        trainer.interrupted = trainer.progress.step == step and trainer.context.rank == rank

    trainer._step = interrupted
    list(trainer.train())
    assert trainer.stop_reason == "interrupted" and trainer.progress.step == step


def interrupt_and_resume(folder: Path, context: DistributedContext) -> None:
    list(trainer_in(folder / "dropout", context, **DROPOUT).train())
    train_until(trainer_in(folder / "interrupted", context, **DROPOUT), step=7, rank=1)
    again = trainer_in(folder / "interrupted", context, **DROPOUT)
    assert again.resume() == "resumed at step 7"
    list(again.train())
    train_until(trainer_in(folder / "shrunk", context, **SCENARIOS["fp64"]), step=SHRUNK, rank=1)


def errors(context: DistributedContext) -> dict[str, object]:
    """What this process sees of UserErrors and of unlike values, and what it draws."""

    def fail() -> None:
        raise UserError(f"of {context.rank}")

    def error_of(attempt: Callable[[], object]) -> str:
        with pytest.raises(UserError) as raised:
            attempt()
        return str(raised.value)

    context.seed(0, 7)
    return {
        "first": error_of(lambda: context.on_main(fail)),
        "last": error_of(lambda: context.on_all(fail if context.rank else lambda: None)),
        "unlike": error_of(lambda: context.require_equal(config=1, data=context.rank)),
        "drawn": context.gather(float(torch.rand(()))),
    }


def in_two_processes() -> None:
    """The program of each of two processes; its argument is the folder to write to."""
    place = Path(sys.argv[1])
    tune_process()  # as the command does, whose numbers are to be these
    with init_distributed("cpu") as pair:
        train_all(place, pair)
        interrupt_and_resume(place, pair)
        (place / f"errors-{pair.rank}.json").write_text(json.dumps(errors(pair)))


# What is seen of it ------------------------------------------------------------------------------

# In its first life the second process kills itself in step 10, after a checkpoint and a record.
KILLED = """
import os, signal
from toytrans.cli import main
from toytrans.training.trainer import Trainer

take_step = Trainer._step

def step(self, dealt):
    if self.progress.step == 9 and self.context.rank == 1 and not self.context.restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    take_step(self, dealt)

Trainer._step = step
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
    return [{k: v for k, v in r.items() if k != "elapsed_s"} for r in RunFolder.open(run).records]


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


def test_a_run_goes_on_with_fewer_processes(two, one):
    trainer = trainer_in(two / "shrunk", **SCENARIOS["fp64"])
    assert trainer.resume() == f"resumed at step {SHRUNK}"
    list(trainer.train())
    ours, theirs = RunFolder.open(two / "shrunk").records, RunFolder.open(one / "fp64").records
    assert [record["step"] for record in ours] == list(range(1, STEPS + 1))
    for our, their in zip(ours, theirs, strict=True):
        assert our["target_tokens"] == their["target_tokens"]
        assert our["loss"] == pytest.approx(their["loss"], abs=1e-9)
    assert trainer.progress.pairs_used == load_checkpoint(one / "fp64", STEPS)[0].pairs_used


def test_a_killed_process_is_started_again_and_nothing_shows(two, tmp_path):
    """Under torchrun, which is told to resume."""
    (tmp_path / "killed.py").write_text(KILLED)
    (tmp_path / "c.yaml").write_text((two / "dropout" / "config.yaml").read_text())
    words = "-m torch.distributed.run --nproc-per-node 2 --max-restarts 1 killed.py train c.yaml"
    done = subprocess.run(
        [sys.executable, *words.split(), "--out", "r", "--resume"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "r", two / "dropout")
    lines = done.stderr.splitlines()
    assert lines.count("r: cpu, fp32, 2 processes") == 2, "once a life"
    assert lines.count("resumed at step 8") == 1
    assert sum(line.startswith("toytrans: another process") for line in lines) == 1
    assert done.stdout.count("translations") == 1 and "Traceback" not in done.stderr
    rows = re.findall(r"^ *valid \d+ to \d+ +([\d,]+) ", done.stdout, re.MULTILINE)
    assert rows == [str(SMALL["valid_examples"])], "each pair is measured once"


def test_errors_reach_every_process(two):
    first, second = (json.loads((two / f"errors-{rank}.json").read_text()) for rank in range(2))
    assert first == second, "so that rank 0 can print any of them"
    assert (first["first"], first["last"]) == ("of 0", "rank 1: of 1")
    assert "the same data" in first["unlike"]
    assert first["drawn"][0] != first["drawn"][1], "each draws dropout of its own"


def test_what_all_processes_find_wrong_is_printed_once(tmp_path):
    (tmp_path / "c.yaml").write_text("data: {task: copy}\nfault: batch_mean_of_means")
    for words, said in ((("--confg", "c.yaml"), "No such option"), (("c.yaml",), "in one process")):
        (code, out, err), (other, *silence) = ended(
            started(FAILS_SOON, "train", *words, folder=tmp_path)
        )
        assert code == other == 2 and silence == ["", ""], words
        assert out == "" and err.count(said) == 1, words
    assert not (tmp_path / "runs").exists()


def test_two_machines_that_share_no_folder_go_on_with_a_run(tmp_path):
    """Rank 0 alone has the run, reads it and writes it; nothing appears beside rank 1."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        (folder / "c.yaml").write_text(tiny_yaml(train={"max_steps": 4}))
    words = ("train", "--config", "c.yaml", "--out", "r")
    with contextlib.chdir(folders[0]):
        assert call(*words) == 0
    more = ("--resume", "--set", "train.max_steps=8")
    both = ended(started(FAILS_SOON, *words, *more, folder=folders[0], second=folders[1]))
    assert [code for code, *_ in both] == [0, 0], both
    assert "resumed at step 4" in both[0].err
    assert [record["step"] for record in RunFolder.open(folders[0] / "r").records] == list(
        range(1, 9)
    )
    assert [path.name for path in folders[1].iterdir()] == ["c.yaml"]


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    second = DistributedContext(rank=3, size=4, local=1)
    assert [second.device(name) for name in ("auto", "cpu")] == ["cpu", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [second.device(name) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    with pytest.raises(UserError, match="cuda:0 is one device for 4 processes"):
        second.device("cuda:0")
    assert DistributedContext().device("cuda:0") == "cuda:0"


@pytest.mark.usefixtures("here")
def test_an_environment_that_is_not_torchruns_is_refused(refused, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_MAX_RESTARTS": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert "torchrun --max-restarts: add --resume" in refused("train", "c.yaml")
    monkeypatch.setenv("WORLD_SIZE", "1" * 20)
    assert "torchrun" in refused("train", "c.yaml"), "which sets no such number"
    assert not Path("runs").exists()
