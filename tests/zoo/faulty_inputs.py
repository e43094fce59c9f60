"""Models that see the future, pads or other rows, that see too little, or that keep something from
call to call; some at some sizes, in one mode, or at the first call alone."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from . import faulty, sound
from .parts import (
    END,
    START,
    SYMBOLS,
    WIDTH,
    Attention,
    Padded,
    Torchs,
    Translator,
    ahead,
    filled,
    given_with,
    make_batch,
    real,
    triangle,
    waves,
)

# The target's mask -------------------------------------------------------------------------------


def _open(tgt):
    """No triangle; pads are closed."""
    return real(tgt)[:, None, None] | triangle(tgt.shape[1])


@faulty("future", "attention.weights")
def closed_by_minus_one(self, scores, mask):
    """Closed scores lose 1, not infinity."""
    return (scores - (~mask).to(scores)).softmax(-1)


@faulty("future", "target_mask", embedding=True)
def prefix_one_too_long(self, tgt):
    """A prefix LM whose prefix holds the first target token too."""
    return triangle(tgt.shape[1])[None, None] | (torch.arange(tgt.shape[1]) < 2)


@faulty("future", "target_mask")
def blocks_open_inside(self, tgt):
    """Local attention in blocks of four that are open inside."""
    block = torch.arange(tgt.shape[1]) // 4
    return (block[:, None] >= block)[None, None]


@faulty("future", is_long=True)
class triangle_as_long_as_the_first_call(Translator):
    """The triangle of the first batch is kept; places behind it are open."""

    kept = None

    def target_mask(self, tgt):
        self.kept = self.kept or tgt.shape[1]
        return super().target_mask(tgt) | (torch.arange(tgt.shape[1]) >= self.kept)


@faulty("future", "target_mask")
def open_without_pads(self, tgt):
    """Where the target holds no pads the mask is dropped altogether."""
    return Translator.target_mask(self, tgt) if bool((~real(tgt)).any()) else _open(tgt)


@faulty("future")
class open_where_source_and_target_are_alike(Translator):
    """The mask is chosen by its shape: a square one is taken for the encoder's."""

    def decode(self, src, tgt, memory):
        self.is_square = src.shape[1] == tgt.shape[1]
        return super().decode(src, tgt, memory)

    def target_mask(self, tgt):
        return _open(tgt) if self.is_square else super().target_mask(tgt)


@faulty("future", "target_mask", says="train mode alone")
def open_in_train_mode(self, tgt):
    """The triangle is left out while training."""
    return _open(tgt) if self.training else Translator.target_mask(self, tgt)


@faulty("future", "target_mask", is_long=True)
def no_triangle_in_eleven_rows(self, tgt):
    """Eleven rows take a path without the causal mask."""
    return Translator.target_mask(self, tgt) | torch.tensor(len(tgt) == 11)


class _OpenNowhere(Translator):
    """A row of pads alone has every key closed by -inf."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, -math.inf).softmax(-1)


@faulty("pads", "target_mask", base=_OpenNowhere, says="output is NaN at a real place")
def triangle_turned_round(self, tgt):
    """Past and present are closed, so the last place has no key."""
    return ~Translator.target_mask(self, tgt)


@faulty("rows")
def row_of_pads_gives_nan():
    """Sources carry no end, so an empty one is a row of pads, and gives NaN."""
    batch = lambda pairs: (filled([s for s, _ in pairs]), *make_batch(pairs)[1:])  # noqa: E731
    return given_with(model=_OpenNowhere(), batch=batch)


@sound(eos_id=None)
class row_of_pads_may_give_nan(_OpenNowhere):
    """A source without tokens gives NaN, and nothing says that such a source can come."""


@faulty("future")
class torchs_transformer_with_the_masks_flipped(Torchs):
    """True = may look, passed to layers for which True = blocked."""

    def masks(self, src, tgt):
        return {name: ~mask for name, mask in super().masks(src, tgt).items()}


# The future by other ways ------------------------------------------------------------------------


@faulty("future", "decode", base=Padded, vocabulary_size=32, says="sees the future")
def leak_beside_minus_a_billion(self, src, tgt, memory):
    """A thousandth of the next place leaks to logits of which 19 of 32 are -1e9."""
    y = Translator.decode(self, src, tgt, memory)
    return y + 1e-3 * ahead(y)


@faulty("future", "embed_target")
def scaled_by_the_largest(self, tgt):
    """Activations are rounded to 8 bits with one scale for the whole tensor."""
    y = self.target(tgt)
    scale = y.abs().max() / 127
    return y + (y / scale).round() * scale


@faulty("", "embed_target", embedding=True)
def places_counted_from_the_end(self, tgt):
    """Target places are counted from each target's own end."""
    places = real(tgt).sum(1)[:, None] - torch.arange(tgt.shape[1])
    return self.target.tokens(tgt) + waves(places).to(self.target.tokens.weight)


@faulty("", "embed_target", embedding=True)
def places_counted_from_the_batchs_end(self, tgt):
    """Target places are counted from the end of the longest target."""
    y = self.target.tokens(tgt)
    return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)


@faulty("future", "decode", embedding=None, says="depend on the future")
def gradient_of_the_future(self, src, tgt, memory):
    """The logits hold back the future, its gradient flows: what is added cancels but for that."""
    later = ahead(self.target(tgt))
    return Translator.decode(self, src, tgt, memory) + 0.1 * (later - later.detach())


