"""What a trace shows: every tensor of one layer, their accounts, and what mask and scale do."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.attention.trace import (
    Sheet,
    Trace,
    distance,
    label,
    matrix,
    memory_panels,
    rounding,
    tiny,
)
from toytrans.insight.masks import mask_tables
from toytrans.insight.tables import CLOSED, Panel, number, numbers, shape_of
from toytrans.model.attention import attend_explicitly
from toytrans.model.layers import FeedForward
from toytrans.model.masks import causal_mask, padding_mask
from toytrans.model.sight import Sight

SAME_NUMBERS = ("parted", "transposed", "pieces")
GROUPS = {
    "in": ("embedding", "embedded", "layer_input"),
    "projection": ("attention_normed", "projected", "memory", "memory_projected"),
    "heads": ("q", "k", "v"),
    "weights": ("scores", "capped", "bias", "mask", "masked", "weights"),
    "out": ("context", "merged", "attention_output", "attention_sum"),
}
"""Tensors whose panels stand beside each other; others by the sub-layer in their name."""


class Account(NamedTuple):
    """A tensor, what it should be made of, and how far it is from that; verdict: exact, rounding
    or NOT EQUAL."""

    tensor: str
    made_of: str
    difference: float
    verdict: str


def sheet(found: Trace, row: int, head: int) -> Sheet:
    """All of a trace; values are shown of pair `row` and head `head`, counted from 0."""
    listed = list(accounts(found))
    panels = [_batch(found, row, head), *memory_panels(found.tensors, 2, found.title)]
    panels += _values(found, row, head)
    panels += _accounted(found, row, listed, int(panels[-1].number) + 1)
    queries, keys = found.view.ids(found.name)
    facts = {
        "weights": found.view.weights,
        "part": found.part,
        "layer": found.layer,
        "queries": [found.view.names(ids) for ids in queries],
        "keys": [found.view.names(ids) for ids in keys],
        "accounts": [each._asdict() for each in listed],
    }
    return Sheet(panels, found.tensors, facts)


def _batch(found: Trace, row: int, head: int) -> Panel:
    panel = mask_tables.batch_panels(found.view)[row]
    pairs, heads = len(found.view.batch.src), found.one.module.n_heads
    shown = f"Values below are of pair {row + 1} of {pairs} and head {head + 1} of {heads}"
    notes = (f"Traced: {found.title}.", f"{shown}; --json and --save hold all.")
    return replace(panel, notes=notes)


def _values(found: Trace, row: int, head: int) -> Iterator[Panel]:
    """Panels 4 and up: the numbers, tensors that are one and the same in one panel."""
    places: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in found.tensors.items():
        if not name.endswith((*SAME_NUMBERS, "ids", "context_transposed")):
            place = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
            places.setdefault(place, []).append(name)
    groups = groupby(places.values(), lambda names: _group(names[0]))
    for step, (_, members) in enumerate(groups, start=4):
        for names in members:
            title = " = ".join(map(label, names))
            if found.tensors[names[0]].dim() == 4 and names[0] != "mask":
                title += f", head {head + 1}"
            yield replace(_value(found, names[0], row, head), number=str(step), name=title)


def _group(name: str) -> str:
    inside = {each: group for group, names in GROUPS.items() for each in names}
    return inside.get(name, name.split("_")[0])


def _value(found: Trace, name: str, row: int, head: int) -> Panel:
    """One tensor of one pair, and of one head where it has heads."""
    tensor, width = found.tensors[name], found.tensors["q"].shape[-1]
    queries, keys = found.view.tokens(found.name, row)
    notes = _notes(found, name)
    if name == "mask":
        whole = tensor[row, 0].expand(len(queries), -1)
        cells = [["1" if seen else CLOSED for seen in line] for line in whole.tolist()]
        table = list(zip(queries, cells, strict=True))
        return Panel("", "", keys, table, shape_of(tensor.shape), mask_tables.MARKS, marks=True)
    if name in GROUPS["weights"]:
        values = tensor.expand(len(found.tensors["q"]), -1, -1, -1)[row, head]
        ends = {"sum": values.sum(-1)} if name == "weights" else None
        return matrix("", "", values, queries, keys, *notes, ends=ends)
    if name in GROUPS["heads"] or name == "context":
        rows = keys if name in "kv" else queries
        return matrix("", "", tensor[row, head], rows, None, *notes)
    rows = keys if name.startswith("memory") else queries
    values, ends = tensor[row], None
    if name.endswith("_normed"):
        ends = {"mean": values.mean(-1), "sd": values.std(-1, correction=0)}
    first = head * width if name.endswith("projected") or name == "merged" else 0
    return matrix("", "", values, rows, None, *notes, ends=ends, first=first)


def _notes(found: Trace, name: str) -> list[str]:
    """How a tensor came to be."""
    module, width = found.one.module, found.tensors["q"].shape[-1]
    parts = "q | k | v" if found.part != "cross" else "q"
    size = found.view.model.config.d_model
    words = {
        "embedding": "The row of the table for each id.",
        "embedded": f"Times the root of {size}, and what the positions add.",
        "projected": f"{parts}, {size} columns each; those of this head's query are shown.",
        "memory": "The encoder's output.",
        "memory_projected": f"k | v, {size} columns each; those of this head's key are shown.",
        "scores": f"q k^T x {number(module.scale, 4)}; 1 / root of {width} is "
        f"{number(width**-0.5, 4)}.",
        "masked": "Scores, bias and mask; closed ones are the lowest finite number.",
        "context": "weights v",
        "merged": "Contexts of the heads side by side; this head's columns are shown.",
        "attention_output": "merged W + b; the road of training, in fewer steps, gives it within "
        f"{tiny(found.quick)}.",
        "feed_forward_active": f"After {found.view.model.config.activation}.",
    }
    if name == "weights":
        words[name] = _sums(found)
    return [words[name]] if name in words else []


def _sums(found: Trace) -> str:
    weights = found.tensors["weights"]
    sums = weights.double().sum(-1)  # (B, H, Tq)
    empty = int((sums == 0).sum())
    apart = tiny(distance(sums[sums > 0], 1.0)) if empty < sums.numel() else "0"
    seeing = f"{sums.numel() - empty} rows of all pairs and heads sum to 1 within {apart}"
    return f"{seeing}; {empty} see nothing and are 0." if empty else f"All {seeing}."


Claim = tuple[str, str, Tensor]
"""A tensor's name, what it should be made of, and that made again."""


