"""Steps: hypotheses of a beam search have the scores of a parallel pass, and the rows of a state
may be exchanged."""

import torch

from toytrans.checks.asked import Asked
from toytrans.checks.beam_scores import Hypotheses, best_fit
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Outcome, does_not_apply, fails, measured, passes, unsure
from toytrans.checks.rules.steps import STEPS, decodings, targets_of_one_length, zero_as_it_came
from toytrans.checks.rules.steps_of_ids import decoded_beside_pass, with_start
from toytrans.checks.torch_modes import zeroed

# Hypotheses ----------------------------------------------------------------------------------

WRONG_SCORES = STEPS.cause(
    "wrong_scores",
    when="the scores of some hypotheses follow from the parallel pass, and those of others do not",
    words="{wrong} of {count} hypotheses have other scores than the parallel pass gives their ids, "
    "by up to {by:.2g}",
    remedy="when beams are exchanged, are the cache, the ids and the scores exchanged alike?",
)
SCORES_UNKNOWN = STEPS.doubt(
    "scores_unknown",
    when="few scores of hypotheses are sums of log-probabilities divided by a power of the length",
    words="the scores of hypotheses are no sums of log-probabilities, divided by a power of the "
    "length, of the parallel pass",
    remedy="give a generate that gives logits, (src, tgt_in) -> (B, T, V)",
)
FEWEST_THAT_FIT = 2
"""Scores that follow from the pass, so that it is known how they are made, and others are wrong."""


@STEPS.part("hypotheses")
@torch.no_grad()
def hypotheses(asked: Asked) -> Outcome:
    """The scores of the hypotheses of a beam search, which a function may give beside their ids,
    must follow from the parallel pass: as sums of log-probabilities, divided by a power of the
    length."""
    outcomes = []
    for ids, made in decodings(asked):
        if not isinstance(made, Hypotheses):
            return does_not_apply("decoding gives no hypotheses with scores")
        with zeroed(zero_as_it_came(asked)):
            outcomes.append(_judged_hypotheses(asked, ids, made))
    return max(outcomes, key=lambda outcome: outcome.weight)


def _judged_hypotheses(asked: Asked, ids: Ids, made: Hypotheses) -> Outcome:
    """Whether the score of each hypothesis follows from the parallel pass over its ids."""
    beams = made.ids.shape[1]
    src, flat = ids.src.repeat_interleave(beams, 0), made.ids.flatten(0, 1)
    whole, first = with_start(asked, flat)
    decoded, _ = decoded_beside_pass(asked, src, whole, first)
    logits = asked.ask(src, whole)[:, first - 1 : -1].log_softmax(-1)
    each = logits.gather(-1, decoded.ids[..., None])[..., 0].double()
    is_end = decoded.ids == (-1 if asked.facts.eos_id is None else asked.facts.eos_id)
    scores, fits = made.scores.flatten().double(), []
    is_given = scores.isfinite()
    for counted in (decoded.live, decoded.live & ~is_end):
        sums = each.masked_fill(~counted, 0.0).sum(1)
        fits.append(best_fit(scores[is_given], sums[is_given], counted.sum(1)[is_given]))
    fit, count = max(fits, key=lambda fit: fit.right), int(is_given.sum())
    if fit.right < FEWEST_THAT_FIT:
        return unsure(SCORES_UNKNOWN)
    if fit.right == count:
        return passes(f"the scores of {count} hypotheses follow from the parallel pass")
    return fails(WRONG_SCORES, wrong=count - fit.right, count=count, by=largest(fit.off))


# The rows of a state -------------------------------------------------------------------------

PAST_OF_ANOTHER = STEPS.cause(
    "past_of_another",
    when="after the rows of a state were exchanged, a row goes on with another past than its own",
    words="when the beams of a source are exchanged (select), a row goes on with the past of "
    "another, and its logits differ by {by:.2g}",
    remedy="take all that is kept of the past by these rows: past = past[rows]",
)
SOURCE_OF_ANOTHER = STEPS.cause(
    "source_of_another",
    when="after sources have left a state, a row goes on with another source than its own",
    words="when sources leave a state (select), a row goes on with the source of another, and its "
    "logits differ by {by:.2g}",
    remedy="take what is kept of sources by the rows that stay",
)
BEAMS = 2


@STEPS.part("the rows of a state")
@torch.no_grad()
def the_rows_of_a_state(asked: Asked) -> Outcome:
    """A state decodes two targets of each source. Then the two are exchanged, and later each second
    source leaves; every row must go on as the parallel pass over its own source and target does."""
    ids = targets_of_one_length(asked)
    sources, length = len(ids.src), ids.tgt_in.shape[1]
    rows = BEAMS * sources
    src = ids.src.repeat_interleave(BEAMS, 0)
    pairs: list[tuple[list[int], list[int]]] = [([], asked.row(length)) for _ in range(rows)]
    targets = asked.made_of(pairs)[0].tgt_in[:, :length]
    swapped = torch.arange(rows).view(sources, BEAMS).flip(1).flatten()
    stay = torch.arange(rows).view(sources, BEAMS)[::2].flatten()
    swap_at, leave_at = length // 3, 2 * length // 3
    state = asked.model.state(asked.model.placed(ids.src)[0], length, BEAMS)
    parallel = asked.ask(src, targets)
    by = {PAST_OF_ANOTHER: 0.0, SOURCE_OF_ANOTHER: 0.0}
    for place in range(length):
        tokens = targets[swapped if place < swap_at else slice(None), place]
        wanted = parallel[:, place]
        if place == swap_at:
            state.select(*asked.model.placed(swapped))
        if place == leave_at:
            state.select(*asked.model.placed(stay))
        if place >= leave_at:
            tokens, wanted = tokens[stay], wanted[stay]
        logits = state.next_logits(*asked.model.placed(tokens)).cpu()
        if place >= swap_at:
            cause = SOURCE_OF_ANOTHER if place >= leave_at else PAST_OF_ANOTHER
            by[cause] = max(by[cause], largest(asked.moved(logits, wanted)))
    said = "rows of a state that are exchanged, and sources that leave, take their past along"
    for cause, most in by.items():
        if not most <= asked.tolerance:
            return measured(most, asked.tolerance, "", cause, by=most)
    return measured(max(by.values()), asked.tolerance, said)
