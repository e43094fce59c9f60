"""A model whose gradients are derived by hand: `model.backward: by_hand`.

`use_manual_backward` replaces the class of every layer that computes. The new class has the same
weights under the same names, and its forward runs operations of `functions`. Autograd
chains these and differentiates what joins them: residual sums, a weight
used in several places, embeddings times sqrt(D), added position vectors, slices, reshapes,
transposes, concatenation, and the sum over places in the loss.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toytrans.model.attention import Attention
from toytrans.model.backends.dropout import Dropout, keep_mask
from toytrans.model.context import AttentionContext
from toytrans.model.manual_backward import functions
from toytrans.model.positions.relative import DistanceBias
from toytrans.model.positions.rotary import ApplyRotary


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


class ManualLinear(nn.Linear):
    """x W^T + b: (..., in) -> (..., out)."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class ManualLayerNorm(nn.LayerNorm):
    """Layer normalisation over the last axis: (..., D) -> (..., D)."""

    def forward(self, x: Tensor) -> Tensor:
        return run("layer_norm", x, self.weight, self.bias, self.eps)


class ManualEmbedding(nn.Embedding):
    """Rows of the table: ids (B, L) -> (B, L, D)."""

    def forward(self, ids: Tensor) -> Tensor:
        return run("embedding", self.weight, ids)


class ManualReLU(nn.ReLU):
    """max(x, 0), element by element."""

    def forward(self, x: Tensor) -> Tensor:
        return run("relu", x)


class ManualGELU(nn.GELU):
    """GELU, exact or in its tanh form, element by element."""

    def forward(self, x: Tensor) -> Tensor:
        return run("gelu_tanh" if self.approximate == "tanh" else "gelu", x)


class ManualDropout(Dropout):
    """Dropout with the same random masks as `Dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        return run("dropout", x, keep_mask(x, self.rate))


class ManualAttention(Attention):
    """Projections and attention with manual backward."""

    linear = staticmethod(linear)  # type: ignore[assignment]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        keep = None
        if self.dropout and self.training:
            keep = keep_mask(q.new_empty(*q.shape[:3], k.shape[2]), self.dropout)
        given = q, k, v, self.score_bias(context), context.additive, context.has_visible_key
        return run("attention", *given, keep, self.scale, self.cap)


class ManualRotary(ApplyRotary):
    """Rotary embedding of queries or keys: (B, H, L, Dh) -> (B, H, L, Dh)."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return run("rotary", x, cos, sin)


class ManualDistanceBias(DistanceBias):
    """The bias of relative positions: a linear layer, then an embedding."""

    def forward(
        self, weights: Tensor, features: Tensor, index: Tensor, rows: Sequence[int]
    ) -> Tensor:
        """The bias (B or 1, H, Tq, Tk); arguments as in `DistanceBias`."""
        values = linear(features, weights)  # (N, H)
        heads = [
            run("embedding", values[:, head : head + 1], index[row])
            for head, row in enumerate(rows)
        ]
        return torch.cat(heads, -1).permute(0, 3, 1, 2)


REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: ManualLinear,
    nn.LayerNorm: ManualLayerNorm,
    nn.Embedding: ManualEmbedding,
    nn.ReLU: ManualReLU,
    nn.GELU: ManualGELU,
    Dropout: ManualDropout,
    Attention: ManualAttention,
    ApplyRotary: ManualRotary,
    DistanceBias: ManualDistanceBias,
}


def use_manual_backward(model: nn.Module) -> None:
    """Replace the class of every layer in place. Weights and their names stay.

    Only the exact classes of REPLACEMENTS are replaced, not their subclasses.
    """
    for module in model.modules():
        if replacement := REPLACEMENTS.get(type(module)):
            module.__class__ = replacement
