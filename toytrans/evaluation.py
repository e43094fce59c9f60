"""Evaluation: sums over pairs first, one division at the end.

Free-running: the model reads its own greedy (or beam) output. Exact match is the proportion of
outputs that equal the target through EOS.
Teacher-forced: every token is predicted from the true tokens before it. Loss and token accuracy are
measured this way.

A greedy output is right exactly if every teacher-forced token is. Both ways therefore give the same
exact match, up to rounding and to targets beyond the decoding limit.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import count, groupby
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.data.batches import Batch, evaluation_batches
from toytrans.data.pairs import DatasetInfo, Pairs, Side, pad_rows
from toytrans.data.selection import first_of_each
from toytrans.model.decoding import search
from toytrans.model.transformer import Transformer
from toytrans.tokens import EOS_ID, PAD_ID, Vocabulary

BATCH_TOKENS = 16_384

MOST_SPANS = 25
"""Rows of lengths that a table may have."""

PROPORTIONS = (
    "exact_match",
    "forced_exact_match",
    "exact_match_difference",
    "token_accuracy",
    "free_token_accuracy",
    "token_accuracy_difference",
)
"""Keys of a summary that are averaged over runs."""

Columns = dict[str, Tensor]
"""One number a pair, (B,), for fields of Counts."""


@dataclass
class Counts:
    """Sums over some pairs.

    Teacher-forced, of all pairs:
    examples: pairs.
    forced_sequences: targets whose every token was predicted, PAD and BOS not being allowed.
    tokens, right_tokens: real target tokens, EOS included, and those that were predicted.
    loss: in nats.

    Of the pairs that were decoded too:
    decoded, right_sequences: pairs, and outputs that equal their target.
    decoded_forced_sequences, decoded_tokens, decoded_right_tokens: as above.
    free_tokens: output tokens that equal the target's at the same place.
    early, late, never: outputs whose EOS came before the target's, after it, or not in time.
    first_errors: number of outputs whose first wrong token is at each place, counted from 1.
    """

    examples: int = 0
    forced_sequences: int = 0
    tokens: int = 0
    right_tokens: int = 0
    loss: float = 0.0
    decoded: int = 0
    right_sequences: int = 0
    decoded_forced_sequences: int = 0
    decoded_tokens: int = 0
    decoded_right_tokens: int = 0
    free_tokens: int = 0
    early: int = 0
    late: int = 0
    never: int = 0
    first_errors: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))

    def summary(self) -> dict[str, Any]:
        """Shares, loss in nats per real token, and errors as plain values.

        exact_match has its 95% interval. A difference is free-running less teacher-forced, both
        over the decoded pairs. Places of first errors are None where nothing is wrong.
        """
        low, high = wilson_interval(self.right_sequences, self.decoded)
        errors = self.first_errors
        return {
            "examples": self.examples,
            "exact_match": self.right_sequences / max(self.decoded, 1),
            "low": low,
            "high": high,
            "token_accuracy": self.right_tokens / max(self.tokens, 1),
            "loss": self.loss / max(self.tokens, 1),
            "decoded": self.decoded,
            "forced_exact_match": self.forced_sequences / max(self.examples, 1),
            "exact_match_difference": (self.right_sequences - self.decoded_forced_sequences)
            / max(self.decoded, 1),
            "free_token_accuracy": self.free_tokens / max(self.decoded_tokens, 1),
            "token_accuracy_difference": (self.free_tokens - self.decoded_right_tokens)
            / max(self.decoded_tokens, 1),
            "wrong": self.decoded - self.right_sequences,
            "first_error_median": median(errors.elements()) if errors else None,
            "first_error_earliest": min(errors, default=None),
            "eos_early": self.early,
            "eos_late": self.late,
            "eos_never": self.never,
        }


@dataclass
class Report:
    """Counts per length of the source, or of the target."""

    by_length: dict[int, Counts] = field(default_factory=dict)

    def __add__(self, other: "Report") -> "Report":
        parts, none = (self.by_length, other.by_length), Counts()
        lengths = sorted(parts[0].keys() | parts[1].keys())
        return Report({n: parts[0].get(n, none) + parts[1].get(n, none) for n in lengths})

    def add(self, lengths: Tensor, columns: Columns, first_errors: Tensor | None = None) -> None:
        """Add what was counted of pairs of some lengths (B,)."""
        every, group = lengths.unique(return_inverse=True)
        for name, column in columns.items():
            sums = torch.zeros(len(every), dtype=torch.float64)
            sums.index_add_(0, group, column.double())
            for length, value in zip(every.tolist(), sums.tolist(), strict=True):
                counts = self.by_length.setdefault(length, Counts())
                kind = type(getattr(counts, name))
                setattr(counts, name, getattr(counts, name) + kind(value))
        if first_errors is not None:
            wrong = first_errors > 0
            for length, place in zip(
                lengths[wrong].tolist(), first_errors[wrong].tolist(), strict=True
            ):
                self.by_length[length].first_errors[place] += 1

    def total(self, low: int = 0, high: int | None = None) -> Counts:
        """The counts of lengths low .. high together."""
        lengths = (n for n in self.by_length if n >= low and (high is None or n <= high))
        return sum((self.by_length[n] for n in lengths), Counts())

    def in_range(self, train_length: tuple[int, int]) -> Counts:
        return self.total(*train_length)

    def out_of_range(self, train_length: tuple[int, int]) -> Counts:
        low, high = train_length
        return self.total(high + 1) + self.total(0, low - 1)

    def curve(self) -> dict[int, float]:
        """The teacher-forced exact match of each length."""
        return {n: c.summary()["forced_exact_match"] for n, c in self.by_length.items()}

    def to_dict(self, train_length: tuple[int, int]) -> dict[str, Any]:
        """Plain values: the total, in and out of range (or None), per length."""
        inside, outside = self.in_range(train_length), self.out_of_range(train_length)
        rows = [{"length": n} | counts.summary() for n, counts in self.by_length.items()]
        for row in rows:
            del row["loss"]
        return self.total().summary() | {
            "in_range": inside.summary() if inside.examples else None,
            "out_of_range": outside.summary() if outside.examples else None,
            "by_length": rows,
        }


class Span(NamedTuple):
    """Measured lengths low .. high, all within the training lengths or all beyond."""

    low: int
    high: int
    in_range: bool


def spans(lengths: Iterable[int], train_length: tuple[int, int]) -> list[Span]:
    """Lengths in at most 25 spans of 1, 2, 5, 10, 20, 50 and so on. No span crosses an end of the
    training lengths."""
    low, high = train_length
    ordered = sorted(lengths)
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    for step in steps:
        keys = {n: ((n > high) - (n < low), (n - 1) // step) for n in ordered}
        if len(set(keys.values())) <= MOST_SPANS:
            break
    groups = [list(group) for _, group in groupby(ordered, keys.__getitem__)]
    return [Span(group[0], group[-1], low <= group[0] <= high) for group in groups]


def over_runs(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean, lowest and highest of every proportion, over the summaries of several runs."""
    columns = {name: [summary[name] for summary in summaries] for name in PROPORTIONS}
    return {"runs": len(summaries)} | {
        name: {"mean": fmean(column), "min": min(column), "max": max(column)}
        for name, column in columns.items()
    }


