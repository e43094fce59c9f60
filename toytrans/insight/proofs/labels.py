"""Proofs about labels and loss."""

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.insight.proofs.answers import largest, wider, worst
from toytrans.insight.proofs.batch import ProofBatch
from toytrans.insight.proofs.pads import other_source_pad
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, NotAsked, Outcome

NO_NEXT = "the labels of an encoder are not the next tokens"


def needs_loss(batch: ProofBatch) -> Tensor:
    """The labels, where a loss function is at hand too."""
    if not batch.model.is_causal:
        raise NotApplicable(NO_NEXT)
    needed = {}
    if batch.model.loss is None:
        needed["loss"] = "a loss function"
    if batch.tgt_out is None:
        needed["batch"] = "a batch maker"
    if needed or batch.tgt_out is None:
        raise NotAsked(**needed)
    return batch.tgt_out


def pad_labels_ignored(batch: ProofBatch) -> Outcome:
    """(h) What the model answers where the label is a pad changes neither loss nor gradient."""
    loss, tgt_out = batch.loss, needs_loss(batch)
    real = batch.model.real_labels(tgt_out)
    if bool(real.all()):
        raise CannotJudge("needs a batch whose labels hold pads; the batch maker pads none")
    gradient = batch.loss_gradient(tgt_out)
    ignored = int(tgt_out[~real][0])
    once = float(loss(batch.logits, tgt_out))
    if (own := batch.own_loss(slice(None))) is not None and abs(own - once) > batch.loss_tolerance(
        once
    ):
        return _own_differs(batch, tgt_out, own, once)
    twice = float(
        loss(
            torch.cat((batch.logits, batch.noise(batch.logits)), 1),
            wider(tgt_out, tgt_out.shape[1], ignored),
        )
    )
    return Outcome(
        worst((largest(gradient[~real]), abs(twice - once))),
        batch.loss_tolerance(once),
        f"gradient at {int((~real).sum())} pad labels is zero; {tgt_out.numel()} more leave the "
        f"loss at {once:.4f}",
        f"the loss is {once:.4f}, with more pad labels {twice:.4f}: pads are scored; pass "
        "ignore_index, and divide by the real labels alone",
    )


def _own_differs(batch: ProofBatch, tgt_out: Tensor, own: float, once: float) -> Outcome:
    """A model's own loss is not the plain mean: of its parts it must then not count pads."""
    real = batch.model.real_labels(tgt_out)
    rows = [r for r in range(len(tgt_out)) if not bool(real[r].all())]
    for row in rows:
        labels = tgt_out[row : row + 1]
        whole, inside = batch.own_loss_of(row, labels), batch.own_loss_of(row, labels[:, real[row]])
        if whole is None or inside is None:
            break
        if abs(whole - inside) > batch.loss_tolerance(once):
            return Outcome(
                abs(whole - inside),
                batch.loss_tolerance(once),
                "",
                f"the model's own loss of pair {row} is {inside:.4f}, with pad labels behind it "
                f"{whole:.4f}: pads are scored",
            )
    raise CannotJudge(
        f"the model's own loss is {own:.4f}, the mean over labels that are no pads {once:.4f}; "
        "pads do not change it: it may hold other terms"
    )


def labels_shifted(batch: ProofBatch) -> Outcome:
    """(l) tgt_out[t] = tgt_in[t + 1] at every real place, and rows hold the pairs they are made
    of."""
    if not batch.model.is_causal:
        raise NotApplicable(NO_NEXT)
    if batch.tgt_out is None:
        raise NotAsked(batch="a batch maker, for its labels")
    if mixed := _mixed_rows(batch):
        if (other := other_source_pad(batch)) is not None:
            raise CannotJudge(f"the source has a pad of its own: give source_pad_id={other}")
        return Outcome(1.0, 0.0, "", mixed)
    labelled = batch.model.real_labels(batch.tgt_out)
    follows = batch.real[:, 1:] & batch.real[:, :-1] & labelled[:, :-1]
    wrong = (batch.tgt_out[:, :-1] != batch.tgt_in[:, 1:]) & follows
    inside = batch.real & labelled
    same = bool((batch.tgt_out == batch.tgt_in)[inside].float().mean() > 0.5)
    ahead = (batch.tgt_out[:, :-2] == batch.tgt_in[:, 2:])[follows[:, :-1] & batch.real[:, 2:]]
    if bool(wrong.any()) and not same and not (ahead.numel() and bool(ahead.all())):
        share = float((~wrong)[follows].float().mean())
        if share < 0.5:
            raise CannotJudge(
                f"{int(wrong.sum())} of {int(follows.sum())} labels are not the next decoder "
                "input, nor the same one: if labels have ids of their own, this is no shift"
            )
    cause = (
        "labels equal tgt_in at the same place: they are not shifted, so the model learns to "
        "repeat the token it has just read; drop BOS from the labels"
        if same
        else "labels are not what follows in tgt_in; is the target shifted by one, once?"
    )
    return Outcome(
        float(wrong.sum()),
        0.0,
        f"{int(follows.sum())} of {int(follows.sum())} labels are the next decoder input",
        f"{int(wrong.sum())} of {int(follows.sum())}: {cause}",
    )


