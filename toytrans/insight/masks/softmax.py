"""What a mask does to the numbers: rows with nothing to look at, and the softmax of one row."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from toytrans.insight.tables import ATTENTIONS, CLOSED, Panel, Pass, View, number, numbers, shape_of
from toytrans.model.masks import padding_mask
from toytrans.model.sight import Sight

DIGITS = 3


def panels(view: View) -> Iterator[Panel]:
    """Panels 7 and 8, of the whole batch."""
    yield empty_rows(view)
    for name, row, query in _telling_rows(view):
        yield softmax_row(view, name, row, query)


def empty_rows(view: View) -> Panel:
    """Panel 7: the rows that see no key, and what each policy makes of one."""
    listed = [
        f"{ATTENTIONS[name].lower()}, pair {row + 1}: {_places(places)}"
        for name in ATTENTIONS
        for row, whole in enumerate(view.whole(name))
        if (places := (~whole.any(-1)).nonzero()[:, 0].tolist())
    ]
    name, row, query, sight, which = _an_empty_row(view)
    one = view.passes[name]
    closed = one.intermediates(sight)
    scores = one.unmasked().masked[row, 0, query]  # (Tk,), finite
    lowest = closed.masked[row, 0, query]
    minus_inf = torch.full_like(scores, -math.inf) + scores
    queries, keys = view.tokens(name, row)
    pads = ~padding_mask(view.ids(name)[1][row])
    uniform = lowest.softmax(-1)
    return Panel(
        "7",
        "Rows with nothing to look at",
        keys,
        [
            ("scores", numbers(scores)),
            ("-inf, softmax", numbers(minus_inf.softmax(-1), DIGITS)),
            ("lowest, softmax", numbers(uniform, DIGITS)),
            ("zeroed (here)", numbers(closed.weights[row, 0, query], DIGITS)),
        ],
        shape=f"{which}: query {queries[query]}, place {query}, of pair {row + 1}",
        legend=f"weights of that row over its keys; {_where(view)}",
        notes=(
            f"In this batch: {'; '.join(listed) or 'none'}.",
            f"-inf gives NaN; the lowest finite number ({number(float(lowest.min()))}) an average "
            f"over everything, {number(float(uniform[pads].sum()), DIGITS)} of it over pads; "
            "zeroing gives zeros.",
        ),
    )


def _an_empty_row(view: View) -> tuple[str, int, int, Sight, str]:
    """A row that sees nothing: one of the batch, else one made so, with the sight it is seen by."""
    for name in ATTENTIONS:
        empty = (~view.whole(name).any(-1)).nonzero().tolist()
        if empty:
            row, query = empty[-1]
            return name, row, query, view.passes[name].sight, "one of them"
    row = int((~padding_mask(view.batch.src)).sum(1).argmax())
    query = view.batch.src.shape[1] - 1
    one = view.passes["encoder_self"]
    mask = view.whole("encoder_self")[:, None].clone()  # (B, 1, S, S)
    mask[row, 0, query] = False
    sight = Sight.of(mask, one.sight.distances, one.x.dtype)
    return "encoder_self", row, query, sight, "suppose one were closed"


def _telling_rows(view: View) -> Iterator[tuple[str, int, int]]:
    """(attention, pair, query): a real query of the decoder with a past, a future and pads, as far
    as the batch has them; where no target has pads but a source has, one of cross-attention too."""
    target = padding_mask(view.batch.tgt_in).sum(1)  # (B,)
    source_pads = (~padding_mask(view.batch.src)).sum(1)
    width = view.batch.tgt_in.shape[1]
    # pads first, but a lone BOS has no future
    row = max(range(len(target)), key=lambda r: (target[r] > 1, width - int(target[r])))
    yield "decoder_self", row, max(0, (int(target[row]) - 1) // 2)
    if int(target[row]) == width and source_pads.any():
        row = int(source_pads.argmax())
        yield "cross", row, max(0, (int(target[row]) - 1) // 2)


def softmax_row(view: View, name: str, row: int, query: int) -> Panel:
    """Panel 8: from the raw product to the weight, with the mask and without it."""
    one = view.passes[name]
    queries, keys = view.tokens(name, row)
    table = _steps(one, row, query)
    whole = view.whole(name)[row, query]
    looks = ["1" if seen else CLOSED for seen in whole.tolist()]
    width = view.model.config.d_model // view.model.config.n_heads
    half = float(torch.tensor(-1e9).half())
    return Panel(
        "8",
        f"Softmax of one row: {ATTENTIONS[name].lower()}, pair {row + 1}, query {queries[query]} "
        f"(place {query})",
        [*keys, "| sum"],
        [("may look", [*looks, "|"]), *table],
        shape=f"{shape_of(one.intermediates().weights.shape)}, one row shown; {_where(view)}",
        legend=f"scaled = q k^T x {number(one.module.scale, DIGITS)} (heads are {width} wide); "
        "exp of x - the largest x; weight = exp / sum",
        notes=(
            *_leaks(view, one, name, row, query),
            f"-1e9 as the closed number does not fit float16, whose lowest is "
            f"{number(torch.finfo(torch.float16).min, 0)}: it becomes {number(half)} there.",
        ),
    )


def _steps(one: Pass, row: int, query: int) -> list[tuple[str, list[str]]]:
    """The rows of the table: each step of one query of head 1 over all its keys."""
    masked, unmasked = one.intermediates(), one.unmasked()
    place = (row, 0, query)
    raw = masked.q[place] @ masked.k[row, 0].T  # (Tk,)
    steps = [("q k^T", raw), ("scaled", masked.scores[place])]
    if one.module.cap:
        steps.append(("capped", masked.capped[place]))
    if one.module.bias(one.sight) is not None:
        steps.append(("+ bias", unmasked.masked[place]))
    rows = [(label, [*numbers(values), "|"]) for label, values in steps]
    rows += _softmax("", masked.masked[place], masked.weights[place])
    return rows + _softmax("unmasked ", unmasked.masked[place], unmasked.weights[place])


def _softmax(words: str, scores: Tensor, weights: Tensor) -> list[tuple[str, list[str]]]:
    exponentials = (scores - scores.max()).exp()
    first = [] if words else [("+ mask", [*numbers(scores), "|"])]
    return first + [
        (label, [*numbers(values, DIGITS), f"| {number(float(values.sum()), DIGITS)}"])
        for label, values in ((f"{words}exp", exponentials), (f"{words}weight", weights))
    ]


def _leaks(view: View, one: Pass, name: str, row: int, query: int) -> Iterator[str]:
    """How much of the weight went where it should not, without the mask and with it."""
    pads = ~padding_mask(view.ids(name)[1][row])
    later = torch.zeros_like(pads)
    if name == "decoder_self":
        later[query + 1 :] = True
    for words, found in (("Without", one.unmasked()), ("With", one.intermediates())):
        weights = found.weights[row, 0, query]
        to_pads, to_later = float(weights[pads].sum()), float(weights[later & ~pads].sum())
        share = f"{words} the mask {number(to_pads, DIGITS)} of the weight is on pads"
        if name == "decoder_self":
            share += f" and {number(to_later, DIGITS)} on later tokens"
        yield f"{share}."


def _where(view: View) -> str:
    return f"layer 1, head 1, {view.weights}"


def _places(places: list[int]) -> str:
    """Places as text, runs of them in short."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    return f"place{'' if len(places) == 1 else 's'} {', '.join(words)}"
