"""A trial: one run of a sweep, trained and measured; and many of them, here or on a Ray cluster.

    FOLDER/LABEL-HASH/              an ordinary run
    FOLDER/LABEL-HASH/eval.json     its numbers, at the end
    FOLDER/LABEL-HASH/failed.json   why it has none, while it has none

The hash is of the config and of what is in the files that it names, so another config is another
run. A trial that was stopped goes on from its checkpoint. Where only the measure is another one,
the trained model is measured again. Each trial computes with one thread.

Many run in processes here, or as tasks of a cluster. One that fails, is killed, or runs out of
memory costs only itself. The nodes of a cluster share the folder of the runs, so a trial whose node
is lost goes on elsewhere.
"""

import contextlib
import hashlib
import logging
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict

from toytrans.config.load import flatten
from toytrans.config.schema import Config, Paths, Settings
from toytrans.documents import read_json
from toytrans.errors import UserError, how_to_install, ran_out_of_memory, shortened
from toytrans.files import Unreadable, json_text, write_json
from toytrans.measurement import Measure, write_result
from toytrans.references import digests, hand_over, take_over
from toytrans.training import devices
from toytrans.training.devices import usable_cores
from toytrans.training.folder import is_being_written
from toytrans.training.run import Run
from toytrans.training.session import open_session
from toytrans.training.signals import end_at_once, exit_if_signalled
from toytrans.user_code import fault_in_user_code

FAILED = "failed.json"

SECONDS_FOR_LOCK = 60.0
"""A process whose parent was killed saves first, and leaves its run then."""


class Trial(NamedTuple):
    """What to train, where, and what is measured of it.

    config: as it is given to the training. settings: what follows from it.
    title: what sets it apart, for a person. about: the same by key, for a board's table.
    """

    path: Path
    config: Config
    settings: Settings
    measures: Sequence[Measure]
    title: str = ""
    about: Mapping[str, str] = {}

    def is_done(self) -> bool:
        """Whether nothing is left to do: it has its numbers, or would diverge again."""
        try:
            run = Run.open(self.path)
            if by_names(run.config) != by_names(self.settings):
                return False
            if run.diverged:
                return True
            if run.unfinished or not run.steps:
                return False
            run.config = self.settings  # whose files may lie in another folder now
            return all(map(run.kept_result, self.measures))
        except UserError:  # it has not begun, or is damaged, which its own process says
            return False

    def share_done(self) -> float:
        """The proportion of its training that is done."""
        with contextlib.suppress(UserError):  # it has not begun
            records = Run.open(self.path).records
            return int(records[-1]["step"]) / self.config.train.max_steps if records else 0.0
        return 0.0


def path_of(folder: Path, label: str, config: Settings, hash_of: Callable[[Paths], str]) -> Path:
    """The folder of a trial. hash_of: the SHA-256 of data files, which it reads once."""
    contents, files = digests(config.references.values()), config.data.files
    named = (files.train, files.valid, files.test) if files else ()
    contents += [hash_of(paths) for paths in named if paths]
    text = json_text([by_names(config), contents])
    return folder / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def by_names(config: Settings) -> dict[str, Any]:
    """A config as values, its data files and code by their names, whatever folder they lie in."""
    values = config.model_dump(mode="json")
    files = values["data"]["files"] or {}
    for part in ("train", "valid", "test"):
        if paths := files.get(part):
            one = isinstance(paths, str)
            files[part] = Path(paths).name if one else [Path(path).name for path in paths]
    for key, reference in config.references.items():
        section, _, name = key.partition(".")
        values[section][name] = Path(reference).name
    return values


# Failures ----------------------------------------------------------------------------------------


class Failure(BaseModel):
    """Why a trial has no numbers. traceback: of an internal error."""

    model_config = ConfigDict(frozen=True)

    reason: str
    traceback: str = ""


def read_failure(run: Path) -> Failure | None:
    """Why a run failed when it was last tried, as far as that can be read."""
    with contextlib.suppress(Unreadable):
        return read_json(run / FAILED, Failure, "not a failure; remove it")
    return None


def failed(trial: Trial, reason: str, *, traceback: str = "") -> Failure:
    """Write why a trial failed. A full disk stops no sweep."""
    texts = {"reason": reason.removeprefix(f"{trial.path}: "), "traceback": traceback}
    for name, text in texts.items():  # of a path that is no UTF-8, escape codes
        texts[name] = shortened(text.encode(errors="backslashreplace").decode())
    failure = Failure(**texts)
    with contextlib.suppress(OSError, UserError):
        trial.path.mkdir(parents=True, exist_ok=True)
        write_json(trial.path / FAILED, failure.model_dump())
    return failure


# One trial ---------------------------------------------------------------------------------------


