"""Training that is killed, anywhere, loses nothing; two trainings never write into one run."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Command, call, tiny_yaml
from forked import COMMAND, Forked

from toytrans.cli import common
from toytrans.insight.proofs.resume import (
    Kill,
    Trial,
    _audit,
    _flip_a_byte,
    _of_kills,
    compare,
    prove_resume,
)
from toytrans.training import checkpoint, owned, run_folder, writing
from toytrans.training.checkpoint import load_checkpoint
from toytrans.training.failpoint import IN_A_SAVE, OF_A_RUN, PLACES, VARIABLE
from toytrans.training.owned import saved_steps

pytestmark = pytest.mark.usefixtures("here")
CONFIG = tiny_yaml(model={"dropout": 0.2}, train={"max_steps": 10})

TRAIN = ("train", "--config", "c.yaml")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("straight")
    (folder / "c.yaml").write_text(CONFIG)
    assert call("train", "--config", str(folder / "c.yaml"), "--out", str(folder / "run")) == 0
    return Trial(folder / "c.yaml", 10, folder / "run", 1.0)


@pytest.fixture
def finished(straight: Trial) -> Path:
    """A copy of the straight run."""
    return Path(shutil.copytree(straight.straight, "run"))


class Crash(BaseException):
    """What no code of ours catches, as it catches no kill."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch):
    """Runs a command that crashes where it passes a place for the n-th time."""

    def run_until(place: str, passing: int, *words: str) -> None:
        passed = []

        def crash(name: str) -> None:
            passed.append(name)
            if passed.count(place) == passing:
                raise Crash

        with monkeypatch.context() as patch, pytest.raises(Crash):
            for module in (checkpoint, owned, writing):
                patch.setattr(module, "failpoint", crash)
            call(*words)
        assert set(passed) <= set(PLACES), "the soak aims at every place there is"

    return run_until


def failed(findings) -> list[str]:
    return [finding.title for finding in findings if finding.verdict == "FAIL"]


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_at_any_place_costs_nothing(place, straight, crash_at):
    train = (*TRAIN, "--out", "run")
    if place in OF_A_RUN and place != "half-metrics.jsonl":
        crash_at(place, 1, *train)
        assert saved_steps(Path("run")) == []
    else:
        crash_at("half-optimizer.safetensors", 4, *train)  # of step 8
    newest = max(saved_steps(Path("run")), default=0)
    if place == "set-aside":
        _flip_a_byte(Path("run/checkpoints/step-6/weights.safetensors"))
        newest = 4
    if place in (*IN_A_SAVE, "half-metrics.jsonl"):
        crash_at(place, 1, *train, "--resume")
        assert _audit(Path("run"), newest, place) == ("", "")
    assert call(*train, "--resume") == 0
    assert failed(compare(straight, Path("run"))) == []
    assert {path.name[0] for path in Path("run/checkpoints").iterdir()} == {"s"}, "no drafts left"


def test_a_process_dies_where_it_is_told_for_the_nth_time():
    code = (
        "from toytrans.training.failpoint import failpoint\n"
        "for n in range(5): print(n, flush=True); failpoint('other'); failpoint('renamed')"
    )
    for aim, passed in (("renamed", 1), ("renamed:3", 3), ("", 5), ("elsewhere", 5)):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {VARIABLE: aim}, capture_output=True
        )
        assert len(done.stdout.split()) == passed
        assert done.returncode == (0 if passed == 5 else -signal.SIGKILL)


