"""Loss: the mean over real labels, of which pads are none and likelier ones cost less."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.batch_loss import BatchLoss
from toytrans.checks.numbers import largest, worst
from toytrans.checks.outcome import (
    Evidence,
    Judged,
    Outcome,
    does_not_apply,
    fails,
    measured,
    passes,
    unsure,
)
from toytrans.checks.registry import CAUSAL, Check
from toytrans.errors import UserError

LOSS = Check(
    "loss",
    "the loss is the mean over real labels",
    how="pads added; halves of the batch; likelier and certain labels; each id; the shift of a "
    "model's own loss",
    limits="A loss that holds other terms is not judged.",
    kinds=CAUSAL,
)

# Pads ----------------------------------------------------------------------------------------


def pads_are_scored(evidence: Evidence) -> bool:
    """Whether a gradient flows from pad labels, or the model's own loss cannot be told apart."""
    return bool(evidence["is_scored"])


PADS_SCORED = LOSS.cause(
    "pads_scored",
    when="the loss of a pair changes with pad labels behind it, and the gradient at them is not 0",
    words="{loss} of pair {row} is {inside:.4f}, with pad labels behind it {whole:.4f}: pads are "
    "scored",
    remedy="pass ignore_index, and divide by the real labels alone",
    fits=pads_are_scored,
    read="mistakes/loss-counts-pads.md",
)
PADS_IN_THE_MEAN = LOSS.cause(
    "pads_in_the_mean",
    when="the loss of a pair changes with pad labels behind it, and the gradient at them is 0",
    words="{loss} of pair {row} is {inside:.4f}, with pad labels behind it {whole:.4f}: pads are "
    "not scored, but the loss is divided by all places",
    remedy="divide by real labels",
    read="mistakes/loss-counts-pads.md",
)

NO_PADS = LOSS.doubt(
    "no_pads",
    when="no label of the batch is a pad",
    words="needs a batch whose labels hold pads; the batch maker pads none",
)
OTHER_TERMS = LOSS.doubt(
    "other_terms",
    when="the model's own loss is not the mean over real labels, and pads do not change it",
    words="the model's own loss is not the mean over labels that are no pads; pads do not change "
    "it: it may hold other terms",
)


@LOSS.part("pads")
def pads(asked: Asked) -> Outcome:
    """The loss of a pair is the same with pad labels behind it as without."""
    loss = BatchLoss(asked)
    row = _row_with_pads(loss)
    if bool(loss.real[row].all()):
        return unsure(NO_PADS)
    rows, tolerance = loss.twice(row), loss.tolerance(loss.mean())
    whole, inside = loss.mean(rows), loss.mean(rows, loss.real[row])
    if loss.is_own and loss.same(whole, inside) and not loss.same(loss.mean(), loss(loss.logits)):
        return unsure(OTHER_TERMS)
    scored = 0.0 if loss.is_own else largest(loss.gradient()[~loss.real])
    outcome = measured(
        worst((scored, abs(whole - inside))),
        tolerance,
        f"{int((~loss.real[row]).sum())} pad labels leave the loss of a pair at {whole:.4f}",
        PADS_SCORED,
        PADS_IN_THE_MEAN,
        loss="the model's own loss" if loss.is_own else "the loss",
        row=row,
        inside=inside,
        whole=whole,
        is_scored=loss.is_own or not scored <= tolerance,
    )
    return _of_the_logits_too(outcome, loss)


def _of_the_logits_too(outcome: Outcome, loss: BatchLoss) -> Outcome:
    """A model is asked anew for its own loss, which moves with its logits."""
    return replace(outcome, follows=("rows", "future", "pads")) if loss.is_own else outcome


def _row_with_pads(loss: BatchLoss) -> int:
    """The row with most pads of those that hold a label."""
    return int(((~loss.real).sum(1) * loss.real.any(1)).argmax())


# Halves --------------------------------------------------------------------------------------

GAP = 20.0
"""By how much the logit of a certain id is above the others."""

MOST_LABELS = 512
"""Ids that are asked for as labels."""

HALVES = "the loss is {whole:.4f}, its halves over their tokens {halves:.4f}"
DIVIDE_ONCE = "sum first, divide once by the labels"


def is_a_mean_of_rows(evidence: Evidence) -> bool:
    """Whether the loss is the mean of the losses of single rows."""
    return evidence["formula"] == "rows"


def is_a_mean_of_places(evidence: Evidence) -> bool:
    """Whether the loss is the mean of the losses of its halves, whatever pads they hold."""
    return evidence["formula"] == "places"


def is_a_mean_of_parts(evidence: Evidence) -> bool:
    """Whether the loss is the mean of the means of two parts of the batch."""
    return evidence["formula"] == "parts"


