"""Models that read pads, or other rows of the batch."""

import math

import torch
from torch import nn

from . import faulty, sound
from .parts import WIDTH, Attention, Translator, real
from .sound_batches import filled, given, make_batch

SEEN = "pads rows"
"""The checks that a pad which is seen fails."""


@faulty(SEEN)
class pad_mask_of_the_target(Translator):
    """Cross-attention closes the places that are pads in the target."""

    def cross_mask(self, src, tgt, number):
        mask = torch.ones_like(src, dtype=torch.bool)
        width = min(src.shape[1], tgt.shape[1])
        mask[:, :width] = real(tgt)[:, :width]
        return mask[:, None, None]


@faulty(SEEN)
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


@faulty(SEEN)
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
