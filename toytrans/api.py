"""toytrans in Python: train, load, and use a run. `toytrans` itself exports what is here."""

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from toytrans.config import Config
from toytrans.config_file import config_of
from toytrans.data.pairs import Side, Split
from toytrans.data.selection import Selection
from toytrans.errors import UserError
from toytrans.model.initialisation import count_parameters
from toytrans.training import run as training_run
from toytrans.training.isolation import Isolation
from toytrans.training.measured import Measured, measure
from toytrans.training.records import Records
from toytrans.training.run import Record, load_run, read_records, unfinished
from toytrans.training.session import Request, open_session
from toytrans.training.trainer import StopReason
from toytrans.yaml_tree import Tree, read_yaml

if TYPE_CHECKING:
    from toytrans.insight.attention.maps import AttentionMaps
    from toytrans.insight.capture import Part
    from toytrans.insight.inspected import InspectedBatch

logger = logging.getLogger("toytrans")
"""Gets what the commands print on standard error: at level INFO, an interruption as a WARNING."""

Sequences = str | Sequence[str]
"""One sequence of symbols, say "5 7 9", or several."""


class Run(training_run.Run):
    """A trained model and what can be asked of it.

    path: the run directory. config: its config. model: a torch.nn.Module in eval mode.
    vocabulary: symbols <-> ids. step: that of the checkpoint.
    """

    @property
    def records(self) -> Records:
        """The records of the training: one dict for each line of metrics.jsonl."""
        return Records(read_records(self.path))

    @property
    def unfinished(self) -> str:
        """How far the training has come, say "step 3 of 200"; empty where it reached its end."""
        return unfinished(self.path)

    def evaluate(
        self,
        lengths: tuple[int, int] | None = None,
        split: Split = "test",
        examples: int | None = None,
        decode: int | None = None,
        beam: int = 1,
        *,
        length_of: Side = "src",
        files: tuple[str | Path, str | Path] | None = None,
    ) -> Measured:
        """Measure the run as `toytrans eval` does. Raises UserError.

        lengths: the shortest and the longest; None = those of the split. split: valid or test.
        examples: pairs in all. decode: pairs of each length that are decoded; None = all.
        length_of: the side whose symbols a length counts. files: sources and targets, one a line.
        """
        if split not in ("valid", "test") or length_of not in ("src", "tgt"):
            raise UserError(f"split {split!r}, length_of {length_of!r}: valid or test, src or tgt")
        for name, number in (("examples", examples), ("decode", decode), ("beam", beam)):
            if number is not None and not (_is_count(number) and number):
                raise UserError(f"{name} {number!r}: expected a whole number, 1 or more")
        pairs_of = split if files is None else (Path(files[0]), Path(files[1]))
        wanted = Selection(_checked(lengths), examples, length_of)
        with Isolation()():
            return measure(self, pairs_of, wanted, decode, beam)

    def attention(
        self,
        src: Sequences = (),
        tgt: Sequences | None = None,
        *,
        part: "Part | None" = None,
        layer: int | None = None,
        head: int | None = None,
        sample: int = 200,
    ) -> "AttentionMaps":
        """What every head attends to, and which rule it follows, as `toytrans attention` shows.

        src: none = two validation pairs. tgt: the targets; None = the model's translations.
        part, layer, head: show only this one, counted from 1. sample: validation pairs on which
        the rules are measured; 0 = the pairs shown.
        """
        from toytrans.insight.attention.heads import Choice
        from toytrans.insight.attention.maps import maps_of

        if not _is_count(sample):
            raise UserError(f"sample {sample!r}: expected a whole number")
        choice = Choice(part, layer, head)
        return maps_of(self._copy(), _several(src), _targets(src, tgt), choice, sample)

    def masks(self, src: Sequences, tgt: Sequences | None = None) -> "InspectedBatch":
        """The masks of pairs as one padded batch, and why each cell is masked.

        tgt: the targets; None = the model's translations.
        """
        from toytrans.insight.inspected import batch_of_run

        if not src:
            raise UserError('no src; give a sequence such as "5 7 9", or several')
        targets = _targets(src, tgt) or self.translate(_several(src))
        return batch_of_run(self._copy(), _several(src), targets)

    def _copy(self) -> "Run":
        """This run with a copy of its model on the CPU, in eval mode."""
        return replace(self, model=copy.deepcopy(self.model).cpu().eval())

    def __repr__(self) -> str:
        data = self.config.data
        task, parameters = data.task or "files", count_parameters(self.model)
        fault = f", broken on purpose: {self.config.fault}" if self.config.fault else ""
        return f"Run({self.path}: {task}, {parameters:,} parameters, step {self.step}{fault})"


