"""Every tensor inside one attention and the layer around it, recorded in one forward pass.

What is inside the attention is computed again from its recorded input, by the readable code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.inspection.masks import MARKS, batch_tables
from toytrans.inspection.record import (
    AttentionCall,
    ModuleCall,
    Part,
    distance,
    recording,
)
from toytrans.inspection.shown import ATTENTIONS, NAMES, InspectedBatch
from toytrans.inspection.table import Table, label, mask_cells, matrix, number, shape_of, tiny
from toytrans.model.attention import Attention, Intermediates
from toytrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from toytrans.model.masks import padding_mask

SUBLAYERS: dict[Part, tuple[str, ...]] = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("attention", "cross", "feed_forward"),
    "cross": ("self", "attention", "feed_forward"),
}
"""Names of a layer's sub-layers. The traced attention is called "attention"."""

SAME_NUMBERS = ("parted", "transposed", "pieces")
GROUPS = {
    "in": ("embedding", "embedded", "layer_input"),
    "projection": ("attention_normed", "projected", "memory", "memory_projected"),
    "heads": ("q", "k", "v"),
    "weights": ("scores", "capped", "bias", "mask", "masked", "weights"),
    "out": ("context", "merged", "attention_output", "attention_sum"),
}
"""Tensors whose tables are printed side by side. Others are grouped by their sub-layer."""


@dataclass(frozen=True)
class Trace:
    """One layer of a model during one forward pass.

    tensors: all recorded tensors, in the order in which they are computed.
    call: the call of the traced attention.
    layer_module: the layer that contains it.
    """

    inspected: InspectedBatch
    part: Part
    layer: int
    tensors: dict[str, Tensor]
    call: AttentionCall
    layer_module: EncoderLayer | DecoderLayer

    @property
    def name(self) -> str:
        """The attention's name in ATTENTIONS."""
        return NAMES[self.part]

    @property
    def title(self) -> str:
        return f"{ATTENTIONS[self.name].lower()}, layer {self.layer}, {self.inspected.weights}"

    @property
    def pre_norm(self) -> bool:
        return self.inspected.model.config.norm == "pre"

    @property
    def facts(self) -> dict[str, Any]:
        """What was traced, as plain values."""
        return {"weights": self.inspected.weights, "part": self.part, "layer": self.layer}


