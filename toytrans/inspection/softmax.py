"""What a mask does to the numbers: queries without a visible key, and the softmax of one row."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.inspection.table import Table, mask_cells, number, numbers, shape_of
from toytrans.model.context import AttentionContext
from toytrans.model.masks import padding_mask

DIGITS = 3


def tables(inspected: InspectedBatch) -> Iterator[Table]:
    """Tables 7 and 8, for the whole batch."""
    yield _empty_rows(inspected)
    target = padding_mask(inspected.batch.tgt_in).sum(1)  # (B,)
    source_pads = (~padding_mask(inspected.batch.src)).sum(1)
    width = inspected.batch.tgt_in.shape[1]
    # a query of the decoder with a past, a future and pads if possible: a lone BOS has no future
    row = max(range(len(target)), key=lambda r: (target[r] > 1, width - int(target[r])))
    yield _softmax_row(inspected, "decoder_self", row, (int(target[row]) - 1) // 2)
    if int(target[row]) == width and source_pads.any():
        row = int(source_pads.argmax())
        yield _softmax_row(inspected, "cross", row, (int(target[row]) - 1) // 2)


def _empty_rows(inspected: InspectedBatch) -> Table:
    """Table 7: queries without a visible key, and what each policy makes of one."""
    empty, listed = [], []
    for name in ATTENTIONS:
        for row, closed in enumerate(~inspected.full_mask(name).any(-1)):
            if places := closed.nonzero()[:, 0].tolist():
                empty.append((name, row, places[-1]))
                texts = ", ".join(map(str, places))
                listed.append(f"{ATTENTIONS[name].lower()}, pair {row + 1}: places {texts}")
    if empty:
        which, (name, row, query) = "one of them", empty[0]
        call = inspected.calls[name]
        context = call.context
    else:  # the last query of encoder self-attention, in the pair with the most pads
        which, name, src = "suppose one were masked", "encoder_self", inspected.batch.src
        row, query = int((~padding_mask(src)).sum(1).argmax()), src.shape[1] - 1
        call = inspected.calls[name]
        mask = inspected.full_mask(name)[:, None].clone()  # (B, 1, S, S)
        mask[row, 0, query] = False
        context = AttentionContext.of(mask, call.context.distances, call.x.dtype)
    place = row, 0, query
    closed = call.intermediates(context)
    scores = call.unmasked().masked[place]  # (Tk,), finite
    lowest = closed.masked[place]
    uniform = lowest.softmax(-1)
    queries, keys = inspected.tokens(name, row)
    on_pads = uniform[~padding_mask(inspected.ids(name)[1][row])].sum()
    return Table(
        "7",
        "Queries without a visible key",
        keys,
        [
            ("scores", numbers(scores)),
            ("-inf, softmax", numbers((scores - math.inf).softmax(-1), DIGITS)),
            ("lowest, softmax", numbers(uniform, DIGITS)),
            ("zeroed (here)", numbers(closed.weights[place], DIGITS)),
        ],
        shape=f"{which}: query {queries[query]}, place {query}, of pair {row + 1}",
        legend=f"weights of that query over its keys; layer 1, head 1, {inspected.weights}",
        notes=(
            f"In this batch: {'; '.join(listed) or 'none'}.",
            f"-inf gives NaN. The lowest finite number ({number(lowest.min())}) gives the mean of "
            f"all values, {number(on_pads, DIGITS)} of it over pads. Zeroing gives zeros.",
        ),
    )


def _softmax_row(inspected: InspectedBatch, name: str, row: int, query: int) -> Table:
    """Table 8: from the raw product to the weight of head 1, with the mask and without it."""
    call, place = inspected.calls[name], (row, 0, query)
    masked, unmasked = call.intermediates(), call.unmasked()
    steps = [("q k^T", masked.q[place] @ masked.k[row, 0].T), ("scaled", masked.scores[place])]
    if call.module.cap:
        steps.append(("capped", masked.capped[place]))
    if call.module.score_bias(call.context) is not None:
        steps.append(("+ bias", unmasked.masked[place]))
    steps.append(("+ mask", masked.masked[place]))
    rows = [(title, [*numbers(values), "|"]) for title, values in steps]
    for prefix, version in (("", masked), ("unmasked ", unmasked)):
        scores = version.masked[place]
        sums = {"exp": (scores - scores.max()).exp(), "weight": version.weights[place]}
        for title, values in sums.items():
            total = f"| {number(values.sum(), DIGITS)}"
            rows.append((prefix + title, [*numbers(values, DIGITS), total]))
    queries, keys = inspected.tokens(name, row)
    (allowed,) = mask_cells(inspected.full_mask(name)[row, [query]])
    pads = ~padding_mask(inspected.ids(name)[1][row])

    def leak(version: str, weights: Tensor) -> str:
        """How much of the query's weights (Tk,) is on pads and on the future."""
        text = f"{version} the mask {number(weights[pads].sum(), DIGITS)} of the weight is on pads"
        if name == "decoder_self":
            later = weights[query + 1 :][~pads[query + 1 :]].sum()
            text += f" and {number(later, DIGITS)} on later tokens"
        return f"{text}."

    return Table(
        "8",
        f"Softmax of one row: {ATTENTIONS[name].lower()}, pair {row + 1}, query {queries[query]} "
        f"(place {query})",
        [*keys, "| sum"],
        [("may attend", [*allowed, "|"]), *rows],
        shape=f"{shape_of(masked.weights.shape)}, one row; layer 1, head 1, {inspected.weights}",
        legend=f"scaled = q k^T x {number(call.module.scale, DIGITS)} (heads are "
        f"{masked.q.shape[-1]} wide); exp of x - the largest x; weight = exp / sum",
        notes=(
            leak("Without", unmasked.weights[place]),
            leak("With", masked.weights[place]),
            "-1e9 does not fit into float16, whose lowest number is "
            f"{number(torch.finfo(torch.float16).min, 0)}: it becomes -inf there.",
        ),
    )
