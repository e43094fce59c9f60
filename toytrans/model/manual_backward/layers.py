"""A model whose gradients are derived by hand.

`use_manual_backward` stands outside of the model: it gives every layer that computes another
forward, which runs operations of `functions`. Autograd chains these and differentiates what joins
them: residual sums, a weight used in several places, embeddings times sqrt(D), added position
vectors, scaled and shifted biases, slices, reshapes, transposes, concatenation, and the sum over
places in the loss.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toytrans.errors import UserError
from toytrans.model.attention import Attention, AttentionContext, KeysValues, split_heads
from toytrans.model.dropout import Dropout, keep_mask
from toytrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from toytrans.model.manual_backward import functions
from toytrans.model.positions.absolute import Learned, Sinusoidal
from toytrans.model.positions.anchored import Anchored
from toytrans.model.positions.base import NoPositions, Positions
from toytrans.model.positions.relative import Alibi, Clipped, T5Buckets
from toytrans.model.positions.rotary import Rotary, cos_sin
from toytrans.model.transformer import Transformer


def use_manual_backward(model: nn.Module) -> None:
    """Put the derived gradients into a model in place. Weights and their names stay.

    Raises UserError for a layer or a position scheme whose gradients nobody has derived.
    """
    for module in model.modules():
        kind = type(module)
        if forward := FORWARDS.get(kind):
            module.forward = MethodType(forward, module)
        elif replaced := METHODS.get(kind):
            for name, method in replaced.items():
                setattr(module, name, MethodType(method, module))
        elif kind not in GLUE:
            raise UserError(
                f"{kind.__module__}.{kind.__qualname__}: its gradients are not derived in "
                "toytrans/model/manual_backward/layers.py; derive them, or train it by autograd"
            )


def run(operation: str, *inputs: Any) -> Tensor:
    """The output of an operation of `functions`; its gradients will be those derived there."""
    return _Operation.apply(operation, *inputs)  # type: ignore[no-untyped-call]


class _Operation(torch.autograd.Function):
    """An operation of autograd that calls a pair of functions."""

    @staticmethod
    def forward(ctx: Any, operation: str, *inputs: Any) -> Tensor:
        output, saved = getattr(functions, operation)(*inputs)
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in saved))
        ctx.settings = [None if isinstance(x, Tensor) else x for x in saved]
        ctx.operation, ctx.inputs = operation, len(inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """None for the name and for inputs after those that have gradients."""
        pairs = zip(ctx.saved_tensors, ctx.settings, strict=True)
        saved = tuple(setting if tensor is None else tensor for tensor, setting in pairs)
        derived = getattr(functions, f"{ctx.operation}_backward")(gradients[0], saved)
        return None, *derived, *[None] * (ctx.inputs - len(derived))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` with manual backward."""
    return run("linear", x, weight, bias)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` with manual backward.

    logits: (N, V)
    labels: (N)
    reduction: "none" gives (N), "sum" and "mean" a scalar; the mean is over labels that count
    """
    losses = run("cross_entropy", logits, labels, ignore_index, label_smoothing)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / labels.ne(ignore_index).sum()
    raise ValueError(f"{reduction} is not a valid value for reduction")


# The layers ----------------------------------------------------------------------------------


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _layer_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return run("layer_norm", x, layer.weight, layer.bias, layer.eps)


def _embedding(layer: nn.Embedding, ids: Tensor) -> Tensor:
    return run("embedding", layer.weight, ids)


def _relu(layer: nn.ReLU, x: Tensor) -> Tensor:
    return run("relu", x)


def _gelu(layer: nn.GELU, x: Tensor) -> Tensor:
    return run("gelu_tanh" if layer.approximate == "tanh" else "gelu", x)


def _dropout(layer: Dropout, x: Tensor) -> Tensor:
    """Dropout with the same random masks as autograd's."""
    if not layer.training or not layer.rate:
        return x
    return run("dropout", x, keep_mask(x, layer.rate))


FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.ReLU: _relu,
    nn.GELU: _gelu,
    Dropout: _dropout,
}
"""What takes the place of a layer's forward, by its class."""


def _project_q(layer: Attention, x: Tensor) -> Tensor:
    """As `Attention.project_q`."""
    width = x.shape[-1]
    projected = linear(x, layer.in_proj.weight[:width], layer.in_proj.bias[:width])
    (q,) = split_heads(projected, 1, layer.n_heads)
    return q


def _project_kv(layer: Attention, memory: Tensor) -> KeysValues:
    """As `Attention.project_kv`."""
    width = memory.shape[-1]
    projected = linear(memory, layer.in_proj.weight[width:], layer.in_proj.bias[width:])
    k, v = split_heads(projected, 2, layer.n_heads)
    return k, v


def _attend(layer: Attention, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
    """As `Attention.attend`."""
    keep = None
    if layer.dropout and layer.training:
        keep = keep_mask(q.new_empty(*q.shape[:3], k.shape[2]), layer.dropout)
    bias, mask_bias, visible = (
        layer.position_bias(context),
        context.mask_bias,
        context.has_visible_key,
    )
    return run("attention", q, k, v, bias, mask_bias, visible, keep, layer.scale, layer.cap)


def _rotate(scheme: Rotary, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
    """As `Rotary.rotate`."""
    cos, sin = cos_sin(q, start)
    return run("rotary", q, cos, sin), run("rotary", k, cos, sin)


def _look_up(scheme: Positions, table: Tensor, index: Tensor) -> Tensor:
    """As `DistanceBias.look_up`: the rows of an embedding one number wide, head after head."""
    heads, columns = table.shape
    first = torch.arange(0, heads * columns, columns, device=index.device)
    flat = index + first.view(-1, *[1] * (index.dim() - 1))  # (H, ...)
    return run("embedding", table.reshape(-1, 1), flat).view(flat.shape)


METHODS: dict[type[nn.Module], dict[str, Callable[..., Any]]] = {
    Attention: {"project_q": _project_q, "project_kv": _project_kv, "attend": _attend},
    Rotary: {"rotate": _rotate},
    Clipped: {"look_up": _look_up},
    Alibi: {"look_up": _look_up},
    T5Buckets: {"look_up": _look_up},
    Anchored: {"look_up": _look_up},
}
"""What takes the place of a class's methods, by their names. A bias consists of numbers that are
looked up, scaled and shifted."""

GLUE: set[type[nn.Module]] = {
    *(Transformer, EncoderLayer, DecoderLayer, FeedForward, Residual, nn.ModuleList, nn.Identity),
    *(Positions, NoPositions, Sinusoidal, Learned),
}
"""Classes that only join others, or add a vector."""
