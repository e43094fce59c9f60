"""What becomes of SIGINT, SIGTERM and SIGHUP.

A signal ends the process at once, with exit code 128 + its number: no exception is raised, which an
import could swallow. A command with something to save or to clean up has signals noted meanwhile.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

SECONDS_OF_ONE = 0.5


def end_at_once() -> None:
    """Let a signal end the process, from now on."""
    for number in _heeded():
        signal.signal(number, _end)


def ignore() -> None:
    """Let no signal change the exit code of a command that has ended."""
    for number in _heeded():
        signal.signal(number, signal.SIG_IGN)


class Noted:
    """The signals that came, and what is done when the first one comes."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.act: Callable[[], object] = lambda: None


@contextlib.contextmanager
def noted(*, patient: bool = False) -> Iterator[Noted]:
    """Note signals. A second one ends the process, unless it is patient, or it comes so soon that
    it is the same one: `timeout` and a closed terminal send theirs twice."""
    signals, moments = Noted(), list[float]()

    def note(number: int, frame: FrameType | None) -> None:
        moments.append(time.monotonic())
        signals.received.append(number)
        if len(signals.received) == 1:
            signals.act()
        elif not patient and moments[-1] - moments[0] > SECONDS_OF_ONE:
            _end(number, frame)

    before = {number: signal.signal(number, note) for number in _heeded()}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def unwound() -> Iterator[None]:
    """Let the first signal leave the block as an error does, so that it is cleaned up."""
    with noted(patient=True) as signals:
        signals.act = lambda: leave_by(signals.received)
        try:
            yield
        finally:
            leave_by(signals.received)  # whatever became of the exception


def leave_by(*received: list[int]) -> None:
    """Leave with the exit code of the first signal of any process, if there is one."""
    for number in itertools.chain(*received):
        sys.exit(128 + number)


def _end(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _heeded() -> list[signal.Signals]:
    """All three, but SIGHUP where it does not exist or `nohup` has it ignored."""
    hangup = getattr(signal, "SIGHUP", None)
    heard = [] if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else [hangup]
    return [signal.SIGINT, signal.SIGTERM, *heard]
