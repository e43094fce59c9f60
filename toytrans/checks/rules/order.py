"""Order: two neighbouring symbols in another order move some output."""

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids, wider
from toytrans.checks.model import RAISED
from toytrans.checks.numbers import largest, spread_out
from toytrans.checks.outcome import Evidence, Outcome, does_not_apply, measured, passes, unsure
from toytrans.checks.registry import CAUSAL, WITH_SOURCE, Check
from toytrans.checks.softmaxes import module_of, softmaxes_seen, weights_over

ORDER = Check(
    "order",
    "the order of source and target is seen",
    how="neighbours swapped, also far behind in a long source; equal tokens in one target",
    follows=("rows", "scale", "reach", "weights", "source", "target"),
)

POSITIONS = "are positions added to the embeddings{at_every_place}?"


def something_is_added(evidence: Evidence) -> bool:
    """Whether something that is no mask is added to the scores of the side's attention."""
    return evidence.get("places_in") == "scores"


def something_is_multiplied(evidence: Evidence) -> bool:
    """Whether tensors multiply queries or keys of the side's attention, as rotary positions do."""
    return evidence.get("places_in") == "queries"


NO_ORDER = "no swap of neighbours in {named} changes anything: the {half} does not see order"

TURNED_ELSEWHERE = ORDER.cause(
    "turned_elsewhere",
    when="no swap moves an output, and queries and keys are multiplied with tensors, as rotary "
    "positions are",
    words=f"{{where}}{NO_ORDER}, though tensors multiply its queries and keys",
    remedy="if those are rotary positions, are they turned along the axis of places, x.shape[-2] "
    "of (B, H, T, d), and by another angle at each place?",
    fits=something_is_multiplied,
)
BIAS_ALIKE = ORDER.cause(
    "bias_alike",
    when="no swap moves an output, and a bias is added to the scores",
    words=f"{{where}}{NO_ORDER}, though a bias is added to its scores",
    remedy="does the bias hold another number for each distance of query and key?",
    fits=something_is_added,
)
SOURCE_UNSEEN = ORDER.cause(
    "source_unseen",
    when="no swap of neighbours in a source moves an output",
    words="no swap of neighbours in a source{behind} changes anything: the encoder does not see "
    "order",
    remedy=POSITIONS,
)
UNSEEN = ORDER.cause(
    "unseen",
    when="no swap of neighbours in the ids of a single stream moves an output elsewhere",
    words="no swap of neighbours changes an output elsewhere: order is not seen",
    remedy=POSITIONS,
)
HALF_PRECISION = ORDER.doubt(
    "half_precision",
    when="the model is asked in half precision",
    words="needs fp32 or fp64: half precision rounds as much as a swap may move",
)
NO_NEIGHBOURS = ORDER.doubt(
    "no_neighbours",
    when="no two neighbouring symbols of the batch differ",
    words="needs sequences with two different neighbouring symbols",
)
BAG_OF_TOKENS = ORDER.doubt(
    "bag_of_tokens",
    when="no swap of neighbours in the ids of a decoder without attention moves an output "
    "elsewhere",
    words="no output changes when two earlier tokens are swapped: the decoder knows which tokens "
    "came before, and not their order, which may be meant",
)

TARGET_UNSEEN = ORDER.cause(
    "target_unseen",
    when="no swap of earlier tokens of a target moves a later output, in a decoder with "
    "self-attention",
    words="no swap of neighbours in a target moves a later output: the decoder does not see order",
    remedy="are positions added to the target's embeddings, or do they reach its queries and keys?",
)
EQUAL_WEIGHTS = ORDER.doubt(
    "equal_weights",
    when="equal tokens at several places of a target get equal weight in the first self-attention",
    words="{where}equal tokens at places {places} of a target get equal weight from every query: "
    "positions reach no attention there, so order is told by the triangle alone",
    remedy="are rotary positions turned along the axis of places? A decoder without positions may "
    "be meant",
    counts=True,
)

MOST_SWAPS = 12


@ORDER.part("neighbours swapped", on="both ends")
def neighbours_swapped(asked: Asked) -> Outcome:
    """Two different neighbouring symbols of the longest row are swapped, each pair at a time; of a
    long source those in the second half. Some output must move, other than those at swapped
    places."""
    asked.require_changing_logits()
    facts, far = asked.facts, not asked.is_short
    if asked.dtype not in tolerances.LOGITS:
        return unsure(HALF_PRECISION)
    if far and (asked.dtype != torch.float64 or not facts.has_source):
        return does_not_apply("rounding may move logits as far as such a swap, but in fp64")
    side, real = (asked.src, asked.real_source) if facts.has_source else (asked.tgt_in, asked.real)
    row, target = (int(inside.sum(1).argmax()) for inside in (real, asked.real))
    ids, first = side[row], int(real[row].sum()) // 2 if far else 0
    places, swapped = _swaps(asked, ids, real[row], first)
    if not len(places):
        return unsure(NO_NEIGHBOURS)
    at = torch.arange(asked.tgt_in.shape[1])
    elsewhere, cause = asked.real[target].expand(len(places), -1), SOURCE_UNSEEN
    handed = Ids(swapped, asked.tgt_in[target].expand(len(swapped), -1))
    if not facts.has_source:
        handed, cause = Ids(asked.src[:1].expand(len(swapped), -1), swapped), UNSEEN
        elsewhere = elsewhere & (at != places) & (at != places + 1)
    must_repeat = F.pad(torch.where(elsewhere, at, -1), (0, 0, 1, 0), value=-1)
    change = Change("", handed, must_repeat, (cause,), in_one_call=True)
    by = largest(change.moved(asked))
    if facts.kind == "decoder" and by <= asked.tolerance and _first_map(asked, asked.ids) is None:
        return unsure(BAG_OF_TOKENS)
    said = f"{len(places)} swaps of neighbours: outputs move"
    told = {"behind": f" behind place {first}" * far, "at_every_place": ", at every place" * far}
    causes = (TURNED_ELSEWHERE, BIAS_ALIKE, cause)
    if not far and by <= asked.tolerance:
        told |= _positions_in_attention(asked, of_source=facts.has_source)
    return measured(by, asked.tolerance, said, *causes, must_change=True, **told)


