"""A model for each cause that is told by what the weights of attention show, by where NaN begins,
by what mixes rows, and by single heads and sub-layers; and sound ones that look alike."""

import math

import torch
from torch import nn

from . import START, Translator, faulty, sound
from .parts import (
    WIDTH,
    Attention,
    Embedding,
    Layer,
    Torchs,
    merge_heads,
    real,
    split_heads,
    triangle,
)
from .sound_models import Recurrent

NOTHING = -math.inf


def _bare(self, scores, mask):
    """A query with every key closed gives NaN."""
    return scores.masked_fill(~mask, NOTHING).softmax(-1)


def _filled(self, scores, mask):
    """A query with every key closed sees all alike."""
    return scores.masked_fill(~mask, -1e9).softmax(-1)


class _Bare(Translator):
    class attention(Attention):
        weights = _bare


# Masks --------------------------------------------------------------------------------------


@faulty("pads", "attention.weights", cause="pads.mask_multiplied", is_quick=True)
def scores_times_the_mask(self, scores, mask):
    return (scores * mask).softmax(-1)


@faulty("pads", "attention.weights", cause="pads.mask_added", is_quick=True)
def ones_and_zeros_added(self, scores, mask):
    return (scores + mask.to(scores)).softmax(-1)


@sound("future", "masks", base=Torchs)
def masks_of_numbers_in_fp32(self, src, tgt):
    """In a copy in fp64 torch's attention reads them as numbers of fp64, from 16 keys on."""
    numbers = torch.zeros(src.shape).masked_fill(~real(src), NOTHING)
    return {
        "tgt_mask": torch.full((tgt.shape[1],) * 2, NOTHING).triu(1),
        "src_key_padding_mask": numbers,
        "memory_key_padding_mask": numbers,
    }


@faulty("pads", "attend", base=Recurrent, is_quick=True)
def one_query_whose_pads_are_filled_with_minus_one(self, y, memory, keep):
    """Scores have no axis of queries: (B, S)."""
    found = []
    for query in y.unbind(1):
        scores = (memory @ query[..., None])[..., 0].masked_fill(~keep, -1.0)
        found.append((scores.softmax(-1)[..., None] * memory).sum(1))
    return torch.stack(found, 1)


@faulty("future", "target_mask", cause="future.mask_of_some_heads", is_quick=True)
def triangle_of_the_first_head(self, tgt):
    heads = torch.arange(2)[:, None, None]
    return (triangle(tgt.shape[1]) | (heads > 0))[None]


@faulty("future", "target_mask", cause="future.mask_inverted", is_quick=True)
def upper_triangle(self, tgt):
    return triangle(tgt.shape[1]).mT[None, None]


class _ClosesQueries(Translator):
    class attention(Attention):
        weights = _filled

    def source_mask(self, src):
        return real(src)[:, None, :, None]


faulty("pads", cause="pads.mask_of_queries", name="pads closed as queries", is_quick=True)(
    _ClosesQueries
)


@faulty("future", cause="future.mask_of_some_layers", is_quick=True)
class triangle_of_the_first_layer(Translator):
    depth, calls = 2, 0

    def target_mask(self, tgt):
        self.calls += 1
        return super().target_mask(tgt) | torch.tensor(self.calls % 2 == 0)


@faulty("future", cause="future.latents", is_quick=True)
class latents_that_read_the_target(Translator):
    def __init__(self):
        super().__init__()
        self.latents, self.read, self.write = nn.Parameter(torch.randn(3, WIDTH)), *_two()

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        latents = self.latents.expand(len(tgt), -1, -1)
        some = self.read(latents, y, real(tgt)[:, None, None])
        return y + self.write(y, some, torch.ones(1, 1, 1, 3, dtype=torch.bool))


def _two():
    return Attention(), Attention()


# NaN ----------------------------------------------------------------------------------------


@faulty("rows", "target_mask", base=_Bare, cause="any.nan_own_place", is_quick=True)
def triangle_without_own_places(self, tgt):
    return triangle(tgt.shape[1]).tril(-1)[None, None]


@faulty("rows", "target_mask", base=_Bare, cause="any.nan_first_key", is_quick=True)
def start_taken_for_a_pad(self, tgt):
    return triangle(tgt.shape[1])[None, None] & (tgt > START)[:, None, None]


@faulty("rows", "source_mask", base=_Bare, cause="any.nan_of_pads", is_quick=True)
def pads_without_a_key(self, src):
    return real(src)[:, None, None] & real(src)[:, None, :, None]


