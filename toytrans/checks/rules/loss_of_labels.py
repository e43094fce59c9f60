"""Loss: likelier labels cost less, certain ones next to nothing, and each counts at its place.
These are further parts of the check in `loss.py`."""

import contextlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.batch_loss import BatchLoss
from toytrans.checks.outcome import (
    Evidence,
    Judged,
    Outcome,
    does_not_apply,
    fails,
    passes,
    unsure,
)
from toytrans.checks.rules.loss import (
    LOSS,
    MEAN_OF_PARTS,
    MEAN_OF_PLACES,
    MEAN_OF_ROWS,
    OTHER_TERMS,
    PADS_IN_THE_MEAN,
    PADS_SCORED,
)
from toytrans.errors import UserError

GAP = 20.0
"""By how much the logit of a certain id is above the others."""

MOST_LABELS = 512
"""Ids that are asked for as labels."""

# Likelier labels -----------------------------------------------------------------------------

WRONG_SIGN = LOSS.cause(
    "wrong_sign",
    when="the loss is larger where labels have the highest logits than where they have the lowest",
    words="the loss is {high:.4f} where labels have the highest logits and {low:.4f} where they "
    "have the lowest: its sign is wrong",
    remedy="training makes right answers unlikely",
)
SOFTMAX_IN_THE_MODEL = LOSS.cause(
    "softmax_in_the_model",
    when="the model gives probabilities, and a number added to all of them changes no loss",
    words="the model gives probabilities, and the loss takes softmax of them once more",
    remedy="give cross entropy the logits",
)
NO_SOFTMAX = LOSS.cause(
    "no_softmax",
    when="logits of other ids than the labels change no loss",
    words="the loss sees the logits of the labels alone, so it falls without end as all logits "
    "rise",
    remedy="take log_softmax before nll_loss, or cross_entropy",
)
SOFTMAX_TWICE = LOSS.cause(
    "softmax_twice",
    when="a loss of probabilities: one that is sure of the labels is not near 0, and one that is "
    "sure of others is one more",
    words="the loss is {sure:.4f} where the model is sure of the labels, and no more than "
    "{mistaken:.4f} where it is sure of others: it takes softmax twice",
    remedy="give cross entropy the logits",
)

BLIND = LOSS.doubt(
    "blind",
    when="the loss does not change with the logits of the labels",
    words="the loss is {high:.4f}, whatever the logits of the labels are",
)


@LOSS.part("likelier labels")
def likelier_labels(asked: Asked) -> Outcome:
    """The loss falls as labels become likelier, and softmax is taken once between logits and
    loss."""
    loss = BatchLoss(asked)
    logits, labels = loss.logits, _places_of_labels(loss)

    def loss_where_labels_have(place: Tensor) -> float:
        """Of logits in which each label's is swapped with that at a place (B, T, 1)."""
        own, other = logits.gather(-1, labels), logits.gather(-1, place)
        return loss(logits.scatter(-1, place, own).scatter(-1, labels, other))

    high = loss_where_labels_have(logits.argmax(-1, keepdim=True))
    low = loss_where_labels_have(logits.argmin(-1, keepdim=True))
    if not abs(low - high) > loss.tolerance(high):
        return unsure(BLIND, high=high)
    if high > low:
        return fails(WRONG_SIGN, high=high, low=low)
    with contextlib.suppress(UserError):  # a loss that wants probabilities takes no softmax
        _require_one_softmax(loss, labels)
    return passes(
        f"loss {high:.4f} where labels have the highest logits, {low:.4f} where the lowest"
    )


def _require_one_softmax(loss: BatchLoss, labels: Tensor) -> None:
    """Raises Judged where softmax is taken twice between logits and loss, or never."""
    logits = loss.logits
    once, chosen = loss(logits), torch.zeros_like(logits).scatter(-1, labels, 1.0)
    if loss.are_probabilities and loss.same(once, loss(logits + 1)):
        raise Judged(fails(SOFTMAX_IN_THE_MODEL))
    if not loss.are_normalized and loss.same(once, loss(logits + 1 - chosen)):
        raise Judged(fails(NO_SOFTMAX))
    sure, mistaken = (loss(1e3 * (x - 1)) for x in (chosen, chosen.roll(1, -1)))
    if sure > 0.3 and abs(mistaken - sure - 1) < 0.25:  # one apart: probabilities, not logits
        raise Judged(fails(SOFTMAX_TWICE, sure=sure, mistaken=mistaken))


