"""A trial: one training and what is measured of it.

    Trial -> FOLDER/LABEL-HASH/ -> result.json

A trial with its result is done. An interrupted trial continues from its last checkpoint, or with
the first missing measure. The hash is of the config and the contents of its files: a changed config
is trained anew. A changed measure is only measured anew. A result that cannot be read is refused,
not overwritten; if it is removed, the trained model is measured again.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from toytrans.config.schema import Config, Paths
from toytrans.config.yaml import write_yaml
from toytrans.data.files import sha256_of
from toytrans.data.pairs import DataFacts
from toytrans.errors import UserError
from toytrans.files import disk_errors, read_json, write_json
from toytrans.model.initialisation import count_parameters
from toytrans.model.seq2seq import Seq2Seq
from toytrans.training import devices
from toytrans.training.checkpoint import Count
from toytrans.training.run import RunFolder, is_run
from toytrans.training.session import open_session
from toytrans.training.signals import exit_if_signalled
from toytrans.training.trainer import Trainer
from toytrans.user_code import as_read, digests

RESULT = "result.json"

Taken = dict[str, Any]
"""What a measure gives: the keys of `_Taken`, and others with plain values."""


def files_of(config: Config) -> dict[str, Paths]:
    """The data files that a config names: train, valid and test, as far as it does."""
    named = config.data.files
    paths = {part: getattr(named, part, None) for part in ("train", "valid", "test")}
    return {part: path for part, path in paths.items() if path is not None}


def names_of(paths: Paths) -> Paths:
    """Paths without their folders."""
    if isinstance(paths, str):
        return Path(paths).name
    source, target = paths
    return Path(source).name, Path(target).name


class Measure(Protocol):
    """What is measured of a trained model."""

    def asked(self) -> dict[str, Any]:
        """The keys that its numbers depend on, as JSON."""

    def take(
        self, model: Seq2Seq, config: Config, facts: DataFacts, taken: Mapping[str, Taken]
    ) -> Taken:
        """Its numbers, with `asked` and `value`. taken: by the measures before it."""


class Diverged(UserError):
    """A training whose loss or gradient is not finite: it would diverge again."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training and what is measured of it.

    label: how the name of its run directory begins. folder: where that lies.
    checkpoint: which model is measured. best: the best on validation pairs; a training that
    diverges fails. last: what training ended with, whatever that is.
    hashed: SHA-256 of files of data; trials that share it read each file once.
    """

    label: str
    config: Config
    measures: Mapping[str, Measure]
    folder: Path
    checkpoint: Literal["best", "last"] = "best"
    hashed: dict[Paths, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def by_names(self) -> dict[str, Any]:
        """The config as values, its files and code by their names, whatever folder they lie in."""
        values = self.config.model_dump(mode="json")
        for part, paths in files_of(self.config).items():
            names = names_of(paths)
            values["data"]["files"][part] = names if isinstance(names, str) else list(names)
        for key, reference in self.config.references.items():
            section, _, name = key.partition(".")
            values[section][name] = Path(reference).name
        return values

    @cached_property
    def config_sha256(self) -> str:
        return hashlib.sha256(write_yaml(self.by_names).encode()).hexdigest()

    @cached_property
    def digest(self) -> str:
        """The start of a hash of the config, and of what is in its files of data and of code."""
        digest = self.config_sha256
        contents = []
        for paths in files_of(self.config).values():
            if paths not in self.hashed:
                self.hashed[paths] = sha256_of(paths)
            contents.append(self.hashed[paths])
        for each in (*contents, *digests(self.config.references.values())):
            digest = hashlib.sha256(f"{digest} {each}".encode()).hexdigest()
        return digest[:8]

    @property
    def code(self) -> dict[str, bytes]:
        """The user's code as it was read, for the process that trains with it."""
        return as_read(self.config.references.values())

    @cached_property
    def path(self) -> Path:
        """The run directory."""
        return self.folder / f"{self.label}-{self.digest}"

    def so_far(self) -> dict[str, Any] | None:
        """The result of the training, with the measures that are still asked for; None before its
        end. Raises UserError for a file that no training writes."""
        result = read_result(self.path)
        if result is not None:
            taken = result["measures"]
            result["measures"] = {
                name: taken[name]
                for name, measure in self.measures.items()
                if name in taken and taken[name]["asked"] == measure.asked()
            }
        return result

    def result(self) -> dict[str, Any] | None:
        """The result, if every measure has been taken."""
        result = self.so_far()
        return result if result and len(result["measures"]) == len(self.measures) else None

    def share_done(self) -> float:
        """Proportion that is done: training counts half, the measures the other half."""
        if (result := self.so_far()) is not None:
            return 0.5 + 0.5 * len(result["measures"]) / len(self.measures)
        records = RunFolder.open(self.path).records if is_run(self.path) else []
        return 0.5 * int(records[-1]["step"]) / self.config.train.max_steps if records else 0.0