def accounts(found: Trace) -> Iterator[Account]:
    """Each tensor from the heads to the layer's output beside what it should be made of.

    Sums are made in the same order, so they are equal to the last bit; norms and products are
    made again in fp64.
    """
    for name, made_of, value in _claims(found):
        difference = distance(found.tensors[name], value)
        size = float(value.abs().max())
        verdict = rounding(difference, size, found.tensors[name].dtype)
        yield Account(name, made_of, difference, verdict)


def _claims(found: Trace) -> Iterator[Claim]:
    tensors, x = found.tensors, "layer_input"
    total = tensors[x]
    for name, residual in found.residuals.items():
        normed, output, summed = f"{name}_normed", f"{name}_output", f"{name}_sum"
        norms = list(_norm(residual.norm, found, normed, x if found.pre else summed))
        yield from norms if found.pre else ()
        if name == "attention":
            contexts = torch.cat(tensors["context"].unbind(1), -1)
            yield "merged", "contexts side by side", contexts
            yield _product(found, output, found.one.module.out_proj, "merged")
        elif name == "feed_forward" and isinstance(found.module.feed_forward, FeedForward):
            into, active, _, out = found.module.feed_forward
            yield _product(found, "feed_forward_hidden", into, normed if found.pre else x)
            activation = found.view.model.config.activation
            made = active(tensors["feed_forward_hidden"])
            yield "feed_forward_active", f"{activation} of feed forward hidden", made
            yield _product(found, output, out, "feed_forward_active")
        yield summed, f"{label(x)} + {label(output)}", tensors[x] + tensors[output]
        yield from () if found.pre else norms
        total = total + tensors[output]
        x = summed if found.pre else normed
    if found.pre:
        yield "layer_output", "layer input + every output", total
    else:
        yield "layer_output", label(x), tensors[x]


