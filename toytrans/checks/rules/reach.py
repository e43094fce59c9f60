"""Reach: attention gives weight to every token that it may see."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.batch import SHORT
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED
from toytrans.checks.numbers import listed_places
from toytrans.checks.outcome import Outcome, does_not_apply, fails, passes, unsure
from toytrans.checks.reach import trials
from toytrans.checks.registry import Check
from toytrans.checks.softmaxes import module_of, softmaxes_seen, weights_over

REACH = Check(
    "reach",
    "attention reaches every token that it may see",
    how="the weights of each attention, in short and in long sequences",
    limits="Attention is not seen whose softmax is written out, or that is laid out in blocks; nor "
    "is weight that is taken away behind softmax.",
    follows=("scale", "pads", "future"),
)

DIAGONAL = REACH.cause(
    "diagonal",
    when="each query gives weight to the token at its own place alone",
    words="{where}{side} gives weight to each token's own place alone",
    remedy="is the mask an identity, or padding taken for all that is real?",
)
CUT = REACH.cause(
    "cut",
    when="from some place on, no query gives weight to a token",
    words="{where}{side} gives no weight to tokens from place {first} on, of {count}, in any head",
    remedy="is the mask, or what it is made from, cut there?",
)
CLOSED = REACH.cause(
    "closed",
    when="no query gives weight to the tokens at some places",
    words="{where}{side} gives no weight to tokens at {places} of {count}, in any head: its mask "
    "closes real tokens",
    remedy="is it made from the right ids and lengths?",
)
TRIANGLE = REACH.cause(
    "triangle",
    when="the weights of cross-attention are a triangle",
    words="{where}cross-attention looks at the source through a triangle: place t of the target "
    "sees places 0..t of the source alone",
    remedy="the causal mask belongs to self-attention",
    read="mistakes/causal-mask.md",
)
CAUSAL = REACH.doubt(
    "causal",
    when="the weights of an attention that may see both sides are a triangle",
    words="{where}{side} sees one side of each token alone, which may be meant",
    counts=True,
)
WINDOW = REACH.doubt(
    "window",
    when="each query gives weight to tokens up to some distance, and to none beyond",
    words="{where}{side} gives weight to tokens up to {window} places away, and none beyond",
    remedy="if that is meant, give window={window}",
    counts=True,
)
CHOSEN = REACH.doubt(
    "chosen",
    when="some queries give no weight to tokens that they may see, and to which ones differs from "
    "sequence to sequence",
    words="{where}{side} chooses which tokens it gives weight to by what they are, which may be "
    "meant: {missing} of {count} pairs of places that may see each other had none in {tried} "
    "sequences",
    counts=True,
)
PATTERN = REACH.doubt(
    "pattern",
    when="some queries give no weight to tokens that they may see, in no pattern that has a name",
    words="{where}{side} gives no weight to {missing} of {count} pairs of places that may see each "
    "other, which may be meant",
    counts=True,
)


class Side(NamedTuple):
    """An attention by what it leads from and to: queries and keys, and which pairs of them may see
    each other, (Tq, Tk)."""

    name: str
    allowed: Tensor
    is_cross: bool


@REACH.part("the weights", on="both ends")
def the_weights(asked: Asked) -> Outcome:
    """In pairs without pads, the weights of each attention of the encoder, the decoder and between
    them are looked at, all heads together: every token that a query may see has some weight from
    it, in one of three sequences. `window=` says how far a query sees where that is meant."""
    long, short = asked.setting.length, min(asked.setting.length, SHORT)
    sizes = [(5, 9)] if asked.is_short else [(short, long)]
    if asked.facts.has_source and not asked.is_short:
        sizes.append((long, short))
    seen = [attention for size in sizes for attention in _attentions(asked, *size)]
    if not seen:
        return does_not_apply("no attention is seen that is laid out as queries and keys")
    outcomes = [_judged(*attention) for attention in seen]
    return max(outcomes, key=lambda outcome: outcome.weight)


def _attentions(first: Asked, source: int, target: int) -> Iterator[tuple[str, Side, list[Tensor]]]:
    """Every attention of pairs of a size: where it is, its side, and which pairs of places had
    weight in each of up to three sequences, (Tq, Tk)."""
    found: list[tuple[str, Side, list[Tensor]]] = []
    for asked in trials(first):
        here = list(_cells(asked, asked.pair(source, target)))
        if found and [where for where, _, _ in here] != [where for where, _, _ in found]:
            break  # a model that goes other ways at each call
        before = [cells for _, _, cells in found] or [[] for _ in here]
        found = [
            (where, side, [*old, cells])
            for (where, side, cells), old in zip(here, before, strict=True)
        ]
        if all(bool((_any_of(cells) | ~side.allowed).all()) for _, side, cells in found):
            break
    yield from found


def _any_of(cells: list[Tensor]) -> Tensor:
    """Which pairs of places had weight in any sequence."""
    return torch.stack(cells).any(0)


def _cells(asked: Asked, pair: Ids) -> Iterator[tuple[str, Side, Tensor]]:
    """Where each attention of a pair is, its side, and which of its weights are not zero."""
    model = asked.model
    src, tgt_in = model.placed(*pair[:2])
    try:
        with model.without_dropout(), softmaxes_seen(model.module, src, tgt_in) as softmaxes:
            model.answer(src, tgt_in)
    except RAISED:  # some models do not run under a dispatch mode
        return
    sides = _sides(asked, src.shape[1], tgt_in.shape[1])
    for softmax in softmaxes:
        for side in sides:
            weights = weights_over(softmax, *side.allowed.shape)
            if weights is not None:
                cells = (weights != 0).reshape(-1, *side.allowed.shape).any(0).cpu()
                yield module_of(model.module, softmax), side, cells
                break


def _sides(asked: Asked, source: int, target: int) -> list[Side]:
    """The attentions that a model may have, those with fewer keys first."""
    facts = asked.facts

    def allowed(length: int, is_causal: bool) -> Tensor:
        distance = torch.arange(length)[:, None] - torch.arange(length)
        is_near = distance.abs() <= (length if facts.window is None else facts.window)
        in_prefix = torch.arange(length) < facts.prefix
        is_open = (distance >= 0) | (in_prefix & in_prefix[:, None]) | (not is_causal)
        return is_near & is_open

    of_target = Side("self-attention", allowed(target, facts.is_causal), False)
    if not facts.has_source:
        return [of_target]
    sides = [
        Side("the encoder's self-attention", allowed(source, False), False),
        Side("cross-attention", torch.ones(target, source, dtype=torch.bool), True),
        of_target._replace(name="the decoder's self-attention"),
    ]
    return sorted(sides, key=lambda side: side.allowed.shape[1])


def _judged(where: str, side: Side, in_each: list[Tensor]) -> Outcome:
    """What the cells of an attention show that have weight in each sequence."""
    allowed, cells = side.allowed, _any_of(in_each)
    if bool((cells | ~allowed).all()):
        return passes(f"every attention gives weight to each of up to {len(allowed)} places")
    told: dict[str, Any] = {"where": f"{where}: " if where else "", "side": side.name}
    missing, count = int((allowed & ~cells).sum()), int(allowed.sum())
    if any(not torch.equal(each & allowed, in_each[0] & allowed) for each in in_each):
        tried = len(in_each)
        return unsure(CHOSEN, **told, missing=missing, count=count, tried=tried)
    others = allowed if side.is_cross else allowed & ~torch.eye(len(allowed), dtype=torch.bool)
    if not side.is_cross and not bool((cells & others).any()):
        return fails(DIAGONAL, **told)
    triangle = torch.ones_like(allowed).tril()
    if side.is_cross and torch.equal(cells, triangle):
        return fails(TRIANGLE, **told)
    if not side.is_cross and any(torch.equal(cells, x) for x in (triangle, triangle.mT)):
        return unsure(CAUSAL, **told)
    distance = (torch.arange(len(allowed))[:, None] - torch.arange(allowed.shape[1])).abs()
    window = int(distance[cells & allowed].max())
    if torch.equal(cells & allowed, allowed & (distance <= window)):
        return unsure(WINDOW, give=("window",), **told, window=window)
    blind = (others.any(0) & ~(cells & others).any(0)).nonzero()[:, 0].tolist()
    keys = allowed.shape[1]
    could_be_seen = others.any(0).nonzero()[:, 0].tolist()
    if blind and blind == could_be_seen[-len(blind) :] and len(blind) > 1:
        return fails(CUT, **told, first=blind[0], count=keys)
    if blind:
        return fails(CLOSED, **told, places=listed_places(blind), count=keys)
    return unsure(PATTERN, **told, missing=missing, count=count)
