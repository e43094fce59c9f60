"""Evaluation: sums over pairs first, one division at the end.

Free-running: the model reads its own greedy (or beam) output. Exact match is the proportion of
outputs that equal the target through EOS.
Teacher-forced: every token is predicted from the true tokens before it. Loss and token accuracy are
measured this way.

A greedy output is right exactly if every teacher-forced token is. Both ways therefore give the same
exact match, up to rounding and to targets beyond the decoding limit.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.config.hidden_fault import fault_remark
from toytrans.data.batches import Batch, evaluation_batches
from toytrans.data.open import first_of_each
from toytrans.data.pairs import DataFacts, Pairs, Side, pad_rows
from toytrans.html import Shown
from toytrans.model.decoding import search
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import EOS_ID, PAD_ID

BATCH_TOKENS = 16_384

MOST_SPANS = 25
"""Rows of lengths that a table may have."""

PARTS = {"below": "below", "in_range": "in range", "beyond": "beyond"}
"""Where lengths lie beside the training lengths: key and label."""

Z_975 = 1.959963984540054
"""The 97.5% point of the normal distribution."""

Summary = dict[str, Any]
Columns = dict[str, Tensor]

FORCED = ("tokens", "right_tokens", "forced")
FREE = ("right", "free_tokens", "surplus", "ended", "first_error")


@dataclass
class Scores:
    """What was measured of some pairs.

    columns: one whole number a pair, (N,) each. losses: nats, summed over the pairs of each length.
    train_length: the shortest and the longest training sequence. side: whose length counts.
    about: run, seed, split, checkpoint and fault, where a run was measured.

    Of every pair:
    length: symbols of its source, or of its target.
    tokens, right_tokens: real target tokens, EOS included, and those predicted teacher-forced.
    forced: whether all of them were, PAD and BOS not being allowed.
    decoded: whether it was decoded too. The columns below are 0 where it was not.

    Of decoded pairs:
    right: whether the output equals the target.
    free_tokens: output tokens that equal the target's at the same place.
    surplus: how many tokens longer the output is. ended: whether it has an EOS.
    first_error: the place of its first wrong token, counted from 1; 0 = none.
    """

    columns: Columns
    losses: dict[int, float]
    train_length: tuple[int, int]
    side: Side = "src"
    about: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: "Scores") -> "Scores":
        columns = {key: torch.cat([own, other.columns[key]]) for key, own in self.columns.items()}
        losses = dict(self.losses)
        for length, loss in other.losses.items():
            losses[length] = losses.get(length, 0.0) + loss
        return replace(self, columns=columns, losses=losses)

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured."""
        return sorted(self.losses)

    @property
    def exact_match(self) -> float:
        """The proportion of outputs that equal their target, over all lengths."""
        return float(self.summary()["exact_match"])

    def summary(self, low: int = 0, high: int | None = None) -> Summary:
        """Shares, loss in nats per real token, and errors of the pairs of lengths low .. high.

        exact_match has its 95% interval. A difference is free-running less teacher-forced, both
        over the decoded pairs. Places of first errors are None where nothing is wrong.
        """
        last = sys.maxsize if high is None else high
        lengths = self.columns["length"]
        some = (lengths >= low) & (lengths <= last)
        of = {name: column[some] for name, column in self.columns.items()}
        total = {name: int(column.sum()) for name, column in of.items()}
        loss = sum(self.losses[n] for n in self.lengths if low <= n <= last)
        free = {name: int((of[name] * of["decoded"]).sum()) for name in FORCED}
        errors = of["first_error"][of["first_error"] > 0].tolist()
        pairs, decoded, right = int(some.sum()), total["decoded"], total["right"]
        interval = wilson_interval(right, decoded)
        return {
            "examples": pairs,
            "exact_match": _share(right, decoded),
            "low": interval[0],
            "high": interval[1],
            "token_accuracy": _share(total["right_tokens"], total["tokens"]),
            "loss": _share(loss, total["tokens"]),
            "decoded": decoded,
            "forced_exact_match": _share(total["forced"], pairs),
            "exact_match_difference": _share(right - free["forced"], decoded),
            "free_token_accuracy": _share(total["free_tokens"], free["tokens"]),
            "token_accuracy_difference": _share(
                total["free_tokens"] - free["right_tokens"], free["tokens"]
            ),
            "wrong": decoded - right,
            "first_error_median": median(errors) if errors else None,
            "first_error_earliest": min(errors, default=None),
            "eos_early": int((of["ended"] * (of["surplus"] < 0)).sum()),
            "eos_late": int((of["ended"] * (of["surplus"] > 0)).sum()),
            "eos_never": decoded - total["ended"],
        }

    def parts(self) -> dict[str, Summary]:
        """Summaries of the lengths below, in and beyond the training lengths. A part without pairs
        is absent."""
        low, high = self.train_length
        ends = {"below": (0, low - 1), "in_range": (low, high), "beyond": (high + 1, None)}
        summaries = {part: self.summary(*ends[part]) for part in PARTS}
        return {part: summary for part, summary in summaries.items() if summary["examples"]}

    def labelled(self) -> list[tuple[str, Summary]]:
        """The parts by label, and all of them together if there are several."""
        rows = [(PARTS[part], summary) for part, summary in self.parts().items()]
        return rows if len(rows) == 1 else [*rows, ("all", self.summary())]

    def to_dict(self) -> Summary:
        """Plain values: what was measured, the total, its parts, per length."""
        rows = [{"length": n} | self.summary(n, n) for n in self.lengths]
        for row in rows:
            del row["loss"]
        measured = {"length_of": self.side, "train_length": list(self.train_length)}
        return self.about | measured | self.summary() | self.parts() | {"by_length": rows}

    def table(self) -> Shown:
        """The parts, and every span of lengths."""
        rows = self.labelled()
        for low, high, _ in spans(self.lengths, self.train_length):
            label = f"{low} to {high}" if low < high else f"length {low}"
            rows.append((label, self.summary(low, high)))
        title = "scores"
        if of := self.about:
            remark = "; ".join(
                filter(None, (f"step {of['checkpoint']}", fault_remark(of["fault"])))
            )
            title = f"{of['run']}, {remark}: {of['split']}"
        cells = [[label, *(form.format(**row) for form in SHOWN.values())] for label, row in rows]
        return Shown(title, [""], list(SHOWN), rows=cells)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()


