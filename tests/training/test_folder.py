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


@pytest.mark.usefixtures("run")
def test_runs_are_named_after_their_config_and_counted(command: Command):
    for expected in ("c-2", "c-3"):
        assert f"runs/{expected}: cpu, fp32" in command(*TRAIN).err
    assert sorted(os.listdir("runs")) == ["c", "c-2", "c-3"]
    assert "runs/c-3" in command("eval").out, "the newest run is taken"
    command(*TRAIN, "--resume", "--out", "runs/c-2", "--set", "train.max_steps=7")
    assert "runs/c-2, step" in command("eval").out, "the one written to last"
    assert "resumed at step 6" in command(*TRAIN, "--resume").err, "the last of this config"
    for path in Path("runs/c-2/checkpoints").iterdir():
        path.unlink()
    assert "runs/c-3, step" in command("eval").out, "a run without a checkpoint is not taken"


@pytest.mark.usefixtures("here")
def test_a_config_takes_no_run_of_another_config(command: Command):
    """exp-2.yaml's first run has the name that exp.yaml's second would have."""
    for name in ("exp.yaml", "exp-2.yaml"):
        Path(name).write_text(tiny_yaml())
    untrained = ("--set", "train.max_steps=0")
    assert command("train", "--config", "exp-2.yaml", *untrained).code == 0
    before = contents(Path("runs/exp-2"))
    first = command("train", "--config", "exp.yaml", *untrained)
    assert "runs/exp-3: " in first.err, "a free name"
    answer = command("train", "--config", "exp.yaml", *untrained, "--resume")
    assert answer.code == 0 and "runs/exp-3: " in answer.err
    assert contents(Path("runs/exp-2")) == before


@pytest.mark.usefixtures("here")
def test_trainings_at_once_take_folders_of_their_own():
    """Of two that are given the same, one is refused."""
    both = [Forked(COMMAND, *TRAIN) for _ in range(2)]
    assert [process.ended().code for process in both] == [0, 0]
    assert sorted(os.listdir("runs")) == ["c", "c-2"]
    assert [steps_of(Path("runs", name)) for name in ("c", "c-2")] == [[1, 2, 3, 4, 5, 6]] * 2
    both = [Forked(COMMAND, *TRAIN, "--out", "new") for _ in range(2)]
    (code, *_), (other, _, err) = sorted(process.ended() for process in both)
    assert (code, other) == (0, 2) and err.count("\n") == 1
    assert err.startswith("toytrans: new: "), "its words depend on the moment of the refusal"
    assert steps_of(Path("new")) == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("here")
def test_a_folder_that_cannot_be_made_is_told(refused: Refused):
    """One on a disk that is not mounted, say."""
    Path("away").symlink_to("/not/mounted")
    assert "cannot be made (away: File exists)" in refused(*TRAIN, "--out", "away/run")
    assert "File name too long" in refused(*TRAIN, "--out", "x" * 256)


def test_a_run_is_never_replaced(run: Path, refused: Refused):
    before = contents(run)
    message = refused(*TRAIN, "--out", "runs/c", "--set", "seed=1")
    assert "runs/c: holds a run; resume it with --resume" in message
    assert "or name another --out" in message
    with pytest.raises(toytrans.UserError, match="runs/c: holds a run"):
        toytrans.train("c.yaml", "runs/c", seed=1)
    assert "--out: empty" in refused(*TRAIN, "--out", "", "--resume")
    assert contents(run) == before


@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize(
    "files",
    [
        {"chapter.txt": "two years of work"},
        {"config.yaml": "data: {task: copy}", "data.json": '{"posts": []}'},
        {"metrics.jsonl": '{"step": 1}\n'},
        {"metrics.jsonl": "", "notes.txt": "mine"},
    ],
)
def test_a_folder_that_holds_something_else_is_left_alone(
    here: Path, refused: Refused, files: dict[str, str], more: tuple[str, ...]
):
    (here / "mine").mkdir()
    for name, text in files.items():
        (here / "mine" / name).write_text(text)
    before = contents(here / "mine")
    assert "mine" in refused(*TRAIN, "--out", "mine", *more)
    assert contents(here / "mine") == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("left", [(), ("metrics.jsonl", "data.json")])
def test_a_training_killed_before_its_config_was_written_starts_again(
    command: Command, left: tuple[str, ...]
):
    Path("r").mkdir()
    for name in left:
        Path("r", name).touch()
    answer = command(*TRAIN, "--out", "r", "--resume")
    assert answer.code == 0 and "starting at step 0" in answer.err
    assert steps_of(Path("r")) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("bad", [("--set", "train.lr=much"), ("--device", "cuda:77")])
