"""What a run directory contains, as the doctor reads it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from toytrans.config.schema import Settings
from toytrans.data.files import FileDataset
from toytrans.data.findings import Finding as DataFinding
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, Pairs, all_pairs
from toytrans.errors import UserError
from toytrans.tokens import EOS_ID
from toytrans.training.checkpoint import Progress, load_checkpoint
from toytrans.training.folder import Record
from toytrans.training.run import Run


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
        """The mean length of a target in tokens, with EOS."""
        return fmean(self.tokens)

    def by_chance(self, accuracy: float) -> float:
        """The exact match if every token were right independently with the same probability."""
        return fmean(accuracy**n for n in self.tokens)


@dataclass(frozen=True)
class RunSnapshot:
    """Everything in a run directory.

    damage: by the step of each checkpoint, why it cannot be used; "" = it can.
    progress: of the newest checkpoint that can be used.
    targets: None if the data cannot be read; why_no_targets says why.
    of_data: what is odd about the files that it was trained on, as far as they can be read.
    """

    settings: Settings
    facts: DataFacts
    records: Sequence[Record]
    damage: dict[int, str] = field(default_factory=dict)
    progress: Progress | None = None
    targets: TargetStats | None = None
    why_no_targets: str | None = None
    of_data: tuple[DataFinding, ...] = ()

    @property
    def step(self) -> int:
        """The step of the last record; 0 without records."""
        return int(self.records[-1]["step"]) if self.records else 0

    @cached_property
    def evaluations(self) -> list[Record]:
        """The records that hold an evaluation."""
        return [record for record in self.records if record.get("valid_loss") is not None]

    @property
    def best(self) -> Record | None:
        """The evaluation of the best checkpoint: the highest exact match; of equals, the lowest
        loss, as in training."""
        by_quality = [(r["valid_exact_match"], -r["valid_loss"]) for r in self.evaluations]
        return self.evaluations[by_quality.index(max(by_quality))] if by_quality else None

    @property
    def diverged(self) -> bool:
        """Whether a loss or gradient was not finite."""
        return any("diverged" in record for record in self.records)

    @property
    def finished(self) -> bool:
        """Whether training came to its end, by the records or by the newest checkpoint."""
        train = self.settings.train
        return self.step >= train.max_steps or bool(
            self.progress and self.progress.reached_limit(train)
        )

    @cached_property
    def floors(self) -> tuple[float, float]:
        """The losses in nats of a perfect model in training, where label smoothing raises them
        above 0, and in validation, which is measured without smoothing."""
        share, size = self.settings.train.label_smoothing, len(self.facts.vocabulary)
        right, other = 1 - share + share / size, share / size
        of_others = (size - 1) * other * math.log(other) if other else 0.0
        return -right * math.log(right) - of_others, -math.log(right)

    def loss_of(self, start: float, stop: float, until: int | None = None) -> float:
        """The mean loss above the floor over a part of the records, weighted by tokens.

        start, stop: shares of the records; until: ignore the records after this step.
        """
        records = [record for record in self.records if until is None or record["step"] <= until]
        totals = [0, *(record["target_tokens"] for record in records)]
        first = min(int(start * len(records)), len(records) - 1)
        part = range(first, max(first + 1, int(stop * len(records))))
        summed = sum(records[i]["loss"] * (totals[i + 1] - totals[i]) for i in part)
        return float(summed / (totals[part.stop] - totals[first])) - self.floors[0]

    @property
    def settled_loss(self) -> float:
        """The mean over the last quarter. The loss of a few steps is that of a few lengths, since
        batches hold pairs of similar length."""
        return self.loss_of(0.75, 1)

    @property
    def epochs(self) -> float | None:
        """How often each training pair was seen; None for endless or unknown pairs."""
        if self.targets is None or self.targets.train_size is None:
            return None
        return self.progress.pairs_used / self.targets.train_size if self.progress else 0.0


def read_snapshot(path: Path, trust_code: bool = False) -> RunSnapshot:
    """Read a run. Raises UserError if its settings or data.json cannot be read.

    trust_code: whether code that the run names may run; without it, its pairs may stay unknown.
    """
    run = Run.open(path, trust_code)
    targets, why_none, progress, of_data = None, None, None, tuple[DataFinding, ...]()
    try:
        dataset = open_dataset(run.settings, run.facts)
        pairs = all_pairs(dataset, "valid")
        targets = target_stats(pairs, dataset.size("train")) if len(pairs) else None
        if isinstance(dataset, FileDataset):
            of_data = tuple(finding for finding in dataset.findings if finding.is_odd)
    except UserError as error:  # the files were moved, or the task's code is not trusted
        why_none = str(error)
    damage: dict[int, str] = {}
    for step in run.steps:
        try:
            progress, _ = load_checkpoint(run.path, step)
            damage[step] = ""
        except UserError as error:
            if step in run.steps:  # a training may have removed it meanwhile
                damage[step] = str(error)
    records = list(_whole(run.records))
    return RunSnapshot(
        run.settings, run.facts, records, damage, progress, targets, why_none, of_data
    )


def _whole(records: Sequence[Record]) -> Iterator[Record]:
    """The records that lack no number, and those of a training that diverged."""
    tokens = 0
    for record in records:
        needed = ["lr", "padding", "target_tokens", "elapsed_s"]
        if "diverged" not in record:
            needed += ["loss", "grad_norm"]
        if "valid_loss" in record and "diverged" not in record:
            needed += ["valid_loss", "valid_exact_match", "valid_token_accuracy"]
        whole = all(record.get(name) is not None for name in needed)
        if whole and record["step"] > 0 and record["target_tokens"] > tokens:
            yield record
            tokens = record["target_tokens"]


def target_stats(pairs: Pairs, train_size: int | None) -> TargetStats:
    """Statistics of the targets of some pairs."""
    real = pairs.tgt[pairs.tgt > EOS_ID]
    counts = torch.cat((torch.bincount(real), torch.tensor([len(pairs)]))).double()
    entropy = float(torch.special.entr(counts / counts.sum()).sum())
    return TargetStats(tuple((pairs.tgt_length + 1).tolist()), entropy, train_size)


def overview(run: RunSnapshot) -> dict[str, Any]:
    """What the doctor looked at, as plain values; None where there is nothing.

    Losses are in nats, pace in seconds a step; epochs is None for endless pairs.
    """
    best = run.best or {}
    values: dict[str, Any] = {
        "step": run.step,
        "max_steps": run.settings.train.max_steps,
        "finished": run.finished,
        "checkpoints": list(run.damage),
        "records": len(run.records),
        "evaluations": len(run.evaluations),
        "entropy": run.targets.entropy if run.targets else None,
        "data_not_read": run.why_no_targets,
        "epochs": run.epochs,
        "best_step": best.get("step"),
        "exact_match": best.get("valid_exact_match"),
        "token_accuracy": best.get("valid_token_accuracy"),
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
