"""Scores of hypotheses of a beam search, beside the log-probabilities of a parallel pass.

A score is the sum of log-probabilities, divided by a power of the length (Wu et al. 2016 divide by
a power of (5 + length) / 6). Which power a search takes is found out from its own scores.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEAR = 1e-3
"""Share of a score by which rounding may move it."""

LENGTHS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda count: count,
    lambda count: count + 1,
    lambda count: (5 + count) / 6,
)
"""What scores are divided by a power of, for a number of ids."""


class Hypotheses(NamedTuple):
    """What a beam search gives: ids (B, K, L) and scores (B, K), of each source the best first."""

    ids: Tensor
    scores: Tensor


def hypotheses_of(made: Any, rows: int) -> Hypotheses | None:
    """The hypotheses in what a function gave for so many sources: a pair of ids (B, K, L) and
    scores (B, K), or `sequences` (B K, L) and `sequences_scores` (B K,). None where it is neither.
    """
    scores = getattr(made, "sequences_scores", None)
    if isinstance(scores, Tensor) and rows and len(scores) % rows == 0:
        return Hypotheses(
            made.sequences.cpu().unflatten(0, (rows, -1)), scores.cpu().view(rows, -1)
        )
    if not isinstance(made, tuple | list) or len(made) != 2:
        return None
    ids, scores = made
    both = isinstance(ids, Tensor) and isinstance(scores, Tensor)
    if not both or ids.dim() != 3 or len(ids) != rows or scores.shape != ids.shape[:2]:
        return None
    return Hypotheses(ids.long().cpu(), scores.cpu())


class Fit(NamedTuple):
    """How scores follow from sums of log-probabilities: off (N,), by how much each score is off.
    right: how many of them follow."""

    off: Tensor
    right: int


def best_fit(scores: Tensor, sums: Tensor, counts: Tensor) -> Fit:
    """The way of dividing by which most scores (N,) follow from sums (N,) of log-probabilities of
    so many ids (N,). A power that one score alone shows does not count."""
    fits = [_fit(scores, sums, torch.ones_like(sums))]
    for length in LENGTHS:
        divisor = length(counts.to(sums))
        for power in _powers(scores, sums, divisor):
            fit = _fit(scores, sums, divisor**power)
            fits.append(fit if power == 1 else fit._replace(right=max(0, fit.right - 1)))
    best = max(fits, key=lambda fit: fit.right)
    is_right = best.off <= NEAR * scores.abs().clamp(min=1.0)
    return best._replace(right=int(is_right.sum()) if best.right else 0)


def _powers(scores: Tensor, sums: Tensor, divisor: Tensor) -> set[float]:
    """The powers of a divisor that single scores show, and 1."""
    found = {1.0}
    for score, whole, length in zip(scores.tolist(), sums.tolist(), divisor.tolist(), strict=True):
        if score * whole > 0 and abs(math.log(length)) > 0.1:
            found.add(math.log(whole / score) / math.log(length))
    return {power for power in found if abs(power) <= 3}


def _fit(scores: Tensor, sums: Tensor, divisor: Tensor) -> Fit:
    off = (scores - sums / divisor).abs()
    return Fit(off, int((off <= NEAR * scores.abs().clamp(min=1.0)).sum()))
