"""SIGINT, SIGTERM and SIGHUP.

A signal ends the process at once with exit code 128 + its number. No exception is raised, because
an import could swallow it. A command that has something to save collects signals meanwhile.
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

    def __init__(self) -> None:
        self.received: list[int] = []
        self.act: Callable[[], object] = lambda: None

    def end(self, *received: list[int]) -> None:
        """End the command if a signal came to any process."""
        exit_if_signalled(*received)


class ReceivedInterrupts(ReceivedSignals):
    """The same in a program of the user's, which decides itself when it exits."""

    def end(self, *received: list[int]) -> None:
        """Raise KeyboardInterrupt if Ctrl-C came."""
        if any(received):
            raise KeyboardInterrupt


@contextlib.contextmanager
def collect_signals(*, patient: bool = False) -> Iterator[ReceivedSignals]:
    """Collect signals. A second one ends the process, with two exceptions: the process is patient,
    or the second follows at once. `timeout` and a closed terminal send each signal twice."""
    signals, times = ReceivedSignals(), list[float]()

    def receive(number: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())
        signals.received.append(number)
        if len(signals.received) == 1:
            signals.act()
        elif not patient and times[-1] - times[0] > SECONDS_OF_ONE:
            _end(number, frame)

    before = {number: signal.signal(number, receive) for number in _handled()}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def collect_interrupts() -> Iterator[ReceivedSignals]:
    """Collect the first Ctrl-C; a second one raises KeyboardInterrupt. Other signals, and all of
    them outside of the main thread, do what they do in the user's program."""
    signals = ReceivedInterrupts()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def receive(number: int, _: FrameType | None) -> None:
        signals.received.append(number)
        if len(signals.received) > 1:
            raise KeyboardInterrupt
        signals.act()

    before = signal.signal(signal.SIGINT, receive)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)


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
