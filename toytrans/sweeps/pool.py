"""Many trials: in processes here, or as tasks of a Ray cluster. `trial.run` is what runs.

A trial that fails, is killed, or runs out of memory costs only itself. On a cluster the nodes share
the folder of the runs, so a trial whose node is lost goes on elsewhere.
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
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

from toytrans.errors import UserError, how_to_install
from toytrans.sweeps.trial import Failure, Trial, keep_failure, run
from toytrans.training import devices
from toytrans.training.devices import usable_cores
from toytrans.training.signals import end_at_once
from toytrans.user_code import as_read, trust_as_read

Ended = tuple[Trial, Failure | None]

# Processes -----------------------------------------------------------------------------------


def processes_for(trials: Sequence[Trial], asked: int | None = None) -> int:
    """Processes at once: as many as were asked for, one a core at most. None: one a core, or one in
    all where any trial is on a GPU."""
    names = {trial.config.device for trial in trials}
    on_cpu = all(devices.choose_device(name).type == "cpu" for name in names)
    return min(asked or (usable_cores() if on_cpu else 1), usable_cores())


def run_here(trials: Sequence[Trial], at_once: int) -> Generator[list[Ended]]:
    """Run trials; yields those that have ended, about once a second. Closed early, it lets every
    training save."""
    # the server's socket lies in the temporary folder; its path has at most 107 characters
    forks = sys.platform == "linux" and len(tempfile.gettempdir()) <= 70
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload([__name__])  # to import torch takes seconds
    waiting, running = list(trials), dict[Any, tuple[Any, Trial]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                answer, answers = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(trial, _code(trial), answers))
                # nothing starts where the fork server was killed: the answer is at its end then
                with contextlib.suppress(OSError, EOFError), answers, main_hidden():
                    process.start()
                running[answer] = process, trial
            ended = list[Ended]()
            ready: list[Any] = wait(list(running), timeout=1.0)
            for answer in ready:
                process, trial = running.pop(answer)
                try:
                    ended.append((trial, answer.recv()))
                    process.join()
                except EOFError:
                    ended.append(_lost(trial, _how_ended(process)))
            yield ended
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _code(trial: Trial) -> dict[str, bytes]:
    """The user's code as it was read, for the process that trains with it."""
    return as_read(trial.config.references.values())


def _how_ended(process: Any) -> str:
    """How a process without an answer has ended."""
    if process.pid is None:
        return "no process could be started"
    process.join()
    killed = " (killed; out of memory?)" if process.exitcode == -9 else ""
    return f"its process ended with exit code {process.exitcode}{killed}"


def _lost(trial: Trial, how: str) -> Ended:
    """A failure that its own process could not write."""
    failure = Failure(reason=f"{how}; the same command goes on")
    keep_failure(trial.path, failure)
    return trial, failure


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


def _child(trial: Trial, code: Mapping[str, bytes], answers: Connection) -> None:
    """The program of one process. code: the user's, as the parent has read it."""
    if hasattr(signal, "pthread_sigmask"):  # the terminal's signals are the parent's to act on
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    end_at_once()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    trust_as_read(code)
    answers.send(run(trial))


def _end_with_parent() -> None:
    """Save and end as soon as the parent process is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)


# Ray -----------------------------------------------------------------------------------------


def check_ray() -> None:
    """Raise UserError where Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError(
            f"--on ray needs Ray, which is not installed; {how_to_install('ray')}"
        ) from None


def run_on_ray(trials: Sequence[Trial], at_once: int | None = None) -> Generator[list[Ended]]:
    """As `run_here`, on a Ray cluster. at_once: None = as many as the cluster has room for."""
    with _connected() as ray:
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        task = ray.remote(max_calls=1, max_retries=3, num_cpus=1)(_task)
        waiting, running = list(trials), dict[Any, Trial]()
        try:
            while waiting or running:
                while waiting and len(running) < (at_once or len(trials)):
                    trial = waiting.pop(0)
                    device = trial.config.device
                    on_gpu = device.startswith("cuda") or (device == "auto" and has_gpus)
                    placed = task.options(num_gpus=float(on_gpu))
                    running[placed.remote(trial, _code(trial), os.getcwd())] = trial
                ended = list[Ended]()
                for each in ray.wait(list(running), num_returns=len(running), timeout=1.0)[0]:
                    trial = running.pop(each)
                    try:
                        ended.append((trial, ray.get(each)))
                    except ray.exceptions.RayError as error:
                        reason = str(error).strip().partition("\n")[0]
                        lost = f"Ray lost it ({type(error).__name__}: {reason})"
                        ended.append(_lost(trial, lost))
                yield ended
        finally:
            for reference in running:
                ray.cancel(reference)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=60.0)


def _task(trial: Trial, code: Mapping[str, bytes], folder: str) -> Failure | None:
    """The program of one task, in the folder of the command. code: the user's, as it was read."""
    end_at_once()
    trust_as_read(code)
    if not os.path.isdir(folder):
        lost = f"{folder}: not on {platform.node()}; the nodes must share the folder of the command"
        return Failure(reason=lost)
    os.chdir(folder)
    return run(trial)


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Ray, connected to RAY_ADDRESS, to a cluster that runs here, or to one that is started for as
    long as the block lasts. Raises UserError."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