def _mixed_rows(batch: ProofBatch) -> str:
    """What is wrong where a row's source, target and labels are not of one pair; "" if nothing."""
    assert batch.tgt_out is not None
    # one symbol may stand anywhere by chance
    pairs = {n: pair for n, pair in enumerate(batch.pairs) if min(map(len, pair)) > 1}
    if pairs and not any(_rows_with(batch.src, source) for source, _ in pairs.values()):
        swapped = (
            _rows_with(batch.src, target) and _rows_with(batch.tgt_in, source)
            for source, target in pairs.values()
        )
        if all(swapped):
            return (
                "src holds the targets and tgt_in the sources: the batch maker, or whoever calls "
                "it, has swapped them"
            )
    for number, (source, target) in pairs.items():
        rows = [
            _rows_with(batch.src, source),
            _rows_with(batch.tgt_in, target),
            _rows_with(batch.tgt_out, target),
        ]
        for name, other in (("target", rows[1]), ("labels", rows[2])):
            if rows[0] and other and not rows[0] & other:
                return (
                    f"the source of pair {number} is in row {min(rows[0])} and its {name} in row "
                    f"{min(other)}: the batch maker orders the one without the other"
                )
    return ""


def _rows_with(ids: Tensor, wanted: list[int]) -> set[int]:
    """The rows in which some ids stand one after another."""
    return {row for row, line in enumerate(ids.tolist()) if _holds(line, wanted)}


def _holds(line: list[int], wanted: list[int]) -> bool:
    """Whether some ids stand in a line one after another."""
    count = len(wanted)
    return any(line[i : i + count] == wanted for i in range(len(line) - count + 1))


def likelier_labels_cost_less(batch: ProofBatch) -> Outcome:
    """(x) The loss falls as labels become likelier, and softmax is taken once."""
    loss, tgt_out, logits = batch.loss, needs_loss(batch), batch.logits
    size = logits.shape[-1]
    labels = tgt_out.clamp(0, size - 1)[..., None]  # some ignore labels beyond the vocabulary

    def loss_where_labels_have(place: Tensor) -> float:
        """Of logits in which each label's is swapped with that at a place (B, T, 1)."""
        own, other = logits.gather(-1, labels), logits.gather(-1, place)
        return float(loss(logits.scatter(-1, place, own).scatter(-1, labels, other), tgt_out))

    high = loss_where_labels_have(logits.argmax(-1, keepdim=True))
    low = loss_where_labels_have(logits.argmin(-1, keepdim=True))
    if not abs(low - high) > batch.loss_tolerance(high):
        raise CannotJudge(f"the loss is {high:.4f}, whatever the logits of the labels are")
    try:
        problem = _softmax_problem(batch, tgt_out, labels)
    except UserError:  # the loss refuses what are no probabilities, so it takes no softmax
        problem = ""
    if high > low:
        problem = (
            f"the loss is {high:.4f} where labels have the highest logits and {low:.4f} where "
            "they have the lowest: its sign is wrong; training makes right answers unlikely"
        )
    evidence = f"loss {high:.4f} where labels have the highest logits, {low:.4f} where the lowest"
    return Outcome(float(bool(problem)), 0.0, evidence, problem)


def _softmax_problem(batch: ProofBatch, tgt_out: Tensor, labels: Tensor) -> str:
    """What is wrong where softmax is taken twice between logits and loss, or never."""
    loss, logits = batch.loss, batch.logits
    once = float(loss(logits, tgt_out))
    chosen = torch.zeros_like(logits).scatter(-1, labels, 1.0)
    given = logits[batch.model.real_labels(tgt_out)]
    are_probabilities = bool((given >= 0).all() and ((given.sum(-1) - 1).abs() < 1e-3).all())
    normalized = are_probabilities or bool((given.logsumexp(-1).abs() < 1e-3).all())

    def stays(changed: Tensor) -> bool:
        return abs(float(loss(changed, tgt_out)) - once) <= batch.loss_tolerance(once)

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
    sure, mistaken = (float(loss(1e3 * (x - 1), tgt_out)) for x in (chosen, chosen.roll(1, -1)))
    if sure > 0.3 and abs(mistaken - sure - 1) < 0.25:  # one apart: probabilities, not logits
        return (
            f"the loss is {sure:.4f} where the model is sure of the labels, and no more than "
            f"{mistaken:.4f} where it is sure of others: it takes softmax twice; give cross "
            "entropy the logits"
        )
    return ""


