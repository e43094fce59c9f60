"""What the weights of an attention show of its masks, in two passes that were recorded."""

import re
from typing import Any

from torch import Tensor

from toytrans.checks import tolerances
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import largest
from toytrans.checks.recording import PRODUCT, Step, reached
from toytrans.checks.softmaxes import VIEWS

SOFTMAX = re.compile("_softmax|_safe_softmax|exp")
"""Softmax, and what one that is written out begins with."""


class Sizes:
    """Places of source and target in two passes."""

    def __init__(self, before: Ids, after: Ids) -> None:
        self.source = before.src.shape[1], after.src.shape[1]
        self.target = before.tgt_in.shape[1], after.tgt_in.shape[1]


class Weights:
    """The weights of one attention in one pass. softmax: the number of its step. Around it they may
    be wider, filled up to a width that is faster, so all that comes between the products counts."""

    def __init__(self, steps: list[Step], softmax: int) -> None:
        self.steps, self.softmax = steps, softmax
        self.scores_made = sorted(reached(steps, softmax, lambda n: steps[n].inputs))
        behind, self.behind = {softmax}, [softmax]
        for n in range(softmax + 1, len(steps)):
            if behind & {*steps[n].inputs}:
                if PRODUCT.fullmatch(steps[n].name):
                    break
                behind.add(n)
                self.behind.append(n)

    def over(self, queries: int, keys: int) -> Tensor | None:
        """As softmax gave them, (..., Tq, Tk); None where they are laid out in another way."""
        viewed = [self.softmax]
        for n in self.behind[1:]:
            if VIEWS.fullmatch(self.steps[n].name) and {*viewed} & {*self.steps[n].inputs}:
                viewed.append(n)
        return self._first(viewed, queries, keys)

    def scores(self, queries: int, keys: int) -> Tensor | None:
        """What softmax was taken of."""
        return self._first([n for n in self.scores_made[::-1] if n != self.softmax], queries, keys)

    def used(self, queries: int, keys: int) -> Tensor | None:
        """Those that are multiplied with values."""
        return self._first(self.behind[::-1], queries, keys)

    def _first(self, numbers: list[int], queries: int, keys: int) -> Tensor | None:
        values = (self.steps[n].value for n in numbers)
        laid_out = (v for v in values if v.shape[-2:] == (queries, keys) and v.is_floating_point())
        return next(laid_out, None)


def softmax_beside(steps: list[Step], step: int) -> int | None:
    """The softmax whose scores or weights a step works on, with no product between; None where
    there is none."""
    follows: dict[int, list[int]] = {}
    for n, each in enumerate(steps):
        for given in each.inputs:
            follows.setdefault(given, []).append(n)
    back = reached(steps, step, lambda n: steps[n].inputs)
    on = reached(steps, step, lambda n: follows.get(n, []))
    for n in (*back, *on):
        if steps[n].of_ids and SOFTMAX.fullmatch(steps[n].name):
            return n
    return None


def weights_seen(before: Weights, after: Weights, sizes: Sizes, place: int) -> dict[str, Any]:
    """What the weights of those queries show that must not see other keys; nothing where they are
    not laid out as queries and keys.

    closed_weight, open_weight: the largest weight of a key that must be closed, and of one that may
    be seen; is_uniform: whether a query has the same weight on all keys; is_short: whether weights
    were taken away behind softmax, so that those of a query do not sum to one; fill: the number
    that all closed scores hold, None where they hold several; side: which attention it is.
    """
    (target, target_after), (source, source_after) = sizes.target, sizes.source
    if target == target_after and before.over(target, target) is not None:  # the future
        return _seen(before, (target, target), place + 1, [place], "self-attention")
    for side, queries, keys, real in (
        ("self-attention", target_after, target_after, target),
        ("cross-attention", target_after, source_after, source),
        ("self-attention", source_after, source_after, source),
    ):
        if keys > real and after.over(queries, keys) is not None:
            rows = [place] if queries == target_after else list(range(real))
            return _seen(after, (queries, keys), real, rows, side)
    return {}


def _seen(
    weights: Weights, shape: tuple[int, int], open_keys: int, rows: list[int], side: str
) -> dict[str, Any]:
    """The same of some queries, of which the first keys are open."""
    given, used = weights.over(*shape), weights.used(*shape)
    if given is None or used is None:
        return {}
    by_row, left, scores = given[..., rows, :], used[..., rows, :], weights.scores(*shape)
    closed = None if scores is None else scores[..., rows, open_keys:].flatten()
    is_one = closed is not None and len(closed) > 1 and bool((closed == closed[0]).all())
    spread = by_row.amax(-1) - by_row.amin(-1)
    is_short = left.sum(-1) < (1 - tolerances.SHORT_OF_ONE) * by_row.sum(-1)
    return {
        "closed_weight": largest(by_row[..., open_keys:].nan_to_num(1.0)),
        "open_weight": largest(by_row[..., :open_keys].nan_to_num(0.0)),
        "is_uniform": bool((spread <= 1e-9 * by_row.amax(-1)).any()),
        "is_short": bool(is_short.any()),
        "fill": float(closed[0]) if closed is not None and is_one else None,
        "side": side,
    }
