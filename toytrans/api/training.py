"""Training in Python: to the end, or record by record."""

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from toytrans.api.run import Run, load
from toytrans.config.load import config_of, read_tree
from toytrans.config.schema import Config
from toytrans.config.yaml import IN_PYTHON, Tree
from toytrans.errors import UserError
from toytrans.training.isolation import Isolation
from toytrans.training.run import Record
from toytrans.training.session import open_session
from toytrans.training.trainer import StopReason

logger = logging.getLogger("toytrans")
"""Gets what the commands print on standard error: at level INFO, an interruption as a WARNING."""

Settings = str | Path | Mapping[str, Any] | Config
"""A YAML file, its values as a dict, or a config."""


class Training:
    """A training that yields its records one by one.

        with toytrans.Training("configs/textbook.yaml") as training:
            for record in training:
                ...
        run = training.run

    Takes the arguments of `train`. The run directory is locked within the block. Leaving it early
    saves a checkpoint. Between two records, torch's random state and settings are the program's.
    """

    def __init__(
        self,
        config: Settings,
        out: str | Path | None = None,
        *,
        seed: int | None = None,
        changes: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        changed = {**(changes or {}), **({} if seed is None else {"seed": seed})}
        checked = config_of(tree_of(config), changed)
        self._config, self._name = checked, name_of(config, checked)
        self._out, self._resume = None if out is None else Path(out), resume
        self._isolation, self._opened = Isolation(), contextlib.ExitStack()
        self._between_records = False

    def __enter__(self) -> Self:
        with self._isolation.inside():
            session = open_session(
                self._config, self._name, self._out, self._resume, logger.info, in_program=True
            )
            self._session = self._opened.enter_context(session)
        self._trainer = self._session.trainer
        self._records = self._trainer.train()
        return self

    def __exit__(self, *_: object) -> None:
        with self._isolation.inside(), self._opened:
            if self._between_records:  # neither ended nor failed: it saves, and takes no step
                self._trainer.interrupt()
                next(self._records, None)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if not hasattr(self, "_records"):
            raise UserError("a Training needs its block: `with toytrans.Training(...) as training`")
        self._between_records = False
        with self._isolation.inside():
            record = next(self._records, None)
        if record is None:
            self._explain_end()
            raise StopIteration
        self._between_records = True
        return record

    def _explain_end(self) -> None:
        """Raise UserError where training diverged, KeyboardInterrupt where nothing was saved."""
        if self.stop_reason == "diverged":
            raise UserError(self._trainer.divergence())
        received = self._session.signals.received
        if received and self._trainer.saved_step is None:
            raise KeyboardInterrupt
        if received:
            received.clear()
            logger.warning(
                "%s: interrupted at step %d and saved; resume=True goes on", self.path, self.step
            )

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._trainer.run

    @property
    def config(self) -> Config:
        return self._config

    @property
    def step(self) -> int:
        """Optimiser steps so far."""
        return self._trainer.progress.step

    @property
    def stop_reason(self) -> StopReason | None:
        """Why training has ended; None while it goes on."""
        return self._trainer.stop_reason

    @property
    def run(self) -> Run:
        """The run with its best checkpoint so far. Raises UserError where there is none yet."""
        return load(self.path, device=str(self._trainer.device))


def train(
    config: Settings,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Run:
    """Train to the end, and return the run with its best checkpoint. Raises UserError.

    config: a YAML file, its values as a dict, or a Config. out: the run directory; None = runs/
    and the name of the file or task, then -2, -3. seed: changes the key `seed`. changes: other
    keys, say {"train.lr": 1e-3}. resume: go on from the last checkpoint of the run in `out`.

    Ctrl-C saves after the running step, and the run so far is returned; a second one raises
    KeyboardInterrupt. The numbers are those of `toytrans train`, bit for bit.
    """
    training = Training(config, out, seed=seed, changes=changes, resume=resume)
    with training:
        for _ in training:
            pass
    return training.run


def tree_of(config: Any) -> Tree:
    """The values of a config, for this call alone. Raises UserError."""
    if isinstance(config, str | Path):
        return read_tree(Path(config))
    if isinstance(config, Config):
        return Tree(IN_PYTHON, config.model_dump(mode="json"))
    if isinstance(config, Mapping):
        return Tree(IN_PYTHON, copy.deepcopy(dict(config)))
    kind = type(config).__name__
    raise UserError(f"a config is a path, a dict or a toytrans.Config, not {kind}")


def name_of(config: Settings, checked: Config) -> str:
    """A name for the runs of a config: that of its file, or of its task."""
    if isinstance(config, str | Path):
        return Path(config).stem
    return (checked.data.task or "files").rpartition(":")[2]