def run(trial: Trial) -> Failure | None:
    """Train and measure a trial in this process. Why it failed, if it did, which is written too."""
    with contextlib.suppress(OSError):
        (trial.path / FAILED).unlink()
    deadline = time.monotonic() + SECONDS_FOR_LOCK
    while is_being_written(trial.path) and time.monotonic() < deadline:
        time.sleep(0.2)
    try:
        return _train_and_measure(trial)
    except UserError as error:
        return failed(trial, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # code of the user's may raise anything
        if ran_out_of_memory(error):
            remedy = "lower data.batch_tokens or the sizes of the model"
            return failed(trial, f"out of memory; {remedy}")
        if fault := fault_in_user_code(error):
            return failed(trial, f"your code: {fault}")
        if isinstance(error, SystemExit):  # of a signal
            raise
        reason = f"internal error ({type(error).__name__}: {error})"
        return failed(trial, reason, traceback=traceback.format_exc())


def _train_and_measure(trial: Trial) -> Failure | None:
    """Train, or go on, and write the numbers after each measure. On SIGTERM the training saves."""
    torch.set_num_threads(1)
    devices.tune_process()
    name, silent = trial.path.name, lambda _: None
    _check_config(trial)
    with open_session(trial.config, name, trial.path, True, silent, waits=True) as trainer:
        for _ in trainer.train():
            pass
        exit_if_signalled(trainer.signals)
    if trainer.stop_reason == "diverged":
        return failed(trial, trainer.divergence())
    trained = Run.open(trial.path, device=str(trainer.device))
    trained.config = trial.settings
    for measure in trial.measures:
        if trained.kept_result(measure) is None:
            write_result(trained.path, trained.measure(measure))
    return None


def _check_config(trial: Trial) -> None:
    """Raise UserError where the folder of a trial holds a run of another config, which somebody
    has put there or has gone on with."""
    try:
        config = Run.open(trial.path).config
    except UserError:  # there is none, or the training says what is wrong
        return
    there, wanted = (flatten(by_names(settings)) for settings in (config, trial.settings))
    for key, value in wanted.items():
        if there.get(key) != value:
            what = f"holds a run whose {key} is {there.get(key)}, not {value}"
            raise UserError(f"{trial.path}: {what}; move it away")


# Many trials, in processes here ------------------------------------------------------------------

Ended = tuple[Trial, Failure | None]

HAS_FAILED = 1
"""The exit code of a process whose trial has failed and has written why."""


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
    at_once, waiting, running = processes_for(trials, jobs), list(trials), dict[Any, Trial]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                given = trial, hand_over(trial.config.references.values())
                process = context.Process(target=_child, args=given)
                with contextlib.suppress(OSError, EOFError), main_hidden(), signals_blocked():
                    process.start()  # nothing starts where the fork server was killed
                running[process] = trial
            wait([process.sentinel for process in running if process.pid], timeout=1.0)
            over = [process for process in running if not process.is_alive()]
            yield [(running[each], _answer(running.pop(each), each)) for each in over]
    finally:
        started = [process for process in running if process.pid]
        for process in started:
            process.terminate()
        for process in started:
            process.join()


def _answer(trial: Trial, process: Any) -> Failure | None:
    """Why a trial has failed whose process has ended."""
    if process.pid is None:
        return _lost(trial, "no process could be started")
    if process.exitcode == 0:
        return None
    killed = " (killed; out of memory?)" if process.exitcode == -9 else ""
    written = read_failure(trial.path) if process.exitcode == HAS_FAILED else None
    return written or _lost(trial, f"its process ended with exit code {process.exitcode}{killed}")


def _lost(trial: Trial, how: str) -> Failure:
    """A failure that its own process could not write."""
    return failed(trial, f"{how}; the same command goes on")


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


def _child(trial: Trial, code: Mapping[str, bytes]) -> None:
    """The program of one process. code: the user's, as the parent has read it."""
    end_at_once()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    take_over(code)
    sys.exit(HAS_FAILED if run(trial) else 0)


def _end_with_parent() -> None:
    """Save and end as soon as the parent process is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)


# Ray ---------------------------------------------------------------------------------------------


def check_ray() -> None:
    """Raise UserError where Ray is not installed."""
    if find_spec("ray") is None:
        raise UserError(f"--on ray needs Ray, which is not installed; {how_to_install('ray')}")


def run_on_ray(trials: Sequence[Trial], jobs: int | None = None) -> Generator[list[Ended]]:
    """As `run_here`, on a Ray cluster. jobs: None = as many as the cluster has room for."""
    waiting, running = list(trials), dict[Any, Trial]()
    with _connected() as ray:
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        task = ray.remote(max_calls=1, max_retries=3, num_cpus=1)(_task)
        try:
            while waiting or running:
                while waiting and len(running) < (jobs or len(trials)):
                    trial = waiting.pop(0)
                    device = trial.config.device
                    on_gpu = device.startswith("cuda") or (device == "auto" and has_gpus)
                    placed = task.options(num_gpus=float(on_gpu))
                    given = trial, hand_over(trial.config.references.values()), os.getcwd()
                    running[placed.remote(*given)] = trial
                ended = list[Ended]()
                for each in ray.wait(list(running), num_returns=len(running), timeout=1.0)[0]:
                    trial = running.pop(each)
                    try:
                        ended.append((trial, ray.get(each)))
                    except ray.exceptions.RayError as error:
                        reason = str(error).strip().partition("\n")[0]
                        how = f"Ray lost it ({type(error).__name__}: {reason})"
                        ended.append((trial, _lost(trial, how)))
                yield ended
        finally:
            for each in running:
                ray.cancel(each)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=60.0)


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Ray, connected to RAY_ADDRESS, to a cluster that runs here, or to one that is started for as
    long as the block lasts. Raises UserError."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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


def _task(trial: Trial, code: Mapping[str, bytes], folder: str) -> Failure | None:
    """The program of one task, in the folder of the command. code: the user's, as it was read."""
    end_at_once()
    take_over(code)
    if not os.path.isdir(folder):
        lost = f"{folder}: not on {platform.node()}; the nodes must share the folder of the command"
        return Failure(reason=lost)
    os.chdir(folder)
    return run(trial)
