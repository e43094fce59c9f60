"""Trials in processes of their own: on this machine, or as tasks of a Ray cluster.

Both run `trial.run`. A trial that fails, is killed, or runs out of memory costs only itself. On a
cluster the nodes share the folder of the runs, so a trial whose node is lost goes on elsewhere.
"""

import contextlib
import logging
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from toytrans.errors import UserError, how_to_install
from toytrans.sweeps.trial import Failure, Trial, keep_failure, read_failure, run
from toytrans.training import devices
from toytrans.training.environment import usable_cores
from toytrans.user_code import trust_as_read

Ended = tuple[Trial, Failure | None]

KNOWN = 2
"""The exit code of a process that has written why its trial failed."""

LONGEST_FOLDER = 70
"""Characters of the temporary folder: a socket is made there, and its path has at most 107."""

RAY_RETRIES, RAY_SECONDS_TO_SAVE = 3, 60.0

RAY_QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns that it will change
    "RAY_USAGE_STATS_ENABLED": "0",
}


def processes_for(trials: Sequence[Trial], asked: int | None = None) -> int:
    """Processes at once: as many as were asked for, one a core at most. None: one a core, or one in
    all where any trial is on a GPU."""
    names = {trial.config.device for trial in trials}
    on_cpu = all(devices.choose_device(name).type == "cpu" for name in names)
    return min(asked or (usable_cores() if on_cpu else 1), usable_cores())


def run_here(trials: Sequence[Trial], at_once: int) -> Generator[list[Ended]]:
    """Run trials; yields those that have ended, about once a second. Closed early, it lets every
    training save."""
    forks = sys.platform == "linux" and len(tempfile.gettempdir()) <= LONGEST_FOLDER
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload([__name__])  # to import torch takes seconds
    waiting, running = list(trials), dict[BaseProcess, Trial]()
    try:
        while waiting or running:
            ended = list[Ended]()
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                process = context.Process(target=_child, args=(trial, trial.code()))
                try:
                    with main_hidden():
                        process.start()
                    running[process] = trial
                except (OSError, EOFError) as error:  # the fork server was killed
                    ended.append((trial, _kept(trial, f"no process could be started ({error!r})")))
            wait([process.sentinel for process in running], timeout=1.0)
            for process in [process for process in running if not process.is_alive()]:
                trial = running.pop(process)
                ended.append((trial, failure_by_code(trial, process.exitcode or 0)))
            yield ended
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()


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


def _child(trial: Trial, code: Mapping[str, bytes]) -> None:
    """The program of one process. code: the user's, as the parent has read it."""
    if hasattr(signal, "pthread_sigmask"):  # the terminal's signals are the parent's to act on
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    trust_as_read(code)
    failure = run(trial)
    if failure is not None:
        if read_failure(trial.path) is None:
            print(f"{failure.reason}\n{failure.traceback}", file=sys.stderr)
        sys.exit(KNOWN)


def _end_with_parent() -> None:
    """Save and end as soon as the parent process is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)


def failure_by_code(trial: Trial, code: int) -> Failure | None:
    """What became of a trial whose process has ended with an exit code."""
    if code == 0:
        return None
    if code == KNOWN and (failure := read_failure(trial.path)):
        return failure
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    more = " (out of memory?)" if code == -9 else ""
    return _kept(trial, f"its process {ended}{more}; the same command goes on")


def _kept(trial: Trial, reason: str) -> Failure:
    failure = Failure(reason=f"{trial.path}: {reason}")
    keep_failure(trial.path, failure)
    return failure


# Ray -----------------------------------------------------------------------------------------


def check_ray() -> None:
    """Raise UserError where Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError(
            f"--on ray needs Ray, which is not installed; {how_to_install('ray')}"
        ) from None


def run_on_ray(
    trials: Sequence[Trial], at_once: int | None = None, gpu_share: float | None = None
) -> Generator[list[Ended]]:
    """As `run_here`, on a Ray cluster.

    at_once: None = as many as the cluster has room for. gpu_share: of a trial on a GPU; None = 1.
    """
    with _connected() as ray:
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        task = ray.remote(max_calls=1, max_retries=RAY_RETRIES, num_cpus=1)(_task)
        waiting, running = list(trials), dict[Any, Trial]()
        try:
            while waiting or running:
                while waiting and len(running) < (at_once or len(trials)):
                    trial = waiting.pop(0)
                    device = trial.config.device
                    on_gpu = device.startswith("cuda") or (device == "auto" and has_gpus)
                    place = task.options(num_gpus=(gpu_share or 1.0) if on_gpu else 0.0)
                    running[place.remote(trial, trial.code(), os.getcwd())] = trial
                done, _ = ray.wait(list(running), num_returns=len(running), timeout=1.0)
                yield [_outcome(ray, each, running.pop(each)) for each in done]
        finally:
            for reference in running:
                ray.cancel(reference)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=RAY_SECONDS_TO_SAVE)


def _task(trial: Trial, code: Mapping[str, bytes], folder: str) -> Failure | None:
    """The program of one task, in the folder of the command. code: the user's, as it was read."""
    trust_as_read(code)
    try:
        os.chdir(folder)
    except OSError as error:
        return Failure(
            reason=f"{folder}: {error.strerror} on {platform.node()}; the nodes must share the "
            "folder of the command"
        )
    return run(trial)


def _outcome(ray: Any, reference: Any, trial: Trial) -> Ended:
    try:
        return trial, ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        lost = f"Ray lost it ({type(error).__name__}: {reason})"
        return trial, _kept(trial, f"{lost}; the same command goes on")


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Ray, connected to RAY_ADDRESS, to a cluster that runs here, or to one that is started for as
    long as the block lasts. Raises UserError."""
    os.environ.update({name: os.environ.get(name, value) for name, value in RAY_QUIET.items()})
    check_ray()
    import ray

    if ray.is_initialized():
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise UserError(f"Ray: {str(error).strip().partition(chr(10))[0]}") from None
    finally:
        signal.signal(signal.SIGTERM, handler)
    try:
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            yield ray  # a thread of Ray's prints to standard output which nodes it has lost
    finally:
        ray.shutdown()
