"""Models that see the future, pads or other rows, that see too little, or that keep something from
call to call; some at some sizes, in one mode, or at the first call alone."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from . import END, START, SYMBOLS, faulty, sound
from .parts import (
    WIDTH,
    Attention,
    Embedding,
    Padded,
    Torchs,
    Translator,
    ahead,
    filled,
    given,
    make_batch,
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


@faulty("pads rows")
class pad_mask_of_the_target(Translator):
    """Cross-attention closes the places that are pads in the target."""

    def cross_mask(self, src, tgt, number):
        mask = torch.ones_like(src, dtype=torch.bool)
        width = min(src.shape[1], tgt.shape[1])
        mask[:, :width] = real(tgt)[:, :width]
        return mask[:, None, None]


@faulty("pads rows")
class pad_mask_of_another_id(Translator):
    """The pad id is left at its default of -1, which no batch holds."""

    def keys(self, src, number):
        return (src != -1)[:, None, None]


class _Recurrent(Translator):
    """A recurrent encoder, (B, S) -> (B, S, D)."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def encode(self, src):
        return self.rnn(self.source(src))[0]


@faulty("pads rows")
class recurrence_over_pads(_Recurrent):
    """A bidirectional GRU begins its way back at the pads."""


@faulty("rows")
class recurrence_across_rows(Translator):
    """nn.LSTM without batch_first is fed (B, S, D): it runs from row to row."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH)

    def encode(self, src):
        return self.rnn(self.source(src))[0]


class _OpenNowhere(Translator):
    """A row of pads alone has every key closed by -inf."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, -math.inf).softmax(-1)


def _without_an_end(pairs):
    """Sources carry no end, so an empty one is a row of pads."""
    return filled([s for s, _ in pairs]), *make_batch(pairs)[1:]


@faulty("pads", says="output is NaN at a real place")
class triangle_turned_round(_OpenNowhere):
    """Past and present are closed, so the last place has no key."""

    def target_mask(self, tgt, number):
        return ~super().target_mask(tgt, number)


@faulty("rows")
def row_of_pads_gives_nan():
    """A source without tokens gives NaN, and the batch maker makes such a source."""
    return given(model=_OpenNowhere(), batch=_without_an_end)


@sound(eos_id=None)
class row_of_pads_may_give_nan(_OpenNowhere):
    """A source without tokens gives NaN, and nothing says that such a source can come."""


@faulty("target")
class decoder_without_self_attention(Translator):
    """The decoder's self-attention is never called: no token moves a later one."""

    def decode(self, src, tgt, memory):
        y = self.target(tgt)
        for layer in self.decoder:
            cross = layer.encoder_attn(y, memory, self.cross_mask(src, tgt, 0))
            y = y + cross + layer.feed_forward(layer.fc_norm(y))
        return self.decoder_norm(y)


@faulty(embedding=True)
class end_of_the_source_closed(Translator):
    """The source's end symbol is closed with the pads."""

    def keys(self, src, number):
        return (real(src) & (src != END))[:, None, None]


@faulty("source")
class source_is_not_read(Translator):
    """Cross-attention's output is multiplied by a gate that is never opened."""

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, 0 * memory)


@faulty("target")
class target_is_not_read(Translator):
    """The decoder reads the start token at every place."""

    def embed_target(self, tgt):
        return self.target(torch.full_like(tgt, START))


@faulty("target")
class decoder_inputs_shifted_again(Translator):
    """The model puts a start before inputs that have one."""

    def embed_target(self, tgt):
        return self.target(F.pad(tgt[:, :-1], (1, 0), value=START))


@faulty("order")
class encoder_without_places(Translator):
    """Nothing tells the encoder in which order its tokens stand."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(places=False)


@faulty("")
class second_half_of_the_width_closed(Translator):
    """A mask made for half of the padded width closes the second half of long sources."""

    def keys(self, src, number):
        keep = torch.arange(src.shape[1]) <= src.shape[1] // 2
        return (real(src) & keep)[:, None, None]


@faulty("pads rows")
class one_row_without_a_pad_mask(Translator):
    """A short cut for batches of one row, which are taken to hold no pads."""

    def keys(self, src, number):
        return (real(src) | torch.tensor(len(src) == 1))[:, None, None]


@faulty("source", start_id=None, eos_id=None)
class one_symbol_closed_where_little_is_known(Translator):
    """An ordinary symbol, 9, is closed, and neither start nor end is given."""

    def keys(self, src, number):
        return (real(src) & (src != 9))[:, None, None]


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


@faulty("calls", says="it keeps something from call to call")
def a_function_with_a_counter():
    """A plain function that adds how often it was called."""
    model, calls = Translator().eval(), []

    def ask(src, tgt):
        calls.append(None)
        return model(src, tgt) + 0.01 * len(calls) * torch.arange(SYMBOLS)

    return {"model": ask}


@faulty("pads", is_long=True)
class source_pads_open_where_the_target_is_five_longer(Translator):
    """The source's pad mask is lost in cross-attention for one difference of lengths."""

    def cross_mask(self, src, tgt, number):
        lost = torch.tensor(tgt.shape[1] == src.shape[1] + 5)
        return super().cross_mask(src, tgt, number) | lost


@faulty("future", is_long=True)
class no_triangle_in_eleven_rows(Translator):
    """Eleven rows take a path without the causal mask."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) | torch.tensor(len(tgt) == 11)


@faulty("future", embedding=None, says="depend on the future")
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
