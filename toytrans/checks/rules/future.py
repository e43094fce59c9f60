"""The future: a later token of the target changes no earlier output."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.asked import Asked
from toytrans.checks.causes_by_kind import (
    causes_by_kind,
    causes_in_attention,
    causes_of_masks_elsewhere,
    causes_of_shapes,
)
from toytrans.checks.changes import Change
from toytrans.checks.common_causes import POLARITY
from toytrans.checks.gradients import gradients_are_zero
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import spread_out
from toytrans.checks.outcome import Evidence, Judged, Outcome, does_not_apply
from toytrans.checks.registry import CAUSAL, Check
from toytrans.checks.shapes import in_other_shapes
from toytrans.checks.softmaxes import scores_as_trained

FUTURE = Check(
    "future",
    "a later target token changes no earlier output",
    how="single tokens; prefixes; gradients",
    limits="A leak is not seen that shows only at a length, a number of rows or a difference of "
    "lengths that was not tried, or that needs two such conditions at once. Where scores are "
    "computed in bf16 inside an fp32 model, rounding hides small leaks.",
    essential=True,
    kinds=CAUSAL,
    follows=("rows", "scale"),
    may_be_batch_statistics=True,
)

# Where it begins -----------------------------------------------------------------------------

CONSEQUENCE = "earlier outputs change with later tokens"

BY_PLACE = (
    *causes_in_attention(
        FUTURE,
        CONSEQUENCE,
        keys="later tokens",
        no_key="does every query see itself (tril(), not tril(-1))?",
        latents="let latents read the source alone, for what they read of the target reaches every "
        "place of it",
    ),
    *causes_by_kind(
        FUTURE,
        CONSEQUENCE,
        {
            "norm": "normalise each place over its own features alone",
            "convolution": "pad it on the left alone, by the kernel's size - 1",
            "recurrence": "let it run forward alone (bidirectional=False), and along the places",
            "pooling": "take it over the places up to each one, or leave it out",
            "experts": "let each token choose alone: where experts choose tokens, or have a "
            "capacity, later tokens push earlier ones out",
            "state": "is a mask or a cache kept, or a table changed while it is read (max_norm)?",
            "product": "a matrix over places needs a triangle too",
            "shift": "is a shift turned the wrong way, or are heads split or merged by a reshape "
            "that swaps no axes?",
            "length": "are positions or scales counted from the end?",
        },
    ),
)
"""Rows that go by where the difference begins, before those that ask for the triangle."""

ELSEWHERE = causes_of_masks_elsewhere(
    FUTURE,
    CONSEQUENCE,
    keys="later tokens",
    mask="does it hold the triangle (tril() where True = may look, triu(1) where True = block)?",
)
"""Rows for masks that are in other layers, or close something else."""

# Single tokens -------------------------------------------------------------------------------

AHEAD_BY_LAYERS = 4
"""A triangle that is off by one shows as many places ahead as there are layers, so many at most."""


def is_a_few_ahead(evidence: Evidence) -> bool:
    """Whether outputs see a few places ahead, and no more though more were tried; or the weights of
    an attention show one or two alone, which many layers add up."""
    weights = evidence.get("weights") or {}
    if 0 < weights.get("ahead", 0) <= 2 and weights["last"] > 3:
        return True
    return bool(evidence["ahead"] <= AHEAD_BY_LAYERS and evidence["ahead"] < evidence["last"])


def begins_later(evidence: Evidence) -> bool:
    """Whether the first outputs do not see the future."""
    return bool(evidence["first"] > 0)


SEES = "{at}outputs at {outputs} change when token {token} changes: the decoder sees the future"

OFF_BY_ONE = FUTURE.cause(
    "off_by_one",
    when="outputs see a few places ahead, at most one for each layer, and no more",
    words=SEES + ", {ahead} ahead and no more",
    remedy="is the triangle off by one, in each layer or in some (tril(1) for tril(), triu(2) for "
    "triu(1))?",
    fits=is_a_few_ahead,
    read="mistakes/causal-mask.md",
)
FROM_A_PLACE_ON = FUTURE.cause(
    "from_a_place_on",
    when="outputs see the future from some place on, and not before",
    words=SEES + ", from output {first} on and not before",
    remedy="is the mask made for all lengths, or kept from a shorter one?",
    fits=begins_later,
)
MASK_MISSING = FUTURE.cause(
    "mask_missing",
    when="all outputs see the future",
    words=SEES,
    remedy=f"is the causal mask passed, and {POLARITY}",
    read="mistakes/causal-mask.md",
)


@FUTURE.part("single tokens", on="every")
def single_tokens(asked: Asked) -> Iterator[Change]:
    """One token of the longest target is changed at a time, beside its source and beside a short
    one; earlier outputs must stay. All are asked in one call: row 0 is the target as it is, and the
    earlier outputs of every other row must repeat those of row 0."""
    row = int(asked.real.sum(1).argmax())
    rows = {row, int(asked.real_source.sum(1).argmin())} if asked.is_short else {row}
    real = asked.real[row].nonzero()[:, 0].tolist()
    tried = [real[i] for i in spread_out(len(real), 34)[1:]]
    places = torch.tensor([place for place in tried if place >= asked.facts.prefix])
    if not len(places):
        return
    tgt_in = asked.tgt_in[row]
    changed = torch.cat((tgt_in[None], asked.one_by_one(tgt_in, places)))
    at = torch.arange(changed.shape[1])
    earlier = torch.where((at < places[:, None]) & asked.real[row], at, -1)  # numbers in row 0
    must_repeat = F.pad(earlier, (0, 0, 1, 0), value=-1)  # row 0 itself repeats nothing
    causes = (*BY_PLACE, OFF_BY_ONE, FROM_A_PLACE_ON, *ELSEWHERE, MASK_MISSING)
    evidence = partial(_what_moved, places)
    for n in rows if asked.facts.has_source else {row}:
        source = asked.src[n, asked.real_source[n]]  # pads would cost as much
        ids = Ids(source.expand(len(must_repeat), -1), changed)
        name = "later tokens one by one"
        yield Change(name, ids, must_repeat, causes, evidence, in_one_call=True)


def _what_moved(places: Tensor, seen: Tensor) -> dict[str, Any]:
    """Which outputs (1 + J, T) move with a later token at J places, as evidence; the first row is
    the target as it is."""
    seen = seen[1:]
    number = int(seen.sum(1).argmax())
    outputs = seen[number].nonzero()[:, 0].tolist()
    many = len(outputs) > 1
    return {
        "outputs": f"places {outputs[0]}..{outputs[-1]}" if many else f"place {outputs[0]}",
        "token": int(places[number]),
        "ahead": int((places[:, None] - torch.arange(seen.shape[1]))[seen].max()),
        "last": int(places[-1]),
        "first": int(seen.any(0).int().argmax()),
    }


# Scores as trained ---------------------------------------------------------------------------

OPEN_WHEN_TRAINED = FUTURE.cause(
    "open_when_trained",
    when="earlier outputs move with a later token where scores q k are as large as training makes "
    "them, and not with those of fresh weights",
    words="{at}outputs at {outputs} change when token {token} changes, once scores are as large as "
    "trained ones: what closes them is too small",
    remedy="fill with -inf or -1e9, behind all that caps the scores",
)


@FUTURE.part("scores as trained")
def scores_as_large_as_trained(asked: Asked) -> Iterator[Change]:
    """The same with scores q k up to 80, as training makes them: a mask of -30 closes those of
    fresh weights, and not these."""
    if asked.dtype != torch.float64:
        raise Judged(does_not_apply("rounding moves such scores as far, but in fp64"))
    causes = (*BY_PLACE, OPEN_WHEN_TRAINED)
    for sign in (1, -1):
        around = partial(scores_as_trained, asked, sign)
        for change in islice(single_tokens(asked), 1):
            yield replace(change, causes=causes, around=around, is_around_both=True)


# Prefixes ------------------------------------------------------------------------------------

DEPENDS_ON_LENGTH = FUTURE.cause(
    "depends_on_length",
    when="the beginning of a target alone gets other logits than within the target",
    words="a prefix of length {length} alone gets other logits than within all {width} tokens: "
    "outputs depend on the target's length, which decoding does not know",
    remedy="are positions or scales counted from the end, or the future seen?",
)

PREFIXES_OF_LONG_TARGETS = (12, 24, 36, 48, 60)
"""Lengths with many divisors, as blocks of attention have."""


@FUTURE.part("prefixes", on="every")
def prefixes(asked: Asked) -> Iterator[Change]:
    """The beginning of every target without pads is asked alone, and must give what it gives within
    the target."""
    width, few = asked.tgt_in.shape[1], 8 if asked.is_short else 1
    rows = asked.real[:, -1]  # of the others the beginnings hold pads
    if not bool(rows.any()):
        return
    for length in range(1, width):
        is_tried = length <= few or length in PREFIXES_OF_LONG_TARGETS
        if is_tried and length >= asked.facts.prefix:
            ids = Ids(asked.src[rows], asked.tgt_in[rows, :length])
            evidence = {"length": length, "width": width}
            causes = (*BY_PLACE, *ELSEWHERE, DEPENDS_ON_LENGTH)
            must_repeat = asked.numbers[rows, :length]
            yield Change("prefixes of targets", ids, must_repeat, causes, evidence)


# Other shapes --------------------------------------------------------------------------------

IN_OTHER_SHAPES = causes_of_shapes(FUTURE, "earlier outputs", (*BY_PLACE, *ELSEWHERE))


@FUTURE.part("other shapes")
def other_shapes(asked: Asked) -> Iterator[Change]:
    """In the same shapes as for *pads*, each second row holds symbols behind its target where the
    row before it, of the same pair, holds pads."""
    yield from in_other_shapes(asked, with_symbols=True, causes=IN_OTHER_SHAPES)


# Gradients -----------------------------------------------------------------------------------

IN_GRADIENTS = FUTURE.cause(
    "in_gradients",
    when="gradients of an output towards the embeddings of later tokens are not zero",
    words="real outputs depend on {reached}: attention weights there are not zero",
    remedy="is the mask added before softmax, in every layer, the right way round?",
    read="mistakes/causal-mask.md",
)


@FUTURE.part("gradients", on="every")
def gradients(asked: Asked) -> Outcome:
    """Gradients of an output towards the embeddings of later tokens are zero."""
    return gradients_are_zero(asked, of_future=True, cause=IN_GRADIENTS)
