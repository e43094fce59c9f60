"""What is counted of each pair, and the metrics that follow: one function and one entry each.

A metric counts something in every pair: whether its output is right, how many of its tokens are,
how many edits its output needs. Of any pairs it is the sum of that, divided by the sum of another
count, say of their tokens. The name of its entry is its name everywhere: in JSON, in eval.json, in
a CSV, after --metric.

Names that begin with free_ belong to what a model has written itself, by greedy search or a beam.
The others are teacher-forced: each token was predicted from the true ones before it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from toytrans.errors import UserError, did_you_mean, share
from toytrans.tokens import EOS_ID, PAD_ID


@dataclass(frozen=True)
class Answers:
    """The tokens that a model gave for a batch, beside those that are right.

    tokens, target: (B, L), PAD after the ends of both. Either the model has written the tokens
    itself, or each is what it would write after the true tokens before it.
    unknown: the id of the symbol that stands for all that training lacks, which is never right; -1
    if there is none.
    """

    tokens: Tensor
    target: Tensor
    unknown: int

    @cached_property
    def real(self) -> Tensor:
        """(B, L): where a target has a token, its EOS included."""
        return self.target != PAD_ID

    @cached_property
    def same(self) -> Tensor:
        """(B, L): where tokens and target agree, after the ends too."""
        return (self.tokens == self.target) & (self.tokens != self.unknown)

    @cached_property
    def right(self) -> Tensor:
        """(B,): whether all tokens are those of the target."""
        return self.same.all(1)

    @cached_property
    def ended(self) -> Tensor:
        """(B,): whether the tokens have an EOS."""
        return (self.tokens == EOS_ID).any(1)

    @cached_property
    def surplus(self) -> Tensor:
        """(B,): how many more tokens there are than the target has."""
        return (self.tokens != PAD_ID).sum(1) - self.real.sum(1)


Count = Callable[[Answers], Tensor]
"""What is counted of each pair of a batch: (B,)."""

# What metrics are divided by -------------------------------------------------------------------

COUNTS_FORCED: dict[str, Count] = {
    "pairs": lambda of: torch.ones(len(of.target)),
    "tokens": lambda of: of.real.sum(1),
    "with_unknown": lambda of: (of.target == of.unknown).any(1),
}
COUNTS_FREE: dict[str, Count] = {
    "decoded": lambda of: torch.ones(len(of.target)),
    "decoded_tokens": lambda of: of.real.sum(1),
    "decoded_symbols": lambda of: of.real.sum(1) - 1,
    "wrong": lambda of: ~of.right,
    "ended_early": lambda of: of.ended & (of.surplus < 0),
    "ended_late": lambda of: of.ended & (of.surplus > 0),
    "never_ended": lambda of: ~of.ended,
}
"""Whole numbers of each pair. tokens: of targets, with EOS; symbols: without. with_unknown: whether
its target has a symbol that training lacks, so that no output equals it."""


# What metrics count ----------------------------------------------------------------------------


def exact_match(of: Answers) -> Tensor:
    """Whether the output is the target, to its end."""
    return of.right


def token_accuracy(of: Answers) -> Tensor:
    """How many tokens of the target stand at their place in the output."""
    return (of.same & of.real).sum(1)


def symbol_error_rate(of: Answers) -> Tensor:
    """How many symbols must be put in, taken out or replaced to make the target of the output
    (Levenshtein 1966). Ends are no symbols, and <unk> is never right."""
    distance = torch.zeros(len(of.target))
    rows = (~of.right).nonzero()[:, 0]
    if len(rows):
        output = of.tokens[rows].masked_fill(of.tokens[rows] == of.unknown, -1)
        distance[rows] = edits(output, of.target[rows]).float()
    return distance


def first_error(of: Answers) -> Tensor:
    """The place of the first wrong token, counted from 1; 0 where the output is right."""
    return (of.same.int().argmin(1) + 1).where(~of.right, 0)


def edits(output: Tensor, target: Tensor) -> Tensor:
    """The edit distances (B,) of the symbols before EOS and PAD in outputs (B, L) and targets
    (B, T). Row i of the usual table holds, for each beginning of the target, its distance from the
    first i symbols of the output; `cummin` puts symbols in."""
    n_output = (output > EOS_ID).logical_or(output < 0).long().cumprod(1).sum(1)
    n_target = (target > EOS_ID).long().cumprod(1).sum(1)
    places = torch.arange(target.shape[1] + 1)
    row = places.expand(len(target), -1)  # (B, T + 1)
    found = n_target.clone()
    for i in range(output.shape[1]):
        replaced = row[:, :-1] + (output[:, i, None] != target)
        best = torch.cat((row[:, :1] + 1, torch.minimum(replaced, row[:, 1:] + 1)), 1)
        row = (best - places).cummin(1).values + places
        found = row.gather(1, n_target[:, None])[:, 0].where(n_output == i + 1, found)
    return found


# The metrics -----------------------------------------------------------------------------------

Better = Literal["higher", "lower"]
SHARE, ALL_OR_NOTHING = "a share", "a share of pairs that each count for all or nothing"
"""Forms of metrics that go from 0 to 1. Wilson's interval is right for the second one alone."""