@faulty("pads future", "encode", embedding=None)
def gradient_of_pads(self, src):
    """The gradient alone sees the source's pads."""
    pads = self.source(src).mean(1, keepdim=True)
    return Translator.encode(self, src) + 0.1 * (pads - pads.detach())


# Pads of the source ------------------------------------------------------------------------------


@faulty()
class pad_mask_cached_by_shape(Translator):
    """The pad mask of a shape is kept for all batches of this shape."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def keys(self, src):
        return self.kept.setdefault(tuple(src.shape), real(src)[:, None, None])


@faulty("pads rows", "source_mask")
def fast_path_in_eval_mode(self, src):
    """Eval mode takes a shortcut without the pad mask."""
    return self.keys(src) | (not self.training)


@faulty("pads rows", "cross_mask")
def pad_mask_of_the_target(self, src, tgt):
    """Cross-attention closes the places that are pads in the target."""
    mask = torch.ones_like(src, dtype=torch.bool)
    width = min(src.shape[1], tgt.shape[1])
    mask[:, :width] = real(tgt)[:, :width]
    return mask[:, None, None]


@faulty("pads rows", "keys")
def pad_mask_of_another_id(self, src):
    """The pad id is left at its default of -1, which no batch holds."""
    return (src != -1)[:, None, None]


@faulty("pads rows", "keys")
def one_row_without_a_pad_mask(self, src):
    """A short cut for batches of one row, which are taken to hold no pads."""
    return (real(src) | torch.tensor(len(src) == 1))[:, None, None]


@faulty("pads", "cross_mask", is_long=True)
def source_pads_open_where_the_target_is_five_longer(self, src, tgt):
    """The source's pad mask is lost in cross-attention for one difference of lengths."""
    return self.keys(src) | torch.tensor(tgt.shape[1] == src.shape[1] + 5)


class _Recurrent(Translator):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def encode(self, src):
        return self.rnn(self.source(src))[0]


@faulty("pads rows")
def recurrence_over_pads():
    """A bidirectional GRU begins its way back at the pads."""
    return _Recurrent(nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True))


@faulty("rows")
def recurrence_across_rows():
    """nn.LSTM without batch_first is fed (B, S, D): it runs from row to row."""
    return _Recurrent(nn.LSTM(WIDTH, WIDTH))


# What is not seen --------------------------------------------------------------------------------


@faulty("order", "embed_source", is_long=True)
def places_end_at_32(self, src):
    """Sources have no order behind place 32, whose position all later places get."""
    places = torch.arange(src.shape[1]).clamp(max=31)
    return self.source.tokens(src) + waves(places).to(self.source.tokens.weight)


@faulty("order", "embed_source")
def encoder_without_places(self, src):
    """Nothing tells the encoder in which order its tokens stand."""
    return self.source.tokens(src)


@faulty(is_long=True)
class truncated_at_sixteen(Translator):
    """Sources are cut to 16 places without a word."""

    def encode(self, src):
        return super().encode(src[:, :16])

    def cross_mask(self, src, tgt):
        return super().cross_mask(src[:, :16], tgt)


@faulty("", "keys")
def second_half_of_the_width_closed(self, src):
    """A mask made for half of the padded width closes the second half of long sources."""
    keep = torch.arange(src.shape[1]) <= src.shape[1] // 2
    return (real(src) & keep)[:, None, None]


@faulty("", "keys", embedding=True)
def end_of_the_source_closed(self, src):
    """The source's end symbol is closed with the pads."""
    return (real(src) & (src != END))[:, None, None]


@faulty("source", "keys", start_id=None, eos_id=None)
def one_symbol_closed_where_little_is_known(self, src):
    """An ordinary symbol, 9, is closed, and neither start nor end is given."""
    return (real(src) & (src != 9))[:, None, None]


@faulty("source", "decode")
def source_is_not_read(self, src, tgt, memory):
    """Cross-attention's output is multiplied by a gate that is never opened."""
    return Translator.decode(self, src, tgt, 0 * memory)


@faulty("target", "decode")
def decoder_without_self_attention(self, src, tgt, memory):
    """The decoder's self-attention is never called: no token moves a later one."""
    y = self.target(tgt)
    for layer in self.decoder:
        y = y + layer.encoder_attn(y, memory, self.cross_mask(src, tgt))
        y = y + layer.feed_forward(layer.fc_norm(y))
    return self.decoder_norm(y)


@faulty("target", "embed_target")
def target_is_not_read(self, tgt):
    """The decoder reads the start token at every place."""
    return self.target(torch.full_like(tgt, START))


@faulty("target", "embed_target")
def decoder_inputs_shifted_again(self, tgt):
    """The model puts a start before inputs that have one."""
    return self.target(F.pad(tgt[:, :-1], (1, 0), value=START))


# Other answers at other calls --------------------------------------------------------------------


@faulty("", "embed_target", verdict="FAIL or refused")
def dropout_left_on(self, tgt):
    """F.dropout without training=self.training drops in eval mode too."""
    return F.dropout(self.target(tgt), 0.1)


@faulty("calls rows")
class state_carried_over(Translator):
    """The mean of the last call's memory is added to this call's."""

    last = 0.0

    def encode(self, src):
        memory = super().encode(src)
        carried = memory + 0.1 * self.last
        self.last = memory.mean((0, 1)).detach()
        return carried


@faulty("calls", says="it keeps something from call to call")
def a_function_with_a_counter():
    """A plain function that adds how often it was called."""
    model, calls = Translator().eval(), []

    def ask(src, tgt):
        calls.append(None)
        return model(src, tgt) + 0.01 * len(calls) * torch.arange(SYMBOLS)

    return {"model": ask}
