"""Decoders that see the future through their attention masks."""

import torch

from . import faulty
from .parts import Attention, Translator, triangle

SEEN = "future"
"""The checks that a change of the future reaches."""


class _MinusOne(Attention):
    def weights(self, scores, mask):
        return (scores - (~mask).to(scores)).softmax(-1)


def _with_attention(attention):
    model = type(attention.__name__, (Translator,), {"attention": attention})
    return model()


@faulty(SEEN)
def closed_by_minus_one():
    """Closed scores lose 1, not infinity."""
    return _with_attention(_MinusOne)


@faulty(SEEN, embedding=True)
class prefix_one_too_long(Translator):
    """A prefix LM whose prefix holds the first target token too."""

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1])
        mask[:, :2] = True
        return mask[None, None]


@faulty(SEEN)
class blocks_open_inside(Translator):
    """Local attention in blocks of four that are open inside."""

    def target_mask(self, tgt, number):
        block = torch.arange(tgt.shape[1]) // 4
        return (block[:, None] >= block)[None, None]
