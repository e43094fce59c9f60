"""Labels: the next decoder inputs, of the same pair, from the start to the end."""

import torch
from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.batch_loss import BatchLoss
from toytrans.checks.outcome import (
    Evidence,
    Judged,
    Outcome,
    fails,
    measured,
    not_asked,
    passes,
    unsure,
)
from toytrans.checks.registry import CAUSAL, Check

LABELS = Check(
    "labels",
    "labels are the next decoder inputs, to the end",
    how="the shift; start and end",
    kinds=CAUSAL,
    follows=("loss",),
    may_be_another_pad=True,
)

# The shift -----------------------------------------------------------------------------------


def are_the_inputs(evidence: Evidence) -> bool:
    """Whether most labels are the decoder inputs at their own place."""
    return bool(evidence["same_place"])


def are_two_ahead(evidence: Evidence) -> bool:
    """Whether all labels are the decoder inputs two places ahead."""
    return bool(evidence["two_ahead"])


NOT_SHIFTED = LABELS.cause(
    "not_shifted",
    when="labels equal the decoder inputs at the same place",
    words="{others} of {count}: labels equal tgt_in at the same place: they are not shifted, so "
    "the model learns to repeat the token it has just read",
    remedy="drop BOS from the labels",
    fits=are_the_inputs,
    read="mistakes/label-shift.md",
)
SHIFTED_TWICE = LABELS.cause(
    "shifted_twice",
    when="labels equal the decoder inputs two places ahead",
    words="{others} of {count}: labels are not what follows in tgt_in, but what stands one place "
    "behind that: the target is shifted twice",
    remedy="shift it once, in the batch maker or in the model",
    fits=are_two_ahead,
    read="mistakes/label-shift.md",
)
NOT_NEXT = LABELS.cause(
    "not_next",
    when="some labels are not the next decoder input",
    words="{others} of {count}: labels are not what follows in tgt_in",
    remedy="is the target shifted by one, once?",
    read="mistakes/label-shift.md",
)
ROWS_OF_OTHER_PAIRS = LABELS.cause(
    "rows_of_other_pairs",
    when="a row holds the source of one pair and the target of another",
    words="row {row} holds the source of pair {source} and the {side} of pair {pair}",
    remedy="the batch maker orders the one without the other",
)
SWAPPED = LABELS.cause(
    "swapped",
    when="sources hold the targets of the pairs, and no source",
    words="src holds the targets and tgt_in the sources",
    remedy="the batch maker, or whoever calls it, has swapped them",
)

OTHER_IDS = LABELS.doubt(
    "other_ids",
    when="most labels are neither the next decoder input nor the one at their place",
    words="{others} of {count} labels are not the next decoder input, nor the same one",
    remedy="if labels have ids of their own, this is no shift",
)


@LABELS.part("the shift")
def the_shift(asked: Asked) -> Outcome:
    """tgt_out[t] is tgt_in[t + 1] at every real place, and rows hold the pairs they are made of."""
    tgt_in, tgt_out = asked.tgt_in, asked.tgt_out
    if tgt_out is None or asked.model.maker is None:
        return not_asked("needs a batch maker, for its labels", "batch")
    _require_whole_rows(asked)
    inside = asked.real & asked.facts.real_labels(tgt_out)
    follows = asked.real[:, 1:] & inside[:, :-1]
    others, count = int(((tgt_out[:, :-1] != tgt_in[:, 1:]) & follows).sum()), int(follows.sum())
    same = bool((tgt_out == tgt_in)[inside].float().mean() > 0.5)
    ahead = (tgt_out[:, :-2] == tgt_in[:, 2:])[follows[:, :-1] & asked.real[:, 2:]]
    is_twice = bool(ahead.numel()) and bool(ahead.all())
    if not same and not is_twice and others > 0.5 * count:
        return unsure(OTHER_IDS, others=others, count=count)
    return measured(
        others,
        0.0,
        f"{count} of {count} labels are the next decoder input",
        NOT_SHIFTED,
        SHIFTED_TWICE,
        NOT_NEXT,
        others=others,
        count=count,
        same_place=same,
        two_ahead=is_twice,
    )


