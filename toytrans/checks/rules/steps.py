"""Steps: decoding step by step gives what one parallel pass gives."""

from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import apart, largest
from toytrans.checks.outcome import (
    Evidence,
    Judged,
    Outcome,
    does_not_apply,
    fails,
    measured,
    unsure,
)
from toytrans.checks.registry import CAUSAL, Check
from toytrans.checks.torch_modes import zeroed
from toytrans.errors import UserError

STEPS = Check(
    "steps",
    "decoding step by step = one parallel pass",
    how="with the cache, or with `generate=`",
    limits="A cache that fails only in long generations is not seen: steps are decoded up to 64 "
    "places.",
    kinds=CAUSAL,
)


def agrees_without_positions(evidence: Evidence) -> bool:
    """Whether steps that are given no position_ids agree with the pass."""
    return bool(evidence["agree_without_positions"])


def stands_still(evidence: Evidence) -> bool:
    """Whether a repeated id gives the same logits at each step, and others in the pass."""
    return bool(evidence["one_position"])


ONE_POSITION = STEPS.cause(
    "one_position",
    when="a repeated id gives the same logits at each step, and others in the parallel pass",
    words="every step of decoding gets the same position: a repeated id gives the same logits at "
    "each step, and others in the parallel pass",
    remedy="count on from the cache's length",
    fits=stands_still,
)
POSITIONS_DIFFER = STEPS.cause(
    "positions_differ",
    when="steps and pass agree where no position_ids are given",
    words="a step of decoding is given position_ids counted from 0, as generate gives them, and "
    "the parallel pass counts its own from another number",
    remedy="without position_ids both agree",
    fits=agrees_without_positions,
)
DIFFER = STEPS.cause(
    "differ",
    when="a step gives other logits than the parallel pass",
    words="a step of decoding, which has only the past, gives other logits than the parallel pass: "
    "that pass sees more or less than the past, or the cache holds something else (first at step "
    "{step})",
)
NOT_GREEDY = STEPS.cause(
    "not_greedy",
    when="an id was decoded that the parallel pass over the same past does not rank first",
    words="decoding takes ids that the parallel pass over the same past does not rank first, by "
    "{by:.2g}",
    remedy="the steps see something else than the pass, or do not decode greedily",
)
SECOND_CALL_FAILS = STEPS.cause(
    "second_call_fails",
    when="generate raises an exception at its second call",
    words="{error}, at a second call after one that it answered",
    remedy="is its cache emptied?",
)
TWO_ANSWERS = STEPS.doubt(
    "two_answers",
    when="generate gives two answers to one input, and draws random numbers",
    words="generate gives two answers to one input",
    remedy="is dropout left on in it (call model.eval() first), or does it sample?",
)
ONE_ANSWER = STEPS.doubt(
    "one_answer",
    when="the parallel pass gives the same logits for all ids",
    words="the model as it came gives one answer to everything",
    remedy="train it a step",
)
START_UNKNOWN = STEPS.doubt(
    "start_unknown",
    when="ids are decoded, and the id that decoding starts with is not known",
    words="needs the id that decoding starts with (start_id=...)",
)
NOTHING_DECODED = STEPS.doubt(
    "nothing_decoded",
    when="no id stands behind those that decoding began with",
    words="generate gave no id behind those that it began with",
)

MOST_STEPS = 64


@STEPS.part("one by one", on="both ends")
@torch.no_grad()
def one_by_one(asked: Asked) -> Outcome:
    """The targets are decoded step by step, with the model's own cache or with `generate=`, and
    each step is compared with one parallel pass. A function that was given runs the model as it
    came, not the copy; it decodes other rows of the same shape afterwards, in which what it keeps
    of the first ones would show."""
    if asked.setting.length > MOST_STEPS:
        return does_not_apply("steps of longer batches take long")
    # targets of one length, sources of several
    count = max(len(target) for _, target in asked.pairs)
    ids, _ = asked.made_of([(source, asked.row(count)) for source, _ in asked.pairs])
    real = asked.facts.real_inputs(ids.tgt_in).sum(1)
    ids = Ids(ids.src, ids.tgt_in[:, : int(real.min()) if asked.facts.has_source else None])
    batches, randomized = [ids], asked.model.randomized
    if asked.model.generate is None:
        randomized = ()
    else:
        batches.append(Ids(ids.src.flip(0), ids.tgt_in.flip(0)))
    outcomes: list[Outcome] = []
    for rows in batches:
        before = torch.get_rng_state()
        try:
            made = _steps(asked, rows)
            draws = not torch.equal(before, torch.get_rng_state())
            if draws and not torch.allclose(made, _steps(asked, rows), equal_nan=True):
                return unsure(TWO_ANSWERS)
        except UserError as error:
            if not outcomes:
                raise
            return fails(SECOND_CALL_FAILS, error=str(error))
        judged = _judged_logits if made.is_floating_point() else _judged_ids
        with zeroed(randomized):
            outcomes.append(judged(asked, rows, made))
    return max(outcomes, key=lambda outcome: outcome.weight)


