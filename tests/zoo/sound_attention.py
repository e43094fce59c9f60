"""Sound kinds of attention: other scores, other positions, other masks, fewer keys."""

import math

import torch
from torch import nn

from . import sound
from .parts import HEADS, WIDTH, Attention, Embedding, Translator, waves


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


@sound()
class closed_by_the_least_number(Translator):
    """Closed scores are the least number of their type."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