MEAN_OF_ROWS = LOSS.cause(
    "mean_of_rows",
    when="the loss of a batch is the mean of the losses of its rows",
    words=f"{HALVES}: a mean over rows does not weigh labels alike",
    remedy=DIVIDE_ONCE,
    fits=is_a_mean_of_rows,
)
MEAN_OF_PLACES = LOSS.cause(
    "mean_of_places",
    when="the loss of a batch is the mean of the losses of its halves",
    words=f"{HALVES}: a mean over all places counts pads",
    remedy=DIVIDE_ONCE,
    fits=is_a_mean_of_places,
    read="mistakes/loss-counts-pads.md",
)
SUM = LOSS.cause(
    "sum",
    when="the loss of a batch is the sum of the losses of its halves",
    words=f"{HALVES}: a sum grows with the batch",
    remedy=DIVIDE_ONCE,
)

MEAN_OF_PARTS = LOSS.cause(
    "mean_of_parts",
    when="the loss of a batch is the mean of the losses of two parts of it, and pads are not "
    "counted",
    words=f"{HALVES}: it is the mean of the means of two parts, which hold other numbers of labels",
    remedy="sum over all parts first, say over all processes, and divide once by all labels",
    fits=is_a_mean_of_parts,
)
NO_KNOWN_MEAN = LOSS.doubt(
    "no_known_mean",
    when="the loss of a batch is no mean of labels, rows or parts, also where all labels are one "
    "id, so that classes weigh alike",
    words=HALVES,
    remedy="it is no mean of labels, of rows or of parts; does it hold other terms?",
    counts=True,
)


@LOSS.part("halves")
def halves(asked: Asked) -> Outcome:
    """The loss of a batch is the summed losses of its halves over their tokens. A loss that weighs
    classes is told by a batch in which every label is the same id."""
    loss = BatchLoss(asked)
    whole, (by_halves, expected) = loss.mean(), _by_halves(loss, loss.labels)
    formula = ""
    if not loss.same(whole, expected):
        by_rows, labels = _by_rows(loss)
        over_labels = float((by_rows * labels).sum() / labels.sum())
        if not loss.same(whole, over_labels) and loss.same(whole, float(by_rows.mean())):
            formula = "rows"
        elif loss.same(whole, float(by_halves.mean())) and _counts_pads(loss):
            formula = "places"
        elif any(loss.same(whole, each) for each in _means_of_two_parts(by_rows, labels)):
            formula = "parts"
        elif loss.same(whole, float(by_halves.sum())):
            formula = "sum"
        elif _weighs_classes(loss):
            return passes("the loss weighs classes, and halves of one class as their labels")
        elif loss.is_own:
            return unsure(OTHER_TERMS)
        else:
            return unsure(NO_KNOWN_MEAN, give=("loss",), whole=whole, halves=expected)
    return measured(
        abs(whole - expected),
        loss.tolerance(whole),
        f"loss {whole:.4f} = its halves over {int(loss.real.sum())} tokens",
        MEAN_OF_ROWS,
        MEAN_OF_PARTS,
        MEAN_OF_PLACES,
        SUM,
        whole=whole,
        halves=expected,
        formula=formula,
    )


def _by_halves(loss: BatchLoss, labels: Tensor) -> tuple[Tensor, float]:
    """The losses of the two halves of the batch, and their mean over labels, which may be
    others."""
    half = len(labels) // 2
    parts = slice(half), slice(half, 2 * half)
    values = [
        loss.mean(part) if labels is loss.labels else loss(loss.logits[part], labels[part])
        for part in parts
    ]
    losses = torch.tensor(values, dtype=torch.float64)
    counts = torch.stack([loss.real[part].sum() for part in parts])
    return losses, float((losses * counts).sum() / counts.sum())


def _by_rows(loss: BatchLoss) -> tuple[Tensor, Tensor]:
    """The losses of the rows that hold labels, and how many labels each has."""
    rows = loss.real.any(1).nonzero()[:, 0].tolist()
    losses = [loss.mean(loss.twice(row)) for row in rows]
    return torch.tensor(losses, dtype=torch.float64), loss.real.sum(1)[rows].double()


def _means_of_two_parts(by_rows: Tensor, labels: Tensor) -> Iterator[float]:
    """The mean of the means of two parts: neighbouring rows, or every other one."""
    rows = torch.arange(len(by_rows))
    for first in (rows < len(rows) // 2, rows % 2 == 0):
        means = [(by_rows * labels)[part].sum() / labels[part].sum() for part in (first, ~first)]
        yield float(sum(means) / 2)


def _counts_pads(loss: BatchLoss) -> bool:
    """Whether the loss of one pair changes with the pad labels behind it."""
    row = _row_with_pads(loss)
    rows = loss.twice(row)
    return not loss.same(loss.mean(rows), loss.mean(rows, loss.real[row]))


def _weighs_classes(loss: BatchLoss) -> bool:
    """Whether halves agree where every real label is the same id. What the model itself computes
    is not asked for other labels."""
    if loss.is_own:
        return False
    one = loss.labels.masked_fill(loss.real, int(loss.labels[loss.real][0]))
    return loss.same(loss(loss.logits, one), _by_halves(loss, one)[1])


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
