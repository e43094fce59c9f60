"""What becomes of SIGINT, SIGTERM and SIGHUP.

A signal ends the process at once, with exit code 128 + its number: no exception is raised, which an
import could swallow. A command with something to save or to clean up has signals noted meanwhile.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

SECONDS_OF_ONE = 0.5

Act = Callable[[], object]


def end_at_once() -> None:
    """Let a signal end the process, from now on."""
    for number in _heeded():
        signal.signal(number, _end)


def ignore() -> None:
    """Let no signal change the exit code of a command that has ended."""
    for number in _heeded():
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def noted(act: Act = lambda: None, *, patient: bool = False) -> Iterator[list[int]]:
    """Note signals and act on the first one. Another ends the process, unless it is patient, or it
    comes so soon that it is the same one: `timeout` and a closed terminal send theirs twice."""
    received: list[int] = []
    moments: list[float] = []

    def note(number: int, frame: FrameType | None) -> None:
        moments.append(time.monotonic())
        received.append(number)
        if len(received) == 1:
            act()
        elif not patient and time.monotonic() - moments[0] > SECONDS_OF_ONE:
            _end(number, frame)

    before = {number: signal.signal(number, note) for number in _heeded()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def unwound() -> Iterator[None]:
    """Let the first signal leave the block as an error does, so that it is cleaned up."""
    with noted(lambda: leave_by(received), patient=True) as received:
        try:
            yield
        finally:
            if received:  # whatever became of the exception
                leave_by(received)


def leave_by(received: list[int]) -> NoReturn:
    """Leave with the exit code of the first signal."""
    sys.exit(128 + received[0])


def _end(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _heeded() -> list[signal.Signals]:
    """All three, but SIGHUP where it does not exist or `nohup` has it ignored."""
    hangup = getattr(signal, "SIGHUP", None)
    heard = [] if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else [hangup]
    return [signal.SIGINT, signal.SIGTERM, *heard]
