"""Scaled dot-product attention and multi-head attention (Vaswani et al. 2017, section 3.2).

An `Attention` projects its input to queries, keys and values, splits them into heads, attends, and
projects the heads' outputs back. What it needs besides is its `AttentionContext`: who may see whom,
and how far apart they are. That is made once for a pass and read by every layer. A CPU takes
`eager_attention` as it is written; a GPU takes torch's fused kernel wherever that can express it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from toytrans.config.schema import ModelSettings
from toytrans.model.dropout import dropout
from toytrans.model.positions.base import Distances, Positions

KeysValues = tuple[Tensor, Tensor]
"""Keys and values split into heads, (B, H, Tk, Dh) each."""


@dataclass(frozen=True)
class AttentionContext:
    """The mask and the positions of one attention.

    mask: (B, 1, Tq or 1, Tk) bool, True = may attend; None = every key is visible. Attention itself
        reads the two fields below, which are made of it; inspection shows this one.
    mask_bias: the mask as numbers to add to scores: on a CPU in fp32 at least; on a GPU in the
        dtype that it computes in, where a query without a visible key sees every key
    has_visible_key: (B, 1, Tq or 1, 1) bool; the outputs of a query without one become zero, on
        either device. None = every query has one
    positions: the scheme that rotates queries and keys, and that turns distances into a bias
    distances: from queries to keys, as the scheme measures them; None = no bias
    start: place of the first query; those before it are in the cache
    """

    mask: Tensor | None = None
    mask_bias: Tensor | None = None
    has_visible_key: Tensor | None = None
    positions: Positions | None = None
    distances: Distances | None = None
    start: int = 0

    @staticmethod
    def of(
        mask: Tensor,
        dtype: torch.dtype,
        positions: Positions | None = None,
        distances: Distances | None = None,
    ) -> "AttentionContext":
        """The context of a mask. dtype: that of the model's weights."""
        has_visible_key = mask.any(-1, keepdim=True)
        if mask.device.type == "cuda":
            mask_bias = fused_mask_bias(mask, has_visible_key, dtype)
        else:
            mask_bias = mask_as_numbers(mask, torch.promote_types(dtype, torch.float32))
        # a CPU may skip what changes nothing; to read a value would make another device wait
        if mask.device.type == "cpu" and bool(has_visible_key.all()):
            return AttentionContext(mask, mask_bias, None, positions, distances)
        return AttentionContext(mask, mask_bias, has_visible_key, positions, distances)


