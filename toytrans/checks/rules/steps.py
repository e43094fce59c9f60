"""Steps: decoding step by step gives what one parallel pass gives. This file has what all forms of
decoding share, and the part for logits; `steps_of_ids` and `steps_of_beams` have the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.beam_scores import Hypotheses
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import apart, largest
from toytrans.checks.outcome import (
    Cause,
    Counterexample,
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
    how="with the cache, or with `generate=`, whose ids are asked for with other weights too; the "
    "rows of a state exchanged",
    limits="A cache that fails only in long generations is not seen: steps are decoded up to 64 "
    "places.",
    kinds=CAUSAL,
    follows=("rows",),
)

MOST_STEPS = 64
MOST_SMALLER = 20
"""Smaller pairs that are tried for the smallest example."""

# What is decoded -----------------------------------------------------------------------------

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


class Decoding(NamedTuple):
    """Pairs that were handed over, and what decoding made of them."""

    ids: Ids
    made: Tensor | Hypotheses


def decodings(asked: Asked) -> list[Decoding]:
    """What decoding makes of sources of several lengths and targets of one, decoded once. A
    function that was given decodes other rows of the same shape afterwards, in which what it keeps
    of the first ones would show. Raises Judged where that cannot be compared."""
    if asked.setting.length > MOST_STEPS:
        raise Judged(does_not_apply("steps of longer batches take long"))
    if "decodings" not in asked.shared:
        asked.shared["decodings"] = _decodings(asked)
    found: list[Decoding] = asked.shared["decodings"]
    return found


def _decodings(asked: Asked) -> list[Decoding]:
    first = targets_of_one_length(asked)
    found = [Decoding(first, _steady_steps(asked, first))]
    if asked.model.generate is None:
        return found
    second = Ids(first.src.flip(0), first.tgt_in.flip(0))
    try:
        return [*found, Decoding(second, _steady_steps(asked, second))]
    except UserError as error:
        raise Judged(fails(SECOND_CALL_FAILS, error=str(error))) from None


def targets_of_one_length(asked: Asked) -> Ids:
    """Sources of several lengths, and targets of one."""
    count = max(len(target) for _, target in asked.pairs)
    ids, _ = asked.made_of([(source, asked.row(count)) for source, _ in asked.pairs])
    real = asked.facts.real_inputs(ids.tgt_in).sum(1)
    return Ids(ids.src, ids.tgt_in[:, : int(real.min()) if asked.facts.has_source else None])


def steps_of(asked: Asked, ids: Ids, positions: bool = True) -> Tensor | Hypotheses:
    src, tgt_in = asked.model.placed(ids.src, ids.tgt_in)
    made = asked.model.step(src, tgt_in, positions)
    return made.cpu() if isinstance(made, Tensor) else made


def _steady_steps(asked: Asked, ids: Ids) -> Tensor | Hypotheses:
    """What decoding gives. Raises Judged where it draws random numbers and gives two answers."""
    before = torch.get_rng_state()
    made = steps_of(asked, ids)
    if isinstance(made, Tensor) and not torch.equal(before, torch.get_rng_state()):
        again = steps_of(asked, ids)
        if not isinstance(again, Tensor) or not torch.allclose(made, again, equal_nan=True):
            raise Judged(unsure(TWO_ANSWERS))
    return made


def parallel_pass(
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
    if came_as != asked.logits.dtype and (own := model.copied(came_as)):
        rounded = own.ask(*asked.ids).to(asked.logits.dtype)
        by = asked.differ(rounded, asked.logits, asked.real)
        near = max(near, min(10 * by, tolerances.MOST_IN_HALF * asked.typical_logit))
    return logits, near


# The smallest example ------------------------------------------------------------------------


def differ_with_source_pads_alone(evidence: Evidence) -> bool:
    """Whether each pair agrees where its source has no pads, and some does not with them."""
    return evidence["needed"] == "pads"


def differ_in_batches_alone(evidence: Evidence) -> bool:
    """Whether each pair agrees where it is alone."""
    return evidence["needed"] == "rows"


SOURCE_PADS = STEPS.cause(
    "source_pads",
    when="steps differ from the parallel pass where sources have pads, and agree where they have "
    "none",
    words="a step of decoding differs from the parallel pass where the source has pads, and agrees "
    "with it where it has none (first at step {step})",
    remedy="is the source's pad mask handed to cross-attention at each step?",
    fits=differ_with_source_pads_alone,
)
ROWS_EXCHANGED = STEPS.cause(
    "rows_exchanged",
    when="steps differ from the parallel pass in a batch, and agree for each of its pairs alone",
    words="a step of decoding differs from the parallel pass in a batch, and agrees with it for "
    "each pair alone (first at step {step})",
    remedy="does the cache of a row hold what is another row's?",
    fits=differ_in_batches_alone,
)


@dataclass(frozen=True)
class Slip:
    """What is wrong in the decoding of a pair (1, S), (1, T): at which step, by how much, and in
    words."""

    step: int
    by: float
    text: str


SlipOf = Callable[[Ids], Slip | None]
"""What is wrong in the decoding of some pairs; None where nothing is."""


def with_example(asked: Asked, ids: Ids, failure: Outcome, slip_of: SlipOf) -> Outcome:
    """A failure with its smallest example, and with what it needs: pads of the source, or other
    rows."""
    pair, needed = _smallest(asked, ids, slip_of)
    also = ", also where the source has no pads" * (asked.facts.has_source and not needed)
    failure = failure.with_evidence(needed=needed, also=also)
    slip = None if pair is None else slip_of(pair)
    if pair is None or slip is None:
        return failure
    precision = str(asked.logits.dtype).removeprefix("torch.")
    example = Counterexample(
        pair,
        pair,
        slip.step,
        slip.by,
        failure.tolerance or 0.0,
        precision,
        asked.model.mode,
        slip.text,
        is_whole=False,
    )
    return replace(failure, example=example)


def _smallest(asked: Asked, ids: Ids, slip_of: SlipOf) -> tuple[Ids | None, str]:
    """The smallest pair in whose decoding something is wrong, and what it needs: "", "pads" of its
    source, or other "rows", where there is none."""

    def is_wrong(pair: Ids) -> bool:
        try:
            return slip_of(pair) is not None
        except (UserError, Judged):
            return False

    padded = [Ids(ids.src[n, None], ids.tgt_in[n, None]) for n in range(len(ids.src))]
    bare = [Ids(p.src[:, asked.facts.real_source(p.src)[0]], p.tgt_in) for p in padded]
    for needed, pairs in (("", bare), ("pads", padded)):
        if (pair := next(filter(is_wrong, pairs), None)) is not None:
            return (pair if needed else _shrunk(pair, is_wrong)), needed
    return None, "rows"


def _shrunk(pair: Ids, is_wrong: Callable[[Ids], bool]) -> Ids:
    """A pair with as few symbols as are needed."""
    tried, going = 0, True
    while going and tried < MOST_SMALLER:
        going = False
        for smaller in _smaller(pair):
            tried += 1
            if is_wrong(smaller):
                pair, going = smaller, True
                break
    return pair


def _smaller(pair: Ids) -> Iterator[Ids]:
    """A pair with half of its source's symbols, without the last token of its target, or without
    one symbol. What ends the source stays."""
    src, tgt_in, _ = pair
    half = (src.shape[1] - 1) // 2
    if half:
        yield Ids(src[:, half:], tgt_in)
    if tgt_in.shape[1] > 2:
        yield Ids(src, tgt_in[:, :-1])
    for n in range(src.shape[1] - 1):
        yield Ids(torch.cat((src[:, :n], src[:, n + 1 :]), 1), tgt_in)


def source_of(asked: Asked, pair: Ids) -> str:
    """A pair in words, as far as it is handed over."""
    return f"src {pair.src[0].tolist()}" if asked.facts.has_source else ""


# Logits --------------------------------------------------------------------------------------


def agree_without_positions(evidence: Evidence) -> bool:
    """Whether steps that are given no position_ids agree with the pass."""
    return bool(evidence.get("agree_without_positions"))


def differ_from_the_second(evidence: Evidence) -> bool:
    """Whether the first step agrees with the pass, and the second does not."""
    return evidence["step"] == 1


def differ_later(evidence: Evidence) -> bool:
    """Whether several steps agree with the pass before one that does not."""
    return evidence["step"] > 1


def stand_still(evidence: Evidence) -> bool:
    """Whether a repeated id gives the same logits at each step, and others in the pass."""
    return bool(evidence.get("one_position"))


ONE_POSITION = STEPS.cause(
    "one_position",
    when="a repeated id gives the same logits at each step, and others in the parallel pass",
    words="every step of decoding gets the same position: a repeated id gives the same logits at "
    "each step, and others in the parallel pass",
    remedy="count on from the cache's length",
    fits=stand_still,
)
POSITIONS_DIFFER = STEPS.cause(
    "positions_differ",
    when="steps and pass agree where no position_ids are given",
    words="a step of decoding is given position_ids counted from 0, as generate gives them, and "
    "the parallel pass counts its own from another number",
    remedy="without position_ids both agree",
    fits=agree_without_positions,
)
DIFFER_FROM_THE_SECOND = STEPS.cause(
    "differ_from_second",
    when="the first step agrees with the parallel pass, and the second does not",
    words="the first step of decoding agrees with the parallel pass, and the second does not "
    "({places}{also}): it is not given what the first one left",
    remedy="does it see the keys of all tokens so far (is_causal=True shows a single query the "
    "first key alone), is its cache used, and does its position count on by one?",
    fits=differ_from_the_second,
)
DIFFER_LATER = STEPS.cause(
    "differ_later",
    when="several steps agree with the parallel pass, and those behind them do not",
    words="the first {step} steps of decoding agree with the parallel pass, and the next does not "
    "({places}{also})",
    remedy="does the cache drop or overwrite tokens from there on, or is a window, a mask or a "
    "table of places as long as that in one of the two?",
    fits=differ_later,
)
DIFFER = STEPS.cause(
    "differ",
    when="a step gives other logits than the parallel pass",
    words="a step of decoding, which has only the past, gives other logits than the parallel pass: "
    "that pass sees more or less than the past, or the cache holds something else (first at step "
    "{step}{also})",
)


@STEPS.part("one by one", on="both ends")
@torch.no_grad()
def one_by_one(asked: Asked) -> Outcome:
    """The targets are decoded step by step, with the model's own cache or with `generate=`, and
    the logits of each step are compared with one parallel pass. A function that was given runs the
    model as it came, not the copy. Of a failure the smallest pair is looked for, first without pads
    of the source."""
    outcomes = []
    for ids, made in decodings(asked):
        if not isinstance(made, Tensor) or not made.is_floating_point():
            return does_not_apply("decoding gives no logits")
        with zeroed(zero_as_it_came(asked)):
            outcomes.append(_judged_logits(asked, ids, made))
    return max(outcomes, key=lambda outcome: outcome.weight)


def zero_as_it_came(asked: Asked) -> tuple[torch.nn.Parameter, ...]:
    """Weights of the copy that are all zero in the model that a given function runs."""
    return asked.model.randomized if asked.model.generate is not None else ()


def _judged_logits(asked: Asked, ids: Ids, steps: Tensor) -> Outcome:
    """Logits made step by step beside the parallel pass."""
    parallel, tolerance = parallel_pass(asked, *ids[:2], steps.dtype)
    moved = asked.moved(steps.to(parallel.dtype), parallel)
    bad = (~(moved <= tolerance)).any(0).nonzero()[:, 0].tolist()
    said = f"{steps.shape[1]} steps = one parallel pass"
    if not bad:
        return measured(largest(moved), tolerance, said)
    by_positions = asked.facts.takes_positions and not bool(moved.isnan().any())
    without = _logits(asked, ids, positions=False) if by_positions else None
    evidence = {
        "step": bad[0],
        "places": f"{steps.shape[1]} were decoded",
        "one_position": _stand_still(asked, ids, tolerance),
        "agree_without_positions": without is not None
        and largest(asked.moved(without, parallel)) <= tolerance,
    }
    causes: tuple[Cause, ...] = (ONE_POSITION, POSITIONS_DIFFER, SOURCE_PADS, ROWS_EXCHANGED)
    causes += (DIFFER_FROM_THE_SECOND, DIFFER_LATER, DIFFER)
    failure = measured(largest(moved), tolerance, said, *causes, **evidence)

    def slip_of(pair: Ids) -> Slip | None:
        """The first step of a pair whose logits are not those of the parallel pass."""
        moved = asked.moved(_logits(asked, pair), asked.ask(*pair[:2]))[0]
        wrong = (~(moved <= tolerance)).nonzero()[:, 0].tolist()
        if not wrong:
            return None
        step, by = wrong[0], float(moved[wrong[0]])
        source = source_of(asked, pair)
        target = f"{'tgt_in' if source else 'ids'} {pair.tgt_in[0].tolist()}"
        text = ", ".join(filter(None, (source, target)))
        return Slip(step, by, f"{text}: step {step} gives logits that differ by {by:.2g}")

    return with_example(asked, ids, failure, slip_of)


def _logits(asked: Asked, ids: Ids, positions: bool = True) -> Tensor:
    made = steps_of(asked, ids, positions)
    assert isinstance(made, Tensor)
    return made.to(asked.logits.dtype)


def _stand_still(asked: Asked, ids: Ids, tolerance: float) -> bool:
    """Whether a repeated id gives the same logits at each step, and others in the parallel pass."""
    repeated = Ids(ids.src, ids.tgt_in[:, -1:].expand_as(ids.tgt_in))
    answers = _logits(asked, repeated), asked.ask(*repeated)
    at_steps, at_once = (largest(apart(x, x[:, :1])) for x in answers)
    return at_steps <= tolerance < at_once
