"""SIGINT, SIGTERM and SIGHUP end the process with exit code 128 + their number.

No exception is raised, because an import could swallow it. A command that has something to save
collects signals meanwhile.
"""

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

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


class ReceivedSignals:
    """The numbers of the signals that came, and what to do when the first one comes."""

    def __init__(self, *, in_program: bool) -> None:
        self.received: list[int] = []
        self.act: Callable[[], object] = lambda: None
        self.in_program = in_program

    def end(self, *received: list[int]) -> None:
        """End the command if a signal came to any process. A program of the user's gets a
        KeyboardInterrupt, and decides itself."""
        if self.in_program and any(received):
            raise KeyboardInterrupt
        exit_if_signalled(*received)


@contextlib.contextmanager
def collect_signals(
    *, patient: bool = False, in_program: bool = False
) -> Iterator[ReceivedSignals]:
    """Collect signals. A second one that does not follow at once ends the process.

    patient: a second one changes nothing. in_program: the process is the user's. Only Ctrl-C is
    collected then, and only in the main thread; a second one raises KeyboardInterrupt.
    """
    signals, times = ReceivedSignals(in_program=in_program), list[float]()

    def receive(number: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())
        signals.received.append(number)
        if len(times) == 1:
            signals.act()
        elif in_program:
            raise KeyboardInterrupt
        elif not patient and times[-1] - times[0] > SECONDS_OF_ONE:
            _end(number, frame)

    numbers = [signal.SIGINT] if in_program else _handled()
    if in_program and threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_if_signalled(*received: list[int]) -> None:
    """Exit with the code of the first signal of any process, if there is one."""
    for number in itertools.chain(*received):
        sys.exit(128 + number)


def _end(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _handled() -> list[signal.Signals]:
    """All three, without SIGHUP where it does not exist or `nohup` has it ignored."""
    handled = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    return handled