def _norm(norm: nn.Module, found: Trace, name: str, of: str) -> Iterator[Claim]:
    """(x - mean) / root(variance + epsilon) x gain + bias, over the features."""
    if isinstance(norm, nn.LayerNorm):
        x = found.tensors[of].double()
        apart = x - x.mean(-1, keepdim=True)
        deviation = (apart.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        yield name, f"norm of {label(of)}", (apart / deviation * norm.weight + norm.bias).detach()


def _product(found: Trace, name: str, linear: nn.Module, of: str) -> Claim:
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    return name, f"{label(of)} W + b", F.linear(found.tensors[of].double(), weight, bias)


def _accounted(found: Trace, row: int, listed: list[Account], step: int) -> Iterator[Panel]:
    """The last panels: the sums of one place number by number, and of everything."""
    queries, _ = found.view.tokens(found.name, row)
    place = int(padding_mask(found.view.ids(found.name)[0][row]).nonzero()[-1])
    names = [("", "layer_input")]
    for name in found.residuals:
        names += [("+ ", f"{name}_output"), ("= ", f"{name}_sum")]
        names += [] if found.pre else [("norm: ", f"{name}_normed")]
    names.append(("", "layer_output"))
    labels = [sign + label(name) for sign, name in names]
    values = torch.stack([found.tensors[name][row, place] for _, name in names])
    title = f"Number by number: query {queries[place]}, place {place}, of pair {row + 1}"
    yield matrix(str(step), title, values, labels, digits=3)
    wrong = [label(each.tensor) for each in listed if each.verdict == "NOT EQUAL"]
    note = "The layer's output is accounted for: nothing else is in it."
    if wrong:
        note = f"NOT accounted for: {', '.join(wrong)}; a fault is in it."
    yield Panel(
        str(step + 1),
        "Accounted for",
        ["made of", "off by", ""],
        [(label(name), [made, tiny(off), verdict]) for name, made, off, verdict in listed],
        legend="largest differences over the whole batch",
        notes=(note,),
    )


# Without the mask, without the scale ---------------------------------------------------------

WIDTHS = (4, 8, 16, 32, 64, 128, 256)
"""Of heads, in the example."""


def leaks(found: Trace, row: int) -> Sheet:
    """Where attention goes without the mask: the share of each query's weights that falls on pads,
    and in the decoder on what comes later; beside it the same with the mask."""
    queries, keys = found.view.ids(found.name)
    pads = ~padding_mask(keys)[:, None, None]  # (B, 1, 1, Tk)
    where = {"pads": pads}
    if found.part == "decoder":
        where["the future"] = ~causal_mask(keys.shape[1]) & ~pads
    shares: dict[str, Tensor] = {}
    panels: list[Panel] = []
    for step, (place, cells) in enumerate(where.items(), start=2):
        for words, steps in (
            ("without the mask", found.one.unmasked()),
            ("with the mask", found.one.intermediates()),
        ):
            share = (steps.weights * cells).sum(-1)  # (B, H, Tq)
            shares[f"on {place} {words}".replace(" ", "_")] = share
            panels.append(_leak(found, share, row, f"On {place}, {words}", cells, str(step)))
    start = replace(mask_tables.batch_panels(found.view)[row], notes=(f"Traced: {found.title}.",))
    facts = {"weights": found.view.weights, "part": found.part, "layer": found.layer}
    facts["queries"] = [found.view.names(ids) for ids in queries]
    return Sheet([start, *panels], shares, facts)


def _leak(found: Trace, share: Tensor, row: int, name: str, cells: Tensor, step: str) -> Panel:
    """Shares (B, H, Tq) of one pair: real queries down, heads across."""
    ids = found.view.ids(found.name)[0]
    real = padding_mask(ids)  # (B, Tq)
    names = [q for q, is_real in zip(found.view.names(ids[row]), real[row], strict=True) if is_real]
    values = share[row].T[real[row]]  # (queries, H)
    even = cells.expand(*share.shape, -1)[row, 0][real[row]].double().mean()
    mean, all_of_them = values.mean(), share.transpose(1, 2)[real].mean()
    return matrix(
        step,
        name,
        values,
        names,
        [f"head {h + 1}" for h in range(values.shape[1])],
        f"Mean {number(float(mean), 3)}; of every pair's real queries "
        f"{number(float(all_of_them), 3)}. Equal weights on all would put {number(float(even), 3)} "
        "there.",
        ends={"mean": values.mean(-1)},
        digits=3,
    )


def entropy(weights: Tensor) -> Tensor:
    """Of the last axis, in nats; 0 log 0 is 0."""
    found: Tensor = torch.special.entr(weights)
    return found.sum(-1)


def sharpness(found: Trace) -> Sheet:
    """What the scale does to the attention traced: each head's products and weights under the
    model's scale and under none, over what real queries see."""
    one, steps = found.one, found.one.intermediates()
    bare = attend_explicitly(
        *steps[:3], one.sight, one.module.bias(one.sight), one.module.cap, scale=1.0
    )
    real = padding_mask(found.view.ids(found.name)[0])[:, None, :, None]  # (B, 1, Tq, 1)
    mask = one.sight.mask
    seen = (real if mask is None else mask & real).expand_as(steps.scores)
    rows = seen.any(-1)  # (B, H, Tq)
    heads = range(seen.shape[1])

    if int(seen[:, 0].sum()) < 2:
        raise UserError(
            f"--no-scale: {found.title}: {int(seen[:, 0].sum())} scores of real tokens have no "
            "variance; give longer sequences"
        )

    def mean(values: Tensor) -> Tensor:
        return torch.stack([values[:, h][rows[:, h]].mean() for h in heads])

    tensors = {
        "variance_of_q_k": torch.stack([bare.scores[:, h][seen[:, h]].var() for h in heads]),
        "variance_of_scores": torch.stack([steps.scores[:, h][seen[:, h]].var() for h in heads]),
        "entropy_without_scale": mean(entropy(bare.weights)),
        "entropy_with_scale": mean(entropy(steps.weights)),
        "log_of_keys_seen": mean(seen.sum(-1).double().log()).float(),
    }
    panel = matrix(
        "3",
        f"This model: {found.title}",
        torch.stack(list(tensors.values())),
        [label(name) for name in tensors],
        [f"head {h + 1}" for h in heads],
        f"The scale here is {number(one.module.scale, 4)}; entropies are means over real queries, "
        "in nats. Equal weights would have the log of the keys seen.",
    )
    facts = {"weights": found.view.weights, "part": found.part, "layer": found.layer}
    return Sheet([panel], tensors, facts)


def scales() -> Sheet:
    """Variance of the scores and entropy of the weights as heads grow, with the scale and without:
    256 queries over 64 keys, both of unit variance."""
    draw = torch.Generator().manual_seed(0)
    variance, spread = torch.empty(2, len(WIDTHS)), torch.empty(2, len(WIDTHS))
    for column, width in enumerate(WIDTHS):
        q, k = (torch.randn(count, width, generator=draw) for count in (256, 64))
        for line, scale in enumerate((1.0, None)):
            found = attend_explicitly(q, k, k, Sight(), scale=scale)
            variance[line, column] = found.scores.var()
            spread[line, column] = entropy(found.weights).mean()
    names = "without_scale", "with_scale"
    tensors = {"d_head": torch.tensor(WIDTHS)}
    tensors |= {f"variance_{name}": x for name, x in zip(names, variance, strict=True)}
    tensors |= {f"entropy_{name}": x for name, x in zip(names, spread, strict=True)}
    even = math.log(64)
    columns = [str(width) for width in WIDTHS]
    rows = [(label(name), numbers(x)) for name, x in list(tensors.items())[1:]]
    panel = Panel(
        "1",
        "With the scale 1 / root of d_head, and without",
        columns,
        [*rows, ("log of 64 keys", [number(even)] * len(WIDTHS))],
        legend="d_head across; variance of q k; entropy of the weights in nats, mean over rows",
        notes=(
            "Products of unit-variance queries and keys have variance d_head. Without the scale "
            "softmax falls onto one key, entropy goes to 0, and with it the gradient; with the "
            "scale both stay as they are, however wide the heads.",
        ),
    )
    plots = [
        _plot("Variance of the scores, log scale", variance.log2(), 8, 8, lambda y: f"{2**y:.0f}"),
        _plot("Entropy of the weights, nats", spread, even, 12, lambda y: f"{y:.1f}"),
    ]
    return Sheet([panel, *plots], tensors, {"example": "scales", "log_keys": even})


def _plot(
    title: str, lines: Tensor, top: float, height: int, mark: Callable[[float], str]
) -> Panel:
    """Two lines (2, widths) over the widths, from 0 up to `top`; both in one cell are *."""
    levels = (lines / top * height).round().clamp(0, height).tolist()
    rows = []
    for level in range(height, -1, -1):
        cells = []
        for without, with_scale in zip(*levels, strict=True):
            marks = (without == level) * "x" + (with_scale == level) * "o"
            cells.append("*" if marks == "xo" else marks or CLOSED)
        rows.append((mark(level / height * top), cells))
    columns = [str(width) for width in WIDTHS]
    legend = "x = without the scale, o = with it, * = both; d_head across"
    return Panel("2", title, columns, rows, legend=legend, marks=True)