def average_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Averages of several `Report.to_dict`: all lengths, in and out of range (or None), per
    length."""
    averages = over_runs(runs)
    for part in ("in_range", "out_of_range"):
        parts = [run[part] for run in runs if run[part] is not None]
        averages[part] = over_runs(parts) if parts else None
    rows: dict[int, list[dict[str, Any]]] = {}
    for run in runs:
        for row in run["by_length"]:
            rows.setdefault(row["length"], []).append(row)
    averages["by_length"] = [{"length": n} | over_runs(rows[n]) for n in sorted(rows)]
    return averages


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927); (0, 1) where nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    z = 1.959963984540054  # the 97.5% point of the normal distribution
    share = right / total
    middle = share + z * z / (2 * total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@torch.no_grad()
def evaluate(
    model: Transformer,
    pairs: Pairs,
    facts: DatasetInfo,
    *,
    source_bos: bool,
    beam: int = 1,
    batch_tokens: int = BATCH_TOKENS,
    decode: int | None = None,
    side: Side = "src",
    follow: Callable[[int, int], None] | None = None,
) -> Report:
    """Score every pair, and decode some. The model is left as it was.

    decode: number of pairs of each length to decode; None = all.
    side: whose length counts.
    follow: called with the pairs that a batch has scored or decoded, and those of all batches.
    """
    report, lengths = Report(), pairs.length(side).cpu()
    chosen = first_of_each(lengths, decode)
    also_decoded = torch.zeros(len(pairs), dtype=torch.bool)
    also_decoded[chosen] = True
    follow = follow or (lambda done, total: None)
    total = len(pairs) + len(chosen)
    longest, heads = model.config.max_length, model.config.n_heads
    with _in_eval_mode(model) as device:
        for batch, rows in evaluation_batches(pairs, batch_tokens, source_bos, longest, heads):
            report.add(lengths[rows], _forced(model, batch.to(device), also_decoded[rows]))
            follow(len(rows), total)
        some, lengths = pairs.take(chosen), lengths[chosen]
        for batch, rows in evaluation_batches(some, batch_tokens, source_bos, longest, heads):
            batch = batch.to(device)
            tokens = search(model, batch.src, beam=beam, growth=facts.max_len_a).tokens
            report.add(lengths[rows], *_free(tokens, batch.tgt_out))
            follow(len(rows), total)
    report.by_length = dict(sorted(report.by_length.items()))
    return report


@contextlib.contextmanager
def _in_eval_mode(model: Transformer) -> Iterator[torch.device]:
    """Evaluation mode until the block ends. Yields the model's device."""
    training = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(training)


