"""What a trace prints: every tensor of one layer, its memory layout, and how the sums add up."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.insight.attention.trace import Trace, TraceReport, distance
from toytrans.insight.masks.mask_tables import MARKS, batch_tables
from toytrans.insight.tables import Table, label, mask_cells, matrix, number, shape_of, tiny
from toytrans.model.layers import FeedForward
from toytrans.model.masks import padding_mask

SAME_NUMBERS = ("parted", "transposed", "pieces")
GROUPS = {
    "in": ("embedding", "embedded", "layer_input"),
    "projection": ("attention_normed", "projected", "memory", "memory_projected"),
    "heads": ("q", "k", "v"),
    "weights": ("scores", "capped", "bias", "mask", "masked", "weights"),
    "out": ("context", "merged", "attention_output", "attention_sum"),
}
"""Tensors whose tables are printed side by side. Others are grouped by their sub-layer."""


class Account(NamedTuple):
    """A tensor compared with what it should be computed from.

    verdict: exact, rounding or NOT EQUAL.
    """

    tensor: str
    made_of: str
    difference: float
    verdict: str


def report(traced: Trace, row: int, head: int) -> TraceReport:
    """The whole trace. Tables show pair `row` and head `head`, which count from 0."""
    checked = list(accounts(traced))
    tables = [_batch(traced, row, head), *memory_tables(traced.tensors, 2, traced.title)]
    tables += _values(traced, row, head)
    tables += _account_tables(traced, row, checked, int(tables[-1].number) + 1)
    queries, keys = traced.inspected.ids(traced.name)
    facts = traced.facts | {
        "queries": [traced.inspected.names(ids) for ids in queries],
        "keys": [traced.inspected.names(ids) for ids in keys],
        "accounts": [each._asdict() for each in checked],
    }
    return TraceReport(tables, traced.tensors, facts)


def summary(tables: list[Table]) -> list[Table]:
    """The attention weights, what they are of, and whether the sums add up."""
    weights = next(table for table in tables if table.name.startswith("weights"))
    notes = (*tables[0].notes, *weights.notes, *tables[-1].notes)
    return [replace(weights, notes=notes)]


def _batch(traced: Trace, row: int, head: int) -> Table:
    pairs, heads = len(traced.inspected.batch.src), traced.call.module.n_heads
    shown = f"Tables show pair {row + 1} of {pairs} and head {head + 1} of {heads}"
    notes = (f"Traced: {traced.title}.", f"{shown}; --json and --save hold everything.")
    return replace(batch_tables(traced.inspected)[row], notes=notes)


# Memory layout -------------------------------------------------------------------------------


def layout(number: str, name: str, tensors: dict[str, Tensor], *notes: str) -> Table:
    """The memory layout of each tensor, and the earlier tensor whose memory it shares."""
    owners: dict[int, str] = {}
    rows = []
    for key, tensor in tensors.items():
        owner = owners.setdefault(tensor.untyped_storage().data_ptr(), key)
        cells = [
            " ".join(map(str, tensor.shape)),
            " ".join(map(str, tensor.stride())),
            "yes" if tensor.is_contiguous() else "no",
            "its own" if owner == key else label(owner),
        ]
        rows.append((label(key), cells))
    columns = ["shape", "strides", "contiguous", "memory"]
    legend = "strides: how many elements apart neighbours along each axis are in memory"
    return Table(number, name, columns, rows, legend=legend, notes=notes)


def memory_tables(tensors: dict[str, Tensor], step: int, title: str) -> Iterator[Table]:
    """The memory layout of all tensors, and what transposing does to a view."""
    yield layout(str(step), f"In memory: {title}", tensors)
    before, after = tensors["transposed"], tensors["context_transposed"]
    *outer, length, width = before.shape
    notes = (
        "Transposing changes strides, not memory: transposed is projected in another order, "
        "context transposed is context in another order.",
        attempt_view("transposed", before, *outer, length * width),
        _copied("pieces", tensors["pieces"], before, "; q is its first part, rotated if rotary"),
        attempt_view("context_transposed", after, *tensors["merged"].shape),
        _copied("merged", tensors["merged"], after, ": contiguous() and view, or flatten"),
    )
    yield Table(str(step + 1), "Into heads and back", [], [], notes=notes)


def _copied(name: str, tensor: Tensor, source: Tensor, how: str) -> str:
    """Whether a tensor is a copy of its source, or shares its memory."""
    if tensor.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
        return f"Here {name} is the same memory, since one head or part leaves nothing to reorder."
    return f"So {name} is a contiguous copy{how}."


def attempt_view(name: str, tensor: Tensor, *shape: int) -> str:
    """Call `view`, and report torch's own error if it fails."""
    call = f"{name}.view{shape_of(shape)}"
    try:
        tensor.view(*shape)
    except RuntimeError as error:
        return f"{call} fails: {str(error).splitlines()[0]}"
    return f"{call} works: at these sizes nothing has to move."