def _places_of_labels(loss: BatchLoss) -> Tensor:
    """Where each label stands in the vocabulary, (B, T, 1); some losses ignore labels beyond it."""
    return loss.labels.clamp(0, loss.logits.shape[-1] - 1)[..., None]


# Certain labels ------------------------------------------------------------------------------

CERTAIN = "the loss is {right:.4f} where every label is certain, and {wrong:.4f} where others are"


def is_reshaped(evidence: Evidence) -> bool:
    """Whether logits are read as if they were (B, V, T)."""
    return bool(evidence["reads"] == "reshaped")


def is_length_first(evidence: Evidence) -> bool:
    """Whether logits are read as if they were (T, B, V)."""
    return bool(evidence["reads"] == "length first")


def is_shifted(evidence: Evidence) -> bool:
    """Whether logits are compared with labels some places away."""
    return bool(evidence["reads"] == "shifted")


READS_CLASSES_SECOND = LOSS.cause(
    "reshaped",
    when="logits that are certain of the labels cost as others do, and no longer if they are "
    "reshaped to (B, V, T)",
    words=f"{CERTAIN}: logits are reshaped to (B, V, T), which mixes places and ids",
    remedy="transpose(1, 2), or flatten(0, 1) with labels.flatten()",
    fits=is_reshaped,
)
READS_LENGTH_FIRST = LOSS.cause(
    "length_first",
    when="logits that are certain of the labels cost as others do, and no longer if their places "
    "come before their rows",
    words=f"{CERTAIN}: logits are read length first, and labels batch first",
    remedy="turn both, or neither",
    fits=is_length_first,
)
SHIFTED = LOSS.cause(
    "shifted",
    when="logits that are certain of the label some places away cost less than those of the label",
    words=f"{CERTAIN}: it is least where each place is certain of the label {{shift}}",
    remedy="labels are shifted once, in the batch maker, so the loss must not shift them too",
    fits=is_shifted,
    read="mistakes/label-shift.md",
)
NOT_AT_THE_LABELS = LOSS.cause(
    "not_at_the_labels",
    when="logits that are certain of the labels cost about as much as those of other ids",
    words=f"{CERTAIN}: logits and labels do not meet at the same places",
    remedy="how are both flattened?",
)
ID_NOT_SCORED = LOSS.cause(
    "id_not_scored",
    when="the loss has no gradient at places whose label is a certain symbol",
    words="a label {ids} is not scored: the model never learns to write it",
    remedy="is ignore_index the pad's id, {pad}, and no weight of a class 0?",
)


@LOSS.part("certain labels")
def certain_labels(asked: Asked) -> Outcome:
    """Logits that are certain of every label cost much less than those that are certain of other
    ids, and each id is scored where it is the label."""
    loss = BatchLoss(asked)
    sure = torch.zeros_like(loss.logits).scatter(-1, _places_of_labels(loss), 1.0)
    try:
        right, wrong = (_cost_of(loss, x) for x in (sure, sure.roll(1, -1)))
        ids = _unscored(loss)
    except UserError as error:  # a loss that takes no such logits
        return does_not_apply(str(error))
    if wrong > 0 and not right <= tolerances.CERTAIN * wrong:
        reads, shift = _what_is_read(loss, sure, right)
        causes = (READS_CLASSES_SECOND, READS_LENGTH_FIRST, SHIFTED, NOT_AT_THE_LABELS)
        return fails(*causes, right=right, wrong=wrong, reads=reads, shift=shift)
    if ids:
        listed = ", ".join(map(str, ids[:8])) + ", ..." * (len(ids) > 8)
        return fails(ID_NOT_SCORED, ids=listed, pad=asked.facts.pad_id)
    return passes(f"certain labels cost {right:.4f}, certain others {wrong:.4f}; each id is scored")


def _cost_of(loss: BatchLoss, sure: Tensor) -> float:
    """The loss where the model is certain of the ids at which `sure` is one."""
    return loss(loss.as_given(GAP * (sure - 0.5)))