@dataclass(frozen=True)
class TraceReport:
    """Tables to read, tensors by name, and further facts as plain values."""

    tables: list[Table]
    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The facts, then every tensor in full, as plain values."""
        return self.facts | {
            "tensors": [
                {
                    "name": name,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "strides": list(tensor.stride()),
                    "contiguous": tensor.is_contiguous(),
                    "values": tensor.tolist(),
                }
                for name, tensor in self.tensors.items()
            ]
        }


# Recording -----------------------------------------------------------------------------------


def trace(inspected: InspectedBatch, part: Part, layer: int) -> Trace:
    """Run the model on the batch and record one layer. Raises UserError for an unknown layer."""
    model = inspected.model
    stack = model.encoder_stack() if part == "encoder" else model.decoder_stack()
    if not 1 <= layer <= len(stack):
        side = "encoder" if part == "encoder" else "decoder"
        layers = f"layers 1 to {len(stack)}" if len(stack) > 1 else "layer 1 alone"
        raise UserError(f"layer {layer}: this {side} has {layers}; choose one of them")
    layer_module = stack[layer - 1]
    with recording(_modules(inspected, part, layer_module)) as calls, torch.no_grad():
        model(inspected.batch.src, inspected.batch.tgt_in)
    # shared layers run once for each position in the stack; embeddings may be shared as well
    turn = layer - 1 if model.config.share_layers else 0
    own = 0 if part == "encoder" else -1
    turns = {"embedding": own, "embedded": own, "memory": -1}
    called = {name: each[turns.get(name, turn)] for name, each in calls.items() if each}
    call = AttentionCall.of(called["attention"])
    steps = call.intermediates()
    if not bool(steps.weights.isfinite().all()):
        raise UserError(
            f"{inspected.weights}: the attention weights of {part}, layer {layer}, are not finite; "
            "take a checkpoint from before training diverged"
        )
    tensors = dict(_tensors(inspected, part, call, steps, called))
    return Trace(inspected, part, layer, tensors, call, layer_module)


def _residuals(layer: EncoderLayer | DecoderLayer, part: Part) -> dict[str, Residual]:
    """The residual connections by the names of their sub-layers."""
    return dict(zip(SUBLAYERS[part], cast(list[Residual], layer.residuals), strict=True))


def _modules(
    inspected: InspectedBatch, part: Part, layer: EncoderLayer | DecoderLayer
) -> dict[str, nn.Module]:
    """The modules to record."""
    model = inspected.model
    modules: dict[str, nn.Module] = {
        "embedding": model.src_embedding if part == "encoder" else model.tgt_embedding,
        "embedded": model.drop,
        "memory": model.encoder_norm,
        "layer": layer,
        "attention": layer.self_attention,
        "feed_forward": layer.feed_forward,
    }
    if isinstance(layer, DecoderLayer):
        if part == "cross":
            modules |= {"self": layer.self_attention, "attention": layer.cross_attention}
        else:
            modules["cross"] = layer.cross_attention
    for name, residual in _residuals(layer, part).items():
        modules |= {f"{name}_residual": residual, f"{name}_norm": residual.norm}
    return modules | {f"feed_forward_{k}": x for k, x in layer.feed_forward.named_children()}


def _tensors(
    inspected: InspectedBatch,
    part: Part,
    call: AttentionCall,
    steps: Intermediates,
    called: dict[str, ModuleCall],
) -> Iterator[tuple[str, Tensor]]:
    """All tensors, from the ids to the output of the layer."""
    pre_norm = inspected.model.config.norm == "pre"
    ids, key_ids = inspected.ids(NAMES[part])
    yield "ids", ids
    yield "embedding", called["embedding"].output
    yield "embedded", called["embedded"].output
    yield "layer_input", called["layer"].args[0]
    for name in SUBLAYERS[part]:
        norm = called[f"{name}_norm"]
        if pre_norm:
            yield f"{name}_normed", norm.output
        if name == "attention":
            if part == "cross":
                yield "memory_ids", key_ids
                yield "memory", called["memory"].output
            yield from _inside(call, steps, called["memory"].output)
        elif name == "feed_forward" and "feed_forward_1" in called:
            yield "feed_forward_hidden", called["feed_forward_0"].output
            yield "feed_forward_active", called["feed_forward_1"].output
        yield f"{name}_output", called[name].output
        yield f"{name}_sum", called[f"{name}_residual"].output if pre_norm else norm.args[0]
        if not pre_norm:
            yield f"{name}_normed", norm.output
    yield "layer_output", called["layer"].output


class HeadSplit(NamedTuple):
    """A projection on its way into heads.

    projected: (B, L, parts D), where the parts are some of query, key and value.
    parted: (B, L, parts, H, Dh), a view of projected.
    transposed: (parts, B, H, L, Dh), a view of projected.
    pieces: transposed, copied into contiguous memory.
    """

    projected: Tensor
    parted: Tensor
    transposed: Tensor
    pieces: Tensor


def split_heads(projected: Tensor, parts: int, n_heads: int) -> HeadSplit:
    """Split a projection (B, L, parts D) into heads."""
    rows, length, width = projected.shape
    parted = projected.view(rows, length, parts, n_heads, width // parts // n_heads)
    transposed = parted.permute(2, 0, 3, 1, 4)
    return HeadSplit(projected, parted, transposed, transposed.contiguous())


def named(steps: Intermediates) -> dict[str, Tensor]:
    """Intermediates as tables and JSON name them, who call the outputs context."""
    tensors = steps._asdict()
    tensors["context"] = tensors.pop("outputs")
    return tensors


def _inside(
    call: AttentionCall, steps: Intermediates, memory: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """One attention, from the projection to its heads side by side."""
    of_x = _project(call.module, call.x, "qkv" if call.memory_kv is None else "q")
    yield from of_x._asdict().items()
    pieces = list(of_x.pieces)
    if call.memory_kv is not None:
        of_memory = _project(call.module, memory, "kv")
        yield from ((f"memory_{name}", tensor) for name, tensor in of_memory._asdict().items())
        pieces += of_memory.pieces
    parts = dict(zip("qkv", pieces, strict=True))
    for name, tensor in named(steps).items():
        if name == "capped" and not call.module.cap:
            continue
        if name == "masked":  # first what was added
            added = {"bias": call.module.score_bias(call.context), "mask": call.context.mask}
            yield from ((each, x.detach()) for each, x in added.items() if x is not None)
        # a rotary embedding changes q and k, so that they are no longer parts of the projection
        same = name in parts and torch.equal(parts[name], tensor)
        yield name, parts[name] if same else tensor
    transposed = steps.outputs.transpose(1, 2)
    yield "context_transposed", transposed
    yield "merged", transposed.flatten(2)


@torch.no_grad()
def _project(module: Attention, x: Tensor, parts: str) -> HeadSplit:
    """Project x (B, L, D) to the named parts, and split them into heads."""
    start, width = "qkv".index(parts), x.shape[-1]
    rows = slice(start * width, (start + len(parts)) * width)
    projected = F.linear(x, module.in_proj.weight[rows], module.in_proj.bias[rows])
    return split_heads(projected, len(parts), module.n_heads)


# Tables --------------------------------------------------------------------------------------


def report(traced: Trace, row: int, head: int) -> TraceReport:
    """The whole trace. Tables show pair `row` and head `head`, which count from 0."""
    inspected, heads = traced.inspected, traced.call.module.n_heads
    which = f"pair {row + 1} of {len(inspected.batch.src)} and head {head + 1} of {heads}"
    notes = (
        f"Traced: {traced.title}.",
        f"Tables show {which}; --json and --save hold everything.",
    )
    checked = list(accounts(traced))
    tables = [replace(batch_tables(inspected)[row], notes=notes)]
    tables += memory_tables(traced.tensors, 2, traced.title)
    tables += _values(traced, row, head)
    tables += _account_tables(traced, row, checked, int(tables[-1].number) + 1)
    queries, keys = inspected.ids(traced.name)
    facts = traced.facts | {
        "queries": [inspected.names(ids) for ids in queries],
        "keys": [inspected.names(ids) for ids in keys],
        "accounts": [each._asdict() for each in checked],
    }
    return TraceReport(tables, traced.tensors, facts)


def summary(tables: list[Table]) -> list[Table]:
    """The attention weights, what they are of, and whether the sums add up."""
    weights = next(table for table in tables if table.name.startswith("weights"))
    return [replace(weights, notes=(*tables[0].notes, *weights.notes, *tables[-1].notes))]


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
    found = (group for group, names in GROUPS.items() if name in names)
    return next(found, name.split("_")[0])


def _value(traced: Trace, name: str, row: int, head: int) -> Table:
    """One tensor of one pair, and of one head if it has heads."""
    tensor, width = traced.tensors[name], traced.tensors["q"].shape[-1]
    queries, keys = traced.inspected.tokens(traced.name, row)
    if name == "mask":
        cells = mask_cells(tensor[row, 0].expand(len(queries), -1))
        lines = list(zip(queries, cells, strict=True))
        return Table("", "", keys, lines, shape_of(tensor.shape), MARKS, marks=True)
    of_keys = name in ("k", "v") or name.startswith("memory")
    values = tensor.expand(len(traced.tensors["q"]), *tensor.shape[1:])[row]
    values = values[head] if values.dim() == 3 else values
    summaries, first = None, 0
    if name == "weights":
        summaries = {"sum": values.sum(-1)}
    elif name.endswith("_normed"):
        summaries = {"mean": values.mean(-1), "sd": values.std(-1, correction=0)}
    elif name.endswith("projected") or name == "merged":
        first = head * width
    return matrix(
        "",
        "",
        values,
        keys if of_keys else queries,
        keys if name in GROUPS["weights"] else None,
        *_notes(traced, name),
        summaries=summaries,
        first=first,
    )


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
        "attention_output": "merged W + b.",
        "feed_forward_active": f"After {config.activation}.",
    }
    found = [notes[name]] if name in notes else []
    return [*found, "Before the mask."] if name == "scores" else found


def _row_sums(weights: Tensor) -> str:
    sums = weights.double().sum(-1)  # (B, H, Tq)
    empty = int((sums == 0).sum())
    error = tiny(distance(sums[sums > 0], 1.0)) if empty < sums.numel() else "0"
    others = f"{sums.numel() - empty} rows of all pairs and heads sum to 1 within {error}"
    return f"{others}; {empty} rows have no visible key and are 0." if empty else f"All {others}."


# Accounts ------------------------------------------------------------------------------------


class Account(NamedTuple):
    """A tensor compared with what it should be computed from.

    verdict: exact, rounding or NOT EQUAL.
    """

    tensor: str
    made_of: str
    difference: float
    verdict: str


def accounts(traced: Trace) -> Iterator[Account]:
    """Each tensor from the heads to the layer's output, compared with what it is computed from.

    Sums are computed in the same order, so they must be bit-identical. Norms and products are
    computed again in fp64.
    """
    for name, made_of, expected in _expected(traced):
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


Expected = tuple[str, str, Tensor]
"""A tensor's name, what it should be computed from, and the result of computing it again."""


