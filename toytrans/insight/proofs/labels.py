"""Proofs about labels and loss."""

import torch
from torch import Tensor

from toytrans.insight.proofs.batch import Examples, largest, wider, worst
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, Outcome


def needs_loss(x: Examples) -> Tensor:
    """The labels, where a loss function is at hand too."""
    if not x.subject.has_source:
        raise NotApplicable("loss and labels are judged for encoder-decoder models")
    missing = [
        name for name, value in (("loss", x.subject.loss), ("batch", x.tgt_out)) if value is None
    ]
    if x.subject.loss is None or x.tgt_out is None:
        words = {"loss": "a loss function (loss=...)", "batch": "a batch maker (batch=...)"}
        raise NotApplicable("needs " + " and ".join(words[name] for name in missing))
    return x.tgt_out


def pad_labels_ignored(x: Examples) -> Outcome:
    """(h) What the model answers where the label is a pad changes neither loss nor gradient."""
    loss, tgt_out = x.loss, needs_loss(x)
    real = x.subject.real_labels(tgt_out)
    if bool(real.all()):
        raise CannotJudge("needs a batch whose labels hold pads; the batch maker pads none")
    gradient = x.loss_gradient(tgt_out)
    ignored = int(tgt_out[~real][0])
    once = float(loss(x.logits, tgt_out))
    if (own := x.own_loss(slice(None))) is not None and abs(own - once) > x.loss_tolerance(once):
        return _own_differs(x, tgt_out, own, once)
    twice = float(
        loss(
            torch.cat((x.logits, x.noise(x.logits)), 1),
            wider(tgt_out, tgt_out.shape[1], ignored),
        )
    )
    return Outcome(
        worst((largest(gradient[~real]), abs(twice - once))),
        x.loss_tolerance(once),
        f"gradient at {int((~real).sum())} pad labels is zero; {tgt_out.numel()} more leave the "
        f"loss at {once:.4f}",
        f"the loss is {once:.4f}, with more pad labels {twice:.4f}: pads are scored; pass "
        "ignore_index, and divide by the real labels alone",
    )


def _own_differs(x: Examples, tgt_out: Tensor, own: float, once: float) -> Outcome:
    """A model's own loss is not the plain mean: of its parts it must then not count pads."""
    real = x.subject.real_labels(tgt_out)
    rows = [r for r in range(len(tgt_out)) if not bool(real[r].all())]
    for row in rows:
        labels = tgt_out[row : row + 1]
        whole, inside = x.own_loss_of(row, labels), x.own_loss_of(row, labels[:, real[row]])
        if whole is None or inside is None:
            break
        if abs(whole - inside) > x.loss_tolerance(once):
            return Outcome(
                abs(whole - inside),
                x.loss_tolerance(once),
                "",
                f"the model's own loss of pair {row} is {inside:.4f}, with pad labels behind it "
                f"{whole:.4f}: pads are scored",
            )
    raise CannotJudge(
        f"the model's own loss is {own:.4f}, the mean over labels that are no pads {once:.4f}; "
        "pads do not change it: it may hold other terms"
    )


def labels_shifted(x: Examples) -> Outcome:
    """(l) tgt_out[t] = tgt_in[t + 1] at every real place, and rows hold the pairs they are made
    of."""
    if x.tgt_out is None or not x.subject.has_source:
        raise NotApplicable("needs a batch maker, for its labels (batch=...)")
    if mixed := _mixed_rows(x):
        return Outcome(1.0, 0.0, "", mixed)
    labelled = x.subject.real_labels(x.tgt_out)
    follows = x.real[:, 1:] & x.real[:, :-1] & labelled[:, :-1]
    wrong = (x.tgt_out[:, :-1] != x.tgt_in[:, 1:]) & follows
    inside = x.real & labelled
    same = bool((x.tgt_out == x.tgt_in)[inside].float().mean() > 0.5)
    ahead = (x.tgt_out[:, :-2] == x.tgt_in[:, 2:])[follows[:, :-1] & x.real[:, 2:]]
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