def _steps(asked: Asked, ids: Ids, positions: bool = True) -> Tensor:
    src, tgt_in = asked.model.placed(ids.src, ids.tgt_in)
    return asked.model.step(src, tgt_in, positions).cpu()


def _parallel(
    asked: Asked, src: Tensor, tgt_in: Tensor, made_in: torch.dtype
) -> tuple[Tensor, float]:
    """The logits of a parallel pass, and how far what steps made in some precision may be from
    them: more where they run the model in the one that it came in, whose rounding is measured.
    Raises Judged where logits are one for all ids."""
    logits, model = asked.ask(src, tgt_in), asked.model
    if not largest(apart(logits, logits[:1, :1]).nan_to_num()):
        raise Judged(unsure(ONE_ANSWER))
    came_as = model.came_as or asked.logits.dtype
    if model.generate is None or made_in == asked.logits.dtype == came_as:
        return logits, asked.tolerance
    near = max(asked.tolerance, tolerances.MOST_IN_SINGLE * asked.typical_logit)
    if came_as not in tolerances.LOGITS and (own := model.copied(came_as)):
        rounded = own.ask(*asked.ids).to(asked.logits.dtype)
        by = asked.differ(rounded, asked.logits, asked.real)
        near = max(near, min(3 * by, tolerances.MOST_IN_HALF * asked.typical_logit))
    return logits, near


def _judged_logits(asked: Asked, ids: Ids, steps: Tensor) -> Outcome:
    """Logits made step by step beside the parallel pass."""
    parallel, tolerance = _parallel(asked, *ids[:2], steps.dtype)
    moved = asked.moved(steps.to(parallel.dtype), parallel)
    bad = (~(moved <= tolerance)).any(0).nonzero()[:, 0].tolist()
    evidence: dict[str, Any] = {"step": bad[0] if bad else 0}
    if bad:
        evidence["one_position"] = _stand_still(asked, ids, tolerance)
        by = asked.facts.takes_positions and not bool(moved.isnan().any())
        without = asked.moved(_steps(asked, ids, positions=False), parallel) if by else None
        evidence["agree_without_positions"] = without is not None and largest(without) <= tolerance
    said, causes = f"{steps.shape[1]} steps = one parallel pass", (ONE_POSITION, POSITIONS_DIFFER)
    return measured(largest(moved), tolerance, said, *causes, DIFFER, **evidence)


def _stand_still(asked: Asked, ids: Ids, tolerance: float) -> bool:
    """Whether a repeated id gives the same logits at each step, and others in the parallel pass."""
    repeated = Ids(ids.src, ids.tgt_in[:, -1:].expand_as(ids.tgt_in))
    answers = _steps(asked, repeated), asked.ask(*repeated)
    at_steps, at_once = (largest(apart(x, x[:, :1])) for x in answers)
    return at_steps <= tolerance < at_once


def _judged_ids(asked: Asked, ids: Ids, made: Tensor) -> Outcome:
    """Whether each id decoded is the best of the parallel pass over those before it."""
    facts, first = asked.facts, 1 if asked.facts.has_source else 2  # which it was given
    start = facts.start_id if facts.decoding_start is None else facts.decoding_start
    if facts.has_source:
        if start is None:
            return unsure(START_UNKNOWN)
        if not bool((made[:, :1] == start).all()):
            made = nn.functional.pad(made, (1, 0), value=start)
    decoded = made[:, first:]
    ended, live = _ended(asked, decoded)
    if not bool(live.any()):
        return unsure(NOTHING_DECODED)
    logits, near = _parallel(asked, ids.src, made, made.dtype)
    logits = logits[:, first - 1 : -1]
    behind = [
        apart(logits.amax(-1), logits.gather(-1, x[..., None])[..., 0]) for x in (decoded, ended)
    ]
    by = largest(torch.minimum(*behind)[live])
    said = f"{int(live.sum())} ids decoded are the best of the parallel pass"
    return measured(by, near, said, NOT_GREEDY, by=by)


def _ended(asked: Asked, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, L) behind the start, and which of them were decoded: up to the end. Where a row lacks
    an end, it is put for the first of the pads at the end of the row."""
    end, pads_behind = asked.facts.eos_id, (ids == asked.facts.pad_id).flip(1).cumprod(1).flip(1)
    if end is None:
        return ids, pads_behind == 0
    lost = (pads_behind.cumsum(1) == 1) & ~(ids == end).any(1, keepdim=True)
    ids = ids.masked_fill(lost, end)
    return ids, ((ids == end).cumsum(1) - (ids == end).long()) == 0
