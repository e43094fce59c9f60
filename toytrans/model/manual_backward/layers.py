"""A model whose gradients are derived by hand: `model.backward: by_hand`.

`use_manual_backward` gives every layer that computes another forward, which runs operations of
`functions`. Autograd chains these and differentiates what joins them: residual sums, a weight used
in several places, embeddings times sqrt(D), added position vectors, slices, reshapes, transposes,
concatenation, and the sum over places in the loss.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toytrans.model.attention import Attention
from toytrans.model.backends import Dropout, keep_mask
from toytrans.model.context import AttentionContext
from toytrans.model.manual_backward import functions
from toytrans.model.positions.absolute import Rotary
from toytrans.model.positions.relative import Relative


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
    reduction: str = "sum",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` with manual backward.

    logits: (N, V)
    labels: (N)
    Returns a sum, or (N) with reduction "none".
    """
    losses = run("cross_entropy", logits, labels, ignore_index, label_smoothing)
    return losses.sum() if reduction == "sum" else losses


def _dropout(layer: Dropout, x: Tensor) -> Tensor:
    """Dropout with the same random masks as autograd's."""
    if not layer.training or not layer.rate:
        return x
    return run("dropout", x, keep_mask(x, layer.rate))


FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: lambda layer, x: linear(x, layer.weight, layer.bias),
    nn.LayerNorm: lambda layer, x: run("layer_norm", x, layer.weight, layer.bias, layer.eps),
    nn.Embedding: lambda layer, ids: run("embedding", layer.weight, ids),
    nn.ReLU: lambda layer, x: run("relu", x),
    nn.GELU: lambda layer, x: run("gelu_tanh" if layer.approximate == "tanh" else "gelu", x),
    Dropout: _dropout,
}
"""The forward of a layer, by its class."""


def _attend(layer: Attention, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
    """As `Attention.attend`."""
    keep = None
    if layer.dropout and layer.training:
        keep = keep_mask(q.new_empty(*q.shape[:3], k.shape[2]), layer.dropout)
    given = q, k, v, layer.score_bias(context), context.additive, context.has_visible_key
    return run("attention", *given, keep, layer.scale, layer.cap)


def distance_bias(weights: Tensor, features: Tensor, index: Tensor, rows: Sequence[int]) -> Tensor:
    """As `relative.distance_bias`: a linear layer, then an embedding."""
    values = linear(features, weights)  # (N, H)
    heads = [
        run("embedding", values[:, head : head + 1], index[row]) for head, row in enumerate(rows)
    ]
    return torch.cat(heads, -1).permute(0, 3, 1, 2)


def use_manual_backward(model: nn.Module) -> None:
    """Change every layer in place. Weights and their names stay.

    Subclasses of layers, of the user's say, keep what they compute.
    """
    for module in model.modules():
        if forward := FORWARDS.get(type(module)):
            module.forward = MethodType(forward, module)
        elif type(module) is Attention:
            module.linear = linear  # type: ignore[assignment]
            module.attend = MethodType(_attend, module)  # type: ignore[method-assign]
        elif isinstance(module, Rotary):
            module.apply_rotary = partial(run, "rotary")
        elif isinstance(module, Relative):
            module.weigh = distance_bias
