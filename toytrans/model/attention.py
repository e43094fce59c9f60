"""Scaled dot-product attention and multi-head attention.

Three roads give the same numbers. `attend_explicitly` returns every intermediate, and is the one
to compile. On a CPU `lean.attend_leanly` does the same in fewer passes over memory. On a GPU
`attend_fused`, torch's kernel, is taken when it can express the case (no cap on the scores). With
`model.backward: by_hand` none of them is: see `layers_by_hand`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config import ModelConfig
from toytrans.model import masks
from toytrans.model.dropout import dropout as drop
from toytrans.model.lean import attend_leanly
from toytrans.model.scheme import Positions
from toytrans.model.sight import Blocks, Sight

KeysValues = tuple[Tensor, Tensor]
"""Keys and values split into heads, (B, H, Tk, Dh) each."""


class Intermediates(NamedTuple):
    """Every intermediate of one attention, in its order.

    q (B, H, Tq, Dh), k and v (B, H, Tk, Dh): projected and split into heads. Then (B, H, Tq, Tk)
    each: scores: q k / root of Dh; capped: after the cap, if any; masked: with bias and mask added;
    weights: softmax over the keys, zero in rows that see nothing. context (B, H, Tq, Dh):
    weights times values.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    capped: Tensor
    masked: Tensor
    weights: Tensor
    context: Tensor


class Heads(NamedTuple):
    """A projection on its way into heads, its parts being some of query, key and value.

    projected (B, L, parts D); parted (B, L, parts, H, Dh) and transposed (parts, B, H, L, Dh) are
    views of it; pieces: the latter in one piece.
    """

    projected: Tensor
    parted: Tensor
    transposed: Tensor
    pieces: Tensor


class Inside(NamedTuple):
    """A pass from end to end. heads: of its input; merged (B, Tq, D): contexts side by side."""

    heads: Heads
    steps: Intermediates
    merged: Tensor
    output: Tensor


