"""Scale: attention is the softmax of q k / root of the head's width, over the keys (Vaswani et al.
2017, equation 1)."""

import math
from typing import NamedTuple

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.outcome import (
    Cause,
    Evidence,
    Judged,
    Outcome,
    does_not_apply,
    measured,
    passes,
    unsure,
)
from toytrans.checks.registry import Check
from toytrans.checks.softmaxes import Softmax, module_of, softmaxes_of

SCALE = Check(
    "scale",
    "softmax is of q k / root of d_head, over keys",
    how="every softmax followed to its product",
    limits="A softmax that is written out (`exp`, `sum`, `/`) is not seen.",
)

# What lets attention see what its masks should close -------------------------------------------

HEADS_MIXED = SCALE.cause(
    "heads_mixed",
    when="heads are a projection, or are made into one, by a reshape that swaps no axes",
    words="{where}heads are split or merged by a reshape alone, which mixes them with places",
    remedy="view(B, T, H, d).transpose(1, 2) splits, transpose(1, 2).reshape(B, T, H * d) merges"
    "{others}",
)
WRONG_AXIS = SCALE.cause(
    "wrong_axis",
    when="the weights of a query do not sum to one over the values that they are multiplied with",
    words="{where}softmax runs over another axis than the keys: the weights of a query do not sum "
    "to one",
    remedy="is it softmax(-1)?{others}",
    read="mistakes/softmax-axis.md",
)
CLOSES_NOTHING = SCALE.cause(
    "closes_nothing",
    when="all that masks fill or add is a number above -10",
    words="{where}closed scores hold {fill:g}, which closes nothing",
    remedy="fill with -inf or -1e9{others}",
)

# A scale that is known as a mistake ------------------------------------------------------------

SEEN = "scores are q k times {factor:.3g}"
RIGHT = "1 / root of the head's width {inner} is {usual:.3g}"

MODEL_WIDTH = SCALE.cause(
    "model_width",
    when="scores are multiplied with 1 / root of the model's width",
    words="{where}" + SEEN + ", 1 / root of the model's width {width}",
    remedy=RIGHT + "{meant}{others}",
    explains=False,
)
SCALED_TWICE = SCALE.cause(
    "twice",
    when="scores are multiplied with 1 / the head's width",
    words="{where}" + SEEN,
    remedy=f"{RIGHT}: scaled twice, or by the width in place of its root?{{meant}}{{others}}",
    explains=False,
)
MULTIPLIED = SCALE.cause(
    "multiplied",
    when="scores are multiplied with the root of the head's width",
    words="{where}" + SEEN,
    remedy=RIGHT + ": multiplied in place of divided?{meant}{others}",
    explains=False,
)
MISSING = SCALE.cause(
    "missing",
    when="nothing but a product of two projections makes the scores, and there are several heads",
    words="{where}nothing scales the scores q k",
    remedy=RIGHT + "{meant}{others}",
    explains=False,
)
NOT_AS_GIVEN = SCALE.cause(
    "not_as_given",
    when="scores are multiplied with another number than `scale=`",
    words="{where}" + SEEN + ", and scale={given:g} was given{others}",
    explains=False,
)

# A scale that may be meant -------------------------------------------------------------------

LEARNED = SCALE.doubt(
    "learned",
    when="a parameter multiplies the scores",
    words="{where}a learned number scales the scores, so no other is wanted",
)
UNKNOWN = SCALE.doubt(
    "unknown",
    when="the scores are multiplied with tensors",
    words="{where}the scores are multiplied with more than numbers: their scale is unknown",
)
ANOTHER = SCALE.doubt(
    "another",
    when="scores are multiplied with a number that is no known mistake",
    words="{where}" + SEEN,
    remedy=RIGHT + ". T5, Luong's attention and norms of queries differ{meant}",
)


class Fault(NamedTuple):
    """What is wrong with one attention."""

    cause: Cause
    evidence: Evidence


