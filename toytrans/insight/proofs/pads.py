"""Proofs about pads and rows: pads change nothing, and a pair gives the same in any batch."""

import math

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.insight.proofs.answers import NoAnswer, chosen, largest, wider, worst
from toytrans.insight.proofs.batch import (
    MORE,
    POLARITY,
    SHORT,
    ProofBatch,
    needs_sight,
)
from toytrans.insight.proofs.hugging_face import HuggingFaceCall
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, Outcome, Witness
from toytrans.insight.proofs.shapes import in_many_shapes

MOST_ALONE = 8
"""Rows of a batch that are asked alone."""


def pads_appended(batch: ProofBatch) -> Outcome:
    """(a) More pads behind source and target leave the outputs at real places as they are."""
    needs_sight(batch)
    model, more = batch.model, MORE if batch.model.equal_lengths else MORE - 1
    left = model.pad_side == "left"
    src = wider(batch.src, MORE, model.source_pad) if model.has_source else batch.src
    tgt_in = wider(batch.tgt_in, more, model.pad_id, left)
    target = "the target" if model.has_source else "the ids"
    asked = {target: (batch.src, tgt_in)}
    if model.equal_lengths:
        asked = {"both": (src, tgt_in)}
    elif model.has_source:
        asked = {"the source": (src, batch.tgt_in), **asked, "both": (src, tgt_in)}
    by = {side: _moved_by_pads(batch, *given) for side, given in asked.items()}
    side = next((side for side in asked if not by[side] <= batch.tolerance), "")
    where = {
        "the source": "is the source's pad mask passed to the encoder and to cross-attention",
        "the target": "is the target's pad mask passed, and is the causal mask",
        "the ids": "is the pad mask passed" + ", and is the causal mask" * model.is_causal,
        "both": "are the pad masks passed",
    }
    if side:
        return Outcome(
            worst(by.values()),
            batch.tolerance,
            "",
            f"outputs at real places change when pads are appended to {side}: pads are seen as "
            f"keys; {where[side]}, and {POLARITY}",
            witness=_pad_witness(batch, *asked[side]),
        )
    before = "before" if left else "behind"
    evidence = f"{more} pads {before} the ids: nothing changes"
    if model.has_source:
        evidence = f"{MORE} pads behind the source, {more} {before} the target: nothing changes"
    outcome = Outcome(worst(by.values()), batch.tolerance, evidence, "")
    if batch.variant.drops_masked:
        cause = (
            "dropout is given masked values, below -1e4: where it makes one zero, what was masked "
            "is seen in training; drop before the mask, or weights after softmax"
        )
        return Outcome(1.0, 0.0, "", cause)
    if outcome.passed:
        shapes = in_many_shapes(batch)
        outcome = shapes.added_to(outcome, shapes.by_pads, shapes.pads_at)
    if left or model.has_source or not outcome.passed:
        return outcome
    return _pads_before(batch, outcome)


def _moved_by_pads(batch: ProofBatch, src: Tensor, tgt_in: Tensor) -> float:
    """How far real outputs are from those of a batch with fewer pads, in its first rows."""
    width, rows = batch.tgt_in.shape[1], slice(len(tgt_in))
    inside = slice(-width, None) if batch.model.pad_side == "left" else slice(width)
    logits = batch.ask(src, tgt_in)[:, inside]
    return batch.differ(logits, batch.logits[rows], batch.real[rows])


def _pad_witness(batch: ProofBatch, src: Tensor, tgt_in: Tensor) -> Witness:
    left = batch.model.pad_side == "left"
    shift = tgt_in.shape[1] - batch.tgt_in.shape[1] if left else 0
    rows = slice(len(tgt_in))
    return Witness((batch.src[rows], batch.tgt_in[rows]), (src, tgt_in), "pads", shift=shift)


