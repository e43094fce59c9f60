"""Trials: runs of a sweep, trained and measured, in processes here or as tasks of a Ray cluster.

    FOLDER/LABEL-HASH/              an ordinary run
    FOLDER/LABEL-HASH/eval.json     its numbers, at the end
    FOLDER/LABEL-HASH/failed.json   why it has none, while it has none

The hash is of the config and of what is in the files that it names, so another config is another
run. A trial that was stopped goes on from its checkpoint. Where only the measure is another one,
the trained model is measured again. Each trial computes with one thread.

Here and on Ray, `run` is what runs. A trial that fails, is killed, or runs out of memory costs only
itself. On a cluster the nodes share the folder of the runs, so a trial whose node is lost goes on
elsewhere.
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
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict

from toytrans.config.schema import Config, Paths
from toytrans.data.files import sha256_of
from toytrans.errors import UserError, how_to_install, ran_out_of_memory, shortened
from toytrans.files import Unreadable, disk_errors, json_text, read_json, write_json
from toytrans.sweeps.measure import EVAL, Eval, Measure, evaluate, read_eval
from toytrans.training import devices
from toytrans.training.checkpoint import saved_steps
from toytrans.training.environment import usable_cores
from toytrans.training.run import METRICS, RunFolder, is_locked
from toytrans.training.session import open_session
from toytrans.training.signals import end_at_once, exit_if_signalled
from toytrans.user_code import RAISED, as_read, digests, fault_in_user_code, trust_as_read

FAILED = "failed.json"

SECONDS_FOR_LOCK = 60.0
"""A process whose parent was killed saves first, and leaves its run then."""


class Trial(NamedTuple):
    """What to train, where, and what is measured of it.

    title: what sets it apart, for a person. about: the same by key, for the table.
    checkpoint: the best on validation pairs, where a training that diverges fails; or the last.
    """

    path: Path
    config: Config
    measures: Mapping[str, Measure]
    title: str = ""
    about: Mapping[str, Any] = {}
    checkpoint: Literal["best", "last"] = "best"

    def eval(self) -> Eval | None:
        """The numbers, with the measures that are asked for alone; None before the end of training.
        Raises UserError."""
        found = read_eval(self.path)
        if found is None:
            return None
        asked = {name: of for name, of in found.measures.items() if name in self.measures}
        kept = {name: of for name, of in asked.items() if of.measure == self.measures[name]}
        return found.model_copy(update={"measures": kept})

    def is_done(self) -> bool:
        """Whether nothing is left to do: it has its numbers, or would fail again."""
        found, failure = self.eval(), read_failure(self.path)
        measured = found is not None and len(found.measures) == len(self.measures)
        return measured or (failure is not None and failure.final)

    def share_done(self) -> float:
        """The proportion of its training that is done."""
        with contextlib.suppress(UserError):  # it has not begun
            records = RunFolder.open(self.path).records
            return int(records[-1]["step"]) / self.config.train.max_steps if records else 0.0
        return 0.0

    def saved_step(self) -> int:
        """The step that it goes on from; 0 = it starts."""
        return max(saved_steps(self.path), default=0)

    def code(self) -> dict[str, bytes]:
        """The user's code as it was read, for the process that trains with it."""
        return as_read(self.config.references.values())


def path_of(folder: Path, label: str, config: Config, hashed: dict[Paths, str]) -> Path:
    """The folder of a trial. hashed: SHA-256 of data files, so that each is read once."""
    contents = digests(config.references.values())
    for paths in files_of(config).values():
        if paths not in hashed:
            hashed[paths] = sha256_of(paths)
        contents.append(hashed[paths])
    text = json_text([by_names(config), contents])
    return folder / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def by_names(config: Config) -> dict[str, Any]:
    """A config as values, its data files and code by their names, whatever folder they lie in."""
    values = config.model_dump(mode="json")
    for part, paths in files_of(config).items():
        names = [Path(path).name for path in ([paths] if isinstance(paths, str) else paths)]
        values["data"]["files"][part] = names[0] if isinstance(paths, str) else names
    for key, reference in config.references.items():
        section, _, name = key.partition(".")
        values[section][name] = Path(reference).name
    return values


def files_of(config: Config) -> dict[str, Paths]:
    """The data files that a config names: train, valid and test, as far as it does."""
    named = ((part, getattr(config.data.files, part, None)) for part in ("train", "valid", "test"))
    return {part: paths for part, paths in named if paths}


# Failures ------------------------------------------------------------------------------------


Text = Annotated[
    str, AfterValidator(lambda text: shortened(text.encode(errors="backslashreplace").decode()))
]
"""At most 2,000 characters that JSON can hold: of a path that is no UTF-8, escape codes."""