def _forced(model: Transformer, batch: Batch, also_decoded: Tensor) -> Columns:
    """Teacher-forced counts of each row of a batch.

    also_decoded (B,): rows that are decoded too; they are counted twice, for the comparison.
    """
    logits = model(batch.src, batch.tgt_in)
    real = batch.tgt_out != PAD_ID
    losses = F.cross_entropy(
        logits.transpose(1, 2), batch.tgt_out, ignore_index=PAD_ID, reduction="none"
    )
    tokens, right = real.sum(1).cpu(), ((logits.argmax(-1) == batch.tgt_out) & real).sum(1).cpu()
    greedy = logits[..., EOS_ID:].argmax(-1) + EOS_ID  # decoding never emits PAD or BOS
    whole = ((greedy == batch.tgt_out) | ~real).all(1).cpu()
    return {
        "examples": torch.ones_like(tokens),
        "forced_sequences": whole,
        "tokens": tokens,
        "right_tokens": right,
        "loss": losses.cpu().double().sum(1),
        "decoded_forced_sequences": whole & also_decoded,
        "decoded_tokens": tokens * also_decoded,
        "decoded_right_tokens": right * also_decoded,
    }


def _free(tokens: Tensor, expected: Tensor) -> tuple[Columns, Tensor]:
    """Free-running counts of each row, and the place (B,) of its first error: from 1, 0 = none.

    tokens (B, L), expected (B, T): outputs and targets, PAD after their ends.
    """
    width = max(tokens.shape[1], expected.shape[1])
    tokens, expected = (
        F.pad(x.cpu(), (0, width - x.shape[1]), value=PAD_ID) for x in (tokens, expected)
    )
    same, real = tokens == expected, expected != PAD_ID
    right, ended = same.all(1), (tokens == EOS_ID).any(1)
    surplus = (tokens != PAD_ID).sum(1) - real.sum(1)
    columns = {
        "decoded": torch.ones_like(surplus),
        "right_sequences": right,
        "free_tokens": (same & real).sum(1),
        "early": ended & (surplus < 0),
        "late": ended & (surplus > 0),
        "never": ~ended,
    }
    return columns, (same.int().argmin(1) + 1).where(~right, 0)


@torch.no_grad()
def translate(
    model: Transformer,
    sequences: list[list[str]],
    facts: DatasetInfo,
    *,
    source_bos: bool,
    beam: int = 1,
) -> list[list[str]]:
    """Translations of sequences of symbols, in their order. Raises UnseenSymbol."""
    vocabulary: Vocabulary = facts.vocabulary
    rows = [vocabulary.encode(sequence) for sequence in sequences]
    if not rows:
        return []
    pairs = Pairs(*pad_rows(rows), *pad_rows([[]] * len(rows)))
    output: list[list[str]] = [[]] * len(rows)
    longest, heads = model.config.max_length, model.config.n_heads
    with _in_eval_mode(model) as device:
        for batch, order in evaluation_batches(pairs, BATCH_TOKENS, source_bos, longest, heads):
            decoded = search(model, batch.src.to(device), beam=beam, growth=facts.max_len_a)
            for row, ids in zip(order.tolist(), decoded.tokens.tolist(), strict=True):
                output[row] = vocabulary.decode(ids)
    return output
