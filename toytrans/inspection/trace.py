"""Every tensor inside one attention and the layer around it, recorded in one forward pass.

What is inside the attention is computed again from its recorded input, by the readable code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.inspection.masks import MARKS, pair_table
from toytrans.inspection.panels import (
    distance,
    label,
    mask_cells,
    matrix,
    number,
    panel,
    shape_of,
    tiny,
)
from toytrans.inspection.record import AttentionCall, ModuleCall, Part, attentions, record_pass
from toytrans.inspection.shown import ATTENTIONS, NAMES, InspectedBatch
from toytrans.model.attention import Attention
from toytrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from toytrans.model.masks import causal_mask, padding_mask
from toytrans.table import Table

SUBLAYERS: dict[Part, tuple[str, ...]] = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("attention", "cross", "feed_forward"),
    "cross": ("self", "attention", "feed_forward"),
}
"""Names of a layer's sub-layers. The traced attention is called "attention"."""


class Step(NamedTuple):
    """One tensor.

    group: the tables of one group are printed side by side; "" = no table.
    note: how it is computed.
    made_of, expected: what it should be computed from, and the result of computing it again.
    """

    name: str
    tensor: Tensor
    group: str = ""
    note: str = ""
    made_of: str = ""
    expected: Tensor | None = None


@dataclass(frozen=True)
class Trace:
    """One layer of a model during one forward pass.

    call: the call of the traced attention.
    steps: all tensors, in the order in which they are computed.
    """

    inspected: InspectedBatch
    part: Part
    layer: int
    call: AttentionCall
    steps: list[Step]

    @property
    def name(self) -> str:
        """The attention's name in ATTENTIONS."""
        return NAMES[self.part]

    @property
    def title(self) -> str:
        """Which attention, of which layer, with whose weights."""
        return f"{ATTENTIONS[self.name].lower()}, layer {self.layer}, {self.inspected.weights}"

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name, in the order in which they are computed."""
        return {step.name: step.tensor for step in self.steps}

    def to_dict(self) -> dict[str, Any]:
        """What was traced, and every tensor in full, as plain values."""
        inspected = self.inspected
        queries, keys = ([inspected.names(ids) for ids in x] for x in inspected.ids(self.name))
        where: dict[str, Any] = {"weights": inspected.weights}
        if run := inspected.run:
            where |= {"run": str(run.path), "step": run.step, "checkpoint": run.which_step}
        where |= {"part": self.part, "layer": self.layer}
        return where | {
            "queries": queries,
            "keys": keys,
            "accounts": accounts(self),
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
            ],
        }


# Recording -----------------------------------------------------------------------------------


def trace(inspected: InspectedBatch, part: Part, layer: int) -> Trace:
    """Run the model on the batch and record one layer. Raises UserError for an unknown layer."""
    model = inspected.model
    stack = model.encoder_stack() if part == "encoder" else model.decoder_stack()
    if not 1 <= layer <= len(stack):
        raise UserError(f"layer {layer}: part {part} has layers 1 to {len(stack)}")
    calls = record_pass(model, inspected.batch, model.modules(), inspected.device)
    # shared layers run once for each place in the stack; embeddings may be shared as well
    turn, own = layer - 1 if model.settings.share_layers else 0, 0 if part == "encoder" else -1
    embedding = model.src_embedding if part == "encoder" else model.tgt_embedding
    module = attentions(model)[part, layer]
    call = AttentionCall(module, *calls[module][turn].args)
    ids, key_ids = inspected.ids(NAMES[part])
    inside = list(_attention(call, calls[model.encoder_norm][-1].output, key_ids))
    note = f"embedding x root of {model.settings.d_model}, plus what the positions add."
    embedded = calls[embedding][own].output, calls[model.drop][own].output
    steps = [
        Step("ids", ids),
        Step("embedding", embedded[0], "in", "One row of the embedding table for each id."),
        Step("embedded", embedded[1], "in", note),
        *_layer(
            stack[layer - 1], part, model.settings.activation, inside, lambda m: calls[m][turn]
        ),
    ]
    return Trace(inspected, part, layer, call, steps)


def _layer(
    layer: EncoderLayer | DecoderLayer,
    part: Part,
    activation: str,
    inside: list[Step],
    called: Callable[[nn.Module], ModuleCall],
) -> Iterator[Step]:
    """The layer, from its input to its output. inside: the steps of the traced attention."""

    def made(name: str, group: str, module: nn.Module, of: Step) -> Step:
        return _again(Step(name, called(module).output, group), module, of)

    modules: list[nn.Module] = [layer.self_attention, layer.feed_forward]
    if isinstance(layer, DecoderLayer):
        modules.insert(1, layer.cross_attention)
    residuals = cast(list[Residual], layer.residuals)
    x = Step("layer_input", called(layer).args[0], "in")
    yield x
    total = x.tensor
    for name, module, residual in zip(SUBLAYERS[part], modules, residuals, strict=True):
        group, before = "out" if name == "attention" else name, x
        if residual.pre:
            of = "projection" if name == "attention" else name
            before = made(f"{name}_normed", of, residual.norm, x)
            yield before
        output = Step(f"{name}_output", called(module).output, group)
        if name == "attention":
            yield from inside
            output = _again(output, cast(Attention, module).out_proj, inside[-1])
        elif isinstance(module, FeedForward):  # a fault may have left it out
            first, nonlinear, _, second = module
            hidden = made("feed_forward_hidden", name, first, before)
            of, expected = f"{activation} of feed forward hidden", nonlinear(hidden.tensor)
            active = Step("feed_forward_active", called(nonlinear).output, name, of, of, expected)
            output = _again(output, second, active)
            yield from (hidden, active)
        yield output
        summed = called(residual).output if residual.pre else called(residual.norm).args[0]
        of, expected = f"{label(x.name)} + {label(output.name)}", x.tensor + output.tensor
        x = Step(f"{name}_sum", summed, group, of, of, expected)
        yield x
        total = total + output.tensor
        if not residual.pre:
            x = made(f"{name}_normed", group, residual.norm, x)
            yield x
    whole = ("layer input + every output", total) if residual.pre else (label(x.name), x.tensor)
    yield Step("layer_output", called(layer).output, "layer", "", *whole)


def _again(step: Step, module: nn.Module, of: Step) -> Step:
    """The step with the same product or norm in fp64; a fault may have left the norm out."""
    if not isinstance(module, nn.Linear | nn.LayerNorm):
        return step
    x, weight, bias = (each.detach().double() for each in (of.tensor, module.weight, module.bias))
    if isinstance(module, nn.Linear):
        made_of, expected = f"{label(of.name)} W + b", F.linear(x, weight, bias)
    else:
        made_of = f"norm of {label(of.name)}"
        expected = F.layer_norm(x, weight.shape, weight, bias, module.eps)
    return step._replace(note=made_of, made_of=made_of, expected=expected)


def _attention(call: AttentionCall, memory: Tensor, key_ids: Tensor) -> Iterator[Step]:
    """One attention, from the projection to its heads side by side."""
    module, steps = call.module, call.intermediates()
    crosses = call.memory_kv is not None
    if crosses:
        yield Step("memory_ids", key_ids)
        yield Step("memory", memory, "projection", "The output of the encoder.")
    width = call.x.shape[-1]
    rows, what = (width, "q") if crosses else (3 * width, "q | k | v")
    with torch.no_grad():
        projected = F.linear(call.x, module.in_proj.weight[:rows], module.in_proj.bias[:rows])
    note = f"{what}, {width} columns each; the columns of this head's query are shown."
    split = split_heads(projected, rows // width, module.n_heads)
    for name, view in split.items():
        yield Step(name, view, "projection" if name == "projected" else "", note)
    pieces = (*split["pieces"], *(call.memory_kv or ()))
    for name, piece in zip("qkv", pieces, strict=True):
        tensor = getattr(steps, name)
        # a rotary embedding changes q and k, so that they are no longer parts of the projection
        yield Step(name, piece if torch.equal(piece, tensor) else tensor, "heads")
    width = steps.q.shape[-1]
    note = f"q k^T x {number(module.scale, 4)}; 1 / root of {width} is {number(width**-0.5, 4)}."
    yield Step("scores", steps.scores, "weights", f"{note}\nBefore the mask.")
    if module.cap:
        yield Step("capped", steps.capped, "weights")
    if (bias := module.position_bias(call.context)) is not None:
        yield Step("bias", bias.detach(), "weights")
    yield Step("unmasked_weights", call.unmasked().weights, "weights")
    if call.context.mask is not None:
        yield Step("mask", call.context.mask, "weights")
    note = "Scores plus bias plus mask. Masked cells hold the lowest finite number."
    yield Step("masked", steps.masked, "weights", note)
    note = "Each row sums to 1, or is 0 if it has no visible key."
    yield Step("weights", steps.weights, "weights", note)
    yield Step("context", steps.outputs, "out", "weights v")
    transposed = steps.outputs.transpose(1, 2)
    yield Step("context_transposed", transposed)
    note = "The contexts of all heads side by side; this head's columns are shown."
    expected = torch.cat(steps.outputs.unbind(1), -1)
    yield Step("merged", transposed.flatten(2), "out", note, "contexts side by side", expected)


def split_heads(projected: Tensor, parts: int, n_heads: int) -> dict[str, Tensor]:
    """Split a projection (B, L, parts D) of some of query, key and value into heads.

    parted: (B, L, parts, H, Dh), a view of projected.
    transposed: (parts, B, H, L, Dh), a view of projected.
    pieces: transposed, copied into contiguous memory.
    """
    rows, length, width = projected.shape
    parted = projected.view(rows, length, parts, n_heads, width // parts // n_heads)
    transposed = parted.permute(2, 0, 3, 1, 4)
    pieces = transposed.contiguous()
    return {"projected": projected, "parted": parted, "transposed": transposed, "pieces": pieces}


# Tables --------------------------------------------------------------------------------------


def tables(traced: Trace, row: int, head: int) -> list[Table]:
    """The whole trace of pair `row` and head `head`, which count from 0."""
    inspected, heads = traced.inspected, traced.call.module.n_heads
    which = f"pair {row + 1} of {len(inspected.batch.src)} and head {head + 1} of {heads}"
    notes = f"Traced: {traced.title}.", f"Tables show {which}; --json holds everything."
    made = [replace(pair_table(inspected, row), notes=notes)]
    made += memory_tables(traced.tensors, traced.title)
    shown = (step for step in traced.steps if step.group)
    for _, steps in groupby(shown, lambda step: step.group):
        place = str(int(made[-1].panel) + 1)
        made += [_value(traced, step, place, row, head) for step in steps]
    return [*made, _accounted(str(int(made[-1].panel) + 1), accounts(traced))]


def summary(tables: list[Table]) -> list[Table]:
    """The attention weights, what they are of, and whether the sums add up."""
    weights = next(table for table in tables if table.title.startswith("weights"))
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
    return panel(number, name, columns, rows, legend=legend, notes=notes)


def memory_tables(tensors: dict[str, Tensor], title: str) -> Iterator[Table]:
    """Tables 2 and 3: the memory layout of all tensors, and what transposing does to a view."""
    yield layout("2", f"In memory: {title}", tensors)
    notes = [
        "Transposing changes strides, not memory: transposed is projected in another order, "
        "context transposed is context in another order."
    ]
    *outer, length, width = tensors["transposed"].shape
    copied = "So pieces is a contiguous copy; q is its first part, rotated if rotary."
    merged = "So merged is a contiguous copy: contiguous() and view, or flatten."
    for name, shape, so in (
        ("transposed", (*outer, length * width), copied),
        ("context_transposed", tensors["merged"].shape, merged),
    ):
        call = f"{name}.view{shape_of(shape)}"
        try:
            tensors[name].view(shape)
            notes.append(f"{call} works: at these sizes nothing has to move.")
        except RuntimeError as error:
            notes += [f"{call} fails: {str(error).splitlines()[0]}", so]
    yield panel("3", "Into heads and back", [], [], notes=tuple(notes))


def _value(traced: Trace, step: Step, place: str, row: int, head: int) -> Table:
    """One tensor of one pair, and of one head if it has heads."""
    name, tensor = step.name, step.tensor
    queries, keys = traced.inspected.tokens(traced.name, row)
    if name == "mask":
        cells = mask_cells(tensor[row, 0].expand(len(queries), -1))
        lines = list(zip(queries, cells, strict=True))
        return panel(place, name, keys, lines, shape_of(tensor.shape), MARKS, marks=True)
    values = tensor[row if len(tensor) > 1 else 0]  # one bias serves every pair
    title = label(name)
    if values.dim() == 3:
        values, title = values[head], f"{title}, head {head + 1}"
    summaries, first, notes = None, 0, step.note.splitlines()
    if name == "weights":
        summaries = {"sum": values.sum(-1)}
    elif name == "unmasked_weights":
        summaries, notes = _leaks(traced, row, head)
    elif name.endswith("_normed"):
        summaries = {"mean": values.mean(-1), "sd": values.std(-1, correction=0)}
    elif name.endswith("projected") or name == "merged":
        first = head * traced.tensors["q"].shape[-1]
    of_keys = name in ("k", "v") or name.startswith("memory")
    rows, columns = keys if of_keys else queries, keys if step.group == "weights" else None
    return matrix(place, title, values, rows, columns, *notes, summaries=summaries, first=first)


def _leaks(traced: Trace, row: int, head: int) -> tuple[dict[str, Tensor], list[str]]:
    """The shares of each query's weights on pads, and in the decoder on later tokens, were there no
    mask; and their means over heads."""
    queries, keys = (ids[row] for ids in traced.inspected.ids(traced.name))
    weights, real = traced.tensors["unmasked_weights"][row], padding_mask(queries)
    cells = {"pads": ~padding_mask(keys).expand(len(queries), -1)}  # (Tq, Tk)
    if traced.part == "decoder":
        cells["the future"] = ~causal_mask(len(keys)) & ~cells["pads"]
    shares = {name: (weights * each).sum(-1) for name, each in cells.items()}  # (H, Tq)
    notes = [
        f"Without the mask {number(share[:, real].mean(), 3)} of the weights of real queries, in "
        f"all heads, would be on {name}; equal weights would give "
        f"{number(cells[name][real].double().mean(), 3)}."
        for name, share in shares.items()
    ]
    return {name: share[head] for name, share in shares.items()}, notes


# Accounts ------------------------------------------------------------------------------------


def accounts(traced: Trace) -> list[dict[str, Any]]:
    """Each tensor from the heads to the layer's output, compared with what it is computed from.

    Sums are computed in the same order, so they must be bit-identical. Norms and products are
    computed again in fp64. The verdict is exact, rounding or NOT EQUAL.
    """
    compared = []
    for name, actual, _, _, made_of, expected in traced.steps:
        if expected is None:
            continue
        off = distance(actual, expected)
        # sums of a few hundred products lose a few dozen times the machine epsilon
        most = 100 * torch.finfo(actual.dtype).eps * max(float(expected.abs().max()), 1)
        verdict = "exact" if off == 0 else "rounding" if off <= most else "NOT EQUAL"
        each = {"tensor": name, "made_of": made_of, "difference": off, "verdict": verdict}
        compared.append(each)
    return compared


def _accounted(step: str, checked: list[dict[str, Any]]) -> Table:
    """All comparisons."""
    rows = [
        (label(each["tensor"]), [each["made_of"], tiny(each["difference"]), each["verdict"]])
        for each in checked
    ]
    note = "The layer's output is accounted for: it contains nothing else."
    if wrong := [name for name, (*_, verdict) in rows if verdict == "NOT EQUAL"]:
        note = f"NOT accounted for: {', '.join(wrong)}. The layer has a fault."
    columns, legend = ["made of", "off by", ""], "largest differences over the whole batch"
    return panel(step, "Accounted for", columns, rows, legend=legend, notes=(note,))