# Values --------------------------------------------------------------------------------------


def _values(traced: Trace, row: int, head: int) -> Iterator[Table]:
    """Tables 4 and up: the values. Tensors that are the same view share a table."""
    views: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in traced.tensors.items():
        if not name.endswith((*SAME_NUMBERS, "ids", "context_transposed")):
            view = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
            views.setdefault(view, []).append(name)
    groups = groupby(views.values(), lambda names: _group(names[0]))
    for step, (_, members) in enumerate(groups, start=4):
        for names in members:
            title = " = ".join(map(label, names))
            if traced.tensors[names[0]].dim() == 4 and names[0] != "mask":
                title += f", head {head + 1}"
            yield replace(_value(traced, names[0], row, head), number=str(step), name=title)


def _group(name: str) -> str:
    for group, names in GROUPS.items():
        if name in names:
            return group
    return name.split("_")[0]


def _value(traced: Trace, name: str, row: int, head: int) -> Table:
    """One tensor of one pair, and of one head if it has heads."""
    tensor, width = traced.tensors[name], traced.tensors["q"].shape[-1]
    queries, keys = traced.inspected.tokens(traced.name, row)
    notes = _notes(traced, name)
    if name == "mask":
        cells = mask_cells(tensor[row, 0].expand(len(queries), -1))
        lines = list(zip(queries, cells, strict=True))
        return Table("", "", keys, lines, shape_of(tensor.shape), MARKS, marks=True)
    if name in GROUPS["weights"]:
        values = tensor.expand(len(traced.tensors["q"]), -1, -1, -1)[row, head]
        summaries = {"sum": values.sum(-1)} if name == "weights" else None
        return matrix("", "", values, queries, keys, *notes, summaries=summaries)
    if name in GROUPS["heads"] or name == "context":
        rows = keys if name in "kv" else queries
        return matrix("", "", tensor[row, head], rows, None, *notes)
    rows = keys if name.startswith("memory") else queries
    values, summaries = tensor[row], None
    if name.endswith("_normed"):
        summaries = {"mean": values.mean(-1), "sd": values.std(-1, correction=0)}
    first = head * width if name.endswith("projected") or name == "merged" else 0
    return matrix("", "", values, rows, None, *notes, summaries=summaries, first=first)


def _notes(traced: Trace, name: str) -> list[str]:
    """How a tensor is computed."""
    scale, width = traced.call.module.scale, traced.tensors["q"].shape[-1]
    parts = "q | k | v" if traced.part != "cross" else "q"
    config = traced.inspected.model.config
    size = config.d_model
    notes = {
        "embedding": "One row of the embedding table for each id.",
        "embedded": f"embedding x root of {size}, plus what the positions add.",
        "projected": f"{parts}, {size} columns each; the columns of this head's query are shown.",
        "memory": "The output of the encoder.",
        "memory_projected": f"k | v, {size} columns each; the columns of this head's key are "
        "shown.",
        "scores": f"q k^T x {number(scale, 4)}; 1 / root of {width} is {number(width**-0.5, 4)}.",
        "masked": "Scores plus bias plus mask. Masked cells hold the lowest finite number.",
        "weights": _row_sums(traced.tensors["weights"]),
        "context": "weights v",
        "merged": "The contexts of all heads side by side; this head's columns are shown.",
        "attention_output": "merged W + b. The backend that training uses differs by at most "
        f"{tiny(traced.backend_difference)}.",
        "feed_forward_active": f"After {config.activation}.",
    }
    return [notes[name]] if name in notes else []


def _row_sums(weights: Tensor) -> str:
    sums = weights.double().sum(-1)  # (B, H, Tq)
    empty = int((sums == 0).sum())
    error = tiny(distance(sums[sums > 0], 1.0)) if empty < sums.numel() else "0"
    others = f"{sums.numel() - empty} rows of all pairs and heads sum to 1 within {error}"
    return f"{others}; {empty} rows have no visible key and are 0." if empty else f"All {others}."


# Accounts ------------------------------------------------------------------------------------

Claim = tuple[str, str, Tensor]
"""A tensor's name, what it should be computed from, and the result of computing it again."""


