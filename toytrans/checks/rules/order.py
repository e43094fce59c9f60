"""Order: two neighbouring symbols in another order move some output."""

import torch
from torch.nn import functional as F

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import largest, spread_out
from toytrans.checks.outcome import Outcome, does_not_apply, measured, unsure
from toytrans.checks.registry import Check

ORDER = Check(
    "order",
    "the order of the source is seen",
    how="neighbours swapped, also far behind in a long source",
    limits="The order of a target is not asked for where there is a source.",
    follows=("scale", "source", "target"),
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
ONE_LAYER = ORDER.doubt(
    "one_layer",
    when="no swap of neighbours in the ids of a decoder moves an output elsewhere",
    words="no output changes when two earlier tokens are swapped: a decoder without positions "
    "counts them by its triangle from two layers on",
    remedy="give it two",
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
    if facts.kind == "decoder" and by <= asked.tolerance:
        return unsure(ONE_LAYER)
    said = f"{len(places)} swaps of neighbours: outputs move"
    where = {"behind": f" behind place {first}" * far, "at_every_place": ", at every place" * far}
    return measured(by, asked.tolerance, said, cause, must_change=True, **where)
