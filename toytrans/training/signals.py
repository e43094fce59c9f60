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
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal, NoReturn

SECONDS_OF_ONE = 0.5
"""`timeout` and a closed terminal send each signal twice, one soon after the other."""

Second = Literal["ends", "waits", "raises"]
"""What a second signal does: end the process, nothing, or raise KeyboardInterrupt. The process is
the user's own program in the last case, so Ctrl-C alone is collected, in its main thread alone."""


def end_at_once() -> None:
    """Let a signal end the process, from now on."""
    _handle(_end)


def ignore() -> None:
    """Let no signal change the exit code of a command that has ended."""
    _handle(signal.SIG_IGN)


@contextlib.contextmanager
def handled_by(handler: Any, numbers: list[signal.Signals] | None = None) -> Iterator[None]:
    """Another handler until the block ends, of all signals or of some."""
    before = _handle(handler, numbers)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def collect_signals(second: Second = "ends") -> Iterator[list[int]]:
    """Collect the numbers of signals. second: what one does that does not follow at once."""
    received, began = list[int](), 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal began
        began = began or time.monotonic()
        received.append(number)
        if second == "raises" and len(received) > 1:
            raise KeyboardInterrupt
        if second == "ends" and time.monotonic() - began > SECONDS_OF_ONE:
            _end(number, frame)

    numbers = None
    if second == "raises":
        in_main = threading.current_thread() is threading.main_thread()
        numbers = [signal.SIGINT] if in_main else []
    with handled_by(receive, numbers):
        yield received


def exit_if_signalled(received: list[int], second: Second = "ends") -> None:
    """Exit with the code of the first signal, if there is one. A program of the user's gets a
    KeyboardInterrupt, and decides itself."""
    if received and second == "raises":
        raise KeyboardInterrupt
    if received:
        sys.exit(128 + received[0])


def _end(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _handle(handler: Any, numbers: list[signal.Signals] | None = None) -> dict[int, Any]:
    """Give signals a handler; returns those of before. None: all three, without SIGHUP where it
    does not exist or `nohup` has it ignored."""
    if numbers is None:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, handler) for number in numbers}