def load(
    path: str | Path,
    checkpoint: str | int = "best",
    device: str = "auto",
    trust_code: bool = False,
) -> Run:
    """The run of a directory. Raises UserError.

    checkpoint: best, last or a step. device: auto, cpu, cuda, cuda:N or mps. trust_code: whether
    code that the run names may be run though you have not trained with it.
    """
    with torch.random.fork_rng(devices=[]):  # a model draws weights before it gets those saved
        loaded = load_run(path, str(checkpoint), device, trust_code)
    return Run(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})


class Training:
    """A training that yields its records one by one.

        with toytrans.Training("configs/reverse.yaml") as training:
            for record in training:
                ...
        run = training.run

    Takes the arguments of `train`. The run directory is locked within the block. Leaving it early
    saves a checkpoint. Between two records, torch's random state and settings are the program's.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | Config,
        out: str | Path | None = None,
        *,
        seed: int | None = None,
        changes: Mapping[str, Any] | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        if resume and overwrite:
            raise UserError("resume goes on with a run and overwrite replaces it; give one")
        changed = {**(changes or {}), **({} if seed is None else {"seed": seed})}
        checked = config_of(_tree(config), changes=changed)
        self._request = Request(
            Path(config).stem if isinstance(config, str | Path) else _name(checked),
            checked,
            lambda saved: config_of(_tree(config), saved, changed),
            None if out is None else Path(out),
            resume,
            overwrite,
        )
        self._isolation, self._opened = Isolation(), contextlib.ExitStack()
        self._between_records = False

    def __enter__(self) -> Self:
        with self._isolation():
            session = open_session(self._request, logger.info, in_program=True)
            self._session = self._opened.enter_context(session)
        self._trainer = self._session.trainer
        self._records = self._trainer.train()
        return self

    def __exit__(self, *_: object) -> None:
        with self._isolation(), self._opened:
            if self._between_records:  # neither ended nor failed: it saves, and takes no step
                self._trainer.interrupt()
                next(self._records, None)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if not hasattr(self, "_records"):
            raise UserError("a Training needs its block: `with toytrans.Training(...) as training`")
        self._between_records = False
        with self._isolation():
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
        return self._request.config

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
    config: str | Path | Mapping[str, Any] | Config,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Run:
    """Train to the end, and return the run with its best checkpoint. Raises UserError.

    config: a YAML file, its values as a dict, or a Config. out: the run directory; None = runs/
    and the name of the file or task, then -2, -3. seed: changes the key `seed`. changes: other
    keys, say {"train.lr": 1e-3}. resume: go on from the last checkpoint. overwrite: replace a run.

    Ctrl-C saves after the running step, and the run so far is returned; a second one raises
    KeyboardInterrupt. The numbers are those of `toytrans train`, bit for bit.
    """
    training = Training(config, out, seed=seed, changes=changes, resume=resume, overwrite=overwrite)
    with training:
        for _ in training:
            pass
    return training.run


def _tree(config: Any) -> Tree:
    """The values of a config, for this call alone. Raises UserError."""
    if isinstance(config, str | Path):
        return read_yaml(Path(config))
    if isinstance(config, Config):
        return Tree("config", config.model_dump(mode="json"))
    if isinstance(config, Mapping):
        return Tree("config", copy.deepcopy(dict(config)))
    kind = type(config).__name__
    raise UserError(f"a config is a path, a dict or a toytrans.Config, not {kind}")


def _name(config: Config) -> str:
    """A name for the run of a config without a file: its task's."""
    return (config.data.task or "files").rpartition(":")[2]


def _several(sequences: Sequences) -> list[str]:
    return [sequences] if isinstance(sequences, str) else list(sequences)


def _targets(src: Sequences, tgt: Sequences | None) -> list[str] | None:
    """The targets of sources, as many. Raises UserError."""
    sources, targets = len(_several(src)), None if tgt is None else _several(tgt)
    if targets is not None and len(targets) != sources:
        raise UserError(f"{sources} src and {len(targets)} tgt; give one tgt for each src")
    return targets


def _checked(lengths: Any) -> tuple[int, int] | None:
    """Lengths as a pair of numbers. Raises UserError."""
    if lengths is None:
        return None
    pair = tuple(lengths) if isinstance(lengths, Sequence) else ()
    if len(pair) != 2 or not all(map(_is_count, pair)) or pair[0] > pair[1]:
        raise UserError(f"lengths {lengths!r}: write the shortest and the longest, say (1, 400)")
    return pair


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