def _pads_before(batch: ProofBatch, outcome: Outcome) -> Outcome:
    """Pads before the ids of a model of one stream. Where a mask is passed, the ids that it closes
    must not matter, nor, where positions are passed as well, that they are there."""
    model, call = batch.model, batch.model.call
    if not isinstance(call, HuggingFaceCall):
        untried = "; pads before them were not tried (pad_side='left')"
        return outcome._replace(evidence=outcome.evidence + untried * model.is_causal)
    longer = wider(batch.tgt_in, MORE - 1, model.pad_id, left=True)
    try:
        with call.positions_given():
            without, logits = batch.ask(batch.src, batch.tgt_in), batch.ask(batch.src, longer)
        free = torch.where(longer == batch.symbols[0], batch.symbols[1], longer)
        plain = batch.ask(batch.src, free)
        other = free.masked_fill(free == model.pad_id, int(batch.symbols[0]))
        with call.pads_are(int(batch.symbols[0])):
            seen = batch.ask(batch.src, other)
    except NoAnswer:
        return outcome._replace(evidence=f"{outcome.evidence}; pads before them are not taken")
    behind = slice(MORE - 1, None)
    by_ids = batch.differ(seen[:, behind], plain[:, behind], batch.real)
    by_place = batch.differ(logits[:, behind], without, batch.real)
    witness = Witness((batch.src, batch.tgt_in), (batch.src, longer), "pads", shift=MORE - 1)
    if not by_ids <= batch.tolerance:
        cause = (
            f"other ids at {MORE - 1} places before the first token, where attention_mask is 0, "
            "move the outputs: is the mask combined with the causal one, in every layer?"
        )
        return Outcome(by_ids, batch.tolerance, "", cause, witness=witness)
    if not by_place <= batch.tolerance and call.takes_positions:
        cause = (
            f"{MORE - 1} pads before the ids, with attention_mask 0 and position_ids that count "
            "from the first token, move the outputs: are the mask and the positions used?"
        )
        return Outcome(by_place, batch.tolerance, "", cause, witness=witness)
    if by_place <= batch.tolerance:
        return outcome._replace(evidence=f"{outcome.evidence}; {MORE - 1} before them: the same")
    return outcome._replace(
        evidence=f"{outcome.evidence}; pads before them count as positions, their ids do not matter"
    )


def other_source_pad(batch: ProofBatch) -> int | None:
    """The one id that acts as a pad behind a source where the pad's id does not."""
    model = batch.model
    known = model.source_pad_id is not None or not model.masks_from_ids or model.ours is not None
    if known or not model.has_source or batch.sees_nothing:
        return None
    size = min(model.source_size or model.vocabulary_size, 200)
    row = int(batch.real_source.sum(1).argmax())
    src = batch.src[row, batch.real_source[row]][None]
    tgt_in = batch.tgt_in[row, batch.real[row]][None]
    special = {model.start_id, model.eos_id} - {model.pad_id}
    ids = torch.tensor([i for i in range(size) if i not in special])
    many = [src.expand(len(ids), -1), tgt_in.expand(len(ids), -1)]
    longer = torch.cat((many[0], ids[:, None].expand(-1, 2)), 1)
    try:
        moved = batch.moved(batch.ask(longer, many[1]), batch.ask(many[0], many[1])).amax(1)
    except NoAnswer:
        return None
    unseen = ids[moved <= batch.tolerance].tolist()
    return unseen[0] if len(unseen) == 1 and unseen != [model.pad_id] else None


def one_at_a_time(batch: ProofBatch) -> Outcome:
    """(d) A pair alone gives what it gives in a batch, without its pads and with them."""
    needs_sight(batch)
    by: dict[tuple[int, bool], float] = {}
    rows = chosen(len(batch.src), MOST_ALONE)
    for row in rows:
        _, tgt_in = pair = _alone(batch, row)
        logits = batch.ask(*pair)
        real, together = batch.real[row][None], batch.logits[row][None]
        if batch.model.equal_lengths:
            width = tgt_in.shape[1]
            by[row, False] = batch.differ(logits, together[:, :width], real[:, :width])
        else:
            by[row, False] = largest(batch.moved(logits, together[:, real[0]]))
        if row in rows[:2] or batch.setting.length <= SHORT:
            padded = batch.ask(batch.src[row][None], batch.tgt_in[row][None])
            by[row, True] = batch.differ(padded, together, real)
    worst_of = max(by, key=lambda key: math.inf if math.isnan(by[key]) else by[key])
    row, has_pads = worst_of
    pair = (batch.src[row][None], batch.tgt_in[row][None]) if has_pads else _alone(batch, row)
    how = "in a batch of its own, with its pads," if has_pads else "alone"
    return Outcome(
        worst(by.values()),
        batch.tolerance,
        f"{len(rows)} pairs, each alone, without and with pads, as in their batch of "
        f"{len(batch.src)}",
        f"pair {row} of {len(batch.src)} gives other outputs {how} than in a padded "
        f"batch: pads are seen, or rows are mixed up; are all pad masks passed, {POLARITY}",
        witness=Witness((batch.src, batch.tgt_in), pair, "alone", row=row),
    )