@dataclass(frozen=True)
class Metric:
    """A number of any pairs.

    label: its words. short: the heading of its column, in two lines at most. better: which way is
    better. form: SHARE, ALL_OR_NOTHING, or the format in which it is written. count: what is summed
    over the pairs; None = the loss, which is summed apart because it is no whole number. per: the
    count that the sum is divided by. then: what is made of the quotient. least: the least value
    that it can have.
    """

    label: str
    short: str
    better: Better
    form: str = SHARE
    count: Count | None = None
    per: str = ""
    then: Callable[[float], float] = float
    least: float = 0.0

    @property
    def is_share(self) -> bool:
        """Whether it goes from 0 to 1."""
        return self.form in (SHARE, ALL_OR_NOTHING)

    def value(self, total: float, divisor: float) -> float | None:
        """The number of some pairs; None where there is nothing to divide by."""
        return self.then(total / divisor) if divisor else None

    def written(self, value: float | None, *, signed: bool = False) -> str:
        """A value as people read it."""
        if value is None:
            return "-"
        if self.is_share:
            return f"{value:+.3f}" if signed else share(value)
        return f"{value:{'+' if signed else ''}{self.form}}"


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))


FREE = {
    "free_exact_match": Metric(
        "free-running exact match",
        "exact\nmatch",
        "higher",
        ALL_OR_NOTHING,
        exact_match,
        "decoded",
    ),
    "free_symbol_error_rate": Metric(
        "free-running symbol error rate",
        "symbol\nerrors",
        "lower",
        ".4f",
        symbol_error_rate,
        "decoded_symbols",
    ),
    "free_token_accuracy": Metric(
        "free-running token accuracy",
        "free\ntokens",
        "higher",
        count=token_accuracy,
        per="decoded_tokens",
    ),
    "free_first_error": Metric(
        "mean place of the first wrong token of wrong outputs",
        "first\nerror",
        "higher",
        ".1f",
        first_error,
        "wrong",
        least=1.0,
    ),
}
FORCED = {
    "forced_exact_match": Metric(
        "teacher-forced exact match", "forced", "higher", ALL_OR_NOTHING, exact_match, "pairs"
    ),
    "forced_token_accuracy": Metric(
        "teacher-forced token accuracy",
        "token\nacc.",
        "higher",
        count=token_accuracy,
        per="tokens",
    ),
    "loss": Metric("loss in nats a token", "loss", "lower", ".4f", per="tokens"),
    "perplexity": Metric(
        "perplexity", "perplexity", "lower", ".4f", per="tokens", then=_exp, least=1.0
    ),
}
OF_RUN = {
    "steps": Metric("training steps", "steps", "lower", ",.0f"),
    "seconds": Metric("training seconds", "seconds", "lower", ",.1f"),
    "parameters": Metric("parameters", "parameters", "lower", ",.0f"),
}
"""Numbers of a whole run, whatever pairs are measured."""

OF_PAIRS = FREE | FORCED
METRICS = OF_PAIRS | OF_RUN
COUNTS = (*COUNTS_FORCED, *COUNTS_FREE)


def check_metric(name: str) -> str:
    """The name of a metric. Raises UserError for any other."""
    if name not in METRICS:
        raise UserError(f"metric {name!r}: {did_you_mean(name, METRICS)}")
    return name


def counted(counts: dict[str, Count], metrics: dict[str, Metric]) -> dict[str, Count]:
    """All that is counted of a batch, by name."""
    return counts | {name: each.count for name, each in metrics.items() if each.count}


COLUMNS_FORCED, COLUMNS_FREE = counted(COUNTS_FORCED, FORCED), counted(COUNTS_FREE, FREE)
