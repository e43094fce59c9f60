"""What a run directory contains, as the doctor reads it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from toytrans.config.schema import Config
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, Pairs, all_pairs
from toytrans.errors import UserError
from toytrans.tokens import EOS_ID
from toytrans.training.checkpoint import Progress, load_checkpoint, most_bytes_of
from toytrans.training.faults import build_model
from toytrans.training.run import Record, RunFolder

MOST_BYTES_OF_ANY = 2**32
"""The largest checkpoint that is read of a model that is not known."""

SETTLED = 1 / 4
"""The share of a run's last records whose mean is taken as its final loss. The loss of a few steps
is that of a few lengths, since batches hold pairs of similar length."""


@dataclass(frozen=True)
class TargetStats:
    """Statistics of the targets of the validation pairs.

    tokens: the number of tokens of each target, EOS included.
    entropy: the entropy of the token frequencies in nats.
    train_size: the number of training pairs; None = endless.
    """

    tokens: tuple[int, ...]
    entropy: float
    train_size: int | None

    @property
    def mean_tokens(self) -> float:
        return fmean(self.tokens)

    def by_chance(self, accuracy: float) -> float:
        """The exact match if every token were right independently with the same probability."""
        return fmean(accuracy**n for n in self.tokens)


class CheckpointStatus(NamedTuple):
    """A checkpoint. damage: why it cannot be used."""

    step: int
    damage: str | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class RunSnapshot:
    """Everything in a run directory.

    targets: None if the data cannot be read; why_no_targets says why.
    """

    path: Path
    config: Config
    facts: DataFacts
    records: Sequence[Record]
    environment: dict[str, Any]
    checkpoints: Sequence[CheckpointStatus] = ()
    targets: TargetStats | None = None
    why_no_targets: str | None = None

    @property
    def step(self) -> int:
        return int(self.records[-1]["step"]) if self.records else 0

    @cached_property
    def evaluations(self) -> list[Record]:
        return [record for record in self.records if record.get("valid_loss") is not None]

    @property
    def best(self) -> Record | None:
        """The evaluation of the best checkpoint: the highest exact match; of equals, the lowest
        loss, as in training."""

        def quality(record: Record) -> tuple[float, float]:
            return record["valid_exact_match"], -record["valid_loss"]

        return max(self.evaluations, key=quality, default=None)

    @property
    def last_progress(self) -> Progress | None:
        progress = [each.progress for each in self.checkpoints if each.progress is not None]
        return progress[-1] if progress else None

    @property
    def diverged(self) -> bool:
        """Whether a loss or gradient was not finite; metrics.jsonl has null for it."""
        return any(record["loss"] is None or record["grad_norm"] is None for record in self.records)

    @property
    def finished(self) -> bool:
        """Whether training came to its end, by the records or by the newest checkpoint."""
        train, progress = self.config.train, self.last_progress
        return self.step >= train.max_steps or bool(progress and progress.is_finished(train))

    @cached_property
    def floor(self) -> float:
        """The loss of a perfect model in nats; label smoothing raises it above 0."""
        share = self.config.train.label_smoothing
        size = len(self.facts.vocabulary)
        probabilities = (1 - share + share / size, *[share / size] * (size - 1))
        return -sum(p * math.log(p) for p in probabilities if p > 0)

    @property
    def valid_floor(self) -> float:
        """The validation loss of a perfect model, which is measured without smoothing."""
        share = self.config.train.label_smoothing
        return -math.log(1 - share + share / len(self.facts.vocabulary))

    def loss_of(self, start: float, stop: float, until: int | None = None) -> float:
        """The mean loss above the floor over a part of the records, weighted by tokens.

        start, stop: shares of the records; until: ignore the records after this step.
        """
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
        """The final loss."""
        return self.loss_of(1 - SETTLED, 1)

    @property
    def epochs(self) -> float:
        """How often each training pair was seen; 0 if pairs are endless."""
        progress = self.last_progress
        if self.targets is None or self.targets.train_size is None or progress is None:
            return 0.0
        return progress.pairs_used / self.targets.train_size


# Reading -------------------------------------------------------------------------------------


def read_snapshot(path: Path) -> RunSnapshot:
    """Read a run. Raises UserError if config.yaml or data.json cannot be read."""
    folder = RunFolder.open(path)
    targets, why_none = None, None
    try:
        targets = _targets(folder)
    except UserError as error:  # the files were moved, or the task's code is not trusted
        why_none = str(error)
    return RunSnapshot(
        path,
        folder.config,
        folder.facts,
        list(_whole(folder.records)),
        folder.environment,
        tuple(_checkpoints(folder)),
        targets,
        why_none,
    )


def _whole(records: Sequence[Record]) -> Iterator[Record]:
    """The records that lack no number. Only a loss or a gradient may be None: not finite."""
    tokens = 0
    for record in records:
        needed = ["lr", "padding", "target_tokens", "elapsed_s"]
        if "valid_loss" in record:
            needed += ["valid_loss", "valid_exact_match", "valid_token_accuracy"]
        whole = {"loss", "grad_norm"} <= record.keys()
        whole &= all(record.get(name) is not None for name in needed)
        if whole and record["step"] > 0 and record["target_tokens"] > tokens:
            yield record
            tokens = record["target_tokens"]


def _checkpoints(folder: RunFolder) -> Iterator[CheckpointStatus]:
    """The status of each checkpoint. One that a training removes meanwhile is none."""
    try:
        most_bytes = most_bytes_of(build_model(folder.config, folder.facts.vocabulary))
    except UserError:  # the model's code is not trusted
        most_bytes = MOST_BYTES_OF_ANY
    for step in folder.steps:
        try:
            progress = load_checkpoint(folder.path, step, most_bytes=most_bytes).progress
            yield CheckpointStatus(step, None, progress)
        except UserError as error:
            if step in folder.steps:
                yield CheckpointStatus(step, damage=str(error))


def _targets(folder: RunFolder) -> TargetStats | None:
    dataset = open_dataset(folder.config, folder.facts)
    pairs, size = all_pairs(dataset, "valid"), dataset.size("train")
    return target_stats(pairs, size) if len(pairs) else None


def target_stats(pairs: Pairs, train_size: int | None) -> TargetStats:
    """Statistics of the targets of some pairs."""
    real = pairs.tgt[pairs.tgt > EOS_ID]
    counts = torch.cat((torch.bincount(real), torch.tensor([len(pairs)]))).double()
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * shares.log()).sum())
    return TargetStats(tuple((pairs.tgt_length + 1).tolist()), entropy, train_size)


def overview(run: RunSnapshot) -> dict[str, Any]:
    """What the doctor looked at, as plain values; None where there is nothing.

    Losses are in nats, pace in seconds a step; epochs is None for endless pairs.
    """
    targets, best = run.targets, run.best
    values: dict[str, Any] = {
        "step": run.step,
        "max_steps": run.config.train.max_steps,
        "finished": run.finished,
        "checkpoints": [checkpoint.step for checkpoint in run.checkpoints],
        "records": len(run.records),
        "evaluations": len(run.evaluations),
        "entropy": targets.entropy if targets else None,
        "data_not_read": run.why_no_targets,
        "epochs": run.epochs if targets and targets.train_size is not None else None,
        "best_step": best["step"] if best else None,
        "exact_match": best["valid_exact_match"] if best else None,
        "token_accuracy": best["valid_token_accuracy"] if best else None,
    }
    if not run.records or run.diverged:
        return values
    last, largest = run.records[-1], max(run.records, key=lambda record: record["grad_norm"])
    return values | {
        "first_loss": run.records[0]["loss"],
        "settled_loss": run.settled_loss,
        "grad_norm_median": median(record["grad_norm"] for record in run.records),
        "grad_norm_largest": largest["grad_norm"],
        "grad_norm_largest_step": largest["step"],
        "highest_lr": max(record["lr"] for record in run.records),
        "last_lr": last["lr"],
        "padding": median(record["padding"] for record in run.records),
        "tokens_a_step": last["target_tokens"] / run.step,
        "pace": last["elapsed_s"] / run.step,
    }
