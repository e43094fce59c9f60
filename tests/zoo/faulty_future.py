"""Decoders that see the future through their attention masks."""

import torch
from torch import nn

from . import faulty
from .parts import (
    WIDTH,
    Attention,
    Translator,
    ahead,
    real,
    triangle,
)

SEEN = "future"
"""The proofs that a change of the future reaches."""


@faulty(SEEN)
class no_triangle(Translator):
    """No causal mask at all."""

    def target_mask(self, tgt, number):
        return real(tgt)[:, None, None]


@faulty(SEEN, embedding=True)
class triangle_off_by_one(Translator):
    """tril(1) for tril(): each place sees its own label."""

    def target_mask(self, tgt, number):
        return triangle(tgt.shape[1], 1)[None, None]


@faulty(SEEN)
class triangle_off_by_one_in_one_head(Translator):
    """One head of two has tril(1)."""

    def target_mask(self, tgt, number):
        return torch.stack((triangle(tgt.shape[1]), triangle(tgt.shape[1], 1)))[None]


@faulty(SEEN, embedding=True)
class no_triangle_in_one_head(Translator):
    """One head of two sees every place."""

    def target_mask(self, tgt, number):
        return torch.stack((triangle(tgt.shape[1]), triangle(tgt.shape[1], tgt.shape[1])))[None]


@faulty(SEEN)
class no_triangle_in_the_last_layer(Translator):
    """The triangle is passed to the first layer alone."""

    depth = 2

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) if number == 0 else real(tgt)[:, None, None]


@faulty(SEEN)
class triangle_flipped(Translator):
    """triu() for tril(): each place sees itself and the future."""

    def target_mask(self, tgt, number):
        return triangle(tgt.shape[1]).T[None, None]


class _MinusOne(Attention):
    def weights(self, scores, mask):
        return (scores - (~mask).to(scores)).softmax(-1)


class _MinusTen(Attention):
    def weights(self, scores, mask):
        return (scores - 10 * (~mask).to(scores)).softmax(-1)


class _Zeroed(Attention):
    def weights(self, scores, mask):
        return (scores * mask).softmax(-1)


class _AfterSoftmax(Attention):
    def weights(self, scores, mask):
        return scores.softmax(-1) * mask


class _OverQueries(Attention):
    def weights(self, scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(-2)


class _OverHeads(Attention):
    def weights(self, scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(1)


class _Dropped(Attention):
    """Masks with a positive infinity of the wrong sign on the rest."""

    def weights(self, scores, mask):
        return scores.masked_fill(~mask, 1e-9).softmax(-1)


def _with_attention(attention):
    model = type(attention.__name__, (Translator,), {"attention": attention})
    return model()


@faulty(SEEN)
def closed_by_minus_one():
    """Closed scores lose 1, not infinity."""
    return _with_attention(_MinusOne)


@faulty(SEEN)
def closed_by_minus_ten():
    """Closed scores lose 10: weights of 1e-5 are left."""
    return _with_attention(_MinusTen)


@faulty(SEEN, embedding=True)
def closed_by_times_zero():
    """Closed scores are multiplied by 0, which is a score like any other."""
    return _with_attention(_Zeroed)


@faulty(SEEN)
def closed_by_a_small_number():
    """masked_fill with 1e-9 where -1e9 was meant."""
    return _with_attention(_Dropped)


@faulty(SEEN)
def mask_after_softmax():
    """The weights are masked after softmax: its denominator holds the future."""
    return _with_attention(_AfterSoftmax)


@faulty(SEEN)
def softmax_over_queries():
    """softmax over the wrong axis: later queries share the denominator."""
    return _with_attention(_OverQueries)


@faulty(SEEN)
def softmax_over_heads():
    """softmax over heads: a closed place is closed in every head, so each gets its share."""
    return _with_attention(_OverHeads)


class _Unturned(Attention):
    """Heads are merged without turning them back, which mixes places."""

    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@faulty(SEEN)
def heads_viewed_not_turned():
    """view() of (B, H, T, Dh) to (B, T, D) without a transpose mixes places."""
    return _with_attention(_Unturned)


@faulty(SEEN)
class alibi_for_a_mask(Translator):
    """Distances lower the scores of the future and do not close it."""

    class attention(Attention):
        def weights(self, scores, mask):
            q, k = (torch.arange(scores.shape[i])[:, None] for i in (-2, -1))
            open_to_all = mask.any(-2, keepdim=True)
            return super().weights(scores - (q - k.T).abs(), open_to_all)


@faulty(SEEN, start_id=0)
class start_is_a_closed_pad(Translator):
    """The start is the pad id and closed with it: -1e9 everywhere makes place 0 see all."""

    class attention(Attention):
        def weights(self, scores, mask):
            return (scores + mask).softmax(-1)

    def target_mask(self, tgt, number):
        pads, future = ~real(tgt)[:, None, None], ~triangle(tgt.shape[1])
        return torch.maximum(pads, future) * -1e9

    def source_mask(self, src, number):
        return ~super().source_mask(src, number) * -1e9

    cross_mask = lambda self, src, tgt, number: self.source_mask(src, number)  # noqa: E731


@faulty(SEEN)
class leak_of_a_thousandth(Translator):
    """0.001 of the next place is added to each."""

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        return y + 1e-3 * ahead(y)


@faulty(SEEN, embedding=True)
class prefix_one_too_long(Translator):
    """A prefix LM whose prefix holds the first target token too."""

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1])
        mask[:, :2] = True
        return mask[None, None]


@faulty(SEEN)
class a_token_that_sees_all(Translator):
    """The start token attends to every place, as a global token of an encoder does."""

    depth = 2

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1])
        mask[0] = True
        return (mask & (real(tgt)[:, None] | triangle(tgt.shape[1])))[:, None]


@faulty(SEEN)
class registers_behind(Translator):
    """Register tokens appended to the target see all of it, and every place sees them."""

    depth = 2

    def __init__(self):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(2, WIDTH))

    def embed_target(self, tgt):
        y = self.target(tgt)
        return torch.cat((y, self.registers.expand(len(y), -1, -1)), 1)

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1] + 2)
        mask[:, -2:] = True
        return mask[None, None]

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, memory)[:, :-2]


@faulty(SEEN)
class blocks_open_inside(Translator):
    """Local attention in blocks of four that are open inside."""

    def target_mask(self, tgt, number):
        block = torch.arange(tgt.shape[1]) // 4
        return (block[:, None] >= block)[None, None]


@faulty(SEEN)
class dilated_heads_look_both_ways(Translator):
    """A dilated head looks 4 places back and 4 ahead."""

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        places = torch.arange(length)
        both = (places[:, None] - places).abs().remainder(4) == 0
        return torch.stack((triangle(length), both & (real(tgt).all(0) | triangle(length))))[None]
