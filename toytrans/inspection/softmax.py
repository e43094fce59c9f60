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
    yield empty_rows(inspected)
    for name, row, query in _instructive_rows(inspected):
        yield softmax_row(inspected, name, row, query)


def empty_rows(inspected: InspectedBatch) -> Table:
    """Table 7: queries without a visible key, and what each policy makes of one."""
    empty = {name: ~inspected.full_mask(name).any(-1) for name in ATTENTIONS}  # (B, Tq)
    listed = [
        f"{ATTENTIONS[name].lower()}, pair {row + 1}: {_places(places)}"
        for name, rows in empty.items()
        for row, places in enumerate(each.nonzero()[:, 0].tolist() for each in rows)
        if places
    ]
    if listed:
        name = next(name for name, rows in empty.items() if rows.any())
        row, query = empty[name].nonzero()[-1].tolist()
        context, which = inspected.calls[name].context, "one of them"
    else:
        name, which = "encoder_self", "suppose one were masked"
        src = inspected.batch.src
        row, query = int((~padding_mask(src)).sum(1).argmax()), src.shape[1] - 1
        context = _without_keys(inspected, row, query)
    call, place = inspected.calls[name], (row, 0, query)
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
        legend=f"weights of that query over its keys; {_where(inspected)}",
        notes=(
            f"In this batch: {'; '.join(listed) or 'none'}.",
            f"-inf gives NaN. The lowest finite number ({number(float(lowest.min()))}) gives the "
            f"mean of all values, {number(float(on_pads), DIGITS)} of it over pads. Zeroing gives "
            "zeros.",
        ),
    )


def _without_keys(inspected: InspectedBatch, row: int, query: int) -> AttentionContext:
    """The context of encoder self-attention with every key of one query masked."""
    call = inspected.calls["encoder_self"]
    mask = inspected.full_mask("encoder_self")[:, None].clone()  # (B, 1, S, S)
    mask[row, 0, query] = False
    return AttentionContext.of(mask, call.context.distances, call.x.dtype)


def _instructive_rows(inspected: InspectedBatch) -> Iterator[tuple[str, int, int]]:
    """(attention, pair, query) to show: a decoder query with a past, a future and pads if possible.

    If no target has pads but a source has, a query of cross-attention follows.
    """
    target = padding_mask(inspected.batch.tgt_in).sum(1)  # (B,)
    source_pads = (~padding_mask(inspected.batch.src)).sum(1)
    width = inspected.batch.tgt_in.shape[1]
    # pads first, but a lone BOS has no future
    row = max(range(len(target)), key=lambda r: (target[r] > 1, width - int(target[r])))
    yield "decoder_self", row, max(0, (int(target[row]) - 1) // 2)
    if int(target[row]) == width and source_pads.any():
        row = int(source_pads.argmax())
        yield "cross", row, max(0, (int(target[row]) - 1) // 2)


def softmax_row(inspected: InspectedBatch, name: str, row: int, query: int) -> Table:
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
            total = f"| {number(float(values.sum()), DIGITS)}"
            rows.append((prefix + title, [*numbers(values, DIGITS), total]))
    queries, keys = inspected.tokens(name, row)
    (allowed,) = mask_cells(inspected.full_mask(name)[row, [query]])
    half = float(torch.tensor(-1e9).half())
    return Table(
        "8",
        f"Softmax of one row: {ATTENTIONS[name].lower()}, pair {row + 1}, query {queries[query]} "
        f"(place {query})",
        [*keys, "| sum"],
        [("may attend", [*allowed, "|"]), *rows],
        shape=f"{shape_of(masked.weights.shape)}, one row; {_where(inspected)}",
        legend=f"scaled = q k^T x {number(call.module.scale, DIGITS)} (heads are "
        f"{masked.q.shape[-1]} wide); exp of x - the largest x; weight = exp / sum",
        notes=(
            _leak(inspected, name, row, query, "Without", unmasked.weights[place]),
            _leak(inspected, name, row, query, "With", masked.weights[place]),
            "-1e9 does not fit into float16, whose lowest number is "
            f"{number(torch.finfo(torch.float16).min, 0)}: it becomes {number(half)} there.",
        ),
    )


def _leak(
    inspected: InspectedBatch, name: str, row: int, query: int, version: str, weights: Tensor
) -> str:
    """How much of one query's weights (Tk,) is on pads and on the future."""
    pads = ~padding_mask(inspected.ids(name)[1][row])
    text = f"{version} the mask {number(float(weights[pads].sum()), DIGITS)} of the weight is on "
    if name != "decoder_self":
        return f"{text}pads."
    later = weights[query + 1 :][~pads[query + 1 :]].sum()
    return f"{text}pads and {number(float(later), DIGITS)} on later tokens."


def _where(inspected: InspectedBatch) -> str:
    return f"layer 1, head 1, {inspected.weights}"


def _places(places: list[int]) -> str:
    """Places as text, for example "places 1 to 3, 5"."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    return f"place{'' if len(places) == 1 else 's'} {', '.join(texts)}"