class Failure(BaseModel):
    """Why a trial has no numbers. final: it would fail again. traceback: of an internal error."""

    model_config = ConfigDict(frozen=True)

    reason: Text
    final: bool = False
    traceback: Text = ""


def read_failure(run: Path) -> Failure | None:
    """Why a run failed when it was last tried, as far as that can be read."""
    with contextlib.suppress(Unreadable):
        return read_json(run / FAILED, Failure, "not a failure; remove it")
    return None


def keep_failure(run: Path, failure: Failure | None) -> None:
    """Write why a run failed; None: forget it. A full disk stops no sweep."""
    with contextlib.suppress(OSError, UserError):
        if failure is not None:
            run.mkdir(parents=True, exist_ok=True)
            write_json(run / FAILED, failure.model_dump())
        elif read_failure(run) is not None:
            (run / FAILED).unlink()


# One trial -----------------------------------------------------------------------------------


def run(trial: Trial) -> Failure | None:
    """Train and measure a trial in this process. Why it failed, if it did, which is written too."""
    keep_failure(trial.path, None)
    deadline = time.monotonic() + SECONDS_FOR_LOCK
    while is_locked(trial.path / METRICS) and time.monotonic() < deadline:
        time.sleep(0.2)
    try:
        failure = _train_and_measure(trial)
    except UserError as error:
        failure = Failure(reason=str(error))
    except RAISED as error:
        if ran_out_of_memory(error):
            remedy = "lower data.batch_tokens or the sizes of the model"
            failure = Failure(reason=f"out of memory; {remedy}")
        elif fault := fault_in_user_code(error):
            failure = Failure(reason=f"your code: {fault}")
        elif isinstance(error, SystemExit):  # of a signal
            raise
        else:
            reason = f"internal error ({type(error).__name__}: {error})"
            failure = Failure(reason=reason, traceback=traceback.format_exc())
    if failure is not None:
        reason = failure.reason.removeprefix(f"{trial.path}: ")  # it is shown beside the path
        keep_failure(trial.path, failure := failure.model_copy(update={"reason": reason}))
    return failure


def _train_and_measure(trial: Trial) -> Failure | None:
    """Train, or go on, and write the numbers after each measure. On SIGTERM the training saves."""
    torch.set_num_threads(1)
    devices.tune_process()
    name, silent = trial.path.name, lambda _: None
    with open_session(trial.config, name, trial.path, True, silent, waits=True) as trainer:
        for _ in trainer.train():
            pass
        exit_if_signalled(trainer.received)
    if trial.checkpoint == "best" and trainer.stop_reason == "diverged":
        return Failure(reason=trainer.divergence(), final=True)
    trained = RunFolder.open(trial.path).load(trial.checkpoint, str(trainer.device))
    for found in evaluate(trained, trial.measures, trial.eval()):
        with disk_errors(trial.path, EVAL):
            write_json(trial.path / EVAL, found.model_dump(mode="json"))
    return None


# Processes -----------------------------------------------------------------------------------

Ended = tuple[Trial, Failure | None]


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
            ended = list[Ended]()
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                answer, answers = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(trial, trial.code(), answers))
                try:
                    with main_hidden(), answers:
                        process.start()
                    running[answer] = process, trial
                except (OSError, EOFError) as error:  # the fork server was killed
                    ended.append(_lost(trial, f"no process could be started ({error!r})"))
            ready: list[Any] = wait(list(running), timeout=1.0)
            for answer in ready:
                process, trial = running.pop(answer)
                try:
                    ended.append((trial, answer.recv()))
                    process.join()
                except EOFError:  # it was killed
                    process.join()
                    code = process.exitcode
                    how = f"ended with exit code {code}"
                    if code < 0:
                        more = " (out of memory?)" if code == -9 else ""
                        how = f"was killed by signal {-code}{more}"
                    ended.append(_lost(trial, f"its process {how}; the same command goes on"))
            yield ended
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
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


def _lost(trial: Trial, reason: str) -> Ended:
    """A failure that its own process could not write."""
    failure = Failure(reason=reason)
    keep_failure(trial.path, failure)
    return trial, failure


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
        task = ray.remote(max_calls=1, max_retries=3, num_cpus=1)(_task)
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
                ended = list[Ended]()
                for each in done:
                    trial = running.pop(each)
                    try:
                        ended.append((trial, ray.get(each)))
                    except ray.exceptions.RayError as error:
                        reason = str(error).strip().partition("\n")[0]
                        lost = f"Ray lost it ({type(error).__name__}: {reason})"
                        ended.append(_lost(trial, f"{lost}; the same command goes on"))
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
