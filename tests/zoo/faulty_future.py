"""Decoders that see the future, or count places from an end that they do not know; some at some
sizes, in one mode, or at the first call alone."""

import torch
from torch.nn import functional as F

from . import faulty
from .parts import (
    Attention,
    Embedding,
    Padded,
    Torchs,
    Translator,
    ahead,
    real,
    triangle,
    waves,
)


class _MinusOne(Attention):
    def weights(self, scores, mask):
        return (scores - (~mask).to(scores)).softmax(-1)


def _with_attention(attention):
    model = type(attention.__name__, (Translator,), {"attention": attention})
    return model()


@faulty("future")
def closed_by_minus_one():
    """Closed scores lose 1, not infinity."""
    return _with_attention(_MinusOne)


@faulty("future", embedding=True)
class prefix_one_too_long(Translator):
    """A prefix LM whose prefix holds the first target token too."""

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1])
        mask[:, :2] = True
        return mask[None, None]


@faulty("future")
class blocks_open_inside(Translator):
    """Local attention in blocks of four that are open inside."""

    def target_mask(self, tgt, number):
        block = torch.arange(tgt.shape[1]) // 4
        return (block[:, None] >= block)[None, None]


class _Leaking(Padded):
    """A thousandth of the next place leaks."""

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        return y + 1e-3 * ahead(y)


@faulty("future", vocabulary_size=32, says="sees the future")
class leak_beside_minus_a_billion(_Leaking):
    """A leak of a thousandth in logits of which 19 of 32 are -1e9."""


@faulty("future")
class torchs_transformer_with_the_masks_flipped(Torchs):
    """True = may look, passed to layers for which True = blocked."""

    def masks(self, src, tgt):
        return {name: ~mask for name, mask in super().masks(src, tgt).items()}


class _Mixing(Translator):
    """`mix` changes what the target's embeddings hold, (B, T, D) -> (B, T, D)."""

    def embed_target(self, tgt):
        y = self.target(tgt)
        return y + self.mix(y)


@faulty("future")
class scaled_by_the_largest(_Mixing):
    """Activations are rounded to 8 bits with one scale for the whole tensor."""

    def mix(self, y):
        scale = y.abs().max() / 127
        return (y / scale).round() * scale


class _FromTheEnd(Embedding):
    def places(self, ids):
        return waves(real(ids).sum(1)[:, None] - torch.arange(ids.shape[1]))


@faulty(embedding=True)
class places_counted_from_the_end(Translator):
    """Target places are counted from each target's own end."""

    def __init__(self):
        super().__init__()
        self.target = _FromTheEnd()


@faulty(embedding=True)
class places_counted_from_the_batchs_end(Translator):
    """Target places are counted from the end of the longest target."""

    def embed_target(self, tgt):
        y = self.target.tokens(tgt)
        return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)


@faulty("order", is_long=True)
class places_end_at_32(Translator):
    """Sources have no order behind place 32, whose position all later places get."""

    def embed_source(self, src):
        places = torch.arange(src.shape[1]).clamp(max=31)
        return self.source.tokens(src) + waves(places).to(self.source.tokens.weight)


def _open(tgt):
    """No triangle; pads are closed."""
    return real(tgt)[:, None, None] | triangle(tgt.shape[1])


@faulty("future", is_long=True)
class triangle_as_long_as_the_first_call(Translator):
    """The triangle of the first batch is kept; places behind it are open."""

    kept = None

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        if self.kept is None:
            self.kept = length
        outside = torch.arange(length) >= self.kept
        return (triangle(length) | outside)[None, None]


@faulty()
class pad_mask_cached_by_shape(Translator):
    """The pad mask of a shape is kept for all batches of this shape."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def keys(self, src, number):
        return self.kept.setdefault(tuple(src.shape), real(src)[:, None, None])


@faulty("future")
class open_without_pads(Translator):
    """Where the target holds no pads the mask is dropped altogether."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) if bool((~real(tgt)).any()) else _open(tgt)


@faulty("future")
class open_where_source_and_target_are_alike(Translator):
    """The mask is chosen by its shape: a square one is taken for the encoder's."""

    def decode(self, src, tgt, memory):
        self.is_square = src.shape[1] == tgt.shape[1]
        return super().decode(src, tgt, memory)

    def target_mask(self, tgt, number):
        return _open(tgt) if self.is_square else super().target_mask(tgt, number)


@faulty("", "FAIL or refused")
class dropout_left_on(Translator):
    """F.dropout without training=self.training drops in eval mode too."""

    def embed_target(self, tgt):
        return F.dropout(self.target(tgt), 0.1)


@faulty("future", says="train mode alone")
class open_in_train_mode(Translator):
    """The triangle is left out while training."""

    def target_mask(self, tgt, number):
        return _open(tgt) if self.training else super().target_mask(tgt, number)


@faulty("pads rows")
class fast_path_in_eval_mode(Translator):
    """Eval mode takes a shortcut without the pad mask."""

    def source_mask(self, src, number):
        return super().source_mask(src, number) | (not self.training)


@faulty(is_long=True)
class truncated_at_sixteen(Translator):
    """Sources are cut to 16 places without a word."""

    def encode(self, src):
        return super().encode(src[:, :16])

    def cross_mask(self, src, tgt, number):
        return super().cross_mask(src[:, :16], tgt, number)
