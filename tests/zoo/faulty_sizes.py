"""Models that are right at some sizes, in one mode, at the first call, or for some batches."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from . import faulty
from .parts import WIDTH, Attention, Layer, Translator, ahead, real, split_heads, triangle

SEEN = "future"


def _open(tgt):
    """No triangle; pads are closed."""
    return real(tgt)[:, None, None] | triangle(tgt.shape[1])


@faulty(SEEN, is_long=True)
class triangle_for_sixteen_places(Translator):
    """A fixed triangle of 16 places; longer targets have none."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) if tgt.shape[1] <= 16 else _open(tgt)


@faulty(SEEN, embedding=True, is_long=True)
class triangle_repeated_after_32_places(Translator):
    """A buffer of 32 places that is repeated for more."""

    def target_mask(self, tgt, number):
        places = torch.arange(tgt.shape[1]) % 32
        return (places[:, None] >= places)[None, None]


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

    def source_mask(self, src, number):
        return self.kept.setdefault(tuple(src.shape), real(src)[:, None, None])

    def cross_mask(self, src, tgt, number):
        return self.source_mask(src, number)


@faulty()
def pad_mask_cached_by_shape_in_a_function():
    """The same behind a plain function, of which nothing can be copied."""
    model = pad_mask_cached_by_shape().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@faulty()
class pad_mask_of_the_first_batch(Translator):
    """The first batch's pad mask is kept, cut or widened to fit."""

    kept = None

    def source_mask(self, src, number):
        if self.kept is None:
            self.kept = real(src)
        mask = torch.ones_like(src, dtype=torch.bool)
        rows, width = (min(a, b) for a, b in zip(src.shape, self.kept.shape, strict=True))
        mask[:rows, :width] = self.kept[:rows, :width]
        return mask[:, None, None]


@faulty()
class mask_cached_by_width(Translator):
    """Combined masks are kept by the target's width, in a table shared by all rows."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def cross_mask(self, src, tgt, number):
        found = self.kept.setdefault(src.shape[1], real(src).any(0))
        return found[None, None, None]


@faulty(SEEN, is_long=True)
class more_than_eight_rows(Translator):
    """Rows behind the eighth lose the triangle, as in a loop over chunks that reuses its mask."""

    def target_mask(self, tgt, number):
        late = (torch.arange(len(tgt)) >= 8)[:, None, None, None]
        return super().target_mask(tgt, number) | late & _open(tgt)


@faulty("pads rows", is_long=True)
class pads_open_in_more_than_eight_rows(Translator):
    """Large batches take a path without pad masks."""

    def source_mask(self, src, number):
        return super().source_mask(src, number) | (len(src) > 8)


@faulty("future rows")
class open_for_one_row(Translator):
    """A batch of one row needs no pad mask, and loses the triangle with it."""

    def target_mask(self, tgt, number):
        return _open(tgt) if len(tgt) == 1 else super().target_mask(tgt, number)


@faulty(SEEN)
class open_without_pads(Translator):
    """Where the target holds no pads the mask is dropped altogether."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) if bool((~real(tgt)).any()) else _open(tgt)


@faulty(SEEN)
class open_at_multiples_of_eight(Translator):
    """A fast path for lengths that are multiples of 8 forgets the triangle."""

    def target_mask(self, tgt, number):
        return _open(tgt) if tgt.shape[1] % 8 == 0 else super().target_mask(tgt, number)


@faulty(SEEN)
class open_where_source_and_target_are_alike(Translator):
    """The mask is chosen by its shape: a square one is taken for the encoder's."""

    def decode(self, src, tgt, memory):
        self.is_square = src.shape[1] == tgt.shape[1]
        return super().decode(src, tgt, memory)

    def target_mask(self, tgt, number):
        return _open(tgt) if self.is_square else super().target_mask(tgt, number)


@faulty("pads future rows")
class open_where_the_target_is_longer(Translator):
    """The triangle is cut from one of the source's length; what is beyond is open."""

    def decode(self, src, tgt, memory):
        self.width = src.shape[1]
        return super().decode(src, tgt, memory)

    def target_mask(self, tgt, number):
        outside = torch.arange(tgt.shape[1]) >= self.width
        return super().target_mask(tgt, number) | outside


@faulty("", "FAIL or refused")
class state_kept_between_calls(Translator):
    """A cache that is not emptied: each call sees the memory of the call before."""

    kept = None

    def encode(self, src):
        x = super().encode(src)
        before, self.kept = self.kept, x.mean((0, 1)).detach()
        return x if before is None else x + 0.1 * before


@faulty("", "FAIL or refused")
class dropout_left_on(Translator):
    """F.dropout without training=self.training drops in eval mode too."""

    def embed_target(self, tgt):
        return F.dropout(self.target(tgt), 0.1)


@faulty("", "FAIL or refused")
class noise_in_eval_mode(Translator):
    """Noise of a thousandth, always."""

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        return y + 1e-3 * torch.randn_like(y)


# Train mode ----------------------------------------------------------------------------------


@faulty(SEEN)
class open_in_train_mode(Translator):
    """The triangle is left out while training."""

    def target_mask(self, tgt, number):
        return _open(tgt) if self.training else super().target_mask(tgt, number)


@faulty()
class pads_open_in_train_mode(Translator):
    """Pads are closed in eval mode alone."""

    def source_mask(self, src, number):
        return super().source_mask(src, number) | self.training

    def cross_mask(self, src, tgt, number):
        return self.source_mask(src, number)


@faulty(SEEN, embedding=True)
class leak_of_a_thousandth_in_train_mode(Translator):
    """0.001 of the next place, while training."""

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        return y + 1e-3 * ahead(y) if self.training else y


@faulty()
class batch_norm_in_train_mode(Translator):
    """Batch norm over rows and places of the target, in train mode."""

    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def embed_target(self, tgt):
        return self.batch_norm(self.target(tgt).mT).mT


@faulty()
class batch_norm_in_the_encoder(Translator):
    """Batch norm in place of the encoder's last norm: rows share statistics, pads count."""

    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def encode(self, src):
        return self.batch_norm(super().encode(src).mT).mT


class _Checkpointed(Layer):
    def forward(self, x, mask, memory=None, cross_mask=None):
        if self.training and memory is not None:  # one argument was forgotten
            closed = torch.ones_like(mask)
            given = (x, closed, memory, cross_mask)
            return checkpoint(super().forward, *given, use_reentrant=False)
        return super().forward(x, mask, memory, cross_mask)


@faulty(SEEN)
class checkpointed_without_a_mask(Translator):
    """Gradient checkpointing, used in train mode, does not pass the mask on."""

    layer = _Checkpointed


class _Fused(Attention):
    def forward(self, x, memory, mask):
        if not self.training:
            return super().forward(x, memory, mask)
        parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
        q, k, v = (split_heads(part) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=False)
        return self.out_proj(self.merge(y))


@faulty()
class fused_in_train_mode_without_masks(Translator):
    """Train mode takes scaled_dot_product_attention and passes it no mask."""

    attention = _Fused


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