def accounts(traced: Trace) -> Iterator[Account]:
    """Each tensor from the heads to the layer's output, compared with what it is computed from.

    Sums are computed in the same order, so they must be bit-identical. Norms and products are
    computed again in fp64.
    """
    for name, made_of, expected in _claims(traced):
        actual = traced.tensors[name]
        difference = distance(actual, expected)
        verdict = rounding(difference, float(expected.abs().max()), actual.dtype)
        yield Account(name, made_of, difference, verdict)


def rounding(difference: float, size: float, dtype: torch.dtype) -> str:
    """Classify a difference between numbers as large as `size`."""
    if difference == 0:
        return "exact"
    # sums of a few hundred products lose a few dozen times the machine epsilon
    return "rounding" if difference <= 100 * torch.finfo(dtype).eps * max(size, 1) else "NOT EQUAL"


def _claims(traced: Trace) -> Iterator[Claim]:
    tensors, x = traced.tensors, "layer_input"
    total = tensors[x]
    for name, residual in traced.residuals.items():
        normed, output, summed = f"{name}_normed", f"{name}_output", f"{name}_sum"
        norms = list(_norm(residual.norm, tensors, normed, x if traced.pre_norm else summed))
        yield from norms if traced.pre_norm else ()
        if name == "attention":
            yield "merged", "contexts side by side", torch.cat(tensors["context"].unbind(1), -1)
            yield _product(tensors, output, traced.call.module.out_proj, "merged")
        elif name == "feed_forward":
            yield from _feed_forward(traced, normed if traced.pre_norm else x)
        yield summed, f"{label(x)} + {label(output)}", tensors[x] + tensors[output]
        yield from () if traced.pre_norm else norms
        total = total + tensors[output]
        x = summed if traced.pre_norm else normed
    if traced.pre_norm:
        yield "layer_output", "layer input + every output", total
    else:
        yield "layer_output", label(x), tensors[x]


def _norm(norm: nn.Module, tensors: dict[str, Tensor], name: str, of: str) -> Iterator[Claim]:
    """(x - mean) / root(variance + epsilon) x gain + bias, over the features."""
    if isinstance(norm, nn.LayerNorm):
        x = tensors[of].double()
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        expected = (centred / deviation * norm.weight + norm.bias).detach()
        yield name, f"norm of {label(of)}", expected


def _feed_forward(traced: Trace, x: str) -> Iterator[Claim]:
    feed_forward, tensors = traced.layer_module.feed_forward, traced.tensors
    if isinstance(feed_forward, FeedForward):
        first, activation, _, second = feed_forward
        yield _product(tensors, "feed_forward_hidden", first, x)
        made_of = f"{traced.inspected.model.config.activation} of feed forward hidden"
        yield "feed_forward_active", made_of, activation(tensors["feed_forward_hidden"])
        yield _product(tensors, "feed_forward_output", second, "feed_forward_active")


def _product(tensors: dict[str, Tensor], name: str, linear: nn.Module, of: str) -> Claim:
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    return name, f"{label(of)} W + b", F.linear(tensors[of].double(), weight, bias)


def _account_tables(traced: Trace, row: int, checked: list[Account], step: int) -> Iterator[Table]:
    """The last tables: the sums at one position number by number, and all comparisons."""
    queries, _ = traced.inspected.tokens(traced.name, row)
    place = int(padding_mask(traced.inspected.ids(traced.name)[0][row]).nonzero()[-1])
    names = [("", "layer_input")]
    for name in traced.residuals:
        names += [("+ ", f"{name}_output"), ("= ", f"{name}_sum")]
        names += [] if traced.pre_norm else [("norm: ", f"{name}_normed")]
    names.append(("", "layer_output"))
    labels = [sign + label(name) for sign, name in names]
    values = torch.stack([traced.tensors[name][row, place] for _, name in names])
    title = f"Number by number: query {queries[place]}, place {place}, of pair {row + 1}"
    yield matrix(str(step), title, values, labels, digits=3)
    wrong = [label(each.tensor) for each in checked if each.verdict == "NOT EQUAL"]
    note = "The layer's output is accounted for: it contains nothing else."
    if wrong:
        note = f"NOT accounted for: {', '.join(wrong)}. The layer has a fault."
    yield Table(
        str(step + 1),
        "Accounted for",
        ["made of", "off by", ""],
        [(label(name), [made, tiny(off), verdict]) for name, made, off, verdict in checked],
        legend="largest differences over the whole batch",
        notes=(note,),
    )
