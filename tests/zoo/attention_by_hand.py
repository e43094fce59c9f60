"""Attention written by hand, in many styles and under names that tell nothing: faulty and sound."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from . import faulty, sound
from .parts import HEADS, WIDTH, Layer, Translator, merge_heads, split_heads

HEAD = WIDTH // HEADS


class Hand(nn.Module):
    """Attention whose parts are named by letters; its attributes and methods are to be varied."""

    fill, scale = -1e9, HEAD**-0.5
    split, merge = staticmethod(split_heads), staticmethod(merge_heads)

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, memory, mask):
        q, k, v = self.split(self.a(x)), self.split(self.b(memory)), self.split(self.c(memory))
        return self.d(self.merge(self.attend(q, k, v, mask)))

    def attend(self, q, k, v, mask):
        return self.close(self.scores(q, k), mask).softmax(-1) @ v

    def scores(self, q, k):
        return q @ k.mT * self.scale

    def close(self, scores, mask):
        return scores.masked_fill(~mask, self.fill)


class ByHand(Translator):
    attention = Hand


faulty_hand = partial(faulty, "scale", base=ByHand)
sound_hand = partial(sound, "", base=ByHand)


for _name, _scale, _cause in (
    ("root of the models width", WIDTH**-0.5, "scale.model_width"),
    ("no scale by hand", 1, "scale.missing"),
    ("multiplied by the root", HEAD**0.5, "scale.multiplied"),
):
    faulty_hand("attention.scale", name=_name, cause=_cause)(_scale)
_closed = "scale.closes_nothing"
faulty_hand("attention.fill", name="closed by minus a trillionth", cause=_closed)(-1e-12)


@faulty_hand("attention.attend", cause="scale.twice")
def fused_attention_of_scaled_queries(self, q, k, v, mask):
    """Queries are scaled, and F.scaled_dot_product_attention scales again."""
    return F.scaled_dot_product_attention(q * self.scale, k, v, attn_mask=mask)


@faulty("scale", cause="scale.missing")
class no_scale_behind_large_embeddings(Translator):
    """Nothing scales the scores, and embeddings are multiplied by the root of d_model."""

    class attention(Hand):
        scale = 1

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            return norm(x + sublayer(x))

    def embed_source(self, src):
        return self.source(src) * WIDTH**0.5

    def embed_target(self, tgt):
        return self.target(tgt) * WIDTH**0.5


@faulty_hand("attention.attend", cause="scale.closes_nothing")
def minus_one_in_fused_attention(self, q, k, v, mask):
    """A mask of 0 and -1 is passed to F.scaled_dot_product_attention."""
    added = -(~mask).to(q).expand(len(q), 1, q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added)


@faulty_hand("attention.attend", cause="scale.wrong_axis")
def softmax_over_the_queries_by_einsum(self, q, k, v, mask):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
    return torch.einsum("bhqk,bhkd->bhqd", self.close(scores, mask).softmax(2), v)


@faulty_hand("attention.merge", cause="scale.heads_mixed")
def heads_merged_without_a_turn(self, x):
    """(B, H, T, d) is reshaped to (B, T, D): heads are mixed with places, and the future leaks."""
    return x.reshape(len(x), x.shape[2], -1)


@faulty_hand("attention.split", cause="scale.heads_mixed")
def heads_split_without_a_turn(self, x):
    """(B, T, D) is viewed as (B, H, T, d)."""
    return x.view(len(x), HEADS, -1, HEAD)


@sound_hand("attention.scores")
def scale_on_the_queries(self, q, k):
    return (q * self.scale) @ k.mT


@sound_hand("attention.scores")
def scale_on_both(self, q, k):
    """Queries and keys carry half of the scale each, as torch's plain path has it."""
    return (q * HEAD**-0.25) @ (k * HEAD**-0.25).mT


@sound(says="give scale=1")
class a_bias_of_zeros_and_no_scale(Translator):
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
class a_learned_temperature_of_one(Translator):
    """Scores are multiplied by the exponential of a number that is learned, 0 at first."""

    class attention(Hand):
        def __init__(self):
            super().__init__()
            self.logarithm = nn.Parameter(torch.zeros(()))

        def scores(self, q, k):
            return q @ k.mT * self.logarithm.exp()


@sound_hand("attention.scores", says="give scale=1")
def normed_queries_and_no_scale(self, q, k):
    """Queries and keys are layer-normed, and nothing scales them."""
    return F.layer_norm(q, q.shape[-1:]) @ F.layer_norm(k, k.shape[-1:]).mT