def test_a_refused_command_changes_nothing(run: Path, refused: Refused, bad: tuple[str, ...]):
    before = contents(run), sorted(Path.cwd().rglob("*"))
    refused(*RESUME, *bad)
    refused(*RESUME, "--set", "train.lr=0.5")
    refused(*TRAIN, "--out", "new", *bad)
    assert (contents(run), sorted(Path.cwd().rglob("*"))) == before


NAMES = ("config.yaml", "data.json", "environment.json", "metrics.jsonl", "checkpoints.json")


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("make", ["link", "pipe"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_through_a_link_or_a_pipe(
    run: Path, command: Command, name: str, make: str
):
    before = Path("diary").write_bytes((run / name).read_bytes())
    (run / name).unlink()
    if make == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("../../diary")
    others = contents(run)
    answer = command(*LONGER)
    assert answer.code == 2, answer.err
    assert name in answer.err or "not a run directory" in answer.err
    assert Path("diary").stat().st_size == before and contents(run) == others
    assert command("runs", ".").code == 0


@pytest.mark.parametrize("how", ["a link to nothing", "emptied"])
def test_a_resume_without_its_checkpoints_changes_nothing(run: Path, refused: Refused, how: str):
    """Say on a disk that is not mounted."""
    (run / "checkpoints").rename("disk")
    if how == "emptied":
        (run / "checkpoints").mkdir()
    else:
        (run / "checkpoints").symlink_to("/not/mounted")
    before = contents(run)
    said = refused(*LONGER)
    assert "runs/c/checkpoints: holds none of the" in said and "put it back" in said
    assert contents(run) == before


def test_checkpoints_may_lie_on_another_disk(run: Path, command: Command):
    (run / "checkpoints").rename("disk")
    (run / "checkpoints").symlink_to("../../disk")
    assert command(*LONGER).code == 0
    assert saved_steps(run)[-2:] == [12, 14]


HOLDS = """
import time; from pathlib import Path
from toytrans.training.folder import locked_folder
with locked_folder(Path("runs/c")): Path("locked").touch(); time.sleep(60)
"""


def test_a_second_training_is_refused_until_the_first_is_gone(run: Path, command: Command):
    """However it went: kill -9 is the harshest. Readers do not mind."""
    first = Forked(HOLDS)
    while not Path("locked").exists():
        assert first.process.is_alive()
        time.sleep(0.01)
    before = contents(run)
    answer = command(*LONGER)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "runs/c: another training is writing here" in answer.err
    assert command("eval").code == 0
    assert "being written" in command("runs", ".", "--json").out
    assert contents(run) == before
    first.process.kill()
    assert first.ended().code == -9
    assert command(*LONGER).code == 0
    assert "finished" in command("runs", ".", "--json").out


def test_of_two_resumes_at_once_one_is_refused_and_nothing_is_lost(run: Path):
    both = [Forked(COMMAND, *RESUME, "--set", "train.max_steps=1000000") for _ in range(2)]
    deadline = time.monotonic() + 60
    while all(each.process.is_alive() for each in both) and time.monotonic() < deadline:
        time.sleep(0.05)
    winner, loser = sorted(both, key=lambda each: not each.process.is_alive())
    refused = loser.ended()
    assert refused.code == 2 and refused.err.count("\n") == 1, refused.err
    while b'"step": 40,' not in (run / "metrics.jsonl").read_bytes():
        assert winner.process.is_alive() and time.monotonic() < deadline
        assert state_of(run).state == "being written"  # which stops no training
    winner.process.terminate()
    assert winner.ended().code == 143
    steps = steps_of(run)
    assert steps == list(range(1, steps[-1] + 1)), "each record once"
    assert saved_steps(run)[-1] >= steps[-1], "the winner has saved"


def test_a_run_that_is_moved_while_it_trains_writes_to_no_other(run: Path):
    before = contents(run)
    shutil.copytree(run, "copy")
    config = load_config(Path("c.yaml"), ["train.max_steps=14"])
    session = open_session(config, "c", run, True, str, second="raises")
    with pytest.raises(UserError, match="moved or replaced"), session as trainer:
        for record in trainer.train():
            if record["step"] == 8:
                run.rename("away")
                Path("copy").rename(run)
    assert contents(run) == before
    assert steps_of(Path("away"))[-1] == 8


def test_a_system_without_locks_says_so_and_trains(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    def no_lock(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    assert "file locks" not in command(*RESUME).err
    for name, value in (("fcntl.fcntl", no_lock), ("fcntl", None)):
        monkeypatch.setattr(f"toytrans.training.lock.{name}", value)
        answer = command(*RESUME)
        assert answer.code == 0 and "runs/c: no file locks here" in answer.err
        assert command("runs", ".").code == 0
