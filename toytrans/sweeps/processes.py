"""Trials in processes of their own, as many at once as there are cores."""

import contextlib
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import (
    ForkServerContext,
    ForkServerProcess,
    SpawnContext,
    SpawnProcess,
)
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from toytrans.errors import UserError, ran_out_of_memory
from toytrans.sweeps.failures import Failure, keep_failure, read_failure
from toytrans.sweeps.trial import Diverged, Trial, train_and_measure
from toytrans.training import devices
from toytrans.training.environment import usable_cores
from toytrans.training.lock import is_locked
from toytrans.training.run import METRICS
from toytrans.user_code import RAISED, fault_in_user_code, trust_as_read

SECONDS_FOR_LOCK = 60.0
"""A process whose parent was killed saves first, and leaves its run directory then."""

SECONDS_TO_DIE = 0.5
"""A killed process closes its sockets a moment before others can see that it has ended."""

LONGEST_FOLDER = 70
"""Characters of the temporary folder: a socket is made there, and its path has at most 107."""

UNKNOWN = 255
"""The exit code that `multiprocessing` gives where the fork server was killed too."""

MOST_OF_TRACEBACK = 10_000
"""Characters."""

FAILED = 2
"""The exit code of a process whose trial failed for a reason that it knows."""


class Round(NamedTuple):
    """What happened since the round before: trials that run, and those that have ended."""

    running: list[Trial]
    ended: list[tuple[Trial, Failure | None]]


def workers_for(trials: Sequence[Trial], asked: int | None = None) -> int:
    """Processes at once: so many as were asked for, one a core at most. None: one a core, or one in
    all where a GPU computes for any trial."""
    names = {trial.config.device for trial in trials}
    on_cpu = all(devices.choose_device(name).type == "cpu" for name in names)
    return min(asked or (usable_cores() if on_cpu else 1), usable_cores())


def run_trials(trials: Sequence[Trial], at_once: int) -> Generator[Round]:
    """Run trials; yields about once a second. Closed early, it lets every training save."""
    waiting = list(trials)
    context = _context()
    running: dict[SpawnProcess | ForkServerProcess, Trial] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                process = context.Process(target=_work, args=(trial, trial.code))
                with _terminal_signals_blocked(), _main_hidden():
                    _start(process)
                running[process] = trial
            wait([process.sentinel for process in running], timeout=1.0)
            ended = []
            for process in [process for process in running if not process.is_alive()]:
                trial = running.pop(process)
                ended.append((trial, failure_by_code(trial.path, process.exitcode or 0)))
            yield Round(list(running.values()), ended)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()


def _start(process: SpawnProcess | ForkServerProcess) -> None:
    """Start a process, a second time where the fork server was killed: the next is another one."""
    try:
        process.start()
    except (EOFError, ConnectionError):
        time.sleep(SECONDS_TO_DIE)  # until the system knows that the server has ended
        process.start()


def _context() -> SpawnContext | ForkServerContext:
    """How processes are started. On Linux they are forks of one that has imported torch and done
    nothing else: to import it takes a fresh process seconds."""
    if sys.platform != "linux" or len(tempfile.gettempdir()) > LONGEST_FOLDER:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def failure_by_code(run: Path, code: int) -> Failure | None:
    """What became of the trial of a run whose process has ended with an exit code."""
    if code == 0:
        return None
    if code == FAILED:
        unwritten = Failure(reason=f"{run}: failed; its process said why, and could not write it")
        return read_failure(run) or unwritten
    if 0 < code <= 128:
        failure = Failure(reason=f"{run}: exit code {code}", traceback="its process wrote why")
    else:
        number = -code if code < 0 else code - 128
        killed = "by an unknown signal" if code == UNKNOWN else f"by signal {number}"
        if number == 9:
            killed += " (out of memory?)"
        going_on = "the same command goes on where it stopped"
        failure = Failure(reason=f"{run}: its process was killed {killed}; {going_on}")
    keep_failure(run, failure)
    return failure


@contextlib.contextmanager
def _terminal_signals_blocked() -> Iterator[None]:
    """Processes that are started here ignore signals of the terminal: the parent decides."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # whose start would let SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Processes that are started here import toytrans, not the program that starts them: a script
    without `if __name__ == "__main__"` would start a sweep in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(trial: Trial, code: Mapping[str, bytes]) -> None:
    """The program of one process. code: the user's, as the parent has read it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    trust_as_read(code)
    failure = attempt(trial)
    if failure is not None:
        if read_failure(trial.path) is None:
            print(f"{failure.reason}\n{failure.traceback}", file=sys.stderr)
        sys.exit(FAILED)


def _end_with_parent() -> None:
    """Save and end as soon as the parent process is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)


def attempt(trial: Trial) -> Failure | None:
    """Train and measure a trial; why it failed, if it did, which it writes down too."""
    keep_failure(trial.path, None)
    failure = _failure_of(trial)
    keep_failure(trial.path, failure)
    return failure


def _failure_of(trial: Trial) -> Failure | None:
    try:
        _wait_until_free(trial)
        train_and_measure(trial)
    except UserError as error:
        return Failure(reason=str(error), final=isinstance(error, Diverged))
    except RAISED as error:
        if ran_out_of_memory(error):
            remedy = "lower data.batch_tokens or the sizes of the model"
            return Failure(reason=f"out of memory; {remedy}")
        if fault := fault_in_user_code(error):
            return Failure(reason=f"your code: {fault}")
        if isinstance(error, SystemExit):  # of a signal
            raise
        reason = f"{trial.path}: internal error ({type(error).__name__}: {error})"
        return Failure(reason=reason, traceback=traceback.format_exc()[-MOST_OF_TRACEBACK:])
    return None


def _wait_until_free(trial: Trial) -> None:
    """Wait for a training of before that is still saving."""
    deadline = time.monotonic() + SECONDS_FOR_LOCK
    while is_locked(trial.path / METRICS) and time.monotonic() < deadline:
        time.sleep(0.2)