@faulty("rows", "embed_target", cause="any.nan_elsewhere", is_quick=True)
def divided_by_the_number_of_pads(self, tgt):
    pads = (~real(tgt)).sum(1)[:, None, None]
    return self.target(tgt) + 0.0 / pads


# Rows ---------------------------------------------------------------------------------------


class _Between(Translator):
    """Something works on the encoder's output."""

    def __init__(self, made):
        super().__init__()
        self.between = made

    def encode(self, src):
        return self.between(super().encode(src))


class _SoftmaxOverRows(nn.Module):
    def forward(self, x):
        return x * x.softmax(0)


class _MeanOfRows(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class _BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, x):
        return self.norm(x.mT).mT


for code, module in (
    ("rows.batch_norm", _BatchNorm),
    ("rows.softmax_over_rows", _SoftmaxOverRows),
    ("rows.statistic", _MeanOfRows),
):
    faulty("rows", cause=code, name=f"mixed by {module.__name__}", is_quick=True)(
        lambda module=module: _Between(module())
    )


# Order --------------------------------------------------------------------------------------


def _projected(self, x, memory):
    both = ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory))
    return (split_heads(project(y)) for project, y in both)


class _Unplaced(Translator):
    def __init__(self):
        super().__init__()
        self.source = Embedding(places=False)


@faulty("order", "attention.forward", base=_Unplaced, cause="order.turned_elsewhere", is_quick=True)
def turned_along_the_heads(self, x, memory, mask):
    q, k, v = _projected(self, x, memory)
    angle = torch.arange(q.shape[1])[:, None, None].to(q)
    q, k = q * angle.cos(), k * angle.cos()
    return self.out_proj(merge_heads(self.weights(self.scores(q, k), mask) @ v))


@faulty("order", "attention.scores", base=_Unplaced, cause="order.bias_alike", is_quick=True)
def a_bias_of_one_number(self, q, k):
    return Attention.scores(self, q, k) + torch.full((q.shape[-2], k.shape[-2]), 0.3).to(q)


# Heads and sub-layers -----------------------------------------------------------------------


@faulty("weights", "attention.forward", cause="weights.head_unused", is_quick=True)
def the_first_head_twice(self, x, memory, mask):
    q, k, v = _projected(self, x, memory)
    heads = self.weights(self.scores(q, k), mask) @ v
    return self.out_proj(merge_heads(heads[:, [0, 0]]))


class _WithForward(Layer):
    """Feed-forward is a module of its own, with a name that nobody knows."""

    def __init__(self, attention, cross):
        super().__init__(attention, cross)
        self.mixer = nn.Sequential(self.fc1, nn.ReLU(), self.fc2)
        del self.fc1, self.fc2

    def feed_forward(self, x):
        return self.mixer(x)


@sound("sublayers")
class feed_forward_of_an_unknown_name(Translator):
    layer = _WithForward


@faulty("sublayers", cause="sublayers.residual_lost", is_quick=True)
class residual_lost_around_feed_forward(Translator):
    class layer(_WithForward):
        def branch(self, x, norm, sublayer):
            made = self.dropout(sublayer(norm(x)))
            return made if norm is self.fc_norm else x + made


@sound("sublayers")
class a_transform_between_halves(_Between):
    """Two matrices that replace what they are given, in no layer of attention."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH)))


# Keys of both sides, and choices among all rows ------------------------------------------------


@faulty("pads", cause="pads.seen_behind_source", is_quick=True)
class keys_of_both_sides_at_once(Translator):
    """The decoder attends to source and target in one softmax, and sees the pads between them."""

    class layer(Layer):
        def forward(self, x, mask, memory=None, cross_mask=None):
            if memory is None:
                return super().forward(x, mask)
            open_source = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool)
            seen = torch.cat((open_source, triangle(x.shape[1])), 1)
            both = lambda h: self.self_attn(h, torch.cat((memory, h), 1), seen)  # noqa: E731
            x = self.branch(x, self.self_attn_norm, both)
            return self.branch(x, self.fc_norm, self.feed_forward)


@faulty("rows", "layer.feed_forward", cause="rows.choice", is_quick=True)
def a_capacity_for_all_rows(self, x):
    """Half of all tokens of a batch pass through, those whose sum is largest."""
    flat = x.flatten(0, 1)
    best = flat.sum(-1).topk(len(flat) // 2).indices
    return (
        torch.zeros_like(flat).index_copy(0, best, Layer.feed_forward(self, flat[best])).view_as(x)
    )
