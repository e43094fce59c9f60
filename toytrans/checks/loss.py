"""The loss: pads do not count, a batch's is that of its halves, and likelier labels cost less."""

import torch
from torch import Tensor

from toytrans.checks.batch import COARSE, TOLERANCE, Batch, largest, worst
from toytrans.checks.result import CannotJudge, NotApplicable, NotAsked, Result, measured
from toytrans.checks.subject import Ids, wider
from toytrans.errors import UserError

NO_NEXT = "the labels of an encoder are not the next tokens"


class Loss:
    """The loss function of a batch's model, and its labels (B, T)."""

    def __init__(self, batch: Batch) -> None:
        if not batch.facts.is_causal:
            raise NotApplicable(NO_NEXT)
        needed = {}
        if batch.model.given_loss is None:
            needed["loss"] = "a loss function"
        if batch.tgt_out is None:
            known = {"start_id": batch.facts.start_id, "eos_id": batch.facts.eos_id}
            needed |= {name: f"the id of {name}" for name, i in known.items() if i is None}
        if needed or batch.tgt_out is None:
            raise NotAsked(**needed)
        self.batch, self.labels = batch, batch.tgt_out
        self.real = batch.facts.real_labels(self.labels)

    def tensor(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        value = self.batch.model.loss(logits, self.labels if labels is None else labels)
        assert value is not None
        return value

    def __call__(self, logits: Tensor, labels: Tensor | None = None) -> float:
        return float(self.tensor(logits, labels))

    def mean(self, rows: slice) -> float:
        """The loss of some rows: the model's own, where it has one."""
        own = self.own(rows)
        return self(self.batch.logits[rows], self.labels[rows]) if own is None else own

    def own(self, rows: slice, places: Tensor | slice = slice(None)) -> float | None:
        """What the model itself calls its loss on some rows and places, if it has one."""
        labels, width = self.labels[rows][:, places], len(self.labels[0][places])
        given = Ids(self.batch.src[rows].clone(), self.batch.tgt_in[rows, :width].clone())
        try:
            with torch.no_grad():
                value = self.batch.model.loss(self.batch.logits, labels.clone(), given)
        except UserError:  # it has none
            return None
        return None if value is None else float(value)

    def gradient(self) -> Tensor:
        """With respect to the logits (B, T, V)."""
        logits = self.batch.logits.detach().requires_grad_()
        value = self.tensor(logits)
        if not value.requires_grad:
            raise UserError(
                "the loss function gave a scalar without a gradient; is it detached, or .item()?"
            )
        return torch.autograd.grad(value, logits)[0]

    def tolerance(self, value: float) -> float:
        """Of losses and their gradients, as the batch's is of logits, in the loss's precision."""
        return TOLERANCE.get(self._precision(), COARSE) * max(abs(value), 1.0)

    def _precision(self) -> torch.dtype:
        """The dtype of the loss, or fp32 where the loss rounds the logits to it."""
        dtype, logits = self.batch.dtype, self.batch.logits
        value = self.tensor(logits)
        if dtype == torch.float64 == value.dtype:
            rounded = float(value) == float(value.float())
            coarse = self(logits.float().double())
            return torch.float32 if rounded or coarse == float(value) else value.dtype
        coarser = (torch.bfloat16, torch.float16, torch.float32)
        return next((known for known in coarser if known in (value.dtype, dtype)), dtype)


def pad_labels_ignored(batch: Batch) -> Result:
    """What the model answers where the label is a pad changes neither loss nor gradient."""
    loss = Loss(batch)
    real, labels = loss.real, loss.labels
    if bool(real.all()):
        raise CannotJudge("needs a batch whose labels hold pads; the batch maker pads none")
    gradient, once = loss.gradient(), loss(batch.logits)
    own = loss.own(slice(None))
    if own is not None and abs(own - once) > loss.tolerance(once):
        return _own_differs(loss, own, once)
    noise = torch.cat((batch.logits, batch.noise(batch.logits)), 1)
    twice = loss(noise, wider(labels, labels.shape[1], int(labels[~real][0])))
    scored = largest(gradient[~real])
    what = (
        "pads are scored; pass ignore_index, and divide by the real labels alone"
        if scored > loss.tolerance(once)
        else "pads are not scored, but the loss is divided by all places; divide by the real labels"
    )
    return measured(
        worst((scored, abs(twice - once))),
        loss.tolerance(once),
        f"gradient at {int((~real).sum())} pad labels is zero; {labels.numel()} more leave the "
        f"loss at {once:.4f}",
        f"the loss is {once:.4f}, with more pad labels {twice:.4f}: {what}",
    )


def _own_differs(loss: Loss, own: float, once: float) -> Result:
    """A model's own loss is not the plain mean: of its parts it must then not count pads."""
    tolerance = loss.tolerance(once)
    for row, real in enumerate(loss.real):
        rows = slice(row, row + 1)
        if bool(real.all()):
            continue
        whole, inside = loss.own(rows), loss.own(rows, real)
        if whole is None or inside is None:
            break
        if abs(whole - inside) > tolerance:
            cause = (
                f"the model's own loss of pair {row} is {inside:.4f}, with pad labels behind it "
                f"{whole:.4f}: pads are scored"
            )
            return measured(abs(whole - inside), tolerance, "", cause)
    raise CannotJudge(
        f"the model's own loss is {own:.4f}, the mean over labels that are no pads {once:.4f}; "
        "pads do not change it: it may hold other terms"
    )


def halves_add_up(batch: Batch) -> Result:
    """The loss of a batch = the summed losses of its halves over their tokens."""
    loss = Loss(batch)
    real, half = loss.real, len(loss.labels) // 2
    halves, rows = [slice(half), slice(half, None)], [slice(r, r + 1) for r in range(len(real))]

    def weighed(values: list[float], parts: list[slice], of: Tensor) -> float:
        """The mean of some parts' losses, each as often as it has places."""
        counts = [int(of[part].sum()) for part in parts]
        return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)

    whole = loss.mean(slice(None))
    parts = [loss.mean(part) for part in halves]
    expected = weighed(parts, halves, real)
    tolerance = loss.tolerance(whole)
    cause = f"the loss is {whole:.4f}, its halves over their tokens {expected:.4f}: "

    def is_whole(value: float) -> bool:
        return abs(whole - value) <= tolerance

    if not is_whole(expected):
        each = [loss.mean(row) for row in rows]
        by_rows = sum(each) / len(each)
        if is_whole(by_rows) and abs(by_rows - weighed(each, rows, real)) > tolerance:
            cause += (
                "rows are sums, which weighs long ones more; divide by the labels, not by the rows"
                if _sums_rows(loss)
                else "a mean of means weighs short rows more; sum first, divide once by the labels"
            )
        elif is_whole(weighed(parts, halves, torch.ones_like(real))):
            cause += "it is divided by all places, pads included; divide by the real labels"
        elif is_whole(sum(parts)):
            cause += "it is a sum, which grows with the batch; divide by the real labels"
        else:
            raise CannotJudge(
                f"{cause}it is neither a mean of tokens nor one of rows; does it weigh classes or "
                "hold other terms?"
            )
    evidence = f"loss {whole:.4f} = its halves over {int(real.sum())} tokens"
    return measured(abs(whole - expected), tolerance, evidence, cause)


