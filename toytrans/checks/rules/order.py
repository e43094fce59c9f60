"""Order: two neighbouring symbols in another order move some output."""

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED
from toytrans.checks.numbers import largest, spread_out
from toytrans.checks.outcome import Outcome, does_not_apply, measured, passes, unsure
from toytrans.checks.registry import CAUSAL, WITH_SOURCE, Check
from toytrans.checks.softmaxes import module_of, softmaxes_seen, weights_over

ORDER = Check(
    "order",
    "the order of source and target is seen",
    how="neighbours swapped, also far behind in a long source; equal tokens in one target",
    follows=("rows", "scale", "reach", "weights", "source", "target"),
)

POSITIONS = "are positions added to the embeddings{at_every_place}?"

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
    symbol = torch.isin(ids, asked.symbols) & real[row] & (torch.arange(len(ids)) >= first)
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()  # (N, 1)
    if not len(places):
        return unsure(NO_NEIGHBOURS)
    places = places[spread_out(len(places), MOST_SWAPS)]
    swapped = ids.repeat(len(places) + 1, 1)  # the ids as they are come first
    for number, place in enumerate(places[:, 0].tolist(), 1):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
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
    where = {"behind": f" behind place {first}" * far, "at_every_place": ", at every place" * far}
    return measured(by, asked.tolerance, said, cause, must_change=True, **where)


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
    symbol = torch.isin(ids, asked.symbols) & real
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()  # (N, 1)
    if not len(places):
        return unsure(NO_NEIGHBOURS)
    swapped = ids.repeat(len(places) + 1, 1)  # the ids as they are come first
    for number, place in enumerate(places[:, 0].tolist(), 1):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    at = torch.arange(len(ids))
    later = F.pad(torch.where(real & (at > places + 1), at, -1), (0, 0, 1, 0), value=-1)
    handed = Ids(asked.src[row].expand(len(swapped), -1), swapped)
    change = Change("", handed, later, (TARGET_UNSEEN,), in_one_call=True)
    said = f"{len(places)} swaps of neighbours in a target: later outputs move"
    by = largest(change.moved(asked))
    return measured(by, asked.tolerance, said, TARGET_UNSEEN, must_change=True)


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
