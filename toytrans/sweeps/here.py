"""Many trials on this machine, each in a process of its own.

One that fails, is killed, or runs out of memory costs only itself.
"""

import contextlib
import multiprocessing
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any

from toytrans.references import hand_over, take_over
from toytrans.sweeps.trial import Ended, Trial, lost, run
from toytrans.training import devices
from toytrans.training.devices import usable_cores
from toytrans.training.signals import end_at_once


def processes_for(trials: Sequence[Trial], asked: int | None = None) -> int:
    """Processes at once: as many as were asked for, one a core at most. None: one a core, or one in
    all where any trial is on a GPU."""
    names = {trial.config.device for trial in trials}
    on_cpu = all(devices.choose_device(name).type == "cpu" for name in names)
    return min(asked or (usable_cores() if on_cpu else 1), usable_cores())


def run_here(trials: Sequence[Trial], jobs: int | None = None) -> Generator[list[Ended]]:
    """Run trials; yields those that have ended, about once a second. Closed early, it lets every
    training save. jobs: as of `processes_for`."""
    # the server's socket lies in the temporary folder; its path has at most 107 characters
    forks = sys.platform == "linux" and len(tempfile.gettempdir()) <= 70
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload([__name__])  # to import torch takes seconds
    at_once, waiting = processes_for(trials, jobs), list(trials)
    running = dict[Any, tuple[Trial, Any]]()  # by process: its trial, and where its answer arrives
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                answers, answer = context.Pipe(duplex=False)
                given = trial, hand_over(trial.config.references.values()), answer
                process = context.Process(target=_child, args=given)
                with contextlib.suppress(OSError, EOFError), main_hidden(), signals_blocked():
                    process.start()  # nothing starts where the fork server was killed
                answer.close()
                running[process] = trial, answers
            wait([process.sentinel for process in running if process.pid], timeout=1.0)
            over = [process for process in running if not process.is_alive()]
            yield [_ended(*running.pop(each), each) for each in over]
    finally:
        started = [process for process in running if process.pid]
        for process in started:
            process.terminate()
        for process in started:
            process.join()


def _ended(trial: Trial, answers: Any, process: Any) -> Ended:
    """A trial whose process has ended, and why it has failed if it did. A process says that through
    a pipe, because the disk may be too full for failed.json."""
    with answers, contextlib.suppress(EOFError, OSError):  # it was killed
        if answers.poll():
            return trial, answers.recv()
    if process.pid is None:
        return trial, lost(trial, "no process could be started")
    killed = " (killed; out of memory?)" if process.exitcode == -9 else ""
    return trial, lost(trial, f"its process ended with exit code {process.exitcode}{killed}")


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Processes that are started here import toytrans, not the program that starts them: a script
    without `if __name__ == "__main__"` would start a sweep in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that are started here, the fork server too, leave the terminal's signals to their
    parent."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # or `start` does it, which ends the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(trial: Trial, code: Mapping[str, bytes], answer: Any) -> None:
    """The program of one process. code: the user's, as the parent has read it. answer: takes why
    the trial has failed, or None."""
    end_at_once()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    take_over(code)
    with answer:
        answer.send(run(trial))


def _end_with_parent() -> None:
    """Save and end as soon as the parent process is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)
