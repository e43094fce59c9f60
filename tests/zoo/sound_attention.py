"""Sound kinds of attention: other scores, other positions, other masks, fewer keys."""

import math

import torch
from torch import nn

from . import sound
from .parts import (
    HEADS,
    WIDTH,
    Attention,
    Embedding,
    Translator,
    merge_heads,
    split_heads,
    waves,
)


def _distances(q, k):
    """(Tq, Tk): key's place less the query's."""
    return torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]


class _Places(Translator):
    """Places are not in the embedding; self-attention has them, cross-attention has not."""

    cross = Attention

    def __init__(self):
        super().__init__()
        self.source, self.target = Embedding(places=False), Embedding(places=False)
        for layer in self.decoder:
            layer.encoder_attn = self.cross()


def rotated(x):
    """Rotary embedding of (B, H, T, Dh)."""
    half = x.shape[-1] // 2
    sine, cosine = waves(torch.arange(x.shape[-2]), 2 * half).to(x).chunk(2, -1)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


@sound()
class rotary(_Places):
    """RoPE in self-attention."""

    class attention(Attention):
        def scores(self, q, k):
            return super().scores(rotated(q), rotated(k))


@sound()
class relative_keys(_Places):
    """Shaw's relative keys."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.relative = nn.Parameter(torch.randn(17, WIDTH // HEADS))

        def scores(self, q, k):
            keys = self.relative[_distances(q, k).clamp(-8, 8) + 8]
            return (q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, keys)) / math.sqrt(q.shape[-1])


class _Grouped(Attention):
    groups = 1

    def __init__(self):
        super().__init__()
        inner = WIDTH // HEADS * self.groups
        self.k_proj, self.v_proj = nn.Linear(WIDTH, inner), nn.Linear(WIDTH, inner)

    def forward(self, x, memory, mask):
        q = split_heads(self.q_proj(x), 4)
        k, v = (split_heads(part(memory), self.groups) for part in (self.k_proj, self.v_proj))
        k, v = (part.repeat_interleave(4 // self.groups, 1) for part in (k, v))
        return self.out_proj(merge_heads(self.weights(self.scores(q, k), mask) @ v))


@sound()
class multi_query(Translator):
    """Four query heads share one key head."""

    class attention(_Grouped):
        def __init__(self):
            super().__init__()
            self.k_proj, self.v_proj = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)
            self.num_heads = 4


@sound()
class closed_by_the_least_number(Translator):
    """Closed scores are the least number of their type."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


@sound()
class softmax_in_single_precision(Translator):
    """Softmax in fp32 whatever the model's type."""

    class attention(Attention):
        def weights(self, scores, mask):
            return super().weights(scores.float(), mask).to(scores.dtype)
