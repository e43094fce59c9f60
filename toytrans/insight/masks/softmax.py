"""What a mask does to the numbers: queries without a visible key, and the softmax of one row."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from toytrans.insight.capture import AttentionCall
from toytrans.insight.inspected import ATTENTIONS, InspectedBatch
from toytrans.insight.tables import Table, mask_cells, number, numbers, shape_of
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
    listed = [
        f"{ATTENTIONS[name].lower()}, pair {row + 1}: {_places(places)}"
        for name in ATTENTIONS
        for row, full in enumerate(inspected.full_mask(name))
        if (places := (~full.any(-1)).nonzero()[:, 0].tolist())
    ]
    name, row, query, context, which = _an_empty_row(inspected)
    call, place = inspected.calls[name], (row, 0, query)
    closed = call.intermediates(context)
    scores = call.unmasked().masked[place]  # (Tk,), finite
    lowest = closed.masked[place]
    minus_inf = torch.full_like(scores, -math.inf) + scores
    queries, keys = inspected.tokens(name, row)
    pads = ~padding_mask(inspected.ids(name)[1][row])
    uniform = lowest.softmax(-1)
    on_pads = number(float(uniform[pads].sum()), DIGITS)
    return Table(
        "7",
        "Queries without a visible key",
        keys,
        [
            ("scores", numbers(scores)),
            ("-inf, softmax", numbers(minus_inf.softmax(-1), DIGITS)),
            ("lowest, softmax", numbers(uniform, DIGITS)),
            ("zeroed (here)", numbers(closed.weights[place], DIGITS)),
        ],
        shape=f"{which}: query {queries[query]}, place {query}, of pair {row + 1}",
        legend=f"weights of that query over its keys; {_where(inspected)}",
        notes=(
            f"In this batch: {'; '.join(listed) or 'none'}.",
            f"-inf gives NaN. The lowest finite number ({number(float(lowest.min()))}) gives the "
            f"mean of all values, {on_pads} of it over pads. Zeroing gives zeros.",
        ),
    )


def _an_empty_row(inspected: InspectedBatch) -> tuple[str, int, int, AttentionContext, str]:
    """A query without a visible key, and its mask; a hypothetical one if the batch has none."""
    for name in ATTENTIONS:
        empty = (~inspected.full_mask(name).any(-1)).nonzero().tolist()
        if empty:
            row, query = empty[-1]
            return name, row, query, inspected.calls[name].context, "one of them"
    src = inspected.batch.src
    row, query = int((~padding_mask(src)).sum(1).argmax()), src.shape[1] - 1
    call = inspected.calls["encoder_self"]
    mask = inspected.full_mask("encoder_self")[:, None].clone()  # (B, 1, S, S)
    mask[row, 0, query] = False
    context = AttentionContext.of(mask, call.context.distances, call.x.dtype)
    return "encoder_self", row, query, context, "suppose one were masked"


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
    """Table 8: from the raw product to the weight, with the mask and without it."""
    call = inspected.calls[name]
    queries, keys = inspected.tokens(name, row)
    (allowed,) = mask_cells(inspected.full_mask(name)[row, [query]])
    width = inspected.model.config.d_model // inspected.model.config.n_heads
    half = float(torch.tensor(-1e9).half())
    return Table(
        "8",
        f"Softmax of one row: {ATTENTIONS[name].lower()}, pair {row + 1}, query {queries[query]} "
        f"(place {query})",
        [*keys, "| sum"],
        [("may attend", [*allowed, "|"]), *_steps(call, row, query)],
        shape=f"{shape_of(call.intermediates().weights.shape)}, one row; {_where(inspected)}",
        legend=f"scaled = q k^T x {number(call.module.scale, DIGITS)} (heads are {width} wide); "
        "exp of x - the largest x; weight = exp / sum",
        notes=(
            *_leaks(inspected, call, name, row, query),
            "-1e9 does not fit into float16, whose lowest number is "
            f"{number(torch.finfo(torch.float16).min, 0)}: it becomes {number(half)} there.",
        ),
    )


def _steps(call: AttentionCall, row: int, query: int) -> list[tuple[str, list[str]]]:
    """Each step of one query of head 1 over all its keys."""
    masked, unmasked = call.intermediates(), call.unmasked()
    place = (row, 0, query)
    raw = masked.q[place] @ masked.k[row, 0].T  # (Tk,)
    steps = [("q k^T", raw), ("scaled", masked.scores[place])]
    if call.module.cap:
        steps.append(("capped", masked.capped[place]))
    if call.module.score_bias(call.context) is not None:
        steps.append(("+ bias", unmasked.masked[place]))
    steps.append(("+ mask", masked.masked[place]))
    rows = [(name, [*numbers(values), "|"]) for name, values in steps]
    rows += _softmax("", masked.masked[place], masked.weights[place])
    return rows + _softmax("unmasked ", unmasked.masked[place], unmasked.weights[place])


def _softmax(prefix: str, scores: Tensor, weights: Tensor) -> list[tuple[str, list[str]]]:
    exponentials = (scores - scores.max()).exp()
    return [
        (name, [*numbers(values, DIGITS), f"| {number(float(values.sum()), DIGITS)}"])
        for name, values in ((f"{prefix}exp", exponentials), (f"{prefix}weight", weights))
    ]


def _leaks(
    inspected: InspectedBatch, call: AttentionCall, name: str, row: int, query: int
) -> Iterator[str]:
    """The weight on pads and on the future, without the mask and with it."""
    pads = ~padding_mask(inspected.ids(name)[1][row])
    future = torch.zeros_like(pads)
    if name == "decoder_self":
        future[query + 1 :] = True
    for version, steps in (("Without", call.unmasked()), ("With", call.intermediates())):
        weights = steps.weights[row, 0, query]
        on_pads, on_future = float(weights[pads].sum()), float(weights[future & ~pads].sum())
        text = f"{version} the mask {number(on_pads, DIGITS)} of the weight is on pads"
        if name == "decoder_self":
            text += f" and {number(on_future, DIGITS)} on later tokens"
        yield f"{text}."


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
