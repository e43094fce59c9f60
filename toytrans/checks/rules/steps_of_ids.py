"""Steps: ids that are decoded are those that one parallel pass ranks first."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.asked import Asked
from toytrans.checks.common_causes import EXCEPTION
from toytrans.checks.ids import Ids
from toytrans.checks.lively import lively_weights, varies
from toytrans.checks.numbers import apart, largest
from toytrans.checks.outcome import (
    Evidence,
    Judged,
    Outcome,
    does_not_apply,
    measured,
    unsure,
)
from toytrans.checks.rules.steps import (
    ROWS_EXCHANGED,
    SOURCE_PADS,
    STEPS,
    Slip,
    decodings,
    parallel_pass,
    source_of,
    steps_of,
    with_example,
    zero_as_it_came,
)
from toytrans.checks.torch_modes import zeroed
from toytrans.errors import UserError

# Ids -----------------------------------------------------------------------------------------


def starts_otherwise(evidence: Evidence) -> bool:
    """Whether decoding is greedy behind another id than the start."""
    return evidence.get("other_start") is not None


def repeats_one_id(evidence: Evidence) -> bool:
    """Whether each row repeats its first id, which is right, and the pass ranks others later."""
    return bool(evidence.get("repeats"))


OTHER_START = STEPS.cause(
    "other_start",
    when="ids are decoded greedily behind another id than the start",
    words="decoding begins with id {other_start}, and behind it takes what the parallel pass ranks "
    "first; targets begin with {start}",
    remedy="begin with the id that targets begin with in training",
    fits=starts_otherwise,
)
ONE_ID = STEPS.cause(
    "one_id",
    when="each row of ids that were decoded repeats its first id, and the parallel pass ranks "
    "others later",
    words="{lively}decoding repeats the first id of each row, where the parallel pass over the "
    "same past ranks others, by {by:.2g}",
    remedy="is the newest output read at each step, logits[:, -1], and is the newest id handed "
    "over?",
    fits=repeats_one_id,
)
NOT_GREEDY = STEPS.cause(
    "not_greedy",
    when="an id was decoded that the parallel pass over the same past does not rank first",
    words="{lively}decoding takes ids that the parallel pass over the same past does not rank "
    "first, by {by:.2g} (first at step {step}{also})",
    remedy="the steps see something else than the pass, or do not decode greedily",
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
HARDLY_VARY = STEPS.doubt(
    "hardly_vary",
    when="ids that were decoded are few different ones, or the same for all sources",
    words="{lively}the ids that were decoded hardly vary, or are the same for all sources, so they "
    "prove nothing",
    remedy="give a generate that gives logits, (src, tgt_in) -> (B, T, V), or a trained model",
)


STEPS_BEHIND_A_START = 4
"""Steps that are asked for to see whether decoding is greedy behind another id than the start."""


@dataclass(frozen=True)
class Decoded:
    """Ids that were decoded. whole (B, L): with those that decoding began with; ids (B, N): behind
    them; live (B, N): up to the end; behind (B, N): by how much the pass ranks another id higher.
    """

    whole: Tensor
    ids: Tensor
    live: Tensor
    behind: Tensor

    @property
    def by(self) -> float:
        """The largest of the live ones."""
        return largest(self.behind[self.live])


def decoded_beside_pass(
    asked: Asked, src: Tensor, whole: Tensor, first: int
) -> tuple[Decoded, float]:
    """Ids (B, L), of which those from a place on were decoded, beside the parallel pass, and how
    far rounding may take them from it. Where a row lacks an end, the first of the pads at its end
    may stand for it."""
    facts, ids = asked.facts, whole[:, first:]
    end, pads_behind = facts.eos_id, (ids == facts.pad_id).flip(1).cumprod(1).flip(1)
    ended, live = ids, pads_behind == 0
    if end is not None:
        lost = (pads_behind.cumsum(1) == 1) & ~(ids == end).any(1, keepdim=True)
        ended = ids.masked_fill(lost, end)
        live = ((ended == end).cumsum(1) - (ended == end).long()) == 0
    if not bool(live.any()):
        raise Judged(unsure(NOTHING_DECODED))
    logits, near = parallel_pass(asked, src, whole, whole.dtype)
    logits = logits[:, first - 1 : -1]
    best = logits.amax(-1)
    behind = [apart(best, logits.gather(-1, x[..., None])[..., 0]) for x in (ids, ended)]
    return Decoded(whole, ids, live, torch.minimum(*behind)), near


def with_start(asked: Asked, made: Tensor) -> tuple[Tensor, int]:
    """Ids with the start in front, and how many of them decoding began with."""
    facts = asked.facts
    if not facts.has_source:
        return made, 2
    start = facts.start_id if facts.decoding_start is None else facts.decoding_start
    if start is None:
        raise Judged(unsure(START_UNKNOWN))
    if bool((made[:, :1] == start).all()):
        return made, 1
    return F.pad(made, (1, 0), value=start), 1


@STEPS.part("ids", on="both ends")
@torch.no_grad()
def greedily(asked: Asked) -> Outcome:
    """Ids that a function decodes from the sources are compared with the parallel pass over the ids
    before each: it must rank them first. Ids that hardly vary prove nothing."""
    outcomes = []
    for ids, made in decodings(asked):
        if not isinstance(made, Tensor) or made.is_floating_point():
            return does_not_apply("decoding gives no ids alone")
        with zeroed(zero_as_it_came(asked)):
            outcomes.append(judged_ids(asked, ids, made))
    counting = max(outcomes, key=lambda outcome: outcome.weight)
    asked.shared["ids fail"] = counting.verdict == "FAIL"
    return counting


def judged_ids(asked: Asked, ids: Ids, made: Tensor, lively: str = "") -> Outcome:
    """Whether each id decoded is the best of the parallel pass over those before it."""
    whole, first = with_start(asked, made)
    decoded, near = decoded_beside_pass(asked, ids.src, whole, first)
    if decoded.by <= near:
        if not varies(decoded.ids, decoded.live, asked.facts.has_source):
            return unsure(HARDLY_VARY, give=("generate",), lively=lively)
        count = int(decoded.live.sum())
        said = f"{lively}{count} ids decoded are the best of the parallel pass"
        return measured(decoded.by, near, said)
    wrong = (decoded.live & ~(decoded.behind <= near)).any(0).nonzero()[:, 0].tolist()
    rows = zip(decoded.ids, decoded.live, strict=True)
    live = [row[is_live].unique() for row, is_live in rows if int(is_live.sum()) > 2]
    evidence = {
        "by": decoded.by,
        "step": wrong[0],
        "lively": lively,
        "start": int(whole[0, 0]),
        "other_start": _other_start(asked, ids, made, near),
        "repeats": bool(live) and all(len(each) == 1 for each in live) and wrong[0] > 0,
    }
    causes = (OTHER_START, ONE_ID, SOURCE_PADS, ROWS_EXCHANGED, NOT_GREEDY)
    failure = measured(decoded.by, near, "", *causes, **evidence)
    prompts = Ids(ids.src, ids.tgt_in[:, :2])
    return with_example(asked, prompts, failure, lambda pair: _slip_in_ids(asked, pair, near))


def _other_start(asked: Asked, ids: Ids, made: Tensor, near: float) -> int | None:
    """The id with which all rows begin, where it is not the start and decoding is greedy behind
    it. Each step is asked for by itself, since such an id may be closed as a pad is."""
    start = asked.facts.start_id
    if not asked.facts.has_source or len(made[:, 0].unique()) > 1 or made[0, 0] == start:
        return None
    for place in range(1, min(made.shape[1], STEPS_BEHIND_A_START)):
        logits = asked.ask(ids.src, made[:, :place])[:, -1]
        chosen = logits.gather(-1, made[:, place, None])[:, 0]
        if not largest(apart(logits.amax(-1), chosen)) <= near:
            return None
    return int(made[0, 0])


def _slip_in_ids(asked: Asked, pair: Ids, near: float) -> Slip | None:
    made = steps_of(asked, pair)
    assert isinstance(made, Tensor)
    whole, first = with_start(asked, made)
    decoded, _ = decoded_beside_pass(asked, pair.src, whole, first)
    wrong = (decoded.live & ~(decoded.behind <= near))[0].nonzero()[:, 0].tolist()
    if not wrong:
        return None
    step, by = wrong[0], float(decoded.behind[0, wrong[0]])
    place = first + step
    best = int(asked.ask(pair.src, whole[:, :place])[0, -1].argmax())
    past, source = whole[0, :place].tolist(), source_of(asked, pair)
    text = f"{', '.join(filter(None, (source, f'ids {past}')))}: step {step} takes id "
    text += f"{int(whole[0, place])}, and the pass ranks {best} first, by {by:.2g}"
    return Slip(step, by, text)


# Ids with other weights ----------------------------------------------------------------------

SAME_WHATEVER_WEIGHTS = STEPS.doubt(
    "same_whatever_weights",
    when="generate gives the same ids where the model has other weights, and they hardly vary",
    words="generate gives the same ids whatever weights the model has",
    remedy="does it run the model that is given?",
    counts=True,
)
OTHER_WEIGHTS_NOT_SEEN = STEPS.doubt(
    "other_weights_not_seen",
    when="generate gives the same ids where the model has other weights, and they vary",
    words="generate gives the same ids where the model has other weights, so it runs other weights "
    "than those of the model that is given",
)

LIVELY = "with other weights "
SEEDS = (1, 2, 3)
"""Of weights that are tried until ids vary."""


@STEPS.part("with other weights")
@torch.no_grad()
def with_other_weights(asked: Asked) -> Outcome:
    """Ids that a function decodes are asked for again while the model has other weights, under
    which they vary: fresh ones often rank one id first at every step, so that a wrong cache changes
    nothing. Afterwards the model has its own again."""
    original = asked.model.original
    if asked.model.generate is None or original.module is None or asked.model is original:
        return does_not_apply("only ids that are decoded by the weights of a module")
    ids, before = decodings(asked)[0]
    if not isinstance(before, Tensor) or before.is_floating_point():
        return does_not_apply("logits and scores are compared with the weights as they are")
    if asked.shared.get("ids fail"):
        return does_not_apply("the ids are wrong with the weights as they are")
    outcome = does_not_apply("the model cannot be copied")
    for seed in SEEDS:
        with lively_weights(original, seed):
            copied = original.copied(asked.model.precision)
            if copied is None:
                return outcome
            try:
                made = steps_of(asked, ids)
                assert isinstance(made, Tensor)
                if torch.equal(made, before):
                    return _unmoved(asked, before)
                outcome = judged_ids(Asked(copied, asked.setting), ids, made, LIVELY)
            except UserError as error:
                return unsure(EXCEPTION, error=f"{error}, while it had other weights")
        if outcome.verdict != "cannot judge":
            break
    return outcome


def _unmoved(asked: Asked, ids: Tensor) -> Outcome:
    """The outcome where other weights change no id."""
    whole, first = with_start(asked, ids)
    live = torch.ones_like(whole[:, first:], dtype=torch.bool)
    does_vary = varies(whole[:, first:], live, asked.facts.has_source)
    if does_vary:
        return unsure(OTHER_WEIGHTS_NOT_SEEN)
    return unsure(SAME_WHATEVER_WEIGHTS, give=("generate",))
