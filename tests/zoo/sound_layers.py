"""Sound layers: other kinds of attention, masks, norms, branches and feed-forwards."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from . import sound
from .parts import HEADS, WIDTH, Attention, Embedding, Layer, Translator, real, split_heads, waves


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


@sound()
class pads_closed_as_queries_too(Translator):
    """Pads are closed as keys and as queries."""

    def source_mask(self, src, number):
        return real(src)[:, None, None] & real(src)[:, None, :, None]


@sound()
class pointer_network(Translator):
    """A copy mechanism: part of the attention is added to the logits of source ids."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        y = self.decode(src, tgt, memory)
        weights = (y @ memory.mT).masked_fill(~real(src)[:, None], -1e9).softmax(-1)
        places = src[:, None].expand(-1, tgt.shape[1], -1)
        return self.head(y).scatter_add(2, places, weights)


@sound("PASS or cannot judge")
class fused_attention_with_dropout(Translator):
    """Dropout by an argument of scaled_dot_product_attention, which no module shows."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
            q, k, v = (split_heads(part) for part in parts)
            p = 0.1 if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
            return self.out_proj(self.merge(y.nan_to_num(0.0)))


def _of_layers(layer):
    model = type("Model", (Translator,), {"layer": layer})
    return model()


@sound()
class pre_norm(Translator):
    """The model as parts.py has it."""

    depth = 2


class _NoNorm(Layer):
    norm = nn.Identity


@sound()
class no_norms(Translator):
    """No norm anywhere."""

    final_norm, layer = nn.Identity, _NoNorm


@sound()
def parallel_branches():
    """Attention and feed-forward side by side, as in GPT-J."""

    class Parallel(Layer):
        def forward(self, x, mask, memory=None, cross_mask=None):
            h = self.self_attn_norm(x)
            y = x + self.self_attn(h, h, mask) + self.feed_forward(h)
            if memory is None:
                return y
            return y + self.encoder_attn(self.encoder_attn_norm(y), memory, cross_mask)

    return _of_layers(Parallel)


class _Experts(Layer):
    """Six experts, of which `top` work for a token."""

    top = 1

    def __init__(self, attention, cross):
        super().__init__(attention, cross)
        del self.fc1, self.fc2
        self.router = nn.Linear(WIDTH, 6)
        self.experts = nn.ModuleList(_Expert() for _ in range(6))

    def feed_forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(self.top, -1)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            found = found + share * expert(x)
        return found


class _Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


@sound()
def experts_one_for_each_token():
    """A mixture of experts of which some are never chosen."""
    return _of_layers(_Experts)


@sound()
class gradient_checkpointing(Translator):
    """Layers are computed again in the backward pass, in train mode."""

    class layer(Layer):
        def forward(self, *given):
            if self.training:
                return checkpoint(super().forward, *given, use_reentrant=False)
            return super().forward(*given)
