"""Every tensor inside one attention and the layer around it, recorded in one forward pass.

In that pass the traced attention computes its output by the readable backend, and the layer goes
on with it. So each number shown was computed from the numbers shown before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.capture import (
    AttentionCall,
    HeadSplit,
    ModuleCall,
    Part,
    attentions,
    named,
    recording,
    split_heads,
)
from toytrans.insight.inspected import ATTENTIONS, NAMES, InspectedBatch
from toytrans.insight.tables import Table
from toytrans.model.attention import Attention, Intermediates
from toytrans.model.layers import DecoderLayer, EncoderLayer, Residual

SUBLAYERS: dict[Part, tuple[str, ...]] = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("attention", "cross", "feed_forward"),
    "cross": ("self", "attention", "feed_forward"),
}
"""Names of a layer's sub-layers. The traced attention is called "attention"."""


@dataclass(frozen=True)
class Trace:
    """One layer of a model during one forward pass.

    tensors: all recorded tensors, in the order in which they are computed.
    call: the call of the traced attention.
    layer_module: the layer that contains it.
    backend_difference: the largest difference from the output of the backend used in training.
    """

    inspected: InspectedBatch
    part: Part
    layer: int
    tensors: dict[str, Tensor]
    call: AttentionCall
    layer_module: EncoderLayer | DecoderLayer
    backend_difference: float

    @property
    def name(self) -> str:
        """The attention's name in ATTENTIONS."""
        return NAMES[self.part]

    @property
    def residuals(self) -> dict[str, Residual]:
        """The residual connections by the names of their sub-layers."""
        return _residuals(self.layer_module, self.part)

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


def trace(inspected: InspectedBatch, part: Part, layer: int) -> Trace:
    """Run the model on the batch and record one layer. Raises UserError for an unknown layer."""
    model, layer_module = inspected.model, _layer(inspected, part, layer)
    attention = attentions(model)[part, layer]

    def by_readable_backend(call: ModuleCall) -> Tensor | None:
        return AttentionCall.of(call).run()[1] if call.module is attention else None

    modules = _modules(inspected, part, layer_module)
    with recording(modules, by_readable_backend) as calls, torch.no_grad():
        model(inspected.batch.src, inspected.batch.tgt_in)
    # shared layers run once for each position in the stack; embeddings may be shared as well
    turn = layer - 1 if model.config.share_layers else 0
    embedded = 0 if part == "encoder" else -1
    turns = {"embedding": embedded, "embedded": embedded, "memory": -1}
    called = {name: each[turns.get(name, turn)] for name, each in calls.items() if each}
    call = AttentionCall.of(called["attention"])
    steps, output = call.run()
    if not bool(steps.weights.isfinite().all()):
        raise UserError(
            f"{inspected.weights}: the attention weights of {part}, layer {layer}, are not finite; "
            "take a checkpoint from before training diverged"
        )
    outputs = {name: each.output for name, each in called.items()} | {"attention": output}
    inputs = {name: each.args[0] for name, each in called.items() if each.args}
    tensors = dict(_tensors(inspected, part, call, steps, inputs, outputs))
    return Trace(inspected, part, layer, tensors, call, layer_module, distance(output, call.output))


def _residuals(layer: EncoderLayer | DecoderLayer, part: Part) -> dict[str, Residual]:
    return dict(zip(SUBLAYERS[part], cast(list[Residual], layer.residuals), strict=True))


def _layer(inspected: InspectedBatch, part: Part, layer: int) -> EncoderLayer | DecoderLayer:
    side = "encoder" if part == "encoder" else "decoder"
    model = inspected.model
    stack = model.encoder_stack() if side == "encoder" else model.decoder_stack()
    if not 1 <= layer <= len(stack):
        layers = f"layers 1 to {len(stack)}" if len(stack) > 1 else "layer 1 alone"
        raise UserError(f"layer {layer}: this {side} has {layers}; choose one of them")
    return stack[layer - 1]


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
    inputs: dict[str, Tensor],
    outputs: dict[str, Tensor],
) -> Iterator[tuple[str, Tensor]]:
    """All tensors, from the ids to the output of the layer."""
    pre_norm = inspected.model.config.norm == "pre"
    ids, key_ids = inspected.ids(NAMES[part])
    yield "ids", ids
    yield "embedding", outputs["embedding"]
    yield "embedded", outputs["embedded"]
    yield "layer_input", inputs["layer"]
    for name in SUBLAYERS[part]:
        normed = f"{name}_normed", outputs[f"{name}_norm"]
        if pre_norm:
            yield normed
        if name == "attention":
            if part == "cross":
                yield "memory_ids", key_ids
                yield "memory", outputs["memory"]
            yield from _inside(call, steps, outputs["memory"])
        elif name == "feed_forward" and "feed_forward_1" in outputs:
            yield "feed_forward_hidden", outputs["feed_forward_0"]
            yield "feed_forward_active", outputs["feed_forward_1"]
        yield f"{name}_output", outputs[name]
        yield f"{name}_sum", outputs[f"{name}_residual"] if pre_norm else inputs[f"{name}_norm"]
        if not pre_norm:
            yield normed
    yield "layer_output", outputs["layer"]


def _inside(
    call: AttentionCall, steps: Intermediates, memory: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """One attention, from the projection to its heads side by side."""
    if call.memory_kv is None:
        heads = _project(call.module, call.x, "qkv")
        parts = dict(zip("qkv", heads.pieces, strict=True))
        yield from heads._asdict().items()
    else:
        heads = _project(call.module, call.x, "q")
        of_memory = _project(call.module, memory, "kv")
        parts = dict(zip("qkv", (*heads.pieces, *of_memory.pieces), strict=True))
        yield from heads._asdict().items()
        yield from ((f"memory_{name}", tensor) for name, tensor in of_memory._asdict().items())
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
    if parts == "qkv":
        return split_heads(module.in_proj(x), 3, module.n_heads)
    start, width = "qkv".index(parts), x.shape[-1]
    rows = slice(start * width, (start + len(parts)) * width)
    projected = F.linear(x, module.in_proj.weight[rows], module.in_proj.bias[rows])
    return split_heads(projected, len(parts), module.n_heads)


def distance(a: Tensor, b: Tensor | float) -> float:
    """The largest absolute difference, computed in fp64."""
    other = b.double() if isinstance(b, Tensor) else b
    return float((a.double() - other).abs().max())
