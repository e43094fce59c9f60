"""Loss: the mean over real labels, of which pads are none, in any halves. What labels cost is asked
in `loss_of_labels.py`."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.batch_loss import BatchLoss
from toytrans.checks.numbers import largest, worst
from toytrans.checks.outcome import (
    Evidence,
    Outcome,
    measured,
    passes,
    unsure,
)
from toytrans.checks.registry import CAUSAL, Check

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
