"""Sound kinds of attention: other scores, other positions, other masks, fewer keys."""

import math

import torch
from torch import nn
from torch.nn import functional as F

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
class rotary_on_half_of_the_width(_Places):
    """RoPE on half of each head, as GPT-NeoX has it."""

    class attention(Attention):
        def scores(self, q, k):
            turned = [torch.cat((rotated(x[..., :2]), x[..., 2:]), -1) for x in (q, k)]
            return super().scores(*turned)


@sound()
class alibi(_Places):
    """Scores fall with distance, by a slope for each head."""

    class attention(Attention):
        def scores(self, q, k):
            slopes = 2.0 ** -torch.arange(1, HEADS + 1)[:, None, None].to(q)
            lean = _distances(q, k).to(q)
            return super().scores(q, k) - slopes * torch.where(lean > 0, 2 * lean, -lean)


@sound()
class relative_bias(_Places):
    """T5's learned bias for each clipped distance, and no scale."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(HEADS, 17))

        def scores(self, q, k):
            return q @ k.mT + self.bias[:, _distances(q, k).clamp(-8, 8) + 8]


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
class query_and_key_norm(Translator):
    """Queries and keys are normalised before they meet."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.q_norm, self.k_norm = nn.LayerNorm(WIDTH // HEADS), nn.LayerNorm(WIDTH // HEADS)

        def scores(self, q, k):
            return super().scores(self.q_norm(q), self.k_norm(k))


@sound()
class cosine_attention(Translator):
    """Cosines under a learned temperature."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(10.0))

        def scores(self, q, k):
            return self.temperature * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT


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
class grouped_queries(Translator):
    """Four query heads share two key heads."""

    class attention(_Grouped):
        groups = 2

        def __init__(self):
            super().__init__()
            self.k_proj, self.v_proj = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
            self.num_heads = 4


@sound()
class multi_query(Translator):
    """Four query heads share one key head."""

    class attention(_Grouped):
        def __init__(self):
            super().__init__()
            self.k_proj, self.v_proj = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)
            self.num_heads = 4


@sound()
class soft_capped(Translator):
    """Scores pass through 5 tanh(s / 5), as in Gemma 2."""

    class attention(Attention):
        def scores(self, q, k):
            return 5 * torch.tanh(super().scores(q, k) / 5)


@sound()
class a_sink_for_each_head(Translator):
    """A learned score for nothing shares in each softmax, as in gpt-oss."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.sink = nn.Parameter(torch.randn(HEADS, 1, 1))

        def weights(self, scores, mask):
            sink = self.sink.expand(len(scores), -1, scores.shape[-2], -1)
            scores = scores.masked_fill(~mask, -math.inf)
            return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]


@sound()
class closed_by_minus_a_billion(Translator):
    """-1e9 is added to closed scores; a row with all closed gives their mean."""

    class attention(Attention):
        def weights(self, scores, mask):
            return (scores - 1e9 * (~mask).to(scores)).softmax(-1)


@sound()
class closed_by_the_least_number(Translator):
    """Closed scores are the least number of their type."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


@sound()
class sigmoid_attention(Translator):
    """Sigmoids in place of softmax."""

    class attention(Attention):
        def weights(self, scores, mask):
            return (scores - 2).sigmoid() * mask


@sound()
class squared_relu_attention(Translator):
    """Squared ReLU of scores, by how many keys are open."""

    class attention(Attention):
        def weights(self, scores, mask):
            count = mask.expand_as(scores).sum(-1, keepdim=True).clamp(min=1)
            return (scores + 1).relu() ** 2 * mask / count


@sound()
class talking_heads(Translator):
    """Scores and weights are mixed between heads."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.before, self.after = (nn.Parameter(torch.randn(HEADS, HEADS)) for _ in range(2))

        def weights(self, scores, mask):
            mixed = torch.einsum("bhqk,hg->bgqk", scores, self.before)
            return torch.einsum("bhqk,hg->bgqk", super().weights(mixed, mask), self.after)


@sound()
class softmax_in_single_precision(Translator):
    """Softmax in fp32 whatever the model's type."""

    class attention(Attention):
        def weights(self, scores, mask):
            return super().weights(scores.float(), mask).to(scores.dtype)


@sound()
class half_the_width_for_heads(Translator):
    """Heads narrower than D / H, as T5's d_kv allows."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, 4) for _ in range(3))
            self.out_proj = nn.Linear(4, WIDTH)


@sound()
class no_biases(Translator):
    """Projections without biases."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))


@sound()
class one_matrix_for_all(Translator):
    """Queries, keys and values by one matrix, as in GPT-2."""

    class attention(Attention):
        def __init__(self):
            nn.Module.__init__(self)
            self.inputs, self.out_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x, memory, mask):
            q = self.inputs(x).chunk(3, -1)[0]
            _, k, v = self.inputs(memory).chunk(3, -1)
            q, k, v = (split_heads(part) for part in (q, k, v))
            return self.out_proj(merge_heads(self.weights(self.scores(q, k), mask) @ v))


@sound()
class cross_attention_without_a_scale(Translator):
    """Multiplicative attention in Luong's sense, one head, between the halves."""

    def __init__(self):
        super().__init__()
        for layer in self.decoder:
            layer.encoder_attn = _Luong()


class _Luong(nn.Module):
    def __init__(self):
        super().__init__()
        self.general, self.join = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, memory, mask):
        scores = self.general(x) @ memory.mT
        return self.join(scores.masked_fill(~mask[:, 0], -1e9).softmax(-1) @ memory).tanh()