def _alone(batch: ProofBatch, row: int) -> tuple[Tensor, Tensor]:
    """A row as a batch of its own, without its pads."""
    src, tgt_in = batch.src[row], batch.tgt_in[row]
    if batch.model.equal_lengths:
        width = max(int(batch.real_source[row].sum()), int(batch.real[row].sum()))
        return src[None, :width], tgt_in[None, :width]
    return src[batch.real_source[row]][None], tgt_in[batch.real[row]][None]


def empty_row(batch: ProofBatch) -> Outcome:
    """(i) A pair without symbols gives numbers, and leaves the other rows as they are; so does a
    source of nothing but pads, unless the batch maker never makes one."""
    if not batch.model.has_source:
        raise NotApplicable("the model has no source that could be empty")
    pad = batch.model.source_pad
    ends = batch.model.eos_id is not None or batch.model.batch_maker is not None
    give = (
        "a source without a token spoils its outputs; give eos_id=... if sources end with one, "
        "or a batch maker"
    )
    try:
        _, tgt_in, _ = batch.make_batch([([], [])])
        empty, _, _ = batch.make_batch([([], [])])
    except UserError as error:
        raise CannotJudge(
            f"needs a batch maker that takes a pair without symbols: {error}"
        ) from None
    src = _with_row(batch.src, empty, pad)
    tgt = _with_row(batch.tgt_in, tgt_in, batch.model.pad_id, batch.model.pad_side == "left")
    count = len(batch.src)
    try:
        logits = batch.ask(src, tgt)
    except NoAnswer as error:
        if not ends:
            raise CannotJudge(f"{give} ({error})") from None
        raise
    others = batch.differ(logits[:count, : batch.logits.shape[1]], batch.logits, batch.real)
    real = batch.model.real_inputs(tgt)[count]
    own = not bool(logits[count][real].isnan().any())
    all_pads = _takes_pads_alone(
        batch, torch.cat((batch.src, torch.full_like(batch.src[:1], pad))), tgt
    )
    needed = own and (all_pads or batch.model.ours is None)
    if not ends and not needed and others <= batch.tolerance:
        raise CannotJudge(give)
    if needed and not all_pads and others <= batch.tolerance and batch.model.batch_maker is None:
        raise CannotJudge(
            "a source of pads alone turns into NaN, or spoils other rows; whether an empty source "
            "of yours has an end in it, your batch maker shows (batch=...)"
        )
    is_finite = own and math.isfinite(others)
    what = "its own outputs" if others <= batch.tolerance else "those of other rows"
    note = (
        ""
        if all_pads
        else "; a source of pads alone, which the batch maker never makes, would spoil it"
    )
    return Outcome(
        others if needed else math.nan,
        batch.tolerance,
        f"a pair without symbols gives numbers and changes no other row{note}",
        "a pair without symbols moves the outputs of other rows: rows are mixed up; see (d)"
        if is_finite and others > batch.tolerance
        else f"a pair without symbols spoils {what}: a row of attention with every key closed "
        "turns into NaN after softmax over -inf alone; give such rows zeros",
    )


def _with_row(ids: Tensor, row: Tensor, pad: int, left: bool = False) -> Tensor:
    """(B, L) ids with one more row (1, K), each padded to the wider of the two."""
    width = max(ids.shape[1], row.shape[1])
    return torch.cat([wider(part, width - part.shape[1], pad, left) for part in (ids, row)])


def _takes_pads_alone(batch: ProofBatch, src: Tensor, tgt_in: Tensor) -> bool:
    """Whether a last row of nothing but pads gives numbers and leaves the others alone."""
    try:
        logits = batch.ask(src, tgt_in)
    except NoAnswer:
        return False
    others = batch.differ(
        logits[: len(batch.logits), : batch.logits.shape[1]], batch.logits, batch.real
    )
    return others <= batch.tolerance and not bool(logits[-1, 0].isnan().any())