SHOWN = {
    "pairs": "{examples:,}",
    "free-running exact match": "{exact_match:.3f}",
    "95%": "{low:.3f}..{high:.3f}",
    "token accuracy": "{token_accuracy:.3f}",
    "loss": "{loss:.4f}",
}
"""What a table shows of a summary, by its headings."""


def _share(part: float, whole: int) -> float:
    """0 of nothing."""
    return part / max(whole, 1)


class Span(NamedTuple):
    """Measured lengths low .. high, all of one part."""

    low: int
    high: int
    part: str


def part_of(length: int, train_length: tuple[int, int]) -> str:
    """The key of PARTS for a length."""
    low, high = train_length
    return "below" if length < low else "beyond" if length > high else "in_range"


def spans(
    lengths: Iterable[int], train_length: tuple[int, int], most: int = MOST_SPANS
) -> list[Span]:
    """Lengths in at most so many spans of 1, 2, 5, 10, 20, 50 and so on. No span crosses an end of
    the training lengths."""
    ordered = sorted(lengths)
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    for step in steps:
        keys = {n: (part_of(n, train_length), (n - 1) // step) for n in ordered}
        if len(set(keys.values())) <= most:
            break
    groups = [list(group) for _, group in groupby(ordered, keys.__getitem__)]
    return [Span(group[0], group[-1], keys[group[0]][0]) for group in groups]


def wilson_interval(right: float, total: float) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927); (0, 1) where nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    z = Z_975
    share = right / total
    middle = share + z * z / (2 * total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@torch.no_grad()
def evaluate(
    model: Seq2Seq,
    pairs: Pairs,
    facts: DataFacts,
    *,
    beam: int = 1,
    decode: int | None = None,
    side: Side = "src",
    follow: Callable[[int, int], object] = lambda done, total: None,
) -> Scores:
    """Score every pair, and decode some. The model is left as it was.

    decode: number of pairs of each length to decode; None = all.
    side: whose length counts.
    follow: called with the pairs that a batch has scored or decoded, and those of all batches.
    """
    lengths = pairs.length(side).cpu()
    chosen = first_of_each(lengths, decode)
    columns = {name: torch.zeros_like(lengths) for name in (*FORCED, "decoded", *FREE)}
    columns["decoded"][chosen] = 1
    losses: dict[int, float] = {}
    total = len(pairs) + len(chosen)
    with _in_eval_mode(model):
        for batch, rows in _batches(model, pairs):
            values, of_rows = _forced(model, batch)
            every, group = lengths[rows].unique(return_inverse=True)
            sums = torch.zeros(len(every), dtype=torch.float64).index_add_(0, group, of_rows)
            for length, loss in zip(every.tolist(), sums.tolist(), strict=True):
                losses[length] = losses.get(length, 0.0) + loss
            for name, column in values.items():
                columns[name][rows] = column.long()
            follow(len(rows), total)
        for batch, rows in _batches(model, pairs.take(chosen)):
            tokens = search(model, batch.src, beam=beam, target_growth=facts.target_growth).tokens
            for name, column in _free(tokens, batch.tgt_out).items():
                columns[name][chosen[rows]] = column.long()
            follow(len(rows), total)
    return Scores({"length": lengths} | columns, losses, facts.train_length, side)


@contextlib.contextmanager
def _in_eval_mode(model: Seq2Seq) -> Iterator[None]:
    """Evaluation mode until the block ends."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _batches(model: Seq2Seq, pairs: Pairs) -> Iterator[tuple[Batch, Tensor]]:
    """Batches of pairs on the model's device, and the numbers of their rows."""
    device, asked = next(model.parameters()).device, model.settings
    limits = bool(asked.source_bos), asked.max_length, asked.n_heads
    for batch, rows in evaluation_batches(pairs, BATCH_TOKENS, *limits):
        yield batch.to(device), rows


def _forced(model: Seq2Seq, batch: Batch) -> tuple[Columns, Tensor]:
    """Teacher-forced columns of a batch, and the loss (B,) of each row in nats."""
    logits = model(batch.src, batch.tgt_in)
    real = batch.tgt_out != PAD_ID
    losses = F.cross_entropy(
        logits.transpose(1, 2), batch.tgt_out, ignore_index=PAD_ID, reduction="none"
    )
    greedy = logits[..., EOS_ID:].argmax(-1) + EOS_ID  # decoding never emits PAD or BOS
    columns = {
        "tokens": real.sum(1).cpu(),
        "right_tokens": ((logits.argmax(-1) == batch.tgt_out) & real).sum(1).cpu(),
        "forced": ((greedy == batch.tgt_out) | ~real).all(1).cpu(),
    }
    return columns, losses.cpu().double().sum(1)


def _free(tokens: Tensor, expected: Tensor) -> Columns:
    """Free-running columns of a batch.

    tokens (B, L), expected (B, T): outputs and targets, PAD after their ends.
    """
    width = max(tokens.shape[1], expected.shape[1])
    tokens, expected = (
        F.pad(x.cpu(), (0, width - x.shape[1]), value=PAD_ID) for x in (tokens, expected)
    )
    same, real = tokens == expected, expected != PAD_ID
    right = same.all(1)
    return {
        "right": right,
        "free_tokens": (same & real).sum(1),
        "surplus": (tokens != PAD_ID).sum(1) - real.sum(1),
        "ended": (tokens == EOS_ID).any(1),
        "first_error": (same.int().argmin(1) + 1).where(~right, 0),
    }


@torch.no_grad()
def translate(
    model: Seq2Seq, sequences: list[list[str]], facts: DataFacts, beam: int = 1
) -> list[list[str]]:
    """Translations of sequences of symbols, in their order. Raises UnseenSymbol."""
    rows = [facts.vocabulary.encode(sequence) for sequence in sequences]
    if not rows:
        return []
    pairs = Pairs(*pad_rows(rows), *pad_rows([[]] * len(rows)))
    output: list[list[str]] = [[]] * len(rows)
    with _in_eval_mode(model):
        for batch, order in _batches(model, pairs):
            decoded = search(model, batch.src, beam=beam, target_growth=facts.target_growth)
            for row, ids in zip(order.tolist(), decoded.tokens.tolist(), strict=True):
                output[row] = facts.vocabulary.decode(ids)
    return output