def mask_as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to scores: 0 = may attend, the lowest finite number = may not.

    It is finite because softmax turns a row of -inf into NaN. A row that sees nothing gets weights
    all the same, and `has_visible_key` makes them zero afterwards.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def fused_mask_bias(mask: Tensor, has_visible_key: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers in the dtype that a GPU computes in. dtype: that of the model's weights.

    A fused kernel may make NaN of queries without a visible key, so they see every key here. They
    become zero after it.
    """
    autocast = torch.is_autocast_enabled("cuda")
    computed = torch.get_autocast_dtype("cuda") if autocast else dtype
    return mask_as_numbers(mask | ~has_visible_key, computed)


class AttentionSteps(NamedTuple):
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
    dropout_rate: float = 0.0,
    scale: float | None = None,
) -> AttentionSteps:
    """softmax(capped(q k^T / sqrt(Dh)) + bias + mask) v, one step at a time.

    q: (B, H, Tq, Dh); the head axis may be left out if the mask leaves it out
    k, v: (B, H, Tk, Dh); values may have another width
    bias: (B or 1, H, Tq or 1, Tk), added to the scores
    cap: capped(scores) = cap tanh(scores / cap); 0 leaves them as they are
    dropout_rate: of the weights; common practice, though not in the paper's formula
    scale: in place of 1 / sqrt(Dh), where Dh is the width of one head, not of the model
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, H, Tq, Tk)
    capped = cap * torch.tanh(scores / cap) if cap else scores
    masked = capped if bias is None else capped + bias
    masked = masked if context.mask_bias is None else masked + context.mask_bias
    weights = softmax(masked)
    if context.has_visible_key is not None:
        weights = weights * context.has_visible_key
    outputs = dropout(weights, dropout_rate).to(v.dtype) @ v  # (B, H, Tq, Dh)
    return AttentionSteps(q, k, v, scores, capped, masked, weights, outputs)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys: (B, H, Tq, Tk) -> (B, H, Tq, Tk).

    A CPU's vector holds 16 numbers of fp32, and torch is several times slower for shorter rows,
    so that these are filled up with scores that get no weight.
    """
    keys = scores.shape[-1]
    if scores.device.type != "cpu" or keys >= 16:
        return scores.softmax(-1)
    return F.pad(scores, (0, 16 - keys), value=-torch.inf).softmax(-1)[..., :keys].contiguous()


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    bias: Tensor | None = None,
    dropout_rate: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """The outputs (B, H, Tq, Dh) of `eager_attention` by torch's kernel, which knows no cap.

    context: its `mask_bias` is that of `fused_mask_bias`
    """
    mask, visible = context.mask_bias, context.has_visible_key
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias + mask
    kernels = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if mask is None:  # flash attention takes no mask
        kernels.insert(0, SDPBackend.FLASH_ATTENTION)
    # cuDNN's kernel is left out: it makes a plan for every new shape, which takes far longer than
    # a step of a toy
    with sdpa_kernel(kernels):
        outputs = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout_rate, scale=scale
        )
    return outputs if visible is None else outputs * visible


class Attention(nn.Module):
    """Multi-head attention.

    in_proj: makes Q, K and V; rows 0 .. D - 1, D .. 2D - 1 and 2D .. 3D - 1 of its weight.
        Head h owns rows h Dh .. (h + 1) Dh - 1 of each.
    out_proj: maps the heads' outputs, side by side, to the output.
    bias_table: (H, F), what the position scheme learns per head; F is 0 if it learns nothing.
    scale: of the scores, 1 / sqrt(Dh); a fault may set a wrong one.
    """

    def __init__(self, settings: ModelSettings, positions: Positions) -> None:
        super().__init__()
        self.n_heads = settings.n_heads
        self.scale = (settings.d_model // settings.n_heads) ** -0.5
        self.cap = settings.score_cap
        self.dropout = settings.dropout
        self.in_proj = nn.Linear(settings.d_model, 3 * settings.d_model)
        self.out_proj = nn.Linear(settings.d_model, settings.d_model)
        self.bias_table = positions.new_bias_table(settings.n_heads)

    def draw_weights(self) -> None:
        """Draw the projections Xavier-uniform, query, key and value each as a D x D matrix of its
        own; biases are zero."""
        width = self.out_proj.in_features
        for projection in (*self.in_proj.weight.detach().split(width), self.out_proj.weight):
            nn.init.xavier_uniform_(projection)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory_kv: KeysValues | None = None,
        cache: KeysValues | None = None,
    ) -> Tensor:
        """x (B, Tq, D) -> (B, Tq, D).

        x: what queries are made of; in self-attention keys and values too
        context: mask and positions
        memory_kv: keys and values of the encoder's output; None = self-attention
        cache: in decoding, room for keys and values of all places, (B, H, places, Dh) each. Those
            before `context.start` are read, and those of x are written behind them.
        """
        q, k, v = self.queries_keys_values(x, context, memory_kv, cache)
        return self.out_proj(merge_heads(self.attend(q, k, v, context)))

    def queries_keys_values(
        self,
        x: Tensor,
        context: AttentionContext,
        memory_kv: KeysValues | None = None,
        cache: KeysValues | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` attends with: q (B, H, Tq, Dh), k and v (B, H, Tk, Dh)."""
        if memory_kv is not None:
            return self.project_q(x), *memory_kv
        q, k, v = self.project_qkv(x)
        if context.positions is not None:
            q, k = context.positions.rotate(q, k, context.start)
        if cache is not None:
            stop = context.start + x.shape[1]
            keys, values = cache
            keys[:, :, context.start : stop], values[:, :, context.start : stop] = k, v
            k, v = keys[:, :, :stop], values[:, :, :stop]
        return q, k, v

    def project_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self-attention: x (B, L, D) -> (B, H, L, Dh) each."""
        q, k, v = split_heads(self.in_proj(x), 3, self.n_heads)
        return q, k, v

    def project_q(self, x: Tensor) -> Tensor:
        """Queries of cross-attention: x (B, T, D) -> (B, H, T, Dh)."""
        width = x.shape[-1]
        weight, bias = self.in_proj.weight[:width], self.in_proj.bias[:width]
        (q,) = split_heads(F.linear(x, weight, bias), 1, self.n_heads)
        return q

    def project_kv(self, memory: Tensor) -> KeysValues:
        """Keys and values of cross-attention: memory (B, S, D) -> (B, H, S, Dh) each."""
        width = memory.shape[-1]
        weight, bias = self.in_proj.weight[width:], self.in_proj.bias[width:]
        k, v = split_heads(F.linear(memory, weight, bias), 2, self.n_heads)
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        """The heads' outputs (B, H, Tq, Dh)."""
        rate = self.dropout if self.training else 0.0
        bias = self.position_bias(context)
        needs_fp32 = context.positions is not None and context.positions.needs_fp32
        if q.device.type == "cuda" and not self.cap and not needs_fp32:
            return fused_attention(q, k, v, context, bias, rate, self.scale)
        return eager_attention(q, k, v, context, bias, self.cap, rate, self.scale).outputs

    def position_bias(self, context: AttentionContext) -> Tensor | None:
        """What the position scheme adds to the scores: (B or 1, H, Tq or 1, Tk), or None."""
        if context.positions is None or context.distances is None:
            return None
        return context.positions.bias(self.bias_table, context.distances)


def split_heads(projected: Tensor, parts: int, n_heads: int) -> tuple[Tensor, ...]:
    """A projection (B, L, parts D) -> its parts (B, H, L, Dh) each.

    A CPU multiplies what lies in one piece, so all parts are copied at once. A GPU's kernels read
    them where they are, and put their gradients together in one pass.
    """
    heads = projected.unflatten(-1, (parts, n_heads, -1))  # (B, L, parts, H, Dh)
    if projected.device.type == "cuda":
        return tuple(part.transpose(1, 2) for part in heads.unbind(2))
    return heads.permute(2, 0, 3, 1, 4).contiguous().unbind()


def merge_heads(outputs: Tensor) -> Tensor:
    """(B, H, L, Dh) -> (B, L, D): heads side by side."""
    return outputs.transpose(1, 2).flatten(2)