def _swaps(asked: Asked, ids: Tensor, real: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Places (N, 1) from some place on at which two different neighbouring symbols begin, some of
    them if there are many, and the ids (1 + N, L): as they are, and with each pair swapped."""
    symbol = torch.isin(ids, asked.symbols) & real & (torch.arange(len(ids)) >= first)
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()
    places = places[spread_out(len(places), MOST_SWAPS)]
    swapped = ids.repeat(len(places) + 1, 1)
    for number, place in enumerate(places[:, 0].tolist(), 1):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    return places, swapped


def _positions_in_attention(asked: Asked, of_source: bool) -> dict[str, str]:
    """Whether the first self-attention of a side adds a bias to its scores, or multiplies queries
    and keys with tensors, as evidence."""
    (src, tgt_in, _), model = asked.pair(5, 9), asked.model
    # with pads, so that a mask is none that adds nothing, as a bias of zeros would
    pair = Ids(wider(src, 3, asked.facts.source_pad), wider(tgt_in, 2, asked.facts.pad_id))
    length = (pair.src if of_source else pair.tgt_in).shape[1]
    told = {"places_in": "", "where": "", "half": "encoder" if of_source else "decoder"}
    told["named"] = "a source" if of_source else "a target" if asked.facts.has_source else "ids"
    with contextlib.suppress(*RAISED):  # some models do not run under a dispatch mode
        handed = model.placed(*pair[:2])
        with softmaxes_seen(model.module, *handed) as seen, model.without_dropout():
            model.answer(*handed)
        first = next(x for x in seen if x.is_attention and x.shape == (length, length))
        is_turned = first.scores.inner > 0 and not first.scores.plain
        told["places_in"] = "scores" if first.scores.biased else "queries" if is_turned else ""
        name = module_of(model.module, first)
        told["where"] = f"{name}: " if name else ""
    return told


# The target ----------------------------------------------------------------------------------


@ORDER.part("the target's neighbours", kinds=WITH_SOURCE)
def the_targets_neighbours(asked: Asked) -> Outcome:
    """Two neighbouring symbols of the longest target are swapped, each pair at a time. Some later
    output must move, where the decoder has self-attention: other decoders may count tokens."""
    asked.require_changing_logits()
    if asked.dtype not in tolerances.LOGITS:
        return unsure(HALF_PRECISION)
    if _first_map(asked, asked.ids) is None:
        return does_not_apply("the decoder is seen to have no self-attention")
    row = int(asked.real.sum(1).argmax())
    ids, real = asked.tgt_in[row], asked.real[row]
    places, swapped = _swaps(asked, ids, real)
    if not len(places):
        return unsure(NO_NEIGHBOURS)
    at = torch.arange(len(ids))
    later = F.pad(torch.where(real & (at > places + 1), at, -1), (0, 0, 1, 0), value=-1)
    handed = Ids(asked.src[row].expand(len(swapped), -1), swapped)
    change = Change("", handed, later, (TARGET_UNSEEN,), in_one_call=True)
    said = f"{len(places)} swaps of neighbours in a target: later outputs move"
    by, causes = largest(change.moved(asked)), (TURNED_ELSEWHERE, BIAS_ALIKE, TARGET_UNSEEN)
    told = _positions_in_attention(asked, of_source=False) if by <= asked.tolerance else {}
    return measured(by, asked.tolerance, said, *causes, must_change=True, **told)


@ORDER.part("equal tokens", kinds=CAUSAL)
def equal_tokens(asked: Asked) -> Outcome:
    """One token stands at two places of a target. In the first self-attention of the decoder they
    get weights that differ, because they stand at different places."""
    src, tgt_in, _ = asked.pair(5, 9)
    if tgt_in.shape[1] < 6:
        return does_not_apply("a target of this size has no room for equal tokens")
    first, second = 2, 4
    tgt_in[:, second] = tgt_in[:, first]
    seen = _first_map(asked, Ids(src, tgt_in))
    if seen is None:
        return does_not_apply("the decoder is seen to have no self-attention")
    where, weights = seen
    a, b = weights[..., second + 1 :, first], weights[..., second + 1 :, second]
    by, near = largest((a - b).nan_to_num()), tolerances.EQUAL_WEIGHTS * largest(a.nan_to_num())
    if by <= near:
        where = f"{where}: " if where else ""
        return unsure(EQUAL_WEIGHTS, where=where, places=f"{first} and {second}")
    return passes("equal tokens at two places of a target get different weights")


def _first_map(asked: Asked, ids: Ids) -> tuple[str, Tensor] | None:
    """Where the first self-attention of the target is, and its weights (..., T, T); None where none
    is seen."""
    model = asked.model
    src, tgt_in = model.placed(*ids[:2])
    with contextlib.suppress(*RAISED):  # some models do not run under a dispatch mode
        with softmaxes_seen(model.module, src, tgt_in) as seen, model.without_dropout():
            model.answer(src, tgt_in)
        length = tgt_in.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=tgt_in.device).triu(1)
        for softmax in seen:
            weights = weights_over(softmax, length, length)
            if weights is not None and not bool(weights[..., future].nan_to_num().any()):
                return module_of(model.module, softmax), weights.cpu()
    return None
