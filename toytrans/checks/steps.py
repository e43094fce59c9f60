"""Decoding step by step against one parallel pass."""

import torch
from torch import Tensor, nn

from toytrans.checks.batch import MOST_IN_SINGLE, MOST_ROUNDING, TOLERANCE, Batch, apart, largest
from toytrans.checks.result import Result, Told, measured, unsure, wrong
from toytrans.checks.subject import Ids, zeroed
from toytrans.errors import UserError


@torch.no_grad()
def steps_are_the_pass(batch: Batch) -> Result:
    """Decoding step by step = one parallel pass. A function that was given runs the model as it
    came, not the copy; it decodes other rows of the same shape afterwards, in which what it keeps
    of the first ones would show."""
    if batch.setting.length > 64:
        raise Told("does not apply", "steps of longer batches take long")
    # targets of one length, sources of several
    count = max(len(target) for _, target in batch.pairs)
    ids, _ = batch.made_of([(source, batch.row(count)) for source, _ in batch.pairs])
    real = batch.facts.real_inputs(ids.tgt_in).sum(1)
    ids = Ids(ids.src, ids.tgt_in[:, : int(real.min()) if batch.facts.has_source else None])
    asked, opened = [ids], batch.model.opened
    if batch.model.generate is None:
        opened = ()
    else:
        asked.append(Ids(ids.src.flip(0), ids.tgt_in.flip(0)))
    results: list[Result] = []
    for rows in asked:
        before = torch.get_rng_state()
        try:
            made = _steps(batch, rows)
            draws = not torch.equal(before, torch.get_rng_state())
            if draws and not torch.allclose(made, _steps(batch, rows), equal_nan=True):
                raise unsure(
                    "generate gives two answers to one input: is dropout left on in it (call "
                    "model.eval() first), or does it sample?"
                )
        except UserError as error:
            if not results:
                raise
            cause = f"{error}, at a second call after one that it answered: is its cache emptied?"
            raise wrong(cause) from error
        judged = _judged_logits if made.is_floating_point() else _judged_ids
        with zeroed(opened):
            results.append(judged(batch, rows, made))
    return max(results, key=lambda result: result.weight)


def _steps(batch: Batch, ids: Ids, positions: bool = True) -> Tensor:
    return batch.model.step(ids.src.clone(), ids.tgt_in.clone(), positions)


def _parallel(
    batch: Batch, src: Tensor, tgt_in: Tensor, made_in: torch.dtype
) -> tuple[Tensor, float]:
    """The logits of a parallel pass, and how far what steps made in some precision may be from
    them: more where they run the model in the one that it came in, whose rounding is measured.
    Raises Told where logits are one for all ids."""
    logits, model = batch.ask(src, tgt_in), batch.model
    if not largest(apart(logits, logits[:1, :1]).nan_to_num()):
        why = "the model as it came gives one answer to everything; train it a step"
        raise unsure(why)
    came_as = model.came_as or batch.logits.dtype
    if model.generate is None or made_in == batch.logits.dtype == came_as:
        return logits, batch.tolerance
    near = max(batch.tolerance, MOST_IN_SINGLE * batch.typical_logit)
    if came_as not in TOLERANCE and (own := model.copied(came_as)):
        rounded = own.ask(*batch.ids).to(batch.logits.dtype)
        by = batch.differ(rounded, batch.logits, batch.real)
        near = max(near, min(3 * by, MOST_ROUNDING * batch.typical_logit))
    return logits, near


def _judged_logits(batch: Batch, ids: Ids, steps: Tensor) -> Result:
    """Logits made step by step beside the parallel pass."""
    parallel, tolerance = _parallel(batch, *ids[:2], steps.dtype)
    moved = batch.moved(steps.to(parallel.dtype), parallel)
    bad = (~(moved <= tolerance)).any(0).nonzero()[:, 0].tolist()
    evidence, cause = f"{steps.shape[1]} steps = one parallel pass", ""
    if bad:
        cause = (
            "a step of decoding, which has only the past, gives other logits than the parallel "
            "pass: that pass sees more or less than the past, or the cache holds something else "
            f"(first at step {bad[0]})"
        )
        if batch.facts.takes_positions and not moved.isnan().any():
            without = batch.moved(_steps(batch, ids, positions=False), parallel)
            if largest(without) <= tolerance:
                cause = (
                    "a step of decoding is given position_ids counted from 0, as generate gives "
                    "them, and the parallel pass counts its own from another number: without "
                    "position_ids both agree"
                )
        repeated = Ids(ids.src, ids.tgt_in[:, -1:].expand_as(ids.tgt_in))
        answers = _steps(batch, repeated), batch.ask(*repeated)
        at_steps, at_once = (largest(apart(x, x[:, :1])) for x in answers)
        if at_steps <= tolerance < at_once:
            cause = (
                "every step of decoding gets the same position: a repeated id gives the same "
                "logits at each step, and others in the parallel pass; count on from the cache's "
                "length"
            )
    return measured(largest(moved), tolerance, evidence, cause)


def _judged_ids(batch: Batch, ids: Ids, made: Tensor) -> Result:
    """Whether each id decoded is the best of the parallel pass over those before it."""
    facts, first = batch.facts, 1 if batch.facts.has_source else 2  # which it was given
    start = facts.start_id if facts.decoding_start is None else facts.decoding_start
    if facts.has_source:
        if start is None:
            raise unsure("needs the id that decoding starts with (start_id=...)")
        if not bool((made[:, :1] == start).all()):
            made = nn.functional.pad(made, (1, 0), value=start)
    decoded = made[:, first:]
    ended, live = _ended(batch, decoded)
    if not bool(live.any()):
        raise unsure("generate gave no id behind those that it began with")
    logits, near = _parallel(batch, ids.src, made, made.dtype)
    logits = logits[:, first - 1 : -1]
    behind = [
        apart(logits.amax(-1), logits.gather(-1, x[..., None])[..., 0]) for x in (decoded, ended)
    ]
    by = largest(torch.minimum(*behind)[live])
    return measured(
        by,
        near,
        f"{int(live.sum())} ids decoded are the best of the parallel pass",
        "decoding takes ids that the parallel pass over the same past does not rank first, by "
        f"{by:.2g}: the steps see something else than the pass, or do not decode greedily",
    )


def _ended(batch: Batch, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, L) behind the start, and which of them were decoded: up to the end. Where a row lacks
    an end, it is put for the first of the pads at the end of the row."""
    end, pads_behind = batch.facts.eos_id, (ids == batch.facts.pad_id).flip(1).cumprod(1).flip(1)
    if end is None:
        return ids, pads_behind == 0
    lost = (pads_behind.cumsum(1) == 1) & ~(ids == end).any(1, keepdim=True)
    ids = ids.masked_fill(lost, end)
    return ids, ((ids == end).cumsum(1) - (ids == end).long()) == 0
