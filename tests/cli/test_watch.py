"""`toytrans train --watch`: the screen, what it changes (nothing), and terminals of all kinds."""

import contextlib
import json
import os
import pty
import struct
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Command, tiny_yaml
from forked import COMMAND, Forked

pytestmark = pytest.mark.usefixtures("here")
TRAIN = ("train", "c.yaml", "--watch", "--out")


def timeless(run: str) -> list[dict]:
    lines = Path(run, "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.endswith("_s")} for line in lines]


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


@pytest.mark.parametrize(("columns", "environment"), [(80, {}), (30, {"NO_COLOR": "1"})])
def test_a_terminal_shows_the_training_and_its_numbers_stay(
    command: Command, columns: int, environment
):
    dropout = ("--set", "model.dropout=0.2")
    with terminal(*TRAIN, "watched", *dropout, columns=columns, **environment) as screen:
        shown = screen.rest()
    assert screen.process.exitcode == 0, shown
    if columns == 80:
        for text in ("step 6/6", "exact match", "learning rate", "tokens/s"):
            assert text in shown
        for text in ("source", "target", "translation", "layer 1 head"):
            assert text in shown, "a sample was taken"
    assert ("\x1b[34m" in shown) == (not environment)
    last_hidden, last_shown = shown.rfind("\x1b[?25l"), shown.rfind("\x1b[?25h")
    assert last_shown > last_hidden, "the cursor is back"
    assert command("train", "c.yaml", "--out", "plain", *dropout).code == 0
    assert timeless("watched") == timeless("plain")


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(command: Command, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes that for a terminal
    answer = command(*TRAIN, "piped")
    assert answer.code == 0 and "\x1b" not in answer.err
    with terminal(*TRAIN, "dumb", TERM="dumb") as screen:
        shown = screen.rest()
    assert screen.process.exitcode == 0 and "learning rate" not in shown


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