def _require_whole_rows(asked: Asked) -> None:
    """Raises Judged where a row's source, target and labels are not of one pair."""

    def pairs_in(ids: Tensor | None, side: int) -> list[int | None]:
        """Of each row, the pair whose source or target stands there; pairs of two symbols or more,
        for one may stand anywhere by chance."""
        found: list[int | None] = []
        for row in [] if ids is None else ids.tolist():
            runs = {tuple(row[n:end]) for end in range(len(row) + 1) for n in range(end)}
            here = [n for n, p in enumerate(asked.pairs) if tuple(p[side]) in runs]
            longest = max(here, key=lambda n: len(asked.pairs[n][side]), default=None)
            is_long = longest is not None and min(map(len, asked.pairs[longest])) > 1
            found.append(longest if is_long else None)
        return found

    sources = pairs_in(asked.src, 0)
    for name, ids in (("target", asked.tgt_in), ("labels", asked.tgt_out)):
        for row, pair in enumerate(pairs_in(ids, 1)):
            if None not in (pair, sources[row]) and pair != sources[row]:
                evidence = {"row": row, "source": sources[row], "side": name, "pair": pair}
                raise Judged(fails(ROWS_OF_OTHER_PAIRS, **evidence))
    are_targets = any(n is not None for n in pairs_in(asked.src, 1))
    if are_targets and not any(n is not None for n in sources):
        raise Judged(fails(SWAPPED))


# Start and end -------------------------------------------------------------------------------

OTHER_START = LABELS.cause(
    "other_start",
    when="targets start with other ids in training than in decoding",
    words="training starts targets with {starts} and decoding with {start}",
    remedy="the first step of decoding is one never trained",
)
FIRST_NOT_SCORED = LABELS.cause(
    "first_not_scored",
    when="the loss has no gradient at the first label of any target, and some at others",
    words="the first label of every target is not scored",
    remedy="does the loss drop a place that the batch maker has dropped already?",
    read="mistakes/label-shift.md",
)
END_NOT_SCORED = LABELS.cause(
    "end_not_scored",
    when="the last label with a gradient is another id than the end",
    words="the last label scored is {last}, not the end, {end}: the model never learns to stop",
    remedy="{give}",
)


@LABELS.part("start and end")
def start_and_end(asked: Asked) -> Outcome:
    """Pad, start and end are told apart; decoding starts as training does; the end is scored."""
    loss, facts = BatchLoss(asked), asked.facts
    gradient = loss.gradient()
    rows, first = torch.arange(len(loss.labels)), asked.real.int().argmax(1)
    starts = set(asked.tgt_in[rows, first].tolist())
    if facts.decoding_start is not None and starts != {facts.decoding_start}:
        return fails(OTHER_START, starts=sorted(starts), start=facts.decoding_start)
    is_scored = gradient.abs().amax(-1) > 0
    if loss.real[rows, first].all() and not is_scored[rows, first].any() and is_scored.any():
        return fails(FIRST_NOT_SCORED)
    if facts.eos_id is not None:
        is_pad = facts.pad_id == facts.eos_id  # then the end is no real label, but may be scored
        counted = is_scored if is_pad else is_scored & loss.real
        last = (counted * torch.arange(1, counted.shape[1] + 1)).argmax(1)
        if others := sorted(set(loss.labels[rows, last].tolist()) - {facts.eos_id}):
            give = "give the pad an id of its own, or ignore -100" if is_pad else ""
            last_ids = ", ".join(map(str, others))
            return fails(END_NOT_SCORED, last=last_ids, end=facts.eos_id, give=give)
    known = "the end is scored" if facts.eos_id is not None else "no end given (eos_id)"
    start = "start unknown" if facts.decoding_start is None else f"start {starts.pop()} in both"
    return passes(f"pad {facts.pad_id}, {start}, {known}")
