"""Loss: the mean over real labels, of which pads are none and likelier ones cost less."""

import contextlib

import torch
from torch import Tensor

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.batch_loss import BatchLoss
from toytrans.checks.numbers import largest, worst
from toytrans.checks.outcome import Evidence, Judged, Outcome, fails, measured, passes, unsure
from toytrans.checks.registry import CAUSAL, Check
from toytrans.errors import UserError

LOSS = Check(
    "loss",
    "the loss is the mean over real labels",
    how="pads added; halves of the batch; likelier labels",
    limits="A loss that holds other terms, or weighs classes, is not judged.",
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
    row = int((~loss.real).sum(1).argmax())
    if bool(loss.real[row].all()):
        return unsure(NO_PADS)
    rows, tolerance = slice(row, row + 1), loss.tolerance(loss.mean())
    whole, inside = loss.mean(rows), loss.mean(rows, loss.real[row])
    if loss.is_own and loss.same(whole, inside) and not loss.same(loss.mean(), loss(asked.logits)):
        return unsure(OTHER_TERMS)
    scored = 0.0 if loss.is_own else largest(loss.gradient()[~loss.real])
    return measured(
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


# Halves --------------------------------------------------------------------------------------

HALVES = "the loss is {whole:.4f}, its halves over their tokens {halves:.4f}"
DIVIDE_ONCE = "sum first, divide once by the labels"


def is_a_mean_of_rows(evidence: Evidence) -> bool:
    """Whether the loss is the mean of the losses of single rows."""
    return evidence["formula"] == "rows"


def is_a_mean_of_places(evidence: Evidence) -> bool:
    """Whether the loss is the mean of the losses of its halves, whatever pads they hold."""
    return evidence["formula"] == "places"


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

NO_KNOWN_MEAN = LOSS.doubt(
    "no_known_mean",
    when="the loss of a batch is neither a mean nor a sum of what its halves or rows lose",
    words=HALVES,
    remedy="it is neither a mean of tokens nor one of rows; does it weigh classes or hold other "
    "terms?",
)


@LOSS.part("halves")
def halves(asked: Asked) -> Outcome:
    """The loss of a batch is the summed losses of its halves over their tokens."""
    loss = BatchLoss(asked)
    count, whole = len(loss.labels), loss.mean()

    def parts(size: int) -> tuple[Tensor, float]:
        """The losses of parts of so many rows, and their mean over labels."""
        slices = [slice(start, start + size) for start in range(0, count, size)]
        values = torch.tensor([loss.mean(part) for part in slices], dtype=torch.float64)
        labels = torch.stack([loss.real[part].sum() for part in slices])
        return values, float((values * labels).sum() / labels.sum())

    by_halves, expected = parts(count // 2)
    formula = ""
    if not loss.same(whole, expected):
        by_rows, over_labels = parts(1)
        if not loss.same(whole, over_labels) and loss.same(whole, float(by_rows.mean())):
            formula = "rows"
        elif loss.same(whole, float(by_halves.mean())):
            formula = "places"
        elif loss.same(whole, float(by_halves.sum())):
            formula = "sum"
        else:
            return unsure(NO_KNOWN_MEAN, whole=whole, halves=expected)
    return measured(
        abs(whole - expected),
        loss.tolerance(whole),
        f"loss {whole:.4f} = its halves over {int(loss.real.sum())} tokens",
        MEAN_OF_ROWS,
        MEAN_OF_PLACES,
        SUM,
        whole=whole,
        halves=expected,
        formula=formula,
    )


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
    loss, logits = BatchLoss(asked), asked.logits
    size = logits.shape[-1]
    labels = loss.labels.clamp(0, size - 1)[..., None]  # some ignore labels beyond the vocabulary

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
    logits, near = loss.asked.logits, tolerances.ONE_SOFTMAX
    once, chosen = loss(logits), torch.zeros_like(logits).scatter(-1, labels, 1.0)
    given = logits[loss.real]
    are_probabilities = bool((given >= 0).all() and ((given.sum(-1) - 1).abs() < near).all())
    normalized = are_probabilities or bool((given.logsumexp(-1).abs() < near).all())
    if are_probabilities and loss.same(once, loss(logits + 1)):
        raise Judged(fails(SOFTMAX_IN_THE_MODEL))
    if not normalized and loss.same(once, loss(logits + 1 - chosen)):
        raise Judged(fails(NO_SOFTMAX))
    sure, mistaken = (loss(1e3 * (x - 1)) for x in (chosen, chosen.roll(1, -1)))
    if sure > 0.3 and abs(mistaken - sure - 1) < 0.25:  # one apart: probabilities, not logits
        raise Judged(fails(SOFTMAX_TWICE, sure=sure, mistaken=mistaken))