def ends_agree(batch: ProofBatch) -> Outcome:
    """(m) Pad, start and end are told apart; decoding starts as training does; the end is
    scored."""
    tgt_out = needs_loss(batch)
    model, problems = batch.model, []
    rows = torch.arange(len(tgt_out))
    starts = set(batch.tgt_in[rows, batch.real.int().argmax(1)].tolist())
    if model.decoding_start is not None and starts != {model.decoding_start}:
        problems.append(
            f"training starts targets with {sorted(starts)} and decoding with "
            f"{model.decoding_start}: the first step of decoding is one never trained"
        )
    gradient, first = batch.loss_gradient(tgt_out), batch.real.int().argmax(1)
    labelled = model.real_labels(tgt_out)[rows, first]
    if bool(labelled.all()) and bool((gradient[rows, first] == 0).all()) and bool(gradient.any()):
        problems.append("the first label of every target is not scored")
    if model.eos_id is not None:
        labelled = model.real_labels(tgt_out)
        if model.pad_id == model.eos_id:  # then a loss may ignore the end with the pads
            labelled = gradient.abs().amax(-1) > 0
        places = torch.arange(1, labelled.shape[1] + 1)
        last = (labelled * places).argmax(1)
        scored = gradient[rows, last].abs().amax(-1) > 0
        wrong = sorted(set(tgt_out[rows, last].tolist()) - {model.eos_id})
        if wrong and model.pad_id == model.eos_id:
            problems.append(
                f"pad and end are both {model.pad_id}: ends are ignored with the pads, and the "
                "model never learns to stop; give the pad an id of its own, or ignore -100"
            )
        elif wrong:
            problems.append(
                f"the last label scored is {', '.join(map(str, wrong))}, not the end, "
                f"{model.eos_id}: the model never learns to stop"
            )
        elif not bool(scored.all()):
            problems.append(
                f"the end, {model.eos_id}, is a label but not scored: the model never learns to "
                "stop"
            )
    known = "the end is scored" if model.eos_id is not None else "no end given (eos_id)"
    start = "start unknown" if model.decoding_start is None else f"start {starts.pop()} in both"
    return Outcome(
        float(len(problems)), 0.0, f"pad {model.pad_id}, {start}, {known}", "; ".join(problems)
    )


def halves_add_up(batch: ProofBatch) -> Outcome:
    """(n) The loss of a batch = the summed losses of its halves over their tokens."""
    loss, tgt_out = batch.loss, needs_loss(batch)
    real, half = batch.model.real_labels(tgt_out), len(tgt_out) // 2

    def mean(rows: slice) -> float:
        own = batch.own_loss(rows)
        return float(loss(batch.logits[rows], tgt_out[rows])) if own is None else own

    def weighed(parts: list[tuple[float, int]]) -> float:
        return sum(value * count for value, count in parts) / sum(count for _, count in parts)

    whole = mean(slice(None))
    halves = [slice(half), slice(half, None)]
    parts = [(mean(rows), int(real[rows].sum())) for rows in halves]
    expected = weighed(parts)
    tolerance = batch.loss_tolerance(whole)
    evidence = f"loss {whole:.4f} = its halves over {sum(n for _, n in parts)} tokens"
    cause = f"the loss is {whole:.4f}, its halves over their tokens {expected:.4f}: "
    if not abs(whole - expected) <= tolerance:
        rows = [slice(r, r + 1) for r in range(len(tgt_out))]
        each = [mean(row) for row in rows]
        by_rows = sum(each) / len(each)
        by_places = weighed([(value, real[rows].numel()) for (value, _), rows in zip(
            parts, halves, strict=True)])  # fmt: skip
        if abs(whole - by_rows) <= tolerance and not abs(by_rows - weighed(
            [(v, int(real[r].sum())) for v, r in zip(each, rows, strict=True)])
        ) <= tolerance:  # fmt: skip
            cause += (
                "rows are sums, which weighs long ones more; divide by the labels, not by the rows"
                if _sums_rows(batch, tgt_out, real)
                else "a mean of means weighs short rows more; sum first, divide once by the labels"
            )
        elif abs(whole - by_places) <= tolerance:
            cause += "it is divided by all places, pads included; divide by the real labels"
        elif abs(whole - sum(value for value, _ in parts)) <= tolerance:
            cause += "it is a sum, which grows with the batch; divide by the real labels"
        else:
            raise CannotJudge(
                f"{cause}it is neither a mean of tokens nor one of rows; does it weigh classes or "
                "hold other terms?"
            )
    return Outcome(abs(whole - expected), tolerance, evidence, cause)


def _sums_rows(batch: ProofBatch, tgt_out: Tensor, real: Tensor) -> bool:
    """Whether the loss of a row alone grows with its labels where all are equally likely."""
    level = torch.zeros_like(batch.logits)
    each = [float(batch.loss(level[r : r + 1], tgt_out[r : r + 1])) for r in range(len(real))]
    few, many = int(real.sum(1).argmin()), int(real.sum(1).argmax())
    grows = float(real[many].sum() / real[few].sum())
    return grows > 1 and abs(each[many] - grows * each[few]) <= 1e-3 * abs(each[many])
