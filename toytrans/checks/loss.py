"""Loss and labels: pads do not count, a batch's loss is that of its halves, likelier labels cost
less, and labels are the next decoder inputs, from the start to the end."""

import contextlib
import math

import torch
from torch import Tensor

from toytrans.checks.batch import COARSE, TOLERANCE, Batch, largest, worst
from toytrans.checks.result import Result, Told, measured, unsure, wrong
from toytrans.errors import UserError


class Loss:
    """The loss function of a batch's model, and its labels (B, T). is_own: `mean` is the model's,
    not one that was given."""

    def __init__(self, batch: Batch) -> None:
        facts, needed = batch.facts, list[str]()
        if batch.tgt_out is None:
            needed = [name for name in ("start_id", "eos_id") if getattr(facts, name) is None]
            needed = needed if batch.model.maker is None else ["batch"]
        if batch.model.given_loss is None:
            why = "needs a loss function" + " and labels" * bool(needed)
            raise Told("not asked", why, "loss", *needed)
        if batch.tgt_out is None:
            asked = " and ".join(f"{name}=..." for name in needed)
            raise unsure(f"labels for the loss that was given are missing: give {asked}", *needed)
        self.batch, self.labels, self.is_own = batch, batch.tgt_out, False
        self.real = facts.real_labels(self.labels)
        dtypes = {batch.dtype, batch.model.loss(batch.logits, self.labels).dtype}
        self.share = COARSE if dtypes - TOLERANCE.keys() else TOLERANCE[torch.float32]

    def __call__(self, logits: Tensor, labels: Tensor | None = None) -> float:
        return float(self.batch.model.loss(logits, self.labels if labels is None else labels))

    @torch.no_grad()
    def mean(self, rows: slice = slice(None), places: Tensor | slice = slice(None)) -> float:
        """The loss of some rows and places."""
        batch, labels = self.batch, self.labels[rows][:, places]
        inputs = batch.src[rows].clone(), batch.tgt_in[rows, : labels.shape[1]].clone()
        own = batch.model.own_loss(*inputs, labels.clone())
        self.is_own = own is not None
        return self(batch.logits[rows][:, places], labels) if own is None else float(own)

    def gradient(self) -> Tensor:
        """With respect to the logits (B, T, V)."""
        logits = self.batch.logits.detach().requires_grad_()
        value = self.batch.model.loss(logits, self.labels)
        if not value.requires_grad:
            raise UserError(
                "the loss function gave a scalar without a gradient; is it detached, or .item()?"
            )
        return torch.autograd.grad(value, logits)[0]

    def tolerance(self, value: float) -> float:
        """Of losses and their gradients; they may be computed in single precision."""
        return self.share * max(abs(value), 1.0)

    def same(self, a: float, b: float) -> bool:
        return abs(a - b) <= self.tolerance(a)


def pad_labels_ignored(batch: Batch) -> Result:
    """The loss of a pair is the same with pad labels behind it as without."""
    loss = Loss(batch)
    row = int((~loss.real).sum(1).argmax())
    if bool(loss.real[row].all()):
        raise unsure("needs a batch whose labels hold pads; the batch maker pads none")
    rows, tolerance = slice(row, row + 1), loss.tolerance(loss.mean())
    whole, inside = loss.mean(rows), loss.mean(rows, loss.real[row])
    if loss.is_own and loss.same(whole, inside) and not loss.same(loss.mean(), loss(batch.logits)):
        raise unsure(
            "the model's own loss is not the mean over labels that are no pads; pads do not change "
            "it: it may hold other terms"
        )
    scored = 0.0 if loss.is_own else largest(loss.gradient()[~loss.real])
    what = "pads are scored; pass ignore_index, and divide by the real labels alone"
    if not loss.is_own and scored <= tolerance:
        what = "pads are not scored, but the loss is divided by all places; divide by real labels"
    own = "the model's own loss" if loss.is_own else "the loss"
    pads = int((~loss.real[row]).sum())
    return measured(
        worst((scored, abs(whole - inside))),
        tolerance,
        f"{pads} pad labels leave the loss of a pair at {whole:.4f}",
        f"{own} of pair {row} is {inside:.4f}, with pad labels behind it {whole:.4f}: {what}",
    )