def _expected(traced: Trace) -> Iterator[Expected]:
    tensors, x = traced.tensors, "layer_input"
    total = tensors[x]
    for name, residual in _residuals(traced.layer_module, traced.part).items():
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


def _norm(norm: nn.Module, tensors: dict[str, Tensor], name: str, of: str) -> Iterator[Expected]:
    """(x - mean) / root(variance + epsilon) x gain + bias, over the features."""
    if isinstance(norm, nn.LayerNorm):
        x = tensors[of].double()
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        expected = (centred / deviation * norm.weight + norm.bias).detach()
        yield name, f"norm of {label(of)}", expected


def _feed_forward(traced: Trace, x: str) -> Iterator[Expected]:
    feed_forward, tensors = traced.layer_module.feed_forward, traced.tensors
    if isinstance(feed_forward, FeedForward):
        first, activation, _, second = feed_forward
        yield _product(tensors, "feed_forward_hidden", first, x)
        made_of = f"{traced.inspected.model.config.activation} of feed forward hidden"
        yield "feed_forward_active", made_of, activation(tensors["feed_forward_hidden"])
        yield _product(tensors, "feed_forward_output", second, "feed_forward_active")


def _product(tensors: dict[str, Tensor], name: str, linear: nn.Module, of: str) -> Expected:
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    return name, f"{label(of)} W + b", F.linear(tensors[of].double(), weight, bias)


def _account_tables(traced: Trace, row: int, checked: list[Account], step: int) -> Iterator[Table]:
    """The last tables: the sums at one position number by number, and all comparisons."""
    queries, _ = traced.inspected.tokens(traced.name, row)
    place = int(padding_mask(traced.inspected.ids(traced.name)[0][row]).nonzero()[-1])
    names = [("", "layer_input")]
    for name in SUBLAYERS[traced.part]:
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
