"""What each attention's softmax is taken of, whatever code computes it."""

import math
import re

from toytrans.checks.batch import Batch
from toytrans.checks.result import CannotJudge, NotApplicable, Result, measured
from toytrans.checks.seen import MASKED, Attention, attention_seen


def attentions(batch: Batch) -> list[Attention]:
    """Every softmax of one pass."""
    if "attentions" not in batch.kept:
        src, tgt_in = batch.src.clone(), batch.tgt_in.clone()
        with (
            attention_seen(batch.model.module, src, tgt_in) as batch.kept["attentions"],
            batch.model.without_dropout(),
        ):
            batch.model.answer(src, tgt_in)
    found: list[Attention] = batch.kept["attentions"]
    return found


def attention_is_right(batch: Batch) -> Result:
    """Scores are q k / root of the head's width (Vaswani et al. 2017, equation 1), closed ones
    hold a number that closes, and softmax sums over the keys."""
    seen = attentions(batch)
    found = [attention for attention in seen if attention.is_attention and attention.scores.inner]
    if not found:
        raise NotApplicable(
            "no softmax is of a product of queries and keys, as in additive attention"
            if any(attention.is_attention for attention in seen)
            else "no softmax gives weights that are multiplied with values"
            if seen
            else "no softmax of torch's runs on what depends on the ids: there is none, or it is "
            "written out"
        )
    faults = [(a, fault) for a in found if (fault := _leak(a) or _wrong_scale(batch, a))]
    if faults:
        attention, fault = faults[0]
        count = f" ({len(faults)} of {len(found)} attentions)" if len(faults) > 1 else ""
        cause = f"{_where(batch, attention)}{fault}{count}"
        leaks = bool(_leak(attention))
        return measured(float(len(faults)), 0.0, "", cause, explains=leaks)
    for attention in found:
        if doubt := _doubt(batch, attention):
            raise CannotJudge(_where(batch, attention) + doubt)
    fills = sorted({fill for a in found for fill in a.scores.fills}, reverse=True)
    closed = f", closed ones hold {', '.join(f'{x:.3g}' for x in fills)}" if fills else ""
    wanted = "1 / root of d_head" if batch.facts.scale is None else f"{batch.facts.scale:g}"
    count = f"{len(found)} attention{'s' * (len(found) > 1)}"
    evidence = f"{count}: scores are q k times {wanted}{closed}; softmax over keys"
    return measured(0.0, 0.0, evidence, "")


def _leak(attention: Attention) -> str:
    """What lets an attention see what its masks should close."""
    scores = attention.scores
    if scores.mixed or attention.merged:
        return (
            "heads are split or merged by a reshape alone, which mixes them with places; "
            "view(B, T, H, d).transpose(1, 2) splits, transpose(1, 2).reshape(B, T, H * d) merges"
        )
    if attention.sums_keys is False:
        return (
            "softmax runs over another axis than the keys: the weights of a query do not sum to "
            "one; is it softmax(-1)?"
        )
    if attention.is_untouched and scores.fills and min(scores.fills) > MASKED:
        fill = min(scores.fills)
        return f"closed scores hold {fill:g}, which closes nothing; fill with -inf or -1e9"
    return ""


def _wrong_scale(batch: Batch, attention: Attention) -> str:
    """A wrong scale that is known as a mistake, in words; "" for another, which may be meant, and
    for those of Hugging Face's layers, which hold what their config says."""
    scores, facts = attention.scores, batch.facts
    wanted = scores.inner**-0.5 if facts.scale is None else facts.scale
    if scores.learned or _near(scores.factor, wanted):
        return ""
    is_said = f"scores are q k times {scores.factor:.3g}"
    if facts.scale is not None:
        return f"{is_said}, and scale={wanted:g} was given"
    if type(attention.module).__module__.startswith("transformers."):
        return ""
    right = f"1 / root of the head's width {scores.inner} is {wanted:.3g}"
    meant = "" if facts.is_textbook else f"; if that is meant, give scale={scores.factor:.3g}"
    for width in (scores.width, scores.inner * scores.heads):
        if width != scores.inner and width and _near(scores.factor, width**-0.5):
            return f"{is_said}, 1 / root of the model's width {width}; {right}{meant}"
    if _near(scores.factor, 1 / scores.inner):
        return f"{is_said}; {right}: scaled twice, or by the width in place of its root?{meant}"
    if _near(scores.factor, scores.inner**0.5):
        return f"{is_said}; {right}: multiplied in place of divided?{meant}"
    has_heads = scores.heads > 1 or scores.inner < scores.width
    if _near(scores.factor, 1) and scores.plain and has_heads and not scores.biased:
        return f"nothing scales the scores q k; {right}{meant}"
    return f"{is_said}; {right}" if facts.is_textbook else ""


def _doubt(batch: Batch, attention: Attention) -> str:
    """Why an attention without a known mistake is not said to be right; "" if it is."""
    scores = attention.scores
    wanted = scores.inner**-0.5 if batch.facts.scale is None else batch.facts.scale
    if scores.learned:
        return "a learned number scales the scores, so no other is wanted"
    if math.isnan(scores.factor):
        return "the scores are multiplied with more than numbers, so their scale is not known"
    if _near(scores.factor, wanted):
        return ""
    given = f"{scores.factor:.3g}"
    return (
        f"scores are q k times {given}; 1 / root of the head's width {scores.inner} is "
        f"{wanted:.3g}. T5, Luong's attention and norms of queries want another scale: if this "
        f"model does, give scale={given}"
    )


def _near(a: float, b: float) -> bool:
    """But for half precision's rounding."""
    return math.isclose(a, b, rel_tol=0.01)


def _where(batch: Batch, attention: Attention) -> str:
    """The module of an attention, as "decoder.0.self_attn: "; "" where none is known."""
    module = batch.model.module
    names = {} if module is None else {part: name for name, part in module.named_modules()}
    name = re.sub(r"^model(\.|$)", "", names.get(attention.module, ""))
    return f"{name}: " if name else ""