def _what_is_read(loss: BatchLoss, sure: Tensor, right: float) -> tuple[str, str]:
    """As what logits are read, where certain right ones are no better; and how far labels are
    shifted then, in words."""
    (rows, places, size), least = sure.shape, tolerances.CERTAIN * right
    if _cost_of(loss, sure.transpose(1, 2).reshape(rows, places, size)) < least:
        return "reshaped", ""
    if _cost_of(loss, sure.reshape(places, rows, size).transpose(0, 1)) < least:
        return "length first", ""
    for shift in (1, -1, 2, -2):
        if _cost_of(loss, sure.roll(-shift, 1)) < least:
            way = "ahead" if shift > 0 else "behind"
            return "shifted", f"{abs(shift)} place{'s' * (abs(shift) > 1)} {way}"
    return "", ""


def _unscored(loss: BatchLoss) -> list[int]:
    """Symbols that have no gradient where they are the label, the end among them."""
    facts, size = loss.asked.facts, loss.logits.shape[-1]
    end = [] if facts.eos_id in (None, facts.pad_id) else [facts.eos_id]
    ids = torch.tensor([*loss.asked.symbols[:MOST_LABELS].tolist(), *end])
    logits = loss.logits[loss.real][:1].expand(len(ids), size)[None]
    gradient = loss.gradient_of(logits.contiguous(), ids[None])
    return sorted(ids[(gradient == 0).all(-1)[0]].tolist())


# Its size ------------------------------------------------------------------------------------

LARGE = LOSS.doubt(
    "large",
    when="the loss of random symbols is many times the logarithm of the vocabulary's size",
    words="the loss of random symbols is {mean:.1f}, and log {size} = {usual:.1f}",
    remedy="fresh weights give about that: are the logits too large, as those of an embedding of "
    "unit scale that is the output layer too?",
)


@LOSS.part("its size")
def its_size(asked: Asked) -> Outcome:
    """The loss of fresh weights is about the logarithm of the vocabulary's size. A trained model
    may be surer, and so lose more where symbols are random."""
    loss = BatchLoss(asked)
    mean, size = loss.mean(), loss.logits.shape[-1]
    if mean > tolerances.TIMES_LOG_SIZE * math.log(size):
        return unsure(LARGE, mean=mean, size=size, usual=math.log(size))
    return passes(f"loss {mean:.2f}, of {size} ids alike it would be {math.log(size):.2f}")


# The model's own -----------------------------------------------------------------------------

OWN_SHIFTED = LOSS.cause(
    "own_shifted",
    when="the model's own loss is the cross entropy of its logits and the labels some places away",
    words="the model's own loss, {own:.4f}, is that of the labels {shift}: labels are shifted {n}",
    remedy="shift them once, in the model or before it",
    read="mistakes/label-shift.md",
)


@LOSS.part("its own")
def its_own(asked: Asked) -> Outcome:
    """The loss that a model computes by itself is the cross entropy of its logits and the labels,
    and not that of labels one or two places away."""
    loss = BatchLoss(asked)
    own = loss.mean()
    if not loss.is_own:
        return does_not_apply("the model computes no loss of its own")
    places = _places_of_labels(loss)
    each = loss.logits.log_softmax(-1)
    for shift in (0, 1, 2, -1, -2):
        moved, real = places.roll(-shift, 1), loss.real.roll(-shift, 1)
        if shift > 0:
            real[:, -shift:] = False
        elif shift < 0:
            real[:, :-shift] = False
        if not bool(real.any()) or not loss.same(own, float(-each.gather(-1, moved)[real].mean())):
            continue
        if not shift:
            return passes("the model's own loss is that of its logits and the labels")
        way = "ahead" if shift > 0 else "behind"
        words = f"{abs(shift)} place{'s' * (abs(shift) > 1)} {way}"
        return fails(OWN_SHIFTED, own=own, shift=words, n="once too often" if shift > 0 else "back")
    return unsure(OTHER_TERMS)


# All parts together --------------------------------------------------------------------------


@LOSS.conclusion
def by_where_labels_are(failure: Outcome, parts: Mapping[str, Outcome]) -> Outcome:
    """Where logits and labels do not meet, pads and halves cannot be right either."""
    first = (READS_CLASSES_SECOND, READS_LENGTH_FIRST, SHIFTED, NOT_AT_THE_LABELS, OWN_SHIFTED)
    others = (
        PADS_SCORED,
        PADS_IN_THE_MEAN,
        MEAN_OF_ROWS,
        MEAN_OF_PARTS,
        MEAN_OF_PLACES,
        WRONG_SIGN,
    )
    root = [each for each in parts.values() if each.cause in first]
    return root[0] if root and failure.cause in others else failure
