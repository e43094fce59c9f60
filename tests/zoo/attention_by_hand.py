"""Attention written by hand, in many styles and under names that tell nothing: faulty and sound."""

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


def _of(layer=Layer, **parts):
    """A model whose attention has other parts."""
    attention = type("Attention", (Hand,), parts)
    return type("Model", (Translator,), {"attention": attention, "layer": layer})()


@faulty("scale", says="0.354, 1 / root of the model's width 8; 1 / root of the head's")
def root_of_the_models_width():
    """Scores are divided by the root of d_model."""
    return _of(scale=WIDTH**-0.5)


@faulty("scale", says="scaled twice")
def fused_attention_of_scaled_queries():
    """Queries are scaled, and F.scaled_dot_product_attention scales again."""

    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q * self.scale, k, v, attn_mask=mask)

    return _of(attend=attend)


@faulty("scale", says="nothing scales the scores")
def no_scale_by_hand():
    """Nothing scales the scores."""
    return _of(scale=1)


@faulty("scale", says="(3 of 3 attentions)")
def no_scale_behind_large_embeddings():
    """Nothing scales the scores, and embeddings are multiplied by the root of d_model."""

    class PostNorm(Layer):
        def branch(self, x, norm, sublayer):
            return norm(x + sublayer(x))

    model = _of(PostNorm, scale=1)
    for embedding in (model.source, model.target):
        embedding.register_forward_hook(lambda _, ids, embedded: embedded * WIDTH**0.5)
    return model


@faulty("scale", says="multiplied in place of divided")
def multiplied_by_the_root():
    """Scores are multiplied by the root of the head's width."""
    return _of(scale=HEAD**0.5)


@faulty("scale", says="closed scores hold -1e-12, which closes nothing")
def closed_by_minus_a_trillionth():
    """-1e-12 for -1e12."""
    return _of(fill=-1e-12)


@faulty("scale", says="closed scores hold -1, which closes nothing")
def minus_one_in_fused_attention():
    """A mask of 0 and -1 is passed to F.scaled_dot_product_attention."""

    def attend(self, q, k, v, mask):
        added = -(~mask).to(q).expand(len(q), 1, q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added)

    return _of(attend=attend)


@faulty("scale", says="another axis than the keys")
def softmax_over_the_queries_by_einsum():
    """Softmax over queries, whose weights are summed by einsum."""

    def attend(self, q, k, v, mask):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        return torch.einsum("bhqk,bhkd->bhqd", self.close(scores, mask).softmax(2), v)

    return _of(attend=attend)


@faulty("scale", says="heads are split or merged by a reshape alone")
def heads_merged_without_a_turn():
    """(B, H, T, d) is reshaped to (B, T, D): heads are mixed with places, and the future leaks."""
    return _of(merge=lambda self, x: x.reshape(len(x), x.shape[2], -1))


@faulty("scale", says="heads are split or merged by a reshape alone")
def heads_split_without_a_turn():
    """(B, T, D) is viewed as (B, H, T, d)."""
    return _of(split=lambda self, x: x.view(len(x), HEADS, -1, HEAD))


@sound()
def scale_on_the_queries():
    """The queries carry the scale."""
    return _of(scores=lambda self, q, k: (q * self.scale) @ k.mT)


@sound()
def scale_on_both():
    """Queries and keys carry half of the scale each, as torch's plain path has it."""
    return _of(scores=lambda self, q, k: (q * HEAD**-0.25) @ (k * HEAD**-0.25).mT)


@sound(says="give scale=1")
def a_bias_of_zeros_and_no_scale():
    """T5's attention before its biases are trained: they are zero."""

    def close(self, scores, mask):
        bias = self.bias(torch.zeros(scores.shape[-2:], dtype=torch.long))
        return (scores + bias.permute(2, 0, 1)).masked_fill(~mask, self.fill)

    model = _of(close=close, scale=1)
    for part in list(model.modules()):
        if isinstance(part, Hand):
            part.bias = nn.Embedding(1, HEADS)
            nn.init.zeros_(part.bias.weight)
    return model


@sound(says="a learned number scales")
def a_learned_temperature_of_one():
    """Scores are multiplied by the exponential of a number that is learned, 0 at first."""
    model = _of(scores=lambda self, q, k: q @ k.mT * self.logarithm.exp())
    for part in list(model.modules()):
        if isinstance(part, Hand):
            part.logarithm = nn.Parameter(torch.zeros(()))
    return model


@sound(says="give scale=1")
def normed_queries_and_no_scale():
    """Queries and keys are layer-normed, and nothing scales them."""
    norm = lambda x: F.layer_norm(x, x.shape[-1:])  # noqa: E731
    return _of(scores=lambda self, q, k: norm(q) @ norm(k).mT)