def _mixed_rows(x: Examples) -> str:
    """What is wrong where a row's source, target and labels are not of one pair; "" if nothing."""
    assert x.tgt_out is not None
    for number, (source, target) in enumerate(x.pairs):
        rows = [
            {row for row, line in enumerate(ids.tolist()) if _holds(line, wanted)}
            for ids, wanted in ((x.src, source), (x.tgt_in, target), (x.tgt_out, target))
        ]
        for name, other in (("target", rows[1]), ("labels", rows[2])):
            if rows[0] and other and not rows[0] & other:
                return (
                    f"the source of pair {number} is in row {min(rows[0])} and its {name} in row "
                    f"{min(other)}: the batch maker orders the one without the other"
                )
    return ""


def _holds(line: list[int], wanted: list[int]) -> bool:
    """Whether some ids stand in a line one after another."""
    count = len(wanted)
    return any(line[i : i + count] == wanted for i in range(len(line) - count + 1))


def ends_agree(x: Examples) -> Outcome:
    """(m) Pad, start and end are told apart; decoding starts as training does; the end is
    scored."""
    tgt_out = needs_loss(x)
    subject, problems = x.subject, []
    rows = torch.arange(len(tgt_out))
    starts = set(x.tgt_in[rows, x.real.int().argmax(1)].tolist())
    if subject.decoding_start is not None and starts != {subject.decoding_start}:
        problems.append(
            f"training starts targets with {sorted(starts)} and decoding with "
            f"{subject.decoding_start}: the first step of decoding is one never trained"
        )
    gradient, first = x.loss_gradient(tgt_out), x.real.int().argmax(1)
    labelled = subject.real_labels(tgt_out)[rows, first]
    if bool(labelled.all()) and bool((gradient[rows, first] == 0).all()) and bool(gradient.any()):
        problems.append("the first label of every target is not scored")
    if subject.eos_id is not None:
        labelled = subject.real_labels(tgt_out)
        if subject.pad_id == subject.eos_id:  # then a loss may ignore the end with the pads
            labelled = gradient.abs().amax(-1) > 0
        places = torch.arange(1, labelled.shape[1] + 1)
        last = (labelled * places).argmax(1)
        scored = gradient[rows, last].abs().amax(-1) > 0
        wrong = sorted(set(tgt_out[rows, last].tolist()) - {subject.eos_id})
        if wrong and subject.pad_id == subject.eos_id:
            problems.append(
                f"pad and end are both {subject.pad_id}: ends are ignored with the pads, and the "
                "model never learns to stop; give the pad an id of its own, or ignore -100"
            )
        elif wrong:
            problems.append(
                f"the last label scored is {', '.join(map(str, wrong))}, not the end, "
                f"{subject.eos_id}: the model never learns to stop"
            )
        elif not bool(scored.all()):
            problems.append(
                f"the end, {subject.eos_id}, is a label but not scored: the model never learns to "
                "stop"
            )
    known = "the end is scored" if subject.eos_id is not None else "no end given (eos_id)"
    start = "start unknown" if subject.decoding_start is None else f"start {starts.pop()} in both"
    return Outcome(
        float(len(problems)), 0.0, f"pad {subject.pad_id}, {start}, {known}", "; ".join(problems)
    )


def halves_add_up(x: Examples) -> Outcome:
    """(n) The loss of a batch = the summed losses of its halves over their tokens."""
    loss, tgt_out = x.loss, needs_loss(x)
    real, half = x.subject.real_labels(tgt_out), len(tgt_out) // 2

    def mean(rows: slice) -> float:
        own = x.own_loss(rows)
        return float(loss(x.logits[rows], tgt_out[rows])) if own is None else own

    def weighed(parts: list[tuple[float, int]]) -> float:
        return sum(value * count for value, count in parts) / sum(count for _, count in parts)

    whole = mean(slice(None))
    halves = [slice(half), slice(half, None)]
    parts = [(mean(rows), int(real[rows].sum())) for rows in halves]
    expected = weighed(parts)
    tolerance = x.loss_tolerance(whole)
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
            cause += "a mean of means weighs short rows more; sum first, divide once by the labels"
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
