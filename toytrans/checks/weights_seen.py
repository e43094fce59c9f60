"""What the weights of an attention show of its masks, in two passes that were recorded.

From softmax the steps are followed back to the product of queries and keys, and on to the product
with values. What is added to scores between the two, multiplied with them or filled in, is a mask,
and closed weights show in which heads, of which queries, and by how much it falls short.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
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

    def changes_of_scores(self, queries: int, keys: int) -> Iterator[tuple[Tensor, Tensor, str]]:
        """Each step that changes scores, laid out as (..., Tq, Tk): the scores before and after it,
        and its name."""
        made: set[int] = set()
        for n in self.scores_made:
            step = self.steps[n]
            if PRODUCT.fullmatch(step.name) or made & {*step.inputs}:
                made.add(n)
            changed = [m for m in step.inputs if m in made] if n in made else []
            if n == self.softmax or not changed or step.value.shape[-2:] != (queries, keys):
                continue
            before = self.steps[changed[0]].value
            if before.shape == step.value.shape and step.value.is_floating_point():
                yield before, step.value, step.name

    def queries_over(self, keys: int) -> int:
        """How many queries there are over so many keys; 0 where weights are laid out otherwise."""
        shape = self.steps[self.softmax].value.shape
        return shape[-2] if len(shape) > 1 and shape[-1] == keys else 0

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


def softmaxes_among(steps: list[Step]) -> Iterator[int]:
    """Each softmax of a pass."""
    return (n for n, step in enumerate(steps) if step.of_ids and "softmax" in step.name)


class Attention(NamedTuple):
    """An attention by its weights, of some queries that must not see some keys. side: which one it
    is; shape: its queries and keys; open_keys: how many keys, the first, may be seen; rows: the
    queries that are looked at."""

    side: str
    shape: tuple[int, int]
    open_keys: int
    rows: list[int]


def attention_seen(
    before: Weights, after: Weights, sizes: Sizes, place: int
) -> tuple[Weights, Attention] | None:
    """The pass in which weights show what must be closed, and which they are: of the first pass,
    where both hold the same places and the future must be closed, else of the second, where pads
    must. None where they are not laid out as queries and keys."""
    (target, target_after), (source, source_after) = sizes.target, sizes.source
    is_future = target == target_after and source == source_after
    if is_future and before.over(target, target) is not None:
        return before, Attention("self-attention", (target, target), place + 1, [place])
    for side, queries, keys, real in (
        ("self-attention", target_after, target_after, target),
        ("cross-attention", target_after, source_after, source),
        ("self-attention", source_after, source_after, source),
    ):
        if keys > real and after.over(queries, keys) is not None:
            rows = [place] if queries == target_after else list(range(real))
            return after, Attention(side, (queries, keys), real, rows)
    others = [(target, place + 1)] if is_future else []
    others += [(keys, real) for keys, real in ((source_after, source), (target_after, target))]
    for keys, real in others:
        queries = (before if is_future else after).queries_over(keys)
        if keys > real and queries:
            which = before if is_future else after
            return which, Attention("latents", (queries, keys), real, list(range(queries)))
    return None


def weights_seen(weights: Weights, attention: Attention) -> dict[str, Any]:
    """What the weights of those queries show that must not see other keys; nothing where they
    cannot be read.

    closed_weight, open_weight: the largest weight of a key that must be closed, and of one that may
    be seen; reaches: whether the first of the queries sees the last of those; is_inverted: whether
    queries see what must be closed, and of the rest themselves at most; ahead: how many places
    ahead a query sees at most, and last, how many there are; is_uniform: whether a query has the
    same weight on all keys; is_short: whether weights of closed keys, and no others, are changed
    behind softmax, so that those of a query do not sum to one; fill: the number that all closed
    scores hold, None where they hold several; added: the two numbers that are added to open and to
    closed scores; is_multiplied: whether closed scores are multiplied with 0; is_masked: whether a
    mask changed some scores, of whatever keys; open_heads, closed_heads: in which heads the keys
    are seen, and in which not; rows_closed: whether the mask closes pads as queries; queries: how
    many there are; side: which attention it is.
    """
    given, used = weights.over(*attention.shape), weights.used(*attention.shape)
    if given is None or used is None:
        return {}
    rows, open_keys = attention.rows, attention.open_keys
    by_row, left = given[..., rows, :], used[..., rows, :]
    spread, by = by_row.amax(-1) - by_row.amin(-1), (left - by_row).abs().nan_to_num(0.0)
    closed = by_row[..., open_keys:].nan_to_num(1.0)
    in_heads = closed.flatten(0, -3).amax((-1, -2)) > 0 if by_row.dim() > 2 else closed.new_zeros(0)
    open_heads, closed_heads = (_listed(x) for x in (in_heads, ~in_heads.bool()))
    return {
        "closed_weight": largest(closed),
        "open_weight": largest(by_row[..., :open_keys].nan_to_num(0.0)),
        "reaches": bool((by_row[..., 0, open_keys - 1] > 0).any()),
        "is_uniform": bool((spread <= 1e-9 * by_row.amax(-1)).any()),
        "is_short": largest(by[..., open_keys:]) > tolerances.SHORT_OF_ONE * largest(closed)
        and not bool((by[..., :open_keys] > 1e-9).any()),
        "open_heads": open_heads,
        "closed_heads": closed_heads,
        "queries": attention.shape[0],
        "side": attention.side,
        "rows_closed": _closes_rows(given, attention),
        **_along_the_diagonal(given, attention),
        **_what_became_of_scores(weights, attention),
    }


def _listed(of_heads: Tensor) -> str:
    """The numbers of some heads, in words."""
    return ", ".join(map(str, of_heads.nonzero()[:, 0].tolist()))


def _closes_rows(given: Tensor, attention: Attention) -> bool:
    """Whether pads see all keys alike, or none, as queries, while real queries do not."""
    queries, keys = attention.shape
    if attention.side != "self-attention" or queries != keys or attention.open_keys == keys:
        return False
    spread = given.amax(-1) - given.amin(-1)  # (..., Tq)
    is_alike = (spread <= 1e-9) | spread.isnan()
    pads, real = is_alike[..., attention.open_keys :], is_alike[..., : attention.open_keys]
    return len(attention.rows) > 1 and bool(pads.all()) and not bool(real.any())


def _along_the_diagonal(given: Tensor, attention: Attention) -> dict[str, Any]:
    """How many places ahead queries of a square map see, and whether they see nothing but that, and
    perhaps themselves; of another map whether the keys that may be seen have no weight."""
    queries, keys = attention.shape
    rows, seen = attention.rows, (given.nan_to_num(0.0) > 0).reshape(-1, queries, keys).any(0)
    if queries != keys or len(rows) > 1 or attention.open_keys != rows[0] + 1:
        seen_rows = seen[rows]
        is_inverted = not bool(seen_rows[:, : attention.open_keys].any())
        return {"is_inverted": is_inverted, "ahead": 0, "last": 0}
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    ahead = distance[seen]
    # a query with every key closed by a large number sees all alike, which tells nothing
    spread = (given.amax(-1) - given.amin(-1)).nan_to_num(0.0).reshape(-1, queries).amax(0)
    by_mask = distance[seen & (spread > 1e-9)[:, None]]
    return {
        "is_inverted": queries > 2 and len(by_mask) > 0 and not bool((by_mask < 0).any()),
        "ahead": int(ahead.max()) if len(ahead) else 0,
        "last": keys - 1,
    }


def _what_became_of_scores(weights: Weights, attention: Attention) -> dict[str, Any]:
    """What was done to closed scores between the product of queries and keys and softmax."""
    (queries, keys), rows, open_keys = attention.shape, attention.rows, attention.open_keys
    found: dict[str, Any] = {"added": None, "is_multiplied": False, "is_masked": False}
    for old, new, name in weights.changes_of_scores(queries, keys):
        change = new - old
        told = change.masked_fill(~change.isfinite(), tolerances.CLOSED_SCORE)
        here = told[..., rows, :]
        opened, closed = here[..., :open_keys], here[..., open_keys:]
        found["is_masked"] |= _is_of_a_mask(told, name)
        if name in ("add", "sub") and _is_one_number(opened) and _is_one_number(closed):
            both = float(opened.flatten()[0]), float(closed.flatten()[0])
            if both[0] != both[1] and abs(both[0] - both[1]) < -tolerances.CLOSED_SCORE:
                found["added"] = both
        if name == "mul":
            now, before = new[..., rows, open_keys:], old[..., rows, open_keys:]
            is_kept = bool(new[..., rows, :open_keys].any())
            found["is_multiplied"] |= not bool(now.any()) and bool(before.any()) and is_kept
    scores = weights.scores(queries, keys)
    held = None if scores is None else scores[..., rows, open_keys:].flatten()
    is_one = held is not None and len(held) > 1 and _is_one_number(held)
    found["fill"] = float(held[0]) if held is not None and is_one else None
    return found


def _is_of_a_mask(change: Tensor, name: str) -> bool:
    """Whether a mask made a change of scores: it fills some, or adds one of two numbers, or one
    that closes. What adds many small ones is a bias, as of distances."""
    if name in ("add", "sub"):
        values = change.flatten().sort().values
        is_closing = float(values[0]) <= tolerances.CLOSED_SCORE
        return is_closing or int((values.diff() > 1e-6).sum()) == 1
    return name in ("masked_fill", "where", "index_put") and bool(change.any())


def _is_one_number(x: Tensor) -> bool:
    """Whether a tensor holds one number everywhere, but for rounding."""
    return bool(x.numel()) and bool(((x - x.flatten()[0]).abs() <= 1e-6).all())
