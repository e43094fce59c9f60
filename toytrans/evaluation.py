"""Evaluation: counts first, one division at the end.

Exact match is free-running: greedy (or beam) output equals the target through EOS. Loss and token
accuracy are teacher-forced: every token is predicted from the true tokens before it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.data.batches import Batch, evaluation_batches
from toytrans.data.pairs import DataFacts, Pairs, pad_rows
from toytrans.model.decoding import search
from toytrans.model.transformer import Transformer
from toytrans.tokens import PAD_ID, Vocabulary

BATCH_TOKENS = 16_384


@dataclass
class Counts:
    """Sums over some examples."""

    examples: int = 0
    right_sequences: int = 0
    tokens: int = 0
    right_tokens: int = 0
    loss: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.examples + other.examples,
            self.right_sequences + other.right_sequences,
            self.tokens + other.tokens,
            self.right_tokens + other.right_tokens,
            self.loss + other.loss,
        )

    def summary(self) -> dict[str, float | int]:
        """Exact match with its 95% interval, token accuracy, loss in nats per real token."""
        low, high = wilson_interval(self.right_sequences, self.examples)
        return {
            "examples": self.examples,
            "exact_match": self.right_sequences / max(self.examples, 1),
            "low": low,
            "high": high,
            "token_accuracy": self.right_tokens / max(self.tokens, 1),
            "loss": self.loss / max(self.tokens, 1),
        }


@dataclass
class Report:
    """Counts per source length."""

    by_length: dict[int, Counts] = field(default_factory=dict)

    def total(self, low: int = 0, high: int | None = None) -> Counts:
        """The counts of lengths low .. high together."""
        lengths = (n for n in self.by_length if n >= low and (high is None or n <= high))
        return sum((self.by_length[n] for n in lengths), Counts())

    def in_range(self, train_length: tuple[int, int]) -> Counts:
        return self.total(*train_length)

    def out_of_range(self, train_length: tuple[int, int]) -> Counts:
        low, high = train_length
        return self.total(high + 1) + self.total(0, low - 1)

    def document(self, train_length: tuple[int, int]) -> dict[str, Any]:
        """Everything as plain values: the total, in and out of range (or None), per length."""
        inside, outside = self.in_range(train_length), self.out_of_range(train_length)
        rows = [{"length": n} | counts.summary() for n, counts in self.by_length.items()]
        for row in rows:
            del row["loss"]
        return self.total().summary() | {
            "in_range": inside.summary() if inside.examples else None,
            "out_of_range": outside.summary() if outside.examples else None,
            "by_length": rows,
        }


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
    facts: DataFacts,
    *,
    both_ends: bool,
    beam: int = 1,
    batch_tokens: int = BATCH_TOKENS,
) -> Report:
    """Decode and score every pair; leaves the model in the mode it was in."""
    report = Report()
    with _in_eval_mode(model) as device:
        for batch, rows in evaluation_batches(pairs, batch_tokens, both_ends, model.longest):
            counts = _count(model, batch.to(device), facts.target_growth, beam)
            for length, row in zip(pairs.src_length[rows].tolist(), counts, strict=True):
                report.by_length[length] = report.by_length.get(length, Counts()) + row
    report.by_length = dict(sorted(report.by_length.items()))
    return report


@contextlib.contextmanager
def _in_eval_mode(model: Transformer) -> Iterator[torch.device]:
    """Dropout off, the mode as before afterwards; gives the model's device."""
    training = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(training)


def _count(model: Transformer, batch: Batch, growth: int, beam: int) -> Iterator[Counts]:
    """The counts of each row of a batch."""
    logits = model(batch.src, batch.tgt_in)
    real = batch.tgt_out != PAD_ID
    losses = F.cross_entropy(
        logits.transpose(1, 2), batch.tgt_out, ignore_index=PAD_ID, reduction="none"
    )
    right_tokens = (logits.argmax(-1) == batch.tgt_out) & real
    tokens = search(model, batch.src, beam=beam, growth=growth).tokens
    columns = zip(
        _same_rows(tokens, batch.tgt_out).tolist(),
        real.sum(1).tolist(),
        right_tokens.sum(1).tolist(),
        losses.cpu().double().sum(1).tolist(),
        strict=True,
    )
    for same, real_tokens, right, loss in columns:
        yield Counts(1, int(same), real_tokens, right, loss)


def _same_rows(tokens: Tensor, expected: Tensor) -> Tensor:
    """Which rows of (B, L) equal those of (B, T), PAD after their ends: (B,) bool."""
    width = max(tokens.shape[1], expected.shape[1])
    tokens, expected = (F.pad(x, (0, width - x.shape[1]), value=PAD_ID) for x in (tokens, expected))
    return (tokens == expected).all(1)


@torch.no_grad()
def translate(
    model: Transformer,
    sequences: list[list[str]],
    facts: DataFacts,
    *,
    both_ends: bool,
    beam: int = 1,
) -> list[list[str]]:
    """Translations of sequences of symbols, in their order. Raises UnseenSymbol."""
    vocabulary: Vocabulary = facts.vocabulary
    rows = [vocabulary.encode(sequence) for sequence in sequences]
    if not rows:
        return []
    pairs = Pairs(*pad_rows(rows), *pad_rows([[]] * len(rows)))
    output: list[list[str]] = [[]] * len(rows)
    with _in_eval_mode(model) as device:
        for batch, order in evaluation_batches(pairs, BATCH_TOKENS, both_ends, model.longest):
            found = search(model, batch.src.to(device), beam=beam, growth=facts.target_growth)
            for row, ids in zip(order.tolist(), found.tokens.tolist(), strict=True):
                output[row] = vocabulary.decode(ids)
    return output
