"""`toytrans train --watch`: the screen, what it changes (nothing), and terminals of all kinds."""

import contextlib
import io
import json
import os
import pty
import re
import struct
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Command, tiny_yaml
from forked import COMMAND, Forked
from rich.console import Console

from toytrans.cli.train import Moment
from toytrans.cli.watch import view_of
from toytrans.config.load import load_config
from toytrans.data.open import open_dataset
from toytrans.data.pairs import all_pairs
from toytrans.inspection.heads import few
from toytrans.training.run import create_run
from toytrans.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("here")
TRAIN = ("train", "c.yaml", "--watch", "--out")


def timeless(run: str) -> list[dict]:
    lines = Path(run, "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "elapsed_s"} for line in lines]


@contextlib.contextmanager
def terminal(*arguments: str, columns: int = 80, **environment: str) -> Iterator[SimpleNamespace]:
    """`toytrans ARGUMENTS` whose standard error is a terminal of 24 lines."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "LINES")}
    clean |= {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | environment
    program = Forked(COMMAND, *arguments, environment=clean, stderr=theirs)
    process = program.process
    os.close(theirs)

    def rest() -> str:
        raw = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 2**16):
                raw += part
        process.join()
        return raw.decode()

    try:
        yield SimpleNamespace(process=process, rest=rest, ours=ours)
    finally:
        process.kill()
        program.ended()
        with contextlib.suppress(OSError):
            os.close(ours)


@pytest.mark.parametrize(
    "environment", [{}, {"NO_COLOR": "1"}, {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}]
)
def test_a_terminal_shows_the_training_and_its_numbers_stay(command: Command, environment):
    with terminal(*TRAIN, "watched", **environment) as screen:
        shown = screen.rest()
    assert screen.process.exitcode == 0, shown
    for text in ("step 6/6", "exact match", "learning rate", "tokens/s", "logarithmic"):
        assert text in shown
    for text in ("source", "target", "translation", "layer 1 head"):
        assert text in shown, "a sample was taken"
    assert ("\x1b[34m" in shown) == ("NO_COLOR" not in environment)
    assert shown.isascii() == ("PYTHONIOENCODING" in environment)
    assert not re.search(r"\\u[0-9a-f]{4}", shown), "nothing is escaped"
    last_hidden, last_shown = shown.rfind("\x1b[?25l"), shown.rfind("\x1b[?25h")
    assert last_shown > last_hidden, "the cursor is back"
    assert command("train", "c.yaml", "--out", "plain").code == 0
    assert timeless("watched") == timeless("plain")


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(command: Command, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes that for a terminal
    answer = command(*TRAIN, "piped")
    assert answer.code == 0 and "\x1b" not in answer.err
    with terminal(*TRAIN, "dumb", TERM="dumb") as screen:
        shown = screen.rest()
    assert screen.process.exitcode == 0 and "logarithmic" not in shown


def test_a_signal_saves_and_the_terminal_is_as_before():
    Path("c.yaml").write_text(tiny_yaml(train={"max_steps": 10**6, "eval_every": 50}))
    with terminal(*TRAIN, "r") as screen:
        until = time.monotonic() + 60
        while not list(Path("r").glob("checkpoints/step-*")) and time.monotonic() < until:
            time.sleep(0.1)
        size = struct.pack("HHHH", 12, 40, 0, 0)
        ioctl(screen.ours, termios.TIOCSWINSZ, size)
        time.sleep(0.3)
        screen.process.terminate()
        shown = screen.rest()
    assert screen.process.exitcode == 143, shown
    assert "and saved; go on with: toytrans train" in shown.replace("\r\n", "")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def viewed(width: int, seen: Callable[[Trainer], object] = bool) -> list[str]:
    """The lines of the view at step 3, which draws no random number and leaves the model training.
    seen: called with the trainer before."""
    config = load_config(Path("c.yaml"), ["model.dropout=0.5"])
    dataset = open_dataset(config)
    create_run(Path("r"), config, dataset.facts, {})
    trainer = Trainer(config, dataset, Path("r"), torch.device("cpu"), "fp32")
    seen(trainer)
    trainer.model.train()
    before, pairs = torch.get_rng_state(), few(all_pairs(dataset, "valid"))
    console = Console(width=width, file=io.StringIO(), record=True)
    moment = Moment(3, 2.0, 1e-3, 10.0, None, 1.0)
    console.print(view_of(trainer, pairs, moment, {1: 9.0, 3: 2.0}, width - 1))
    assert torch.equal(torch.get_rng_state(), before) and trainer.model.training
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [30, 80, 200])
def test_every_width_has_a_view_that_fits(width: int):
    lines = viewed(width)
    assert all(len(line.rstrip()) <= width for line in lines) and len(lines) <= 23
    assert width == 30 or "translation" in "".join(lines)


def test_weights_that_are_not_finite_leave_the_curve():
    def diverge(trainer: Trainer) -> None:
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(torch.nan)

    text = "\n".join(viewed(80, diverge))
    assert "logarithmic" in text and "layer" not in text
