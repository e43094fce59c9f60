"""The folder of a run: its name, what is refused, what stays, and who may write there."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml
from forked import COMMAND, Forked

import toytrans
from toytrans.config.load import load_config
from toytrans.errors import UserError
from toytrans.training.checkpoint import saved_steps
from toytrans.training.run import state_of
from toytrans.training.session import open_session

TRAIN = ("train", "--config", "c.yaml")
RESUME = (*TRAIN, "--resume")
LONGER = (*RESUME, "--set", "train.max_steps=14")

Refused = Callable[..., str]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def steps_of(run: Path) -> list[int]:
    """The steps in metrics.jsonl, line by line."""
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


# Which folder it is ------------------------------------------------------------------------------


@pytest.mark.usefixtures("run")
def test_runs_are_named_after_their_config_and_counted(command: Command):
    for expected in ("c-2", "c-3"):
        assert f"runs/{expected}: cpu, fp32" in command(*TRAIN).err
    assert sorted(os.listdir("runs")) == ["c", "c-2", "c-3"]
    assert "runs/c-3" in command("eval").out, "the newest run is taken"
    command(*RESUME, "--out", "runs/c-2", "--set", "train.max_steps=7")
    assert "runs/c-2, step" in command("eval").out, "the one written to last"
    assert "resumed at step 6" in command(*RESUME).err, "the last of this config"
    shutil.rmtree("runs/c-2/checkpoints")
    assert "runs/c-3, step" in command("eval").out, "a run without a checkpoint is not taken"


@pytest.mark.usefixtures("here")
def test_a_config_takes_no_run_of_another_config(command: Command):
    """exp-2.yaml's first run has the name that exp.yaml's second would have."""
    for name in ("exp.yaml", "exp-2.yaml"):
        Path(name).write_text(tiny_yaml(train={"max_steps": 0}))
    assert command("train", "exp-2.yaml").code == 0
    before = contents(Path("runs/exp-2"))
    assert "runs/exp-3: " in command("train", "exp.yaml").err, "a free name"
    assert "runs/exp-3: " in command("train", "exp.yaml", "--resume").err
    assert contents(Path("runs/exp-2")) == before


@pytest.mark.usefixtures("here")
def test_trainings_at_once_take_folders_of_their_own():
    both = [Forked(COMMAND, *TRAIN) for _ in range(2)]
    assert [process.ended().code for process in both] == [0, 0]
    assert sorted(os.listdir("runs")) == ["c", "c-2"]
    assert [steps_of(Path("runs", name)) for name in ("c", "c-2")] == [[1, 2, 3, 4, 5, 6]] * 2


# What stays --------------------------------------------------------------------------------------


def test_a_run_is_never_replaced_and_a_refused_command_changes_nothing(run: Path, refused: Refused):
    before = contents(run), sorted(Path.cwd().rglob("*"))
    message = refused(*TRAIN, "--out", "runs/c", "--set", "seed=1")
    assert "runs/c: holds a run; resume it with --resume" in message
    assert "or name another --out" in message
    with pytest.raises(toytrans.UserError, match="runs/c: holds a run"):
        toytrans.train("c.yaml", "runs/c", seed=1)
    assert "--out: empty" in refused(*RESUME, "--out", "")
    for bad in (("--set", "train.lr=much"), ("--set", "train.lr=0.5"), ("--device", "cuda:77")):
        refused(*RESUME, *bad)
    refused(*TRAIN, "--out", "new", "--device", "cuda:77")
    assert (contents(run), sorted(Path.cwd().rglob("*"))) == before


@pytest.mark.parametrize(
    "files",
    [
        {"chapter.txt": "two years of work"},
        {"config.yaml": "data: {task: copy}", "data.json": '{"posts": []}'},
        {"metrics.jsonl": '{"step": 1}\n'},
        {"metrics.jsonl": "", "notes.txt": "mine"},
        {"metrics.jsonl": "", "config.yaml": "mine"},
    ],
)
def test_a_folder_that_holds_something_else_is_left_alone(here: Path, refused: Refused, files):
    (here / "mine").mkdir()
    for name, text in files.items():
        (here / "mine" / name).write_text(text)
    before = contents(here / "mine")
    for command in (TRAIN, RESUME):
        assert "mine" in refused(*command, "--out", "mine")
    assert contents(here / "mine") == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "left",
    [
        (),
        ("metrics.jsonl", "data.json"),
        ("metrics.jsonl", "data.json", "environment.json", "config.yaml"),
    ],
)
def test_a_training_killed_before_it_was_described_starts_again(command: Command, left):
    Path("r").mkdir()
    for name in left:
        Path("r", name).touch()
    answer = command(*RESUME, "--out", "r")
    assert answer.code == 0 and "starting at step 0" in answer.err
    assert steps_of(Path("r")) == [1, 2, 3, 4, 5, 6]


NAMES = (
    "config.yaml",
    "resolved.yaml",
    "data.json",
    "environment.json",
    "metrics.jsonl",
    "checkpoints.json",
)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "link") for name in NAMES), ("metrics.jsonl", "pipe")]
)
def test_nothing_is_written_through_a_link_or_a_pipe(run: Path, command: Command, name, kind):
    before = Path("diary").write_bytes((run / name).read_bytes())
    (run / name).unlink()
    os.mkfifo(run / name) if kind == "pipe" else (run / name).symlink_to("../../diary")
    others = contents(run)
    answer = command(*LONGER)
    assert answer.code == 2, answer.err
    assert name in answer.err or "not a run directory" in answer.err
    assert Path("diary").stat().st_size == before and contents(run) == others
    assert command("runs", ".").code == 0


def test_checkpoints_may_lie_on_another_disk_that_is_mounted(
    run: Path, command: Command, refused: Refused
):
    (run / "checkpoints").rename("disk")
    (run / "checkpoints").symlink_to("../../not-mounted")
    before = contents(run)
    said = refused(*LONGER)
    assert "runs/c/checkpoints: holds none of the" in said and "put it back" in said
    assert contents(run) == before
    Path("disk").rename("not-mounted")
    assert command(*LONGER).code == 0
    assert saved_steps(run)[-2:] == [12, 14]


# Who may write -----------------------------------------------------------------------------------


def test_of_two_trainings_one_is_refused_until_the_other_is_gone(run: Path, command: Command):
    """However that went: kill -9 is the harshest. Readers do not mind, and stop no training."""
    both = [Forked(COMMAND, *RESUME, "--set", "train.max_steps=1000000") for _ in range(2)]
    deadline = time.monotonic() + 60
    while all(each.process.is_alive() for each in both) and time.monotonic() < deadline:
        time.sleep(0.05)
    winner, loser = sorted(both, key=lambda each: not each.process.is_alive())
    refused = loser.ended()
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
    assert "runs/c: another training is writing here" in refused.err
    while b'"step": 40,' not in (run / "metrics.jsonl").read_bytes():
        assert winner.process.is_alive() and time.monotonic() < deadline
        assert state_of(run).state == "being written"
    assert command("eval").code == 0
    winner.process.kill()
    assert winner.ended().code == -9
    steps, saved = steps_of(run), saved_steps(run)[-1]
    assert steps == list(range(1, steps[-1] + 1)), "each record once"
    answer = command(*RESUME, "--set", f"train.max_steps={saved + 2}")
    assert answer.code == 0 and f"resumed at step {saved}" in answer.err
    assert state_of(run).state == "finished"


def test_a_run_that_is_moved_while_it_trains_writes_to_no_other(run: Path):
    before = contents(run)
    shutil.copytree(run, "copy")
    config = load_config(Path("c.yaml"), ["train.max_steps=14"])
    session = open_session(config, "c", run, True, str)
    with pytest.raises(UserError, match="moved or replaced"), session as trainer:
        for record in trainer.train():
            if record["step"] == 8:
                run.rename("away")
                Path("copy").rename(run)
    assert contents(run) == before
    assert steps_of(Path("away"))[-1] == 8


def test_a_system_without_locks_says_so_and_trains(run: Path, command: Command, monkeypatch):
    def no_lock(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    assert "file locks" not in command(*RESUME).err
    for name, value in (("fcntl.fcntl", no_lock), ("fcntl", None)):
        monkeypatch.setattr(f"toytrans.training.folder.{name}", value)
        answer = command(*RESUME)
        assert answer.code == 0 and "runs/c: no file locks here" in answer.err
        assert command("runs", ".").code == 0
