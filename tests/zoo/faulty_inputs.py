"""Models that read pads or other rows, that see too little, or that keep something from call to
call."""

import math

import torch
from torch import nn

from . import END, START, SYMBOLS, faulty, sound
from .parts import WIDTH, Attention, Embedding, Translator, ahead, filled, given, make_batch, real


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
        return self.target(torch.nn.functional.pad(tgt[:, :-1], (1, 0), value=START))


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