def test_killed_and_resumed_training_is_the_training_that_was_not(command: Command, monkeypatch):
    """With real processes and real kills, and pairs of a file. They import nothing from where they
    run: every module there tells. The kills are counted while they happen."""
    monkeypatch.setattr(common, "PROGRESS_AFTER", 0.0)
    for name in sys.stdlib_module_names | {"toytrans", "torch", "numpy", "yaml", "sitecustomize"}:
        Path(f"{name}.py").write_text(f"open('imported', 'a').write('{name} ')")
    rng = random.Random(0)
    pairs = [" ".join(rng.choices("abcd", k=rng.randint(1, 4))) for _ in range(300)]
    Path("pairs.tsv").write_text("".join(f"{pair}\t{pair}\n" for pair in pairs))
    model = {"dropout": 0.2, "activation": "gelu"}
    Path("f.yaml").write_text(tiny_yaml(data={"files": {"train": "pairs.tsv"}}, model=model))
    words = ("check", "--resume", "--config", "f.yaml", "--kills", "3", "--steps", "30", "--json")
    answer = command(*words)
    found = json.loads(answer.out)
    assert answer.code == 0, found
    assert re.search("^now: killed 1 times of 3", answer.err, re.MULTILINE), answer.err
    assert [proof["proof"] for proof in found["proofs"]] == list("rstuvw")
    kills = found["proofs"][-1]["words"]
    assert re.search("[23] kills, 1 of them aimed", kills) and "while one was written" in kills
    assert not Path("imported").exists()
    assert re.match(r"f\.yaml, 30 steps, dropout 0\.2, killed [23] times", found["model"])


