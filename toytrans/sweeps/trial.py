"""A trial: one run of a sweep, trained and measured.

    FOLDER/LABEL-HASH/              an ordinary run
    FOLDER/LABEL-HASH/eval.json     its numbers, at the end
    FOLDER/LABEL-HASH/failed.json   why it has none, while it has none

The hash is of the config and of what is in the files that it names, so another config is another
run. A trial that was stopped goes on from its checkpoint. Where only the measure is another one,
the trained model is measured again. Each trial computes with one thread.
"""

import contextlib
import hashlib
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict

from toytrans.config.schema import Config, Paths
from toytrans.data.files import sha256_of
from toytrans.errors import UserError, ran_out_of_memory, shortened
from toytrans.files import Unreadable, disk_errors, json_text, read_json, write_json
from toytrans.sweeps.measure import EVAL, Measure, Result, evaluate, read_results
from toytrans.training import devices
from toytrans.training.checkpoint import saved_steps
from toytrans.training.run import METRICS, RunFolder, is_locked
from toytrans.training.session import open_session
from toytrans.training.signals import exit_if_signalled
from toytrans.user_code import RAISED, digests, fault_in_user_code

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

    def results(self) -> dict[str, Result]:
        """What its measures have given so far. Raises UserError."""
        found = read_results(self.path)
        return {n: of for n, of in found.items() if of.measure == self.measures.get(n)}

    def is_done(self) -> bool:
        """Whether nothing is left to do: it has its numbers, or would fail again."""
        failure = read_failure(self.path)
        return len(self.results()) == len(self.measures) or bool(failure and failure.final)

    def share_done(self) -> float:
        """The proportion of its training that is done."""
        with contextlib.suppress(UserError):  # it has not begun
            records = RunFolder.open(self.path).records
            return int(records[-1]["step"]) / self.config.train.max_steps if records else 0.0
        return 0.0

    def saved_step(self) -> int:
        """The step that it goes on from; 0 = it starts."""
        return max(saved_steps(self.path), default=0)


def path_of(folder: Path, label: str, config: Config, hashed: dict[Paths, str]) -> Path:
    """The folder of a trial. hashed: SHA-256 of data files, so that each is read once."""
    contents = digests(config.references.values())
    for paths in _files_of(config).values():
        if paths not in hashed:
            hashed[paths] = sha256_of(paths)
        contents.append(hashed[paths])
    text = json_text([by_names(config), contents])
    return folder / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def by_names(config: Config) -> dict[str, Any]:
    """A config as values, its data files and code by their names, whatever folder they lie in."""
    values = config.model_dump(mode="json")
    for part, paths in _files_of(config).items():
        names = [Path(path).name for path in ([paths] if isinstance(paths, str) else paths)]
        values["data"]["files"][part] = names[0] if isinstance(paths, str) else names
    for key, reference in config.references.items():
        section, _, name = key.partition(".")
        values[section][name] = Path(reference).name
    return values


def _files_of(config: Config) -> dict[str, Paths]:
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


# Running -------------------------------------------------------------------------------------


def run(trial: Trial) -> Failure | None:
    """Train and measure a trial in this process. Why it failed, if it did, which is written too."""
    keep_failure(trial.path, None)
    deadline = time.monotonic() + SECONDS_FOR_LOCK
    while is_locked(trial.path / METRICS) and time.monotonic() < deadline:
        time.sleep(0.2)
    try:
        failure = _train_and_measure(trial)
    except UserError as error:
        reason = str(error).removeprefix(f"{trial.path}: ")  # it is shown beside the path
        failure = Failure(reason=reason)
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
        keep_failure(trial.path, failure)
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
        reason = trainer.divergence().removeprefix(f"{trial.path}: ")
        return Failure(reason=reason, final=True)
    trained = RunFolder.open(trial.path).load(trial.checkpoint, str(trainer.device))
    for found in evaluate(trained, trial.measures, trial.results()):
        with disk_errors(trial.path, EVAL):
            write_json(trial.path / EVAL, found)
    return None