def _sums_rows(loss: Loss) -> bool:
    """Whether the loss of a row alone grows with its labels where all are equally likely."""
    level, count = torch.zeros_like(loss.batch.logits), loss.real.sum(1)
    each = [loss(level[r : r + 1], loss.labels[r : r + 1]) for r in range(len(count))]
    few, many = int(count.argmin()), int(count.argmax())
    grows = float(count[many] / count[few])
    return grows > 1 and abs(each[many] - grows * each[few]) <= 1e-3 * abs(each[many])


def likelier_labels_cost_less(batch: Batch) -> Result:
    """The loss falls as labels become likelier, and softmax is taken once."""
    loss, logits = Loss(batch), batch.logits
    size = logits.shape[-1]
    labels = loss.labels.clamp(0, size - 1)[..., None]  # some ignore labels beyond the vocabulary

    def loss_where_labels_have(place: Tensor) -> float:
        """Of logits in which each label's is swapped with that at a place (B, T, 1)."""
        own, other = logits.gather(-1, labels), logits.gather(-1, place)
        return loss(logits.scatter(-1, place, own).scatter(-1, labels, other))

    high = loss_where_labels_have(logits.argmax(-1, keepdim=True))
    low = loss_where_labels_have(logits.argmin(-1, keepdim=True))
    if not abs(low - high) > loss.tolerance(high):
        raise CannotJudge(f"the loss is {high:.4f}, whatever the logits of the labels are")
    try:
        problem = _softmax_problem(loss, labels)
    except UserError:  # the loss refuses what are no probabilities, so it takes no softmax
        problem = ""
    if high > low:
        problem = (
            f"the loss is {high:.4f} where labels have the highest logits and {low:.4f} where "
            "they have the lowest: its sign is wrong; training makes right answers unlikely"
        )
    evidence = f"loss {high:.4f} where labels have the highest logits, {low:.4f} where the lowest"
    return measured(float(bool(problem)), 0.0, evidence, problem)


def _softmax_problem(loss: Loss, labels: Tensor) -> str:
    """What is wrong where softmax is taken twice between logits and loss, or never."""
    logits = loss.batch.logits
    once = loss(logits)
    chosen = torch.zeros_like(logits).scatter(-1, labels, 1.0)
    given = logits[loss.real]
    are_probabilities = bool((given >= 0).all() and ((given.sum(-1) - 1).abs() < 1e-3).all())
    normalized = are_probabilities or bool((given.logsumexp(-1).abs() < 1e-3).all())

    def stays(changed: Tensor) -> bool:
        return abs(loss(changed) - once) <= loss.tolerance(once)

    if are_probabilities and stays(logits + 1):
        return (
            "the model gives probabilities, and the loss takes softmax of them once more; give "
            "cross entropy the logits"
        )
    if not normalized and stays(logits + 1 - chosen):
        return (
            "the loss sees the logits of the labels alone, so it falls without end as all logits "
            "rise; take log_softmax before nll_loss, or cross_entropy"
        )
    sure, mistaken = (loss(1e3 * (x - 1)) for x in (chosen, chosen.roll(1, -1)))
    if sure > 0.3 and abs(mistaken - sure - 1) < 0.25:  # one apart: probabilities, not logits
        return (
            f"the loss is {sure:.4f} where the model is sure of the labels, and no more than "
            f"{mistaken:.4f} where it is sure of others: it takes softmax twice; give cross "
            "entropy the logits"
        )
    return ""
