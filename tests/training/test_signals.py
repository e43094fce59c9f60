"""Signals: none is lost, training saves, a command without anything to save ends at once."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import SIGNALS, Command
from forked import Forked

from toytrans.training import trainer
from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.writer import RunWriter

pytestmark = pytest.mark.usefixtures("here")
TRAIN = ("train", "--config", "c.yaml", "--out", "run")


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """As from a terminal: a shell may have what it starts in the background ignore signals."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS[1:]}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


IN_AN_IMPORT = """
import signal, sys

class Importing:
    def find_spec(self, name, *_):
        if name == "torch":
            try:
                signal.raise_signal(signal.SIGTERM)
            except BaseException:
                pass  # as C code does

sys.meta_path.insert(0, Importing())
from toytrans.cli import main
main()
"""


def test_a_signal_in_an_import_ends_the_command():
    line = [sys.executable, "-P", "-c", IN_AN_IMPORT, *TRAIN]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")
    assert not Path("run").exists()


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Raises signals when a step has been taken."""

    def plan(step: int, *numbers: int) -> None:
        take_step = trainer.Trainer.take_step

        def taking(self, dealt):
            take_step(self, dealt)
            for number in numbers if self.progress.step == step else ():
                signal.raise_signal(number)

        monkeypatch.setattr(trainer.Trainer, "take_step", taking)

    return plan


@pytest.mark.parametrize("number", SIGNALS)
def test_training_saves_at_a_signal_and_at_the_same_one_again(command: Command, at_step, number):
    at_step(2, number, number)  # `timeout` sends it to a process and to its group
    answer = command(*TRAIN, "--seed", "5")
    assert answer.code == 128 + number
    said = "stopped at step 2 and saved; go on with: toytrans train --resume --out run"
    assert said in answer.err
    assert saved_steps(Path("run")) == [2] and load_checkpoint(Path("run"), 2)


def test_a_signal_at_the_last_step_is_heeded(command: Command, at_step):
    at_step(6, signal.SIGINT)
    answer = command(*TRAIN)
    assert (answer.code, answer.out) == (130, ""), "nothing is measured"
    assert "stopped at step 6 and saved" in answer.err
    again = command(*TRAIN, "--resume")
    assert again.code == 0 and "translations" in again.out


def test_a_hang_up_that_is_ignored_stays_ignored(command: Command, at_step):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    at_step(2, signal.SIGHUP)
    assert command(*TRAIN).code == 0
    assert signal.signal(signal.SIGHUP, before) is signal.SIG_IGN
    assert max(saved_steps(Path("run"))) == 6


TWO_SIGNALS = """
import signal, time
from toytrans.cli import main
from toytrans.training.trainer import Trainer

take_step = Trainer.take_step

def step(self, dealt):
    take_step(self, dealt)
    if self.progress.step == 2:
        for pause in (0.0, 0.6, 60.0):
            time.sleep(pause)
            signal.raise_signal(signal.SIGTERM)

Trainer.take_step = step
main()
"""


def test_a_second_signal_leaves_at_once():
    done = Forked(TWO_SIGNALS, *TRAIN).ended()
    assert done.code == 143 and "saved" not in done.err and "Traceback" not in done.err


def test_a_signal_while_the_run_is_described_is_heeded_before_a_step(
    command: Command, monkeypatch: pytest.MonkeyPatch
):
    describe, number = RunWriter.describe, signal.SIGTERM
    monkeypatch.setattr(
        RunWriter, "describe", lambda *given: (signal.raise_signal(number), describe(*given))[1]
    )
    answer = command(*TRAIN)
    assert answer.code == 128 + number and answer.out == "" and "Traceback" not in answer.err
    assert Path("run/metrics.jsonl").read_bytes() == b"" and not saved_steps(Path("run"))


CONNECTING = """
import sys
from datetime import timedelta
from toytrans.cli import main
from toytrans.training import distributed
assert distributed.LONGEST_WAIT >= timedelta(minutes=10), "and not by another name"
distributed.LONGEST_WAIT = timedelta(seconds=float(sys.argv.pop(1)))
main()
"""


@pytest.mark.parametrize("seconds", ["600", "0.3"])
def test_a_process_that_waits_for_others_heeds_signals_and_gives_up(seconds: str):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()[:2]
    place = {"MASTER_ADDR": address[0], "MASTER_PORT": str(address[1])}
    environment = os.environ | place | {"RANK": "0", "WORLD_SIZE": "2"}
    waiting = Forked(CONNECTING, seconds, *TRAIN, environment=environment)
    if seconds == "600":
        wait_until_taken(address)
        os.kill(waiting.process.pid, signal.SIGINT)
        assert waiting.ended().code == -signal.SIGINT, "which a shell shows as 130"
    else:
        done = waiting.ended()
        assert done.code == 2 and done.err.count("\n") == 1
        assert "toytrans: another process of this training has ended, or cannot be" in done.err
    assert not Path("run").exists()


def wait_until_taken(address: tuple[str, int]) -> None:
    """Wait until somebody listens there."""
    for _ in range(600):
        try:
            socket.create_server(address).close()
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("nobody listens within a minute")


def test_the_working_directory_is_left_out_once_we_have_started():
    """`python -m` lets it come first, for itself, and for us."""
    for name in ("rich", "typer", "click"):
        Path(f"{name}.py").write_text("open('imported', 'a').write(__name__)")
    done = subprocess.run([sys.executable, "-m", "toytrans", "--version"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not Path("imported").exists()