def attend_explicitly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Sight,
    bias: Tensor | None = None,
    cap: float = 0.0,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Intermediates:
    """softmax(cap tanh(q k^T / sqrt(Dh) / cap) + bias + mask) v, one step at a time.

    q (B, H, Tq, Dh), k and v (B, H, Tk, Dh), bias (B or 1, H, Tq, Tk). The axis of heads may be
    left out, of the sight's masks too, and values may have a width of their own. Without cap and
    bias this is equation 1 of Vaswani et al. 2017; the scale is the root of the head's width, not
    the model's; another one can be given. dropout: rate on the weights, common practice though
    not in the formula.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, H, Tq, Tk)
    capped = cap * torch.tanh(scores / cap) if cap else scores
    masked = capped if bias is None else capped + bias
    masked = masked if sight.additive is None else masked + sight.additive
    weights = torch.softmax(masked, -1)
    if sight.open_rows is not None:
        weights = weights * sight.open_rows
    dropped = drop(weights, dropout)
    return Intermediates(q, k, v, scores, capped, masked, weights, dropped.to(v.dtype) @ v)


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Sight,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """The context (B, H, Tq, Dh) of `attend_explicitly` without a cap, by torch's fused kernel.

    Rows that see nothing are opened for the kernel, which may make NaN of them, and set to zero
    after it.
    """
    mask = sight.mask
    if mask is not None and sight.open_rows is not None:
        mask = mask | ~sight.open_rows
    if bias is not None:
        added = bias.to(q.dtype)
        mask = added if mask is None else added + masks.additive(mask, q.dtype)
    context = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return context if sight.open_rows is None else context.where(sight.open_rows, 0)


class Cache:
    """Keys and values of the places decoded so far, in memory that is allocated once.

    Each of A sources has W beams, which share one cache: place t of beam w is key t W + w.
    """

    def __init__(self, sources: int, heads: int, keys: int, width: int, like: Tensor) -> None:
        self.keys = like.new_empty(sources, heads, keys, width)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def extend(self, k: Tensor, v: Tensor) -> KeysValues:
        """Append k and v (A, H, W, Dh) of one place; those of all places so far."""
        start, self.length = self.length, self.length + k.shape[2]
        self.keys[:, :, start : self.length] = k
        self.values[:, :, start : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def select(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order, in the memory that they have."""
        for memory in (self.keys, self.values):
            memory[: len(sources), :, : self.length] = memory[sources, :, : self.length]
        self.keys, self.values = self.keys[: len(sources)], self.values[: len(sources)]


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2).

    One projection makes Q, K and V, rows 0 .. D - 1, D .. 2D - 1 and 2D .. 3D - 1 of
    `in_proj.weight`; head h owns rows h Dh .. (h + 1) Dh - 1 of each.
    """

    def __init__(self, model: ModelConfig, positions: Positions) -> None:
        super().__init__()
        self.n_heads = model.n_heads
        self.scale = (model.d_model // model.n_heads) ** -0.5
        self.cap = model.score_cap or 0.0
        self.dropout = model.dropout
        self.in_proj = nn.Linear(model.d_model, 3 * model.d_model)
        self.out_proj = nn.Linear(model.d_model, model.d_model)
        self._bias, self._turn = positions.bias, positions.turn
        self.bias_table: nn.Parameter | None = None
        if positions.bias_weights:
            table = torch.zeros(model.n_heads, positions.bias_weights)
            if positions.bias_deviation:
                table.normal_(0, positions.bias_deviation)
            self.bias_table = nn.Parameter(table)

    def forward(
        self,
        x: Tensor,
        sight: Sight | Blocks,
        memory: KeysValues | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Queries from x (B, Tq, D); keys and values from x, or given (cross) -> (B, Tq, D).

        cache: of the places before x, when decoding step by step.
        """
        if cache is None:
            _, q, k, v = self._project(x, memory)
        else:
            q, k, v = self._split(self.in_proj(x), 3)[1].unbind()
            place = cache.length // x.shape[1]  # beams of a source stand beside each other
            q, k = (self.turn(part, range(place, place + 1)) for part in (q, k))
            k, v = cache.extend(k, v)
        output: Tensor = self.out_proj(self._merge(self._context(q, k, v, sight)))
        return output

    def intermediates(
        self, x: Tensor, sight: Sight, memory: KeysValues | None = None
    ) -> tuple[Intermediates, Tensor]:
        """Every intermediate, and the output (B, Tq, D), of a pass without dropout."""
        found = self.inside(x, sight, memory)
        return found.steps, found.output

    def inside(self, x: Tensor, sight: Sight, memory: KeysValues | None = None) -> Inside:
        """The same with what comes before and after: how heads are made, and merged again."""
        heads, q, k, v = self._project(x, memory)
        steps = attend_explicitly(q, k, v, sight, self.bias(sight), self.cap, scale=self.scale)
        merged = self._merge(steps.context)
        return Inside(heads, steps, merged, self.out_proj(merged))

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Keys and values of the encoder's output: (B, S, D) -> twice (B, H, S, Dh)."""
        k, v = self.heads(memory, 1, 3).pieces.unbind()
        return k, v

    def heads(self, x: Tensor, start: int, stop: int) -> Heads:
        """x (B, L, D) by parts start .. stop - 1 of `in_proj` (0 query, 1 key, 2 value), and split
        into heads."""
        if stop - start == 3:
            projected = self.in_proj(x)
        else:
            rows = slice(start * x.shape[-1], stop * x.shape[-1])
            projected = self._linear(x, self.in_proj.weight[rows], self.in_proj.bias[rows])
        parted, transposed = self._split(projected, stop - start)
        return Heads(projected, parted, transposed, transposed.contiguous())

    def bias(self, sight: Sight) -> Tensor | None:
        """What the position scheme adds to the scores: (B or 1, H, Tq, Tk), or None."""
        if sight.distances is None:
            return None
        bias: Tensor = self._bias(self.bias_table, sight.distances)
        return bias

    def turn(self, x: Tensor, places: range) -> Tensor:
        """Queries or keys of self-attention (B, H, L, Dh) as the position scheme turns them."""
        output: Tensor = self._turn(x, places)
        return output

    def _context(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight | Blocks) -> Tensor:
        """The context (B, H, Tq, Dh), of all queries at once or block by block."""
        if isinstance(sight, Blocks):
            pieces = [
                self._context(q[:, :, block.start : block.stop], k, v, sight.sight(block))
                for block in sight.queries
            ]
            return torch.cat(pieces, 2)
        dropout = self.dropout if self.training else 0.0
        return self._attend(q, k, v, sight, self.bias(sight), dropout)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, bias: Tensor | None, dropout: float
    ) -> Tensor:
        """The context (B, H, Tq, Dh), by the quickest road."""
        counted = sight.distances is not None and sight.distances.fraction is not None
        if q.device.type == "cuda" and not self.cap and not counted:  # that rounds a bias to bf16
            return attend_fused(q, k, v, sight, bias, dropout, self.scale)
        if q.device.type == "cpu" and not torch.compiler.is_compiling():
            return attend_leanly(q, k, v, sight, bias, self.cap, dropout, self.scale)
        return attend_explicitly(q, k, v, sight, bias, self.cap, dropout, self.scale).context

    def _project(
        self, x: Tensor, memory: KeysValues | None
    ) -> tuple[Heads, Tensor, Tensor, Tensor]:
        """Heads of x, and queries, keys and values."""
        heads = self.heads(x, 0, 1 if memory else 3)
        if memory:
            (q,) = heads.pieces.unbind()
            return heads, q, *memory
        q, k, v = heads.pieces.unbind()
        places = range(x.shape[1])
        return heads, self.turn(q, places), self.turn(k, places), v

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """By a part of `in_proj`."""
        return F.linear(x, weight, bias)

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        """(B, L, parts D) -> two views of it: (B, L, parts, H, Dh), (parts, B, H, L, Dh)."""
        rows, length, width = x.shape
        parted = x.view(rows, length, parts, self.n_heads, width // parts // self.n_heads)
        return parted, parted.permute(2, 0, 3, 1, 4)

    def _merge(self, context: Tensor) -> Tensor:
        """(B, H, Tq, Dh) -> (B, Tq, D)."""
        return context.transpose(1, 2).flatten(2)