Length = Annotated[str, Field(pattern=r"^[0-9]{1,6}$")]
Share = Annotated[float, Field(ge=0, le=1)]


class _Plain(BaseModel):
    """Known keys have types; other keys hold plain values."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, str | Count | float | None]


class _Taken(_Plain):
    """What a measure gives. None: the number was not finite, or there were no pairs."""

    asked: dict[str, Any]
    value: Annotated[float, Field(ge=0)] | None
    loss: Annotated[float, Field(ge=0)] | None
    examples: Count = 0
    exact_match: Share
    forced_exact_match: Share
    token_accuracy: Share
    free_token_accuracy: Share
    exact_match_difference: Annotated[float, Field(ge=-1, le=1)] | None = None
    below: Share | None = None
    in_range: Share | None = None
    beyond: Share | None = None
    by_length: dict[Length, Share]
    pairs_by_length: dict[Length, Count] = {}
    train_length: tuple[Count, Count] = (0, 0)

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if self.asked.get("metric") != "perplexity" and (self.value or 0) > 1:
            raise ValueError("a proportion above 1")
        return self


class _Result(_Plain):
    """result.json, as `train_and_measure` makes it."""

    steps: Count = 0
    train_s: Annotated[float, Field(ge=0)] = 0.0
    measures: dict[str, _Taken]


def read_result(run: Path) -> dict[str, Any] | None:
    """The contents of a run's result.json, if it exists. Raises UserError."""
    otherwise = "not what a training writes; remove it, and the trained model is measured again"
    result = read_json(run / RESULT, _Result, otherwise)
    return result.model_dump(exclude_unset=True) if result else None


def train_and_measure(trial: Trial) -> None:
    """Train on one core, or resume, and write the result after every measure.

    On SIGTERM the training saves. A running measure is lost, the measures before it are kept.
    """
    torch.set_num_threads(1)
    devices.tune_process()
    began = time.process_time()
    config = trial.config
    with open_session(
        config, trial.path.name, trial.path, True, lambda _: None, remedy="", patient=True
    ) as session:
        trainer, signals = session.trainer, session.signals
        for _ in trainer.train():
            pass
        signals.act = lambda: exit_if_signalled(signals.received)
        exit_if_signalled(signals.received)
        model = _to_measure(trial, trainer)
        result = trial.so_far() or {
            "steps": trainer.progress.step,
            "stop_reason": trainer.stop_reason,
            "target_tokens": trainer.progress.target_tokens,
            "parameters": count_parameters(trainer.model),
            "train_s": trainer.progress.elapsed_s,
            "cpu_s": None if session.resumed else time.process_time() - began,
            "precision": trainer.precision,
            "measures": {},
        }
        taken = result["measures"]
        for name, measure in trial.measures.items():
            if name not in taken:
                taken[name] = measure.take(model, trainer.config, session.dataset.facts, taken)
                with disk_errors(trial.path, RESULT):
                    write_json(trial.path / RESULT, result)


def _to_measure(trial: Trial, trainer: Trainer) -> Seq2Seq:
    """The model that is measured. Raises Diverged."""
    if trial.checkpoint == "last":
        return trainer.model
    if trainer.stop_reason == "diverged":
        raise Diverged(
            f"training diverged: the {trainer.not_finite} is not finite by step "
            f"{trainer.progress.step}; lower train.lr or train.clip_norm"
        )
    return RunFolder.open(trial.path).load("best", str(trainer.device)).model
