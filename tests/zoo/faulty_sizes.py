"""Models that are right at some sizes, in one mode, at the first call, or for some batches."""

import torch
from torch.nn import functional as F

from . import faulty
from .parts import Translator, real, triangle

SEEN = "future"


def _open(tgt):
    """No triangle; pads are closed."""
    return real(tgt)[:, None, None] | triangle(tgt.shape[1])


@faulty(SEEN, is_long=True)
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


@faulty(SEEN)
class open_without_pads(Translator):
    """Where the target holds no pads the mask is dropped altogether."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) if bool((~real(tgt)).any()) else _open(tgt)


@faulty(SEEN)
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


@faulty(SEEN, says="train mode alone")
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
