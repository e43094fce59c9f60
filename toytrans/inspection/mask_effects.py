"""What masks do to the numbers: a query without a visible key, and the softmax of one row with its
mask and without."""

import math

import torch

from toytrans.inspection.panels import mask_cells, number, numbers, panel, shape_of
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.model.attention import AttentionContext
from toytrans.model.masks import padding_mask
from toytrans.table import Table


def rows_without_keys(inspected: InspectedBatch) -> Table:
    """Table 7: queries without a visible key, and what each policy makes of one: the last query of
    encoder self-attention in the pair with the most pads."""
    listed = []
    for name, title in ATTENTIONS.items():
        for row, closed in enumerate(~inspected.full_mask(name).any(-1)):
            if places := ", ".join(map(str, closed.nonzero()[:, 0].tolist())):
                listed.append(f"{title.lower()}, pair {row + 1}: places {places}")
    src, call = inspected.batch.src, inspected.calls["encoder_self"]
    row, query = int((~padding_mask(src)).sum(1).argmax()), src.shape[1] - 1
    mask = inspected.full_mask("encoder_self")[:, None].clone()  # (B, 1, S, S)
    mask[row, 0, query] = False
    positions, distances = call.context.positions, call.context.distances
    context = AttentionContext.of(mask, call.x.dtype, positions, distances)
    place = row, 0, query
    closed = call.intermediates(context)
    scores = call.unmasked().masked[place]  # (Tk,), finite
    lowest = closed.masked[place]
    uniform = lowest.softmax(-1)
    keys = inspected.names(src[row])
    on_pads = number(uniform[~padding_mask(src[row])].sum(), 3)
    return panel(
        "7",
        "Queries without a visible key",
        keys,
        [
            ("scores", numbers(scores)),
            ("-inf, softmax", numbers((scores - math.inf).softmax(-1), 3)),
            ("lowest, softmax", numbers(uniform, 3)),
            ("zeroed (here)", numbers(closed.weights[place], 3)),
        ],
        shape=f"were no key visible to query {keys[query]}, place {query}, of pair {row + 1}",
        legend=f"weights of that query over its keys; layer 1, head 1, {inspected.weights}",
        notes=(
            f"In this batch: {'; '.join(listed) or 'none'}.",
            f"-inf gives NaN. The lowest finite number ({number(lowest.min())}) gives the mean of "
            f"all values, {on_pads} of it over pads. Zeroing gives zeros.",
        ),
    )


def softmax_of_a_row(inspected: InspectedBatch) -> Table:
    """Table 8: from the raw product to the weight of head 1, with the mask and without it, for a
    query of the decoder with a past, a future and pads if possible."""
    tgt_in, call = inspected.batch.tgt_in, inspected.calls["decoder_self"]
    width, real = tgt_in.shape[1], padding_mask(tgt_in)
    lengths = real.sum(1).tolist()
    # pads first, but a lone BOS has no future
    row = max(range(len(lengths)), key=lambda r: (lengths[r] > 1, width - lengths[r]))
    query = (lengths[row] - 1) // 2
    place, names = (row, 0, query), inspected.names(tgt_in[row])
    future = torch.arange(width) > query
    masked, unmasked = call.intermediates(), call.unmasked()
    steps = [("q k^T", masked.q[place] @ masked.k[row, 0].T), ("scaled", masked.scores[place])]
    if call.module.cap:
        steps.append(("capped", masked.capped[place]))
    if call.module.position_bias(call.context) is not None:
        steps.append(("+ bias", unmasked.masked[place]))
    steps.append(("+ mask", masked.masked[place]))
    rows = [(title, [*numbers(values), "|"]) for title, values in steps]
    for prefix, version in (("", masked), ("unmasked ", unmasked)):
        scores = version.masked[place]
        sums = {"exp": (scores - scores.max()).exp(), "weight": version.weights[place]}
        for title, values in sums.items():
            total = f"| {number(values.sum(), 3)}"
            rows.append((prefix + title, [*numbers(values, 3), total]))
    (allowed,) = mask_cells(inspected.full_mask("decoder_self")[row, [query]])
    leaks = []
    for how, each in (("Without", unmasked), ("With", masked)):
        weights = each.weights[place]
        pads, later = (number(weights[x].sum(), 3) for x in (~real[row], future & real[row]))
        leaks.append(f"{how} the mask {pads} of the weight is on pads and {later} on later tokens.")
    return panel(
        "8",
        f"Softmax of one row: decoder self-attention, pair {row + 1}, query {names[query]} "
        f"(place {query})",
        [*names, "| sum"],
        [("may attend", [*allowed, "|"]), *rows],
        shape=f"{shape_of(masked.weights.shape)}, one row; layer 1, head 1, {inspected.weights}",
        legend=f"scaled = q k^T x {number(call.module.scale, 3)} (heads are "
        f"{masked.q.shape[-1]} wide); exp of x - the largest x; weight = exp / sum",
        notes=(
            *leaks,
            "-1e9 does not fit into float16, whose lowest number is "
            f"{number(torch.finfo(torch.float16).min, 0)}: it becomes -inf there.",
        ),
    )
