"""The folder of a run: its name, what is refused, what is kept, and who may write there."""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml, trained_run
from forked import COMMAND, Forked

import toytrans

CONFIG = tiny_yaml(train={"log_every": 2})
TRAIN = ("train", "--config", "c.yaml")
LONGER = (*TRAIN, "--out", "run", "--resume", "--set", "train.max_steps=14")
ENDLESS = ("--set", "train.max_steps=1000000")

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory, CONFIG)


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    """A run of six steps in the working directory."""
    return Path(shutil.copytree(trained, "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def steps_of(run: Path) -> list[int]:
    """The steps of the records."""
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


# Names ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_runs_are_named_after_their_config_and_counted(command: Command):
    for expected in ("c", "c-2", "c-3"):
        assert f"runs/{expected}: cpu, fp32" in command(*TRAIN).err
    assert sorted(os.listdir("runs")) == ["c", "c-2", "c-3"]
    assert "runs/c-3" in command("eval").out, "the newest run is taken"
    command(*TRAIN, "--resume", "--out", "runs/c-2", "--set", "train.max_steps=7")
    assert "runs/c-2, step" in command("eval").out, "the one written to last"
    assert "resumed at step 6" in command(*TRAIN, "--resume").err, "the last of this config"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("length", [250, 255, 256, 5000])
@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_name_as_long_as_a_disk_takes_is_a_run_and_a_longer_one_refused(
    command: Command, length: int, more: tuple[str, ...]
):
    answer = command(*TRAIN, "--out", "x" * length, *more)
    if length <= 255:
        assert answer.code == 0 and command("eval", "x" * length).code == 0
    else:
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
        assert "File name too long" in answer.err and "name another --out" in answer.err


@pytest.mark.usefixtures("here")
def test_two_trainings_at_once_take_two_folders():
    both = [Forked(COMMAND, *TRAIN) for _ in range(2)]
    assert [process.ended().code for process in both] == [0, 0]
    assert sorted(os.listdir("runs")) == ["c", "c-2"]
    assert [steps_of(Path("runs", name)) for name in ("c", "c-2")] == [[2, 4, 6]] * 2


# What is there stays -------------------------------------------------------------------------


def test_a_run_is_never_replaced(run: Path, refused: Refused, command: Command):
    before = contents(run)
    message = refused(*TRAIN, "--out", "run", "--set", "seed=1")
    assert "run: holds a run; go on with --resume" in message and "name another --out" in message
    with pytest.raises(toytrans.UserError, match="run: holds a run"):
        toytrans.train("c.yaml", "run", seed=1)
    assert command(*TRAIN, "--out", "run", "--overwrite", "--set", "seed=1").code == 2
    with pytest.raises(TypeError):
        toytrans.train("c.yaml", "run", seed=1, overwrite=True)  # type: ignore[call-arg]
    assert contents(run) == before


@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize(
    "files",
    [
        {"chapter.txt": "two years of work"},
        {"config.yaml": "site: blog"},
        {"config.yaml": "data: {task: copy}", "data.json": '{"posts": []}'},
        {"data.json": "{}", "checkpoints/step-3/checkpoint.json": "{}"},
        {".toytrans-lock": "", "sweep.json": "{}", "c-123/config.yaml": "seed: 1"},
        {".toytrans-lock": "", "sweep.json": "{}"},
        {".toytrans-lock": "", "config.yaml": "- 1", "data.json": "[]"},
    ],
)
def test_a_folder_that_holds_something_else_is_left_alone(
    here: Path, refused: Refused, files: dict[str, str], more: tuple[str, ...]
):
    for name, text in files.items():
        (here / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "mine" / name).write_text(text)
    before = contents(here / "mine")
    assert "mine" in refused(*TRAIN, "--out", "mine", *more)
    assert contents(here / "mine") == before


@pytest.mark.parametrize(
    "bad",
    [
        ("--set", "train.lr=0.5"),
        ("--set", "train.lr=much"),
        ("--device", "cuda:77"),
        ("--break", "nothing"),
        ("--log-to", "paper"),
        ("--set", "data.task=reverse"),
    ],
)
def test_a_refused_command_changes_nothing(run: Path, refused: Refused, bad: tuple[str, ...]):
    """Nor does it clean up what looks like an older training's."""
    shutil.copytree(run, run / ".replaced")
    (run / "checkpoints/.step-9").mkdir()
    before = contents(run), sorted(run.rglob("*"))
    refused(*TRAIN, "--out", "run", "--resume", *bad)
    refused(*TRAIN, "--out", "run", *bad)
    assert (contents(run), sorted(run.rglob("*"))) == before


def test_a_resume_deletes_nothing_but_checkpoints_of_its_record(run: Path, command: Command):
    shutil.copytree(run, run / ".replaced")
    before = contents(run / ".replaced")
    assert command(*LONGER).code == 0
    assert contents(run / ".replaced") == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("left", [(".toytrans-lock",), (".toytrans-lock", "data.json")])
def test_a_training_killed_before_its_config_was_written_starts_again(
    trained: Path, command: Command, left: tuple[str, ...]
):
    Path("r").mkdir()
    for name in left:
        shutil.copy(trained / name, "r")
    if len(left) > 1:
        answer = command(*TRAIN, "--out", "r")
        assert answer.code == 2 and "r: holds a run; go on with --resume" in answer.err
    answer = command(*TRAIN, "--out", "r", "--resume")
    assert answer.code == 0 and "starting at step 0" in answer.err
    assert Path("r/metrics.jsonl").stat().st_size > 100


# Locks, pipes and sizes ----------------------------------------------------------------------


@pytest.mark.usefixtures("in_time")
def test_a_pipe_in_the_place_of_the_lock_hangs_no_command(run: Path, command: Command):
    (run / ".toytrans-lock").unlink()
    os.mkfifo(run / ".toytrans-lock")
    for words in (("runs", "."), ("report", "run"), ("eval", "run"), ("compare", "run")):
        answer = command(*words)
        assert answer.code == 0, answer.err
    assert "run" in command("runs", ".").out
    assert command("doctor", "run").code in (0, 1)
    answer = command(*LONGER)
    assert answer.code == 2 and "run/.toytrans-lock: is a pipe or a device" in answer.err


def test_a_reader_that_holds_the_lock_for_a_moment_stops_no_training(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """As `runs` does while it asks whether a training writes there."""
    flock, reading = fcntl.flock, []

    def while_one_reads(file: int, operation: int) -> None:
        if not reading:
            reading.append(open(run / ".toytrans-lock"))  # noqa: SIM115
            flock(reading[0], fcntl.LOCK_SH)
            with contextlib.suppress(BlockingIOError):
                return flock(file, operation)
            reading[0].close()
            raise BlockingIOError
        return flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", while_one_reads)
    answer = command(*LONGER)
    assert reading and reading[0].closed, "the training met the reader"
    assert answer.code == 0, answer.err


@pytest.mark.usefixtures("in_time")
def test_a_file_that_is_larger_than_its_model_is_refused_unread(run: Path, command: Command):
    last = max(run.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
    os.truncate(last / "weights.safetensors", 300 * 10**9)
    answer = command("eval", "run", "--checkpoint", "last")
    assert answer.code == 2 and "weights.safetensors: 300,000,000,000 bytes" in answer.err
    assert answer.err.count("\n") == 1
    assert command("translate", "--run", "run", "--checkpoint", "last", "1 2").code == 2
    assert "300,000,000,000 bytes" in " ".join(command("doctor", "run").out.split())
    assert command("report", "run").code == 0
    answer = command(*LONGER)
    assert answer.code == 0 and "300,000,000,000 bytes" in answer.err
    assert (last.parent / f"{last.name}-unreadable").is_dir()


@pytest.mark.usefixtures("in_time")
def test_records_without_end_are_read_up_to_a_limit(run: Path, command: Command):
    records = (run / "metrics.jsonl").read_bytes()
    os.truncate(run / "metrics.jsonl", 300 * 10**9)
    answer = command(*LONGER)
    assert answer.code == 0, answer.err
    assert (run / "metrics.jsonl").read_bytes().startswith(records)
    assert (run / "metrics.jsonl").stat().st_size < 10_000


# Two trainings at once -----------------------------------------------------------------------


def test_of_two_resumes_at_once_one_is_refused_and_nothing_is_lost(run: Path, command: Command):
    words = (*TRAIN, "--out", "run", "--resume", *ENDLESS)
    both = [Forked(COMMAND, *words) for _ in range(2)]
    deadline = time.monotonic() + 60
    while all(each.process.is_alive() for each in both) and time.monotonic() < deadline:
        time.sleep(0.05)
    winner, loser = sorted(both, key=lambda each: not each.process.is_alive())
    refused = loser.ended()
    assert refused.code == 2 and refused.err.count("\n") == 1, refused.err
    assert "run: another training is writing here" in refused.err
    while b'"step": 40,' not in (run / "metrics.jsonl").read_bytes():
        assert winner.process.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)
    winner.process.terminate()
    assert winner.ended().code == 143
    steps = steps_of(run)
    assert steps == list(range(2, steps[-1] + 1, 2)), "each record once"
    last = max(int(path.name[5:]) for path in run.glob("checkpoints/step-*"))
    assert last >= steps[-1], "the winner has saved"


def test_of_two_new_trainings_in_one_folder_one_is_refused(here: Path):
    both = [Forked(COMMAND, *TRAIN, "--out", "new") for _ in range(2)]
    (code, *_), (other, _, err) = sorted(process.ended() for process in both)
    assert (code, other) == (0, 2) and err.count("\n") == 1
    assert "new: another training is writing here" in err or "new: holds a run" in err
    assert steps_of(here / "new") == [2, 4, 6]


@pytest.mark.parametrize("how", ["a link to nothing", "emptied", "unreadable"])
def test_a_resume_without_its_checkpoints_changes_nothing(
    run: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, how: str
):
    """Say on a disk that is not mounted."""
    (run / "checkpoints").rename("disk")
    if how == "a link to nothing":
        (run / "checkpoints").symlink_to("/not/mounted")
    else:
        (run / "checkpoints").mkdir()
    if how == "unreadable":
        listdir = os.listdir

        def listed(path: str | Path = ".") -> list[str]:
            if str(path).endswith("checkpoints"):
                raise PermissionError(13, "Permission denied")
            return listdir(path)

        monkeypatch.setattr(os, "listdir", listed)
    before = contents(run)
    assert len(steps_of(run)) > 1
    said = refused(*LONGER)
    assert "run/checkpoints: " in said and "put it back" in said
    assert contents(run) == before


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_lock_that_is_no_file_is_named(run: Path, refused: Refused, make: Callable[[Path], None]):
    (run / ".toytrans-lock").unlink()
    make(run / ".toytrans-lock")
    said = refused(*LONGER)
    assert "run/.toytrans-lock: is a " in said and "remove" in said


def test_numbers_that_no_run_has_are_one_line(run: Path, refused: Refused):
    assert "no checkpoint 999" in refused("eval", "run", "--checkpoint", "9" * 5000)
    data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(data | {"train_length": [0, 10**30]}))
    assert "run/data.json: damaged" in refused("eval", "run", "--examples", "2")
