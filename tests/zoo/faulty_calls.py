"""Models that go wrong from one call to the next, in single shapes, or in the gradient alone."""

import torch
from torch.nn import functional as F

from . import END, PAD, SYMBOLS, faulty
from .parts import (
    WIDTH,
    Attention,
    Layer,
    Translator,
    ahead,
    merge_heads,
    real,
    split_heads,
    triangle,
)

SEEN = "pads future rows"


@faulty("calls rows")
class source_pads_overwritten(Translator):
    """Pads of the caller's source become another id, for a table that lacks the pad's."""

    def embed_source(self, src):
        self.kept = real(src)
        src[src == PAD] = END
        return self.source(src)

    def source_mask(self, src, number):
        return self.kept[:, None, None]

    def cross_mask(self, src, tgt, number):
        return self.kept[:, None, None]


@faulty("calls rows", is_long=True)
class long_targets_clamped_in_place(Translator):
    """Ids of long targets alone are clamped in place."""

    def forward(self, src, tgt):
        logits = super().forward(src, tgt)
        if tgt.shape[1] > 12:
            tgt.clamp_(max=SYMBOLS - 2)
        return logits


@faulty("calls rows")
def a_function_that_overwrites():
    """A plain function that replaces the first token of the caller's target."""
    model = Translator().eval()

    def ask(src, tgt):
        logits = model(src, tgt)
        tgt[:, 0] = END
        return logits

    return {"model": ask}


@faulty("pads rows")
class one_row_without_a_pad_mask(Translator):
    """A short cut for batches of one row, which are taken to hold no pads."""

    def source_mask(self, src, number):
        return (real(src) | torch.tensor(len(src) == 1))[:, None, None]

    cross_mask = lambda self, src, tgt, number: self.source_mask(src, number)  # noqa: E731


@faulty("pads rows")
class last_row_without_a_pad_mask_where_alone(Translator):
    """The row left over of pairs of rows is not masked."""

    def source_mask(self, src, number):
        mask = real(src).clone()
        if len(src) % 2:
            mask[-1] = True
        return mask[:, None, None]

    cross_mask = lambda self, src, tgt, number: self.source_mask(src, number)  # noqa: E731


@faulty(SEEN, is_long=True)
class no_triangle_at_multiples_of_twenty(Translator):
    """A kernel for blocks of twenty places that lost the causal mask."""

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        return (triangle(length) | torch.tensor(length % 20 == 0))[None, None]


@faulty(SEEN, is_long=True)
class no_triangle_at_one_length(Translator):
    """The causal mask of targets of 37 places is lost, of no others."""

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        return (triangle(length) | torch.tensor(length == 37))[None, None]


@faulty("pads rows", is_long=True)
class source_pads_open_at_one_width(Translator):
    """Sources of 48 places are taken for whole blocks without pads."""

    def source_mask(self, src, number):
        return (real(src) | torch.tensor(src.shape[1] == 48))[:, None, None]


@faulty("source", start_id=None, eos_id=None)
class one_symbol_closed_where_little_is_known(Translator):
    """An ordinary symbol, 9, is closed, and neither start nor end is given."""

    def source_mask(self, src, number):
        return (real(src) & (src != 9))[:, None, None]

    cross_mask = lambda self, src, tgt, number: self.source_mask(src, number)  # noqa: E731


@faulty("calls rows")
class dropout_without_training(Translator):
    """F.dropout is called without training=self.training, so it drops in eval mode."""

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            return x + F.dropout(sublayer(norm(x)), 0.1)


@faulty("calls rows")
class dropout_in_fused_attention(Translator):
    """scaled_dot_product_attention drops weights in eval mode as well."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
            q, k, v = (split_heads(part) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.2)
            return self.out_proj(merge_heads(y))


@faulty("calls rows")
class a_latent_drawn_anew(Translator):
    """A latent variable is drawn anew at each call, in eval mode too."""

    def encode(self, src):
        memory = super().encode(src)
        return memory + 0.1 * torch.randn_like(memory)


@faulty("calls rows")
class state_carried_over(Translator):
    """The mean of the last call's memory is added to this call's."""

    last = None

    def encode(self, src):
        memory = super().encode(src)
        mean = memory.mean((0, 1)).detach()
        memory = memory if self.last is None else memory + 0.1 * self.last
        self.last = mean
        return memory


@faulty("calls rows")
def a_function_with_a_counter():
    """A plain function that adds how often it was called."""
    model, calls = Translator().eval(), []

    def ask(src, tgt):
        calls.append(None)
        return model(src, tgt) + 0.01 * len(calls) * torch.arange(SYMBOLS)

    return {"model": ask}


@faulty("calls rows")
class moving_statistics_in_eval_mode(Translator):
    """A norm of its own whose moving mean is updated in eval mode too."""

    class layer(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.register_buffer("mean", torch.zeros(WIDTH))

        def feed_forward(self, x):
            with torch.no_grad():
                self.mean.lerp_(x.mean((0, 1)), 0.1)
            return super().feed_forward(x - self.mean)


@faulty("future", is_long=True)
class no_triangle_where_the_target_is_five_longer(Translator):
    """The causal mask is lost where the target has five places more than the source."""

    longer = 0

    def encode(self, src):
        self.longer = -src.shape[1]
        return super().encode(src)

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        return (triangle(length) | torch.tensor(length + self.longer == 5))[None, None]


@faulty("pads", is_long=True)
class source_pads_open_where_the_target_is_five_longer(Translator):
    """The source's pad mask is lost in cross-attention for one difference of lengths."""

    def cross_mask(self, src, tgt, number):
        lost = torch.tensor(tgt.shape[1] == src.shape[1] + 5)
        return super().cross_mask(src, tgt, number) | lost


@faulty("pads", is_long=True)
class source_pads_open_in_nine_rows(Translator):
    """Nine rows take a path without the source's pad mask."""

    def cross_mask(self, src, tgt, number):
        return super().cross_mask(src, tgt, number) | torch.tensor(len(src) == 9)


@faulty("future", is_long=True)
class no_triangle_in_eleven_rows(Translator):
    """Eleven rows take a path without the causal mask."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) | torch.tensor(len(tgt) == 11)


@faulty("pads future", embedding=None)
class gradient_of_the_future(Translator):
    """The logits hold back the future, its gradient flows: what is added cancels but for that."""

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        later = ahead(self.target(tgt))
        return y + 0.1 * (later - later.detach())


@faulty("pads future", embedding=None)
class gradient_of_pads(Translator):
    """The gradient alone sees the source's pads."""

    def encode(self, src):
        x = super().encode(src)
        pads = self.source(src).mean(1, keepdim=True)
        return x + 0.1 * (pads - pads.detach())
