"""A model whose gradients are derived by hand: `model.backward: by_hand`.

`take_over` gives every layer that computes its twin from here: a subclass with the same weights
under the same names, whose forward runs a pair of functions of `by_hand`. Autograd then only walks
from one to the next. Left to it is the glue: residual sums, a weight used in several places,
embeddings times the root of D, position vectors added to them, slices, reshapes, transposes, parts
put together, and in the loss the sum over places. Multi-head attention as one pair
(`by_hand.multi_head`) is proven in `toytrans gradients`; the model composes the same parts, since
its keys and values may come from a cache.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toytrans.model import by_hand
from toytrans.model.attention import Attention
from toytrans.model.dropout import Dropout, keep_mask
from toytrans.model.sight import Sight

Forward = Callable[..., tuple[Tensor, by_hand.Needed]]
Backward = Callable[[Tensor, by_hand.Needed], by_hand.Gradients]


def run(forward: Forward, backward: Backward, *inputs: Any) -> Tensor:
    """What `forward` gives for the inputs; its gradients will be what `backward` gives."""
    output: Tensor = _Pair.apply(forward, backward, *inputs)  # type: ignore[no-untyped-call]
    return output


class _Pair(torch.autograd.Function):
    """A pair of functions, where autograd would have recorded an operation of its own."""

    @staticmethod
    def forward(ctx: Any, forward: Forward, backward: Backward, *inputs: Any) -> Tensor:
        output, needed = forward(*inputs)
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in needed))
        ctx.settings = [None if isinstance(x, Tensor) else x for x in needed]
        ctx.derived, ctx.inputs = backward, len(inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """None for the two functions and for inputs after those that have gradients."""
        pairs = zip(ctx.saved_tensors, ctx.settings, strict=True)
        needed = tuple(setting if saved is None else saved for saved, setting in pairs)
        found = ctx.derived(gradients[0], needed)
        return None, None, *found, *[None] * (ctx.inputs - len(found))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` by hand."""
    return run(by_hand.linear, by_hand.linear_backward, x, weight, bias)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "sum",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` by hand: (N, V), (N) -> a sum, or (N) for "none"."""
    pair = by_hand.cross_entropy, by_hand.cross_entropy_backward
    losses = run(*pair, logits, labels, ignore_index, label_smoothing)
    return losses.sum() if reduction == "sum" else losses


class LinearByHand(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class LayerNormByHand(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        pair = by_hand.layer_norm, by_hand.layer_norm_backward
        return run(*pair, x, self.weight, self.bias, self.eps)


class EmbeddingByHand(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return run(by_hand.embedding, by_hand.embedding_backward, self.weight, ids)


class ReLUByHand(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return run(by_hand.relu, by_hand.relu_backward, x)


class GELUByHand(nn.GELU):
    def forward(self, x: Tensor) -> Tensor:
        if self.approximate == "tanh":
            return run(by_hand.gelu_tanh, by_hand.gelu_tanh_backward, x)
        return run(by_hand.gelu, by_hand.gelu_backward, x)


class DropoutByHand(Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        return run(by_hand.dropout, by_hand.dropout_backward, x, keep_mask(x, self.rate))


class AttentionByHand(Attention):
    """Projections, attention and the position bias by hand."""

    def bias(self, sight: Sight) -> Tensor | None:
        if sight.distances is None:
            return None
        bias: Tensor = self._bias(self.bias_table, sight.distances, _look_up)
        return bias

    def turn(self, x: Tensor, places: range) -> Tensor:
        output: Tensor = self._turn(x, places, _turned)
        return output

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, bias: Tensor | None, dropout: float
    ) -> Tensor:
        keep = keep_mask(q.new_empty(*q.shape[:3], k.shape[2]), dropout) if dropout else None
        given = q, k, v, bias, sight.additive, sight.open_rows, keep, self.scale, self.cap
        return run(by_hand.attention, by_hand.attention_backward, *given)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear(x, weight, bias)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`scheme.turned` by hand."""
    return run(by_hand.turn, by_hand.turn_backward, x, cos, sin)


def _look_up(weights: Tensor, described: Tensor, places: Tensor, rows: Sequence[int]) -> Tensor:
    """`scheme.look_up` by hand."""
    values = linear(described, weights)  # (N, H)
    found = [
        run(by_hand.embedding, by_hand.embedding_backward, values[:, head : head + 1], places[row])
        for head, row in enumerate(rows)
    ]
    return torch.cat(found, -1).permute(0, 3, 1, 2)


TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: LinearByHand,
    nn.LayerNorm: LayerNormByHand,
    nn.Embedding: EmbeddingByHand,
    nn.ReLU: ReLUByHand,
    nn.GELU: GELUByHand,
    Dropout: DropoutByHand,
    Attention: AttentionByHand,
}


def take_over(model: nn.Module) -> None:
    """Every layer of a model becomes its twin, in place: weights and their names stay."""
    for module in model.modules():
        if twin := TWINS.get(type(module)):
            module.__class__ = twin