@SCALE.part("every attention")
def every_attention(asked: Asked) -> Outcome:
    """torch's operations are watched on one pass in eval mode: `@`, `einsum`, `baddbmm`,
    `F.scaled_dot_product_attention`, `nn.MultiheadAttention`. Names do not matter. An attention is
    a softmax of a product of queries and keys, which is then multiplied with values. Its scores are
    the product times 1 / root of the head's width, closed ones hold a number that closes, and
    softmax sums over the keys. Other scales get no failure, for T5, Luong's attention, norms of
    queries and learned temperatures want them; `scale=` says which one is meant."""
    seen = softmaxes_of(asked)
    attentions = [each for each in seen if each.is_attention and each.scores.inner]
    if not attentions:
        return does_not_apply(
            "no softmax is of a product of queries and keys, as in additive attention"
            if any(each.is_attention for each in seen)
            else "no softmax of torch's gives weights of values: there is none, or it is written "
            "out"
        )
    faults = [_leak(each) for each in attentions]
    doubts: list[Outcome] = []
    if not any(faults):
        faults = []
        for each in attentions:
            try:
                faults.append(_wrong_scale(asked, each))
            except Judged as doubt:
                faults.append(None)
                doubts.append(doubt.outcome)
    wrong = [(each, fault) for each, fault in zip(attentions, faults, strict=True) if fault]
    if wrong:
        first, fault = wrong[0]
        others = f" ({len(wrong)} of {len(attentions)} attentions)" if len(wrong) > 1 else ""
        evidence = {**fault.evidence, "where": _where(asked, first), "others": others}
        return measured(len(wrong), 0.0, "", fault.cause, **evidence)
    if doubts:
        return doubts[0]
    fills = sorted({fill for a in attentions for fill in a.scores.fills}, reverse=True)
    closed = f", closed ones hold {', '.join(f'{x:.3g}' for x in fills)}" if fills else ""
    wanted = "1 / root of d_head" if asked.facts.scale is None else f"{asked.facts.scale:g}"
    count = f"{len(attentions)} attention{'s' * (len(attentions) > 1)}"
    return passes(f"{count}: scores are q k times {wanted}{closed}; softmax over keys")


def _leak(attention: Softmax) -> Fault | None:
    """What lets an attention see what its masks should close."""
    scores = attention.scores
    if scores.mixed or attention.merged:
        return Fault(HEADS_MIXED, {})
    if attention.sums_keys is False:
        return Fault(WRONG_AXIS, {})
    if attention.is_untouched and scores.fills and min(scores.fills) > tolerances.CLOSED_SCORE:
        return Fault(CLOSES_NOTHING, {"fill": min(scores.fills)})
    return None


def _wrong_scale(asked: Asked, attention: Softmax) -> Fault | None:
    """A scale that is known as a mistake, or is not the one that was given; None for the right one.
    Raises Judged for another, which may be meant, as all those of Hugging Face's layers, which hold
    what their config says."""
    scores, given = attention.scores, asked.facts.scale

    def near(wanted: float) -> bool:
        return math.isclose(scores.factor, wanted, rel_tol=tolerances.SCALE)

    if scores.learned:
        raise Judged(unsure(LEARNED, where=_where(asked, attention)))
    usual = scores.inner**-0.5
    if near(usual if given is None else given):
        return None
    is_usual = given is None or math.isclose(given, usual, rel_tol=tolerances.SCALE)
    meant = "" if given else f"; if that is meant, give scale={scores.factor:.3g}"
    evidence = {"factor": scores.factor, "inner": scores.inner, "usual": usual, "meant": meant}
    of_hugging_face = type(attention.module).__module__.startswith("transformers.")
    if is_usual and not of_hugging_face:
        for width in (scores.width, scores.inner * scores.heads):
            if width != scores.inner and width and near(width**-0.5):
                return Fault(MODEL_WIDTH, {**evidence, "width": width})
        if near(1 / scores.inner):
            return Fault(SCALED_TWICE, evidence)
        if near(scores.inner**0.5) and scores.width:  # else they are normed, and this is right
            return Fault(MULTIPLIED, evidence)
        has_heads = scores.heads > 1 or scores.inner < scores.width
        is_bare = scores.plain and has_heads and not scores.biased
        if near(1) and (is_bare or given is not None):
            return Fault(MISSING, evidence)
    if given is not None:
        return Fault(NOT_AS_GIVEN, {**evidence, "given": given})
    if math.isnan(scores.factor):
        raise Judged(unsure(UNKNOWN, where=_where(asked, attention)))
    raise Judged(unsure(ANOTHER, where=_where(asked, attention), **evidence))


def _where(asked: Asked, attention: Softmax) -> str:
    """The module of an attention, as "decoder.0.self_attn: "; "" where none is known."""
    name = module_of(asked.model.module, attention)
    return f"{name}: " if name else ""