def halves_add_up(batch: Batch) -> Result:
    """The loss of a batch = the summed losses of its halves over their tokens."""
    loss = Loss(batch)
    count, whole = len(loss.labels), loss.mean()

    def parts(size: int) -> tuple[Tensor, float]:
        """The losses of parts of so many rows, and their mean over labels."""
        of = [slice(start, start + size) for start in range(0, count, size)]
        values = torch.tensor([loss.mean(part) for part in of], dtype=torch.float64)
        labels = torch.stack([loss.real[part].sum() for part in of])
        return values, float((values * labels).sum() / labels.sum())

    halves, expected = parts(count // 2)
    cause = f"the loss is {whole:.4f}, its halves over their tokens {expected:.4f}: "
    if not loss.same(whole, expected):
        rows, by_labels = parts(1)
        kinds = {
            "a mean over rows does not weigh labels alike": math.nan
            if loss.same(whole, by_labels)
            else float(rows.mean()),
            "a mean over all places counts pads": float(halves.mean()),
            "a sum grows with the batch": float(halves.sum()),
        }
        fitting = [kind for kind, value in kinds.items() if loss.same(whole, value)]
        if not fitting:
            raise unsure(
                f"{cause}it is neither a mean of tokens nor one of rows; does it weigh classes or "
                "hold other terms?"
            )
        cause += f"{fitting[0]}; sum first, divide once by the labels"
    evidence = f"loss {whole:.4f} = its halves over {int(loss.real.sum())} tokens"
    return measured(abs(whole - expected), loss.tolerance(whole), evidence, cause)


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
        raise unsure(f"the loss is {high:.4f}, whatever the logits of the labels are")
    if high > low:
        raise wrong(
            f"the loss is {high:.4f} where labels have the highest logits and {low:.4f} where "
            "they have the lowest: its sign is wrong; training makes right answers unlikely"
        )
    with contextlib.suppress(UserError):  # a loss that wants probabilities takes no softmax
        _require_one_softmax(loss, labels)
    evidence = f"loss {high:.4f} where labels have the highest logits, {low:.4f} where the lowest"
    return measured(0.0, 0.0, evidence, "")


def _require_one_softmax(loss: Loss, labels: Tensor) -> None:
    """Raises Told where softmax is taken twice between logits and loss, or never."""
    logits = loss.batch.logits
    once, chosen = loss(logits), torch.zeros_like(logits).scatter(-1, labels, 1.0)
    given = logits[loss.real]
    are_probabilities = bool((given >= 0).all() and ((given.sum(-1) - 1).abs() < 1e-3).all())
    normalized = are_probabilities or bool((given.logsumexp(-1).abs() < 1e-3).all())
    if are_probabilities and loss.same(once, loss(logits + 1)):
        raise wrong(
            "the model gives probabilities, and the loss takes softmax of them once more; give "
            "cross entropy the logits"
        )
    if not normalized and loss.same(once, loss(logits + 1 - chosen)):
        raise wrong(
            "the loss sees the logits of the labels alone, so it falls without end as all logits "
            "rise; take log_softmax before nll_loss, or cross_entropy"
        )
    sure, mistaken = (loss(1e3 * (x - 1)) for x in (chosen, chosen.roll(1, -1)))
    if sure > 0.3 and abs(mistaken - sure - 1) < 0.25:  # one apart: probabilities, not logits
        raise wrong(
            f"the loss is {sure:.4f} where the model is sure of the labels, and no more than "
            f"{mistaken:.4f} where it is sure of others: it takes softmax twice; give cross "
            "entropy the logits"
        )


# Labels ------------------------------------------------------------------------------------------


def labels_shifted(batch: Batch) -> Result:
    """tgt_out[t] = tgt_in[t + 1] at every real place, and rows hold the pairs they are made
    of."""
    tgt_in, tgt_out = batch.tgt_in, batch.tgt_out
    if tgt_out is None or batch.model.maker is None:
        raise Told("not asked", "needs a batch maker, for its labels", "batch")
    _require_whole_rows(batch)
    inside = batch.real & batch.facts.real_labels(tgt_out)
    follows = batch.real[:, 1:] & inside[:, :-1]
    others = int(((tgt_out[:, :-1] != tgt_in[:, 1:]) & follows).sum())
    counted = f"{others} of {int(follows.sum())}"
    same = bool((tgt_out == tgt_in)[inside].float().mean() > 0.5)
    ahead = (tgt_out[:, :-2] == tgt_in[:, 2:])[follows[:, :-1] & batch.real[:, 2:]]
    is_twice = ahead.numel() and bool(ahead.all())
    if not same and not is_twice and others > 0.5 * follows.sum():
        raise unsure(
            f"{counted} labels are not the next decoder input, nor the same one: if labels have "
            "ids of their own, this is no shift"
        )
    cause = (
        "labels equal tgt_in at the same place: they are not shifted, so the model learns to "
        "repeat the token it has just read; drop BOS from the labels"
        if same
        else "labels are not what follows in tgt_in; is the target shifted by one, once?"
    )
    evidence = f"{int(follows.sum())} of {int(follows.sum())} labels are the next decoder input"
    return measured(others, 0.0, evidence, f"{counted}: {cause}")


def _require_whole_rows(batch: Batch) -> None:
    """Raises Told where a row's source, target and labels are not of one pair."""

    def pairs_in(ids: Tensor | None, side: int) -> list[int | None]:
        """Of each row, the pair whose source or target stands there; pairs of two symbols or more,
        for one may stand anywhere by chance."""
        found: list[int | None] = []
        for row in [] if ids is None else ids.tolist():
            runs = {tuple(row[n:end]) for end in range(len(row) + 1) for n in range(end)}
            here = [n for n, p in enumerate(batch.pairs) if tuple(p[side]) in runs]
            longest = max(here, key=lambda n: len(batch.pairs[n][side]), default=None)
            is_long = longest is not None and min(map(len, batch.pairs[longest])) > 1
            found.append(longest if is_long else None)
        return found

    sources = pairs_in(batch.src, 0)
    for name, ids in (("target", batch.tgt_in), ("labels", batch.tgt_out)):
        for row, pair in enumerate(pairs_in(ids, 1)):
            if None not in (pair, sources[row]) and pair != sources[row]:
                raise wrong(
                    f"row {row} holds the source of pair {sources[row]} and the {name} of pair "
                    f"{pair}: the batch maker orders the one without the other"
                )
    are_targets = any(n is not None for n in pairs_in(batch.src, 1))
    if are_targets and not any(n is not None for n in sources):
        raise wrong(
            "src holds the targets and tgt_in the sources: the batch maker, or whoever calls it, "
            "has swapped them"
        )


def ends_agree(batch: Batch) -> Result:
    """Pad, start and end are told apart; decoding starts as training does; the end is
    scored."""
    loss, facts = Loss(batch), batch.facts
    gradient = loss.gradient()
    rows, first = torch.arange(len(loss.labels)), batch.real.int().argmax(1)
    starts = set(batch.tgt_in[rows, first].tolist())
    if facts.decoding_start is not None and starts != {facts.decoding_start}:
        raise wrong(
            f"training starts targets with {sorted(starts)} and decoding with "
            f"{facts.decoding_start}: the first step of decoding is one never trained"
        )
    is_scored = gradient.abs().amax(-1) > 0
    if loss.real[rows, first].all() and not is_scored[rows, first].any() and is_scored.any():
        raise wrong("the first label of every target is not scored")
    if facts.eos_id is not None:
        is_pad = facts.pad_id == facts.eos_id  # then the end is no real label, but may be scored
        counted = is_scored if is_pad else is_scored & loss.real
        last = (counted * torch.arange(1, counted.shape[1] + 1)).argmax(1)
        if others := sorted(set(loss.labels[rows, last].tolist()) - {facts.eos_id}):
            remedy = "; give the pad an id of its own, or ignore -100" * is_pad
            raise wrong(
                f"the last label scored is {', '.join(map(str, others))}, not the end, "
                f"{facts.eos_id}: the model never learns to stop{remedy}"
            )
    known = "the end is scored" if facts.eos_id is not None else "no end given (eos_id)"
    start = "start unknown" if facts.decoding_start is None else f"start {starts.pop()} in both"
    return measured(0.0, 0.0, f"pad {facts.pad_id}, {start}, {known}", "")
