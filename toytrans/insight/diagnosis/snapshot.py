"""A run as its folder tells it: what the doctor reads. Nothing here is judged."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import torch

from toytrans.config import Config
from toytrans.data import open_source
from toytrans.data.pairs import DatasetInfo, Pairs, all_pairs
from toytrans.errors import UserError
from toytrans.tokens import EOS_ID
from toytrans.training.checkpoint import Progress, load_checkpoint
from toytrans.training.owned import saved_steps
from toytrans.training.run import Record, read_environment, read_run, record_lines

Ending = Literal["max_steps", "max_seconds", "goal", "patience", "diverged", "cut short"]

SETTLED = 1 / 4
"""The share of a run's records whose mean stands for where the loss is. Batches hold pairs of like
length, so the loss of a few steps is that of a few lengths."""


@dataclass(frozen=True)
class Texts:
    """Of the validation pairs: their targets' tokens, EOS included, and how uncertain one is to
    whom nothing but the frequencies of tokens is known, in nats. train_size: training pairs, None =
    endless."""

    tokens: tuple[int, ...]
    entropy: float
    train_size: int | None

    @property
    def mean_tokens(self) -> float:
        return fmean(self.tokens)

    def by_chance(self, accuracy: float) -> float:
        """The exact match if every token were right with the same chance, on its own."""
        return fmean(accuracy**n for n in self.tokens)


@dataclass(frozen=True)
class Saved:
    """A checkpoint. damage: why it cannot be used."""

    step: int
    damage: str | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Case:
    """Everything that a run directory tells. unread: lines of metrics.jsonl past the first that is
    not whole; texts None: the data is no longer there."""

    config: Config
    facts: DatasetInfo
    records: Sequence[Record]
    environment: dict[str, Any] | None = None
    saved: Sequence[Saved] = ()
    texts: Texts | None = None
    unread: int = 0
    path: str = field(default="RUN")

    @property
    def step(self) -> int:
        return int(self.records[-1]["step"]) if self.records else 0

    @cached_property
    def evaluations(self) -> list[Record]:
        return [record for record in self.records if record.get("valid_loss") is not None]

    @property
    def best(self) -> Record | None:
        """The evaluation with the highest exact match, the first of equals."""
        return max(self.evaluations, key=lambda record: record["valid_exact_match"], default=None)

    @property
    def last_progress(self) -> Progress | None:
        whole = [saved.progress for saved in self.saved if saved.progress is not None]
        return whole[-1] if whole else None

    @property
    def diverged(self) -> bool:
        """append_record writes null for a number that is not finite."""
        return any(record["loss"] is None or record["grad_norm"] is None for record in self.records)

    @cached_property
    def ending(self) -> Ending:
        """Why training stopped, as far as the records tell."""
        train, progress = self.config.train, self.last_progress
        last = self.records[-1] if self.records else {}
        if self.diverged:
            return "diverged"
        if self.step >= train.max_steps:
            return "max_steps"
        goal = train.stop_at_exact_match
        if goal is not None and last.get("valid_exact_match", -1.0) >= goal:
            return "goal"
        if progress and train.patience and progress.evaluations_since_best >= train.patience:
            return "patience"
        if train.max_seconds is not None and last.get("elapsed_s", 0.0) >= train.max_seconds:
            return "max_seconds"
        return "cut short"

    @cached_property
    def floor(self) -> float:
        """The loss of a perfect model, which label smoothing lifts above 0: its entropy, in
        nats."""
        share = self.config.train.label_smoothing
        size = len(self.facts.vocabulary)
        probabilities = (1 - share + share / size, *[share / size] * (size - 1))
        return -sum(p * math.log(p) for p in probabilities if p > 0)

    @property
    def valid_floor(self) -> float:
        """The same of the validation loss, which is measured without smoothing."""
        share = self.config.train.label_smoothing
        return -math.log(1 - share + share / len(self.facts.vocabulary))

    def loss_of(self, start: float, stop: float, until: int | None = None) -> float:
        """The mean loss above the floor between two shares of the records (of those until a step),
        weighted by tokens."""
        records = [record for record in self.records if until is None or record["step"] <= until]
        count = len(records)
        first = min(int(start * count), count - 1)
        part = range(first, max(first + 1, int(stop * count)))
        tokens = [
            records[i]["target_tokens"] - (records[i - 1]["target_tokens"] if i else 0)
            for i in part
        ]
        summed = sum(records[i]["loss"] * n for i, n in zip(part, tokens, strict=True))
        return float(summed / sum(tokens)) - self.floor

    @property
    def settled_loss(self) -> float:
        """Where the loss is at the end."""
        return self.loss_of(1 - SETTLED, 1)

    @property
    def epochs(self) -> float:
        """How often each training pair was seen; 0 where they are endless."""
        progress = self.last_progress
        if self.texts is None or self.texts.train_size is None or progress is None:
            return 0.0
        return progress.dealt / self.texts.train_size


def read_case(path: Path) -> Case:
    """Read a run. Raises UserError where config.yaml or data.json do not let themselves be read."""
    config, facts = read_run(path)
    lines = [record for record, _ in record_lines(path)]
    records = list(_whole(lines))
    return Case(
        config,
        facts,
        records,
        read_environment(path) or None,
        tuple(_all_saved(path)),
        _texts(config, facts),
        len(lines) - len(records),
        str(path),
    )


NUMBERS = ("lr", "padding", "target_tokens", "elapsed_s")
OR_NULL = ("loss", "grad_norm")
SHARES = ("valid_exact_match", "valid_token_accuracy")


def _whole(lines: Sequence[Record | None]) -> Iterator[Record]:
    """The records up to the first that lacks a number, or does not go on from the one before."""
    before: Record = {"step": 0, "target_tokens": 0}
    for record in lines:
        if record is None:
            return
        measured = "valid_loss" in record
        numbers = [record.get(name) for name in (*NUMBERS, *["valid_loss"] * measured)]
        numbers += [value for name in OR_NULL if (value := record.get(name, "")) is not None]
        shares = [record.get(name) for name in SHARES if measured]
        if not all(_within(number, 2.0**63) for number in numbers):
            return
        if not all(_within(share, 1.0) for share in shares):
            return
        if any(record[name] <= before[name] for name in before):
            return
        yield record
        before = {name: record[name] for name in before}


def _within(value: Any, bound: float) -> bool:
    """Whether a value is a number, and no larger than a bound in size; NaN is not."""
    return isinstance(value, int | float) and -bound <= value <= bound


def _all_saved(path: Path) -> Iterator[Saved]:
    """The checkpoints. One that a training removes or replaces meanwhile is not damaged: what
    looks so is looked for, and read, once more; so are all, where none was left to read."""
    met = False
    while not met and (steps := saved_steps(path)):
        for step in steps:
            saved = _saved(path, step)
            if saved.damage is not None and step not in saved_steps(path):
                continue
            met = True
            yield saved if saved.damage is None else _saved(path, step)


def _saved(path: Path, step: int) -> Saved:
    try:
        checkpoint = load_checkpoint(path, step)
    except UserError as error:
        return Saved(step, damage=str(error))
    return Saved(step, None, checkpoint.progress)


def _texts(config: Config, facts: DatasetInfo) -> Texts | None:
    try:
        source = open_source(config, facts)
        pairs, size = all_pairs(source, "valid"), source.size("train")
    except UserError:  # files that have moved since
        return None
    return texts_of(pairs, size) if len(pairs) else None


def texts_of(pairs: Pairs, train_size: int | None) -> Texts:
    """What the doctor wants to know of validation pairs."""
    real = pairs.tgt[pairs.tgt > EOS_ID]
    counts = torch.cat((torch.bincount(real), torch.tensor([len(pairs)]))).double()
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * shares.log()).sum())
    return Texts(tuple((pairs.tgt_length + 1).tolist()), entropy, train_size)


def overview(case: Case) -> dict[str, Any]:
    """What there was to look at, as plain values; None where there was nothing. Losses in nats,
    pace in seconds a step, epochs None = endless pairs."""
    texts, best = case.texts, case.best
    found: dict[str, Any] = {
        "step": case.step,
        "max_steps": case.config.train.max_steps,
        "ending": case.ending if case.records else None,
        "checkpoints": [saved.step for saved in case.saved],
        "records": len(case.records),
        "evaluations": len(case.evaluations),
        "entropy": texts.entropy if texts else None,
        "epochs": case.epochs if texts and texts.train_size is not None else None,
        "best_step": best["step"] if best else None,
        "exact_match": best["valid_exact_match"] if best else None,
        "token_accuracy": best["valid_token_accuracy"] if best else None,
    }
    if not case.records or case.diverged:
        return found
    norms = [record["grad_norm"] for record in case.records]
    clip, last = case.config.train.clip_norm, case.records[-1]
    return found | {
        "first_loss": case.records[0]["loss"],
        "settled_loss": case.settled_loss,
        "grad_norm_median": median(norms),
        "grad_norm_largest": max(norms),
        "grad_norm_largest_step": case.records[norms.index(max(norms))]["step"],
        "clip_norm": clip,
        "clipped": sum(norm > clip for norm in norms) / len(norms) if clip else 0.0,
        "highest_lr": max(record["lr"] for record in case.records),
        "last_lr": last["lr"],
        "padding": median(record["padding"] for record in case.records),
        "tokens_a_step": last["target_tokens"] / case.step,
        "pace": last["elapsed_s"] / case.step,
    }
