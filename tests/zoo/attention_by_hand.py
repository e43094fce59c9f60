"""Attention written by hand, in many styles and under names that tell nothing: faulty and sound."""

import torch
from torch import nn
from torch.nn import functional as F

from . import faulty, sound
from .parts import HEADS, WIDTH, Layer, Translator, merge_heads, split_heads

HEAD = WIDTH // HEADS


class Hand(nn.Module):
    """Attention whose parts are named by letters; `scores`, `close`, `weigh`, `split` and `merge`
    are to be varied."""

    fill = -1e9
    scale = HEAD**-0.5

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, memory, mask):
        q, k, v = self.split(self.a(x)), self.split(self.b(memory)), self.split(self.c(memory))
        return self.d(self.merge(self.attend(q, k, v, mask)))

    def attend(self, q, k, v, mask):
        return self.weigh(self.close(self.scores(q, k), mask)) @ v

    def split(self, x):
        return split_heads(x)

    def merge(self, x):
        return merge_heads(x)

    def scores(self, q, k):
        return q @ k.mT * self.scale

    def close(self, scores, mask):
        return scores.masked_fill(~mask, self.fill)

    def weigh(self, scores):
        return scores.softmax(-1)


class _Model(Translator):
    attention = Hand


@faulty("scale", says="0.354, 1 / root of the model's width 8; 1 / root of the head's")
class root_of_the_models_width(_Model):
    """Scores are divided by the root of d_model."""

    class attention(Hand):
        scale = WIDTH**-0.5


@faulty("scale", says="scaled twice")
class fused_attention_of_scaled_queries(_Model):
    """Queries are scaled, and F.scaled_dot_product_attention scales again."""

    class attention(Hand):
        def attend(self, q, k, v, mask):
            return F.scaled_dot_product_attention(q * self.scale, k, v, attn_mask=mask)


@faulty("scale", says="nothing scales the scores")
class no_scale_by_hand(_Model):
    """Nothing scales the scores."""

    class attention(Hand):
        scale = 1


@faulty("scale", says="(3 of 3 attentions)")
class no_scale_behind_large_embeddings(no_scale_by_hand):
    """Nothing scales the scores, and embeddings are multiplied by the root of d_model."""

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            return norm(x + sublayer(x))

    def embed_source(self, src):
        return self.source(src) * WIDTH**0.5

    def embed_target(self, tgt):
        return self.target(tgt) * WIDTH**0.5


@faulty("scale", says="multiplied in place of divided")
class multiplied_by_the_root(_Model):
    """Scores are multiplied by the root of the head's width."""

    class attention(Hand):
        scale = HEAD**0.5


@faulty("scale", says="closed scores hold -1e-12, which closes nothing")
class closed_by_minus_a_trillionth(_Model):
    """-1e-12 for -1e12."""

    class attention(Hand):
        fill = -1e-12


@faulty("scale", says="closed scores hold -1, which closes nothing")
class minus_one_in_fused_attention(_Model):
    """A mask of 0 and -1 is passed to F.scaled_dot_product_attention."""

    class attention(Hand):
        def attend(self, q, k, v, mask):
            added = -(~mask).to(q).expand(len(q), 1, q.shape[2], k.shape[2])
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added)


@faulty("scale", says="another axis than the keys")
class softmax_over_the_queries_by_einsum(_Model):
    """Softmax over queries, whose weights are summed by einsum."""

    class attention(Hand):
        def attend(self, q, k, v, mask):
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
            return torch.einsum("bhqk,bhkd->bhqd", self.close(scores, mask).softmax(2), v)


@faulty("scale", says="heads are split or merged by a reshape alone")
class heads_merged_without_a_turn(_Model):
    """(B, H, T, d) is reshaped to (B, T, D): heads are mixed with places, and the future leaks."""

    class attention(Hand):
        def merge(self, x):
            return x.reshape(len(x), x.shape[2], -1)


@faulty("scale", says="heads are split or merged by a reshape alone")
class heads_split_without_a_turn(_Model):
    """(B, T, D) is viewed as (B, H, T, d)."""

    class attention(Hand):
        def split(self, x):
            return x.view(len(x), HEADS, -1, HEAD)


@sound()
class scale_on_the_queries(_Model):
    """The queries carry the scale."""

    class attention(Hand):
        def scores(self, q, k):
            return (q * self.scale) @ k.mT


@sound()
class scale_on_both(_Model):
    """Queries and keys carry half of the scale each, as torch's plain path has it."""

    class attention(Hand):
        def scores(self, q, k):
            return (q * HEAD**-0.25) @ (k * HEAD**-0.25).mT


@sound(says="give scale=1")
class a_bias_of_zeros_and_no_scale(_Model):
    """T5's attention before its biases are trained: they are zero."""

    class attention(Hand):
        scale = 1

        def __init__(self):
            super().__init__()
            self.bias = nn.Embedding(1, HEADS)
            nn.init.zeros_(self.bias.weight)

        def close(self, scores, mask):
            bias = self.bias(torch.zeros(scores.shape[-2:], dtype=torch.long))
            return super().close(scores + bias.permute(2, 0, 1), mask)


@sound(says="a learned number scales")
class a_learned_temperature_of_one(_Model):
    """Scores are multiplied by the exponential of a number that is learned, 0 at first."""

    class attention(Hand):
        def __init__(self):
            super().__init__()
            self.logarithm = nn.Parameter(torch.zeros(()))

        def scores(self, q, k):
            return q @ k.mT * self.logarithm.exp()


@sound(says="give scale=1")
class normed_queries_and_no_scale(_Model):
    """Queries and keys are layer-normed, and nothing scales them."""

    class attention(Hand):
        def scores(self, q, k):
            return F.layer_norm(q, q.shape[-1:]) @ F.layer_norm(k, k.shape[-1:]).mT
