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
from typing import Any, NoReturn

from toytrans.files import remove_open_drafts

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = [number for number in (signal.SIGINT, signal.SIGTERM, HANG_UP) if number is not None]

SECONDS_OF_ONE = 0.5
"""`timeout` and a closed terminal send each signal twice, one soon after the other."""


def end_at_once() -> None:
    """Let a signal end the process, from now on. SIGHUP stays ignored where `nohup` has it so."""
    for number in SIGNALS:
        if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def ignore() -> None:
    """Let no signal change the exit code of a command that has ended."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def handled_by(handler: Any) -> Iterator[dict[int, Any]]:
    """Another handler until the block ends. Yields those of before, by signal.

    It gets the signals of `end_at_once`, and in a program of the user's Ctrl-C alone, where that
    raises KeyboardInterrupt; outside of the main thread none.
    """
    before = dict[int, Any]()
    for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) in (_end, signal.default_int_handler):
            before[number] = signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def collect_signals(waits: bool = False) -> Iterator[list[int]]:
    """Collect the numbers of signals. Those that are left at the end of the block are heeded there.

    waits: whether a second signal does nothing. Else it is heeded, if it does not follow at once.
    """
    received, began = list[int](), 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal began
        began = began or time.monotonic()
        received.append(number)
        if not waits and time.monotonic() - began > SECONDS_OF_ONE:
            before[number](number, frame)

    with handled_by(receive) as before:
        yield received
    if received:
        signal.raise_signal(received[0])


def exit_if_signalled(received: list[int]) -> None:
    """Exit with the code of the first signal, if there is one."""
    if received:
        sys.exit(128 + received[0])


def _end(number: int, _: FrameType | None) -> NoReturn:
    remove_open_drafts()
    os._exit(128 + number)
