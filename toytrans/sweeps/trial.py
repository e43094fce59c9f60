"""A trial: one run of a sweep, trained and measured.

    FOLDER/lr=0.003,seed=0/              an ordinary run
    FOLDER/lr=0.003,seed=0/eval.json     its results, at the end
    FOLDER/lr=0.003,seed=0/failed.json   why it has none, while it has none

A trial that was stopped goes on from its checkpoint. Where only the measure is another one, or the
test files, the trained model is measured again. Each trial computes with one thread, wherever it
runs: `here` has many in processes on this machine, `on_ray` on the machines of a cluster.
"""

import contextlib
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict

from toytrans.config.schema import Config, Settings
from toytrans.documents import read_json
from toytrans.errors import UserError, ran_out_of_memory, shortened
from toytrans.files import Unreadable, write_json
from toytrans.measure import Measure
from toytrans.measurement import write_result
from toytrans.training import devices
from toytrans.training.checkpoint import read_trained_with
from toytrans.training.folder import is_being_written
from toytrans.training.provenance import TrainedWith
from toytrans.training.run import Run
from toytrans.training.session import open_session
from toytrans.training.signals import exit_if_signalled
from toytrans.user_code import fault_in_user_code

FAILED = "failed.json"

SECONDS_FOR_LOCK = 60.0
"""A process whose parent was killed saves first, and leaves its run then."""


class Trial(NamedTuple):
    """What to train, where, and what is measured of it.

    config: as it is given to the training. settings: what follows from it. title: what sets it
    apart, for a person. labels: the same by key, the seed among them.
    """

    path: Path
    config: Config
    settings: Settings
    measures: Sequence[Measure]
    title: str = ""
    labels: Mapping[str, Any] = {}

    def is_done(self) -> bool:
        """Whether nothing is left to do: it has its results, or would diverge again."""
        try:
            run = Run.open(self.path)
            if run.diverged:
                return True
            if run.unfinished or not run.steps:
                return False
            run.settings = self.settings  # whose files may lie in another folder now
            return all(map(run.kept_result, self.measures))
        except UserError:  # it has not begun, or is damaged, which its own process says
            return False

    def is_trained(self) -> bool:
        """Whether its training has come to its end, so that it only has to be measured."""
        with contextlib.suppress(UserError):
            return not Run.open(self.path).unfinished
        return False

    def share_done(self) -> float:
        """The proportion of its training that is done."""
        with contextlib.suppress(UserError):  # it has not begun
            records = Run.open(self.path).records
            return int(records[-1]["step"]) / self.config.train.max_steps if records else 0.0
        return 0.0


Ended = tuple[Trial, "Failure | None"]
"""A trial that has ended, and why it failed if it did."""


def is_free_for(path: Path, settings: Settings, now: TrainedWith) -> bool:
    """Whether a folder holds the run of some settings, or no run that could be another one.

    now: what a training with them would train with. Test files are no part of a training.
    """
    try:
        run = Run.open(path)
        if by_names(run.settings) != by_names(settings):
            return False
        before = read_trained_with(path, run.steps[-1]) if run.steps else None
    except UserError:  # there is none, or its own process says what is wrong
        return True
    if before is None:
        return True
    files = before.code | before.data
    here = now.code | now.data
    return all(here.get(key) == files[key] for key in files if key != "data.files.test")


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


def lost(trial: Trial, how: str) -> Failure:
    """A failure that its own process could not write."""
    return failed(trial, f"{how}; the same command goes on")


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
    with open_session(trial.config, name, trial.path, True, silent, waits=True) as trainer:
        for _ in trainer.train():
            pass
        exit_if_signalled(trainer.signals)
    if trainer.stop_reason == "diverged":
        return failed(trial, trainer.divergence())
    trained = Run.open(trial.path, device=str(trainer.device))
    trained.settings = trial.settings
    for measure in trial.measures:
        if trained.kept_result(measure) is None:
            write_result(trained.path, trained.measure(measure))
    return None
