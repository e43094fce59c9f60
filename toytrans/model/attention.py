"""Scaled dot-product attention and multi-head attention (Vaswani et al. 2017, section 3.2)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config.schema import ModelConfig
from toytrans.model import backends
from toytrans.model.context import AttentionContext, KeysValues, KVCache
from toytrans.model.positions.base import Positions


class Intermediates(NamedTuple):
    """Every intermediate of one attention, in the order of computation."""

    q: Tensor  # (B, H, Tq, Dh)
    k: Tensor  # (B, H, Tk, Dh)
    v: Tensor  # (B, H, Tk, Dh)
    scores: Tensor  # (B, H, Tq, Tk): q k^T / sqrt(Dh)
    capped: Tensor  # scores after the cap, if there is one
    masked: Tensor  # with position bias and mask added
    weights: Tensor  # softmax over the keys, before dropout; zero in rows without a visible key
    outputs: Tensor  # (B, H, Tq, Dh): weights, after dropout, times values


def eager_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    bias: Tensor | None = None,
    cap: float = 0.0,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Intermediates:
    """softmax(capped(q k^T / sqrt(Dh)) + bias + mask) v, one step at a time.

    q: (B, H, Tq, Dh); the head axis may be left out if the mask leaves it out
    k, v: (B, H, Tk, Dh); values may have another width
    bias: (B or 1, H, Tq, Tk), added to the scores
    cap: capped(scores) = cap tanh(scores / cap); 0 leaves them as they are
    dropout: rate on the weights; common practice, though not in the paper's formula
    scale: in place of 1 / sqrt(Dh), where Dh is the width of one head, not of the model
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q * scale) @ k.transpose(-2, -1)
    capped = cap * torch.tanh(scores / cap) if cap else scores
    masked = capped if bias is None else capped + bias
    masked = masked if context.additive is None else masked + context.additive
    weights = backends.softmax(masked)
    if context.has_visible_key is not None:
        weights = weights * context.has_visible_key
    outputs = backends.dropout(weights, dropout).to(v.dtype) @ v
    return Intermediates(q, k, v, scores, capped, masked, weights, outputs)


class Attention(nn.Module):
    """Multi-head attention.

    in_proj: makes Q, K and V; rows 0 .. D - 1, D .. 2D - 1 and 2D .. 3D - 1 of its weight.
        Head h owns rows h Dh .. (h + 1) Dh - 1 of each.
    out_proj: maps the heads' outputs, side by side, to the output.
    bias_table: (H, F), what the position scheme learns per head; None if it learns nothing.
    """

    linear = staticmethod(F.linear)  # `model.backward: by_hand` has one of its own

    def __init__(self, model: ModelConfig, positions: Positions) -> None:
        super().__init__()
        assert model.score_cap is not None
        self.n_heads = model.n_heads
        self.scale = (model.d_model // model.n_heads) ** -0.5
        self.cap = model.score_cap
        self.dropout = model.dropout
        self.in_proj = nn.Linear(model.d_model, 3 * model.d_model)
        self.out_proj = nn.Linear(model.d_model, model.d_model)
        # the scheme itself would become a part of this module, and its parameters too
        self.rotate, self.position_bias = positions.rotate, positions.bias
        self.bias_table = positions.new_bias_table(model.n_heads)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory_kv: KeysValues | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """x (B, Tq, D) -> (B, Tq, D).

        x: what queries are made of; in self-attention keys and values too
        context: mask and relative positions
        memory_kv: keys and values of the encoder's output; None = self-attention
        cache: keys and values of earlier places, when decoding step by step
        """
        q, k, v = self.queries_keys_values(x, memory_kv, cache)
        return self.out_proj(merge_heads(self.attend(q, k, v, context)))

    def queries_keys_values(
        self, x: Tensor, memory_kv: KeysValues | None = None, cache: KVCache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` attends with: q (B, H, Tq, Dh), k and v (B, H, Tk, Dh)."""
        if memory_kv is not None:
            (q,) = self.project(x, 0, 1)
            return q, *memory_kv
        q, k, v = self.project(x, 0, 3)
        places = range(x.shape[1]) if cache is None else range(cache.place, cache.place + 1)
        q, k = self.rotate(q, places), self.rotate(k, places)
        return (q, k, v) if cache is None else (q, *cache.extend(k, v))

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Keys and values of the encoder's output: (B, S, D) -> twice (B, H, S, Dh)."""
        k, v = self.project(memory, 1, 3)
        return k, v

    def project(self, x: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
        """Projections start .. stop - 1 of Q, K, V: x (B, L, D) -> (B, H, L, Dh) each."""
        if stop - start == 3:
            projected = self.in_proj(x)
        else:
            rows = slice(start * x.shape[-1], stop * x.shape[-1])
            projected = self.linear(x, self.in_proj.weight[rows], self.in_proj.bias[rows])
        return backends.split_heads(projected, stop - start, self.n_heads)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        """The heads' outputs (B, H, Tq, Dh), by a backend, if one can."""
        dropout = self.dropout if self.training else 0.0
        backend = backends.backend_for(q, context, self.cap)
        arguments = (q, k, v, context, self.score_bias(context), self.cap, dropout, self.scale)
        return backend(*arguments) if backend else eager_attention(*arguments).outputs

    def score_bias(self, context: AttentionContext) -> Tensor | None:
        """What the position scheme adds to the scores: (B or 1, H, Tq, Tk), or None."""
        if context.distances is None:
            return None
        return self.position_bias(self.bias_table, context.distances)


def merge_heads(outputs: Tensor) -> Tensor:
    """(B, H, L, Dh) -> (B, L, D): heads side by side."""
    return outputs.transpose(1, 2).flatten(2)
