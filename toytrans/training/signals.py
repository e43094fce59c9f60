"""SIGINT, SIGTERM and SIGHUP end the process with exit code 128 + their number.

No exception is raised, because an import could swallow it. A command that has something to save
collects signals meanwhile.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from types import FrameType
from typing import Any, NoReturn

SECONDS_OF_ONE = 0.5
"""`timeout` and a closed terminal send each signal twice, one soon after the other."""


def end_at_once() -> None:
    """Let a signal end the process, from now on."""
    for number in _handled():
        signal.signal(number, _end)


def ignore() -> None:
    """Let no signal change the exit code of a command that has ended."""
    for number in _handled():
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def end_in_c() -> Iterator[None]:
    """Let the system end the process at a signal: what waits in C calls no Python."""
    with _handled_by(signal.SIG_DFL, _handled()):
        yield


@contextlib.contextmanager
def collect_signals(*, patient: bool = False, in_program: bool = False) -> Iterator[list[int]]:
    """Collect the numbers of signals. A second one that does not follow at once ends the process.

    patient: a second one changes nothing. in_program: the process is the user's. Only Ctrl-C is
    collected then, and only in the main thread; a second one raises KeyboardInterrupt.
    """
    received, began = list[int](), 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal began
        began = began or time.monotonic()
        received.append(number)
        if in_program and len(received) > 1:
            raise KeyboardInterrupt
        if not in_program and not patient and time.monotonic() - began > SECONDS_OF_ONE:
            _end(number, frame)

    numbers = [signal.SIGINT] if in_program else _handled()
    if in_program and threading.current_thread() is not threading.main_thread():
        numbers = []
    with _handled_by(receive, numbers):
        yield received


@contextlib.contextmanager
def _handled_by(handler: Any, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_if_signalled(*received: list[int], in_program: bool = False) -> None:
    """Exit with the code of the first signal of any process, if there is one. A program of the
    user's gets a KeyboardInterrupt, and decides itself."""
    for number in chain(*received):
        if in_program:
            raise KeyboardInterrupt
        sys.exit(128 + number)


def _end(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _handled() -> list[signal.Signals]:
    """All three, without SIGHUP where it does not exist or `nohup` has it ignored."""
    handled = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    return handled