def test_a_difference_of_one_bit_is_found(straight, finished):
    assert failed(compare(straight, finished)) == []
    for part, title in (("weights", "weights"), ("optimizer", "optimiser"), ("random", "random")):
        loaded = load_checkpoint(finished, 10)
        tensor = next(iter(getattr(loaded, part).values()))
        tensor.view(-1)[:1].view(torch.uint8)[0] ^= 1
        shutil.rmtree(finished / "checkpoints/step-10")
        checkpoint.save_checkpoint(finished, loaded)
        (found,) = failed(compare(straight, finished))
        assert found.startswith(title)
        shutil.rmtree(finished)
        shutil.copytree(straight.straight, finished)
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    (finished / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert failed(compare(straight, finished)) == ["metrics are equal"]
    record = json.loads(lines[-1])
    for key, verdict in (("elapsed_s", []), ("grad_norm", ["metrics are equal"])):
        changed = json.dumps(record | {key: record[key] + 1e-9}) + "\n"
        (finished / "metrics.jsonl").write_text("".join([*lines[:-1], changed]))
        assert failed(compare(straight, finished)) == verdict


def test_what_a_kill_costs_is_found(finished):
    steps = saved_steps(finished)
    assert _audit(finished, steps[-1], None) == ("", "")
    _flip_a_byte(finished / f"checkpoints/step-{steps[-1]}/random.safetensors")
    assert "wrong checksum" in _audit(finished, steps[-1], None)[1]
    shutil.rmtree(finished / f"checkpoints/step-{steps[-1]}")
    assert f"step {steps[-1]} was saved" in _audit(finished, steps[-1], None)[0]
    shutil.rmtree(finished / f"checkpoints/step-{steps[-2]}")
    assert "step 8 was saved" in _audit(finished, 0, None)[0], "its record tells"
    harmed = Kill(None, "between two", 0, "step 8 was saved", "")
    assert len(failed(_of_kills([harmed]))) == 1
    sound = Kill("renamed", "while one was written", 4, "", "")
    assert failed(_of_kills([sound])) == []


def test_a_run_that_does_not_go_on_fails_the_proof_and_is_kept(monkeypatch, tmp_path):
    from toytrans.config.load import load_config
    from toytrans.insight.proofs import resume

    codes = iter([(0, ""), (2, "toytrans: damaged")])
    monkeypatch.setattr(resume, "_run", lambda *_: next(codes))
    monkeypatch.setattr(resume, "read_records", lambda _: [{"elapsed_s": 1.0}])
    monkeypatch.setattr(resume.tempfile, "tempdir", str(tmp_path))
    report = prove_resume(load_config(Path("c.yaml")), "c.yaml", 10, 2, 0)
    assert not report.passed and "toytrans: damaged" in str(report)
    assert Path(report.subject.rpartition(" ")[2]).is_dir()


AIMED = f"""
import importlib
from toytrans.training import failpoint

importlib.reload(failpoint)  # it has read the environment of the process that was forked
{COMMAND}
"""


class ForkedTraining(Forked):
    """What `check --resume` starts, as a fork."""

    def __init__(self, line: list[str], env: dict[str, str], **_: object) -> None:
        reader, writer = os.pipe()
        super().__init__(AIMED, *line[line.index("train") :], environment=env, stderr=writer)
        os.close(writer)
        self.stderr, self.kill = os.fdopen(reader), self.process.kill

    def __enter__(self) -> "ForkedTraining":
        return self

    def __exit__(self, *_: object) -> None:
        self.stderr.close()
        self.returncode = self.ended().code

    def wait(self, seconds: float) -> None:
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("train", seconds)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toytrans.insight.proofs.resume.subprocess.Popen", ForkedTraining)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("seed", [0, 1])
def test_two_kills_are_enough_for_one_after_a_resume(command: Command, seed: int):
    words = ("check", "--resume", "--config", "c.yaml", "--kills", "2", "--steps", "10")
    answer = command(*words, "--seed", str(seed))
    assert answer.code == 0, answer.err
    assert "2 kills, 2 of them aimed" in answer.out or "2 kills, 1 of them aimed" in answer.out
    assert re.search(r"; [12] after a resume\s+past step 0", answer.out)


@pytest.mark.usefixtures("forked")
def test_kills_that_prove_nothing_are_an_error_and_no_failure(command: Command, monkeypatch):
    words = ("check", "--resume", "--config", "c.yaml", "--steps", "10", "--kills")
    answer = command(*words, "1")
    assert answer.code == 2 and "--kills" in answer.err
    from toytrans.insight.proofs import resume

    def never(*_: object) -> Iterator[Kill]:
        yield Kill(None, "before the first checkpoint", 0, "", "")

    monkeypatch.setattr(resume, "train_in_pieces", never)
    monkeypatch.setattr(resume, "compare", lambda *_: [])
    answer = command(*words, "2")
    assert answer.code == 2 and answer.out == ""
    assert "no kill came after a resume past step 0, so nothing is proved" in answer.err
    assert "raise --steps 10 or --kills 2" in answer.err


@pytest.mark.usefixtures("forked")
def test_check_resume_wants_a_config_that_trains(command: Command):
    answer = command("check", "--resume")
    assert answer.code == 2 and "give --config FILE" in answer.err
    endless = ("--set", "train.lr=1e30", "--set", "train.clip_norm=null")
    answer = command("check", "--resume", "--config", "c.yaml", *endless)
    assert answer.code == 2 and "exit code 1: toytrans: " in answer.err and "diverged" in answer.err


# One training in a run directory -------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_second_training_is_refused_and_changes_nothing(command: Command, finished):
    before = contents(finished)
    more = ("--resume", "--set", "train.max_steps=12", "--out", "run")
    with run_folder.locked(finished):
        answer = command(*TRAIN, *more)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert "run: another training is writing here" in answer.err and "--out" in answer.err
        assert contents(finished) == before
        assert command("eval", "run").code == 0
        assert command("translate", "--run", "run", "1 2").code == 0
    assert command(*TRAIN, *more).code == 0
    assert command(*TRAIN, "--resume", "--out", "run").code == 0, "let go at the end"


def test_a_killed_training_keeps_nobody_out(command: Command, finished):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from toytrans.training.run_folder import locked\n"
        "with locked(Path('run')): print('locked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"locked\n"
        assert command(*TRAIN, "--resume", "--out", "run").code == 2
        process.kill()
    assert command(*TRAIN, "--resume", "--out", "run").code == 0


def test_a_system_without_locks_says_so_and_trains(command: Command, finished, monkeypatch):
    def no_lock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    resume = (*TRAIN, "--resume", "--out", "run")
    for name, value in (("fcntl.flock", no_lock), ("fcntl", None)):
        with monkeypatch.context() as patch:
            patch.setattr(f"toytrans.training.run_folder.{name}", value)
            answer = command(*resume)
        assert answer.code == 0 and "run: no file locks here" in answer.err
    assert "file locks" not in command(*resume).err
