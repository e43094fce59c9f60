"""The labels: they are the next decoder inputs, of the same pairs, from the start to the end."""

import torch
from torch import Tensor

from toytrans.checks.batch import Batch
from toytrans.checks.loss import NO_NEXT, Loss
from toytrans.checks.result import CannotJudge, NotApplicable, NotAsked, Result, measured


def labels_shifted(batch: Batch) -> Result:
    """tgt_out[t] = tgt_in[t + 1] at every real place, and rows hold the pairs they are made
    of."""
    if not batch.facts.is_causal:
        raise NotApplicable(NO_NEXT)
    if batch.tgt_out is None or batch.model.maker is None:
        raise NotAsked(batch="a batch maker, for its labels")
    if mixed := _mixed_rows(batch):
        return measured(1.0, 0.0, "", mixed)
    labelled = batch.facts.real_labels(batch.tgt_out)
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
    return measured(
        float(wrong.sum()),
        0.0,
        f"{int(follows.sum())} of {int(follows.sum())} labels are the next decoder input",
        f"{int(wrong.sum())} of {int(follows.sum())}: {cause}",
    )


def _mixed_rows(batch: Batch) -> str:
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


def ends_agree(batch: Batch) -> Result:
    """Pad, start and end are told apart; decoding starts as training does; the end is
    scored."""
    loss = Loss(batch)
    model, tgt_out, problems = batch.facts, loss.labels, []
    rows = torch.arange(len(tgt_out))
    starts = set(batch.tgt_in[rows, batch.real.int().argmax(1)].tolist())
    if model.decoding_start is not None and starts != {model.decoding_start}:
        problems.append(
            f"training starts targets with {sorted(starts)} and decoding with "
            f"{model.decoding_start}: the first step of decoding is one never trained"
        )
    gradient, first = loss.gradient(), batch.real.int().argmax(1)
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
    return measured(
        float(len(problems)), 0.0, f"pad {model.pad_id}, {start}, {known}", "; ".join(problems)
    )
