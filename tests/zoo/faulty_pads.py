"""Models that read pads, or other rows of the batch."""

import math

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from . import PAD, faulty, sound
from .parts import HEADS, WIDTH, Attention, Embedding, Translator, real, triangle, waves
from .sound_batches import filled, given, make_batch

SEEN = "pads rows"
"""The proofs that a pad which is seen fails."""


@faulty(SEEN)
class pads_open_in_the_encoder(Translator):
    """The encoder is not passed the source's pad mask."""

    def source_mask(self, src, number):
        return torch.ones(1, 1, 1, src.shape[1], dtype=torch.bool)


@faulty(SEEN)
class pads_open_in_cross_attention(Translator):
    """Cross-attention is not passed the source's pad mask."""

    def cross_mask(self, src, tgt, number):
        return torch.ones(1, 1, 1, src.shape[1], dtype=torch.bool)


@faulty(SEEN)
class pads_open_in_the_second_layer(Translator):
    """The first encoder layer alone closes pads."""

    depth = 2

    def source_mask(self, src, number):
        return super().source_mask(src, number) | (number > 0)


@faulty(SEEN, embedding=True)
class pads_open_in_one_head(Translator):
    """The pad mask reaches one cross-attention head of two."""

    def cross_mask(self, src, tgt, number):
        mask = real(src)[:, None, None]
        return torch.cat((mask, torch.ones_like(mask)), 1)


@faulty(SEEN)
class pad_mask_flipped(Translator):
    """Pads are open and all else is closed."""

    def source_mask(self, src, number):
        return ~real(src)[:, None, None]


@faulty(SEEN)
class pad_mask_of_another_row(Translator):
    """Each row has the pad mask of the row before it."""

    def source_mask(self, src, number):
        return real(src).roll(1, 0)[:, None, None]


@faulty(SEEN)
class pad_mask_transposed(Translator):
    """Pads are closed as queries, not as keys."""

    def source_mask(self, src, number):
        return real(src)[:, None, :, None]


@faulty(SEEN)
class pad_mask_shifted(Translator):
    """The pad mask is one place too long: the first pad is seen."""

    def cross_mask(self, src, tgt, number):
        mask = real(src)
        mask[:, 1:] |= real(src)[:, :-1]
        return mask[:, None, None]


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

    def source_mask(self, src, number):
        return (src != -1)[:, None, None]

    def cross_mask(self, src, tgt, number):
        return (src != -1)[:, None, None]


@faulty(SEEN)
class pads_are_zeros_and_open(Translator):
    """padding_idx makes the embeddings of pads zero; they share in the softmax all the same."""

    def __init__(self):
        super().__init__()
        self.source.tokens = nn.Embedding(20, WIDTH, padding_idx=PAD)

    def embed_source(self, src):
        return self.source.tokens(src) + waves(torch.arange(src.shape[1])).to(self.head.weight)

    def source_mask(self, src, number):
        return torch.ones(1, 1, 1, src.shape[1], dtype=torch.bool)

    def cross_mask(self, src, tgt, number):
        return torch.ones(1, 1, 1, src.shape[1], dtype=torch.bool)


class _Repeating(Attention):
    """Heads are folded into rows, (B H, T, T), and masks repeated to fit."""

    def weights(self, scores, mask):
        rows = mask.expand(len(scores), 1, *scores.shape[-2:])[:, 0]
        mask = rows.repeat(HEADS, 1, 1)  # repeat_interleave is what (B H) needs
        return super().weights(scores, mask.unflatten(0, (-1, HEADS)))


@faulty(SEEN)
class masks_repeated_for_heads(Translator):
    """repeat() where repeat_interleave() is meant: heads get the masks of other rows."""

    attention = _Repeating


class _Softened(Attention):
    def weights(self, scores, mask):
        return (scores - 5 * (~mask).to(scores)).softmax(-1)


@faulty(SEEN)
class pads_closed_by_minus_five(Translator):
    """Closed scores lose 5: pads keep weights of a hundredth."""

    attention = _Softened


class _AfterSoftmax(Attention):
    def weights(self, scores, mask):
        return scores.softmax(-1) * mask


@faulty("pads rows")
class pads_closed_after_softmax(Translator):
    """Weights are masked after softmax: pads take their share first."""

    def __init__(self):
        super().__init__()
        for layer in self.decoder:
            layer.encoder_attn = _AfterSoftmax()


@faulty(SEEN)
class mean_over_pads(Translator):
    """The source's mean, pads included, is added to the target."""

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, memory) + memory.mean(1, keepdim=True)


@faulty(SEEN)
class mean_by_the_width(Translator):
    """The sum of real places is divided by the padded width."""

    def decode(self, src, tgt, memory):
        pooled = (memory * real(src)[..., None]).mean(1, keepdim=True)
        return super().decode(src, tgt, memory) + pooled


@faulty(SEEN)
class largest_over_pads(Translator):
    """Max pooling over the source, pads included."""

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, memory) + memory.amax(1, keepdim=True)


@faulty(SEEN)
class last_place_for_a_summary(Translator):
    """memory[:, -1] sums the source up, which is a pad in all rows but the longest."""

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, memory) + memory[:, -1:]


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


@faulty(SEEN)
class final_state_after_pads(Translator):
    """The final state of an LSTM that has read all pads."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def decode(self, src, tgt, memory):
        state = self.rnn(self.source(src))[1][0][0]
        return super().decode(src, tgt, memory) + state[:, None]


@faulty("rows")
class recurrence_across_rows(Translator):
    """nn.LSTM without batch_first is fed (B, S, D): it runs from row to row."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH)

    def encode(self, src):
        return self.rnn(self.source(src))[0]


@faulty("rows")
class attention_across_rows(Translator):
    """nn.TransformerEncoder without batch_first is fed (B, S, D): rows attend to each other."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16)
        self.torchs = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def encode(self, src):
        return self.torchs(self.source(src))


@faulty("rows")
class rows_sorted_and_left_so(_Recurrent):
    """Rows are sorted by length for packing and never put back."""

    def encode(self, src):
        lengths, order = real(src).sum(1).clamp(min=1).sort(descending=True)
        packed = pack_padded_sequence(self.source(src)[order], lengths, batch_first=True)
        found = pad_packed_sequence(self.rnn(packed)[0], True, total_length=src.shape[1])
        return found[0]


@faulty("rows order")
class places_by_row(Translator):
    """The tutorial's places, made for (T, B, D), are fed (B, T, D): a place for each row."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(places=False)

    def embed_source(self, src):
        x = self.source(src)
        return x + waves(torch.arange(len(src)))[:, None].to(x)


@faulty(SEEN)
class convolution_over_pads(Translator):
    """A convolution reads the embeddings of pads beside the last token."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def embed_source(self, src):
        x = self.source(src)
        return x + self.conv(x.mT).mT


@faulty(SEEN)
class norm_over_the_source(Translator):
    """The encoder normalises over places, pads among them."""

    def embed_source(self, src):
        x = self.source(src)
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@faulty(SEEN)
class source_places_from_the_padded_end(Translator):
    """Source places are counted from the end of the padded batch."""

    def embed_source(self, src):
        x = self.source.tokens(src)
        return x + waves(torch.arange(src.shape[1]).flip(0)).to(x)


@faulty(SEEN)
class scores_scaled_by_the_padded_width(Translator):
    """Cross-attention's scores grow with the logarithm of the padded width."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            factor = 1.0 if x is memory else math.log(2 + memory.shape[1])
            return super().forward(x * factor, memory, mask)


@faulty(SEEN)
class pointer_to_pads(Translator):
    """A copy mechanism spreads part of its attention over pads."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        y = self.decode(src, tgt, memory)
        weights = (y @ memory.mT).softmax(-1)
        places = src[:, None].expand(-1, tgt.shape[1], -1)
        return self.head(y).scatter_add(2, places, weights)


@faulty(SEEN, pad_side="left")
class left_pads_open(Translator):
    """Pads stand to the left of both sides, and the decoder's mask is the triangle alone."""


@faulty(SEEN, pad_side="left")
class left_pads_count_as_places(Translator):
    """Pads to the left are closed, and move the places of all that follows."""

    def target_mask(self, tgt, number):
        pads = ~real(tgt)
        pads[:, 0] = False
        return triangle(tgt.shape[1]) & ~pads[:, None, None]


@faulty("rows")
class standardised_by_the_batch(Translator):
    """Source embeddings are standardised over the rows of the batch."""

    def embed_source(self, src):
        x = self.source(src)
        return x / (x * real(src)[..., None]).abs().amax((0, 1))


@faulty("rows")
class neighbours_from_the_batch(Translator):
    """Each row attends to the summaries of all rows, as a contrastive bank would hold them."""

    def encode(self, src):
        x = super().encode(src)
        share = real(src)[..., None] / real(src).sum(1).clamp(min=1)[:, None, None]
        bank = (x * share).sum(1)
        return x + (x @ bank.T).softmax(-1) @ bank


class _OpenNowhere(Translator):
    """A row of pads alone has every key closed by -inf."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, -math.inf).softmax(-1)


def _without_an_end(pairs):
    """Sources carry no end, so an empty one is a row of pads."""
    return filled([s for s, _ in pairs]), *make_batch(pairs)[1:]


@faulty("rows")
def row_of_pads_gives_nan():
    """A source without tokens gives NaN, and the batch maker makes such a source."""
    return given(model=_OpenNowhere(), batch=_without_an_end)


@faulty("rows")
def row_of_pads_spoils_all():
    """The same, and a mean over rows carries the NaN to all of them."""

    class Spoiling(_OpenNowhere):
        def decode(self, src, tgt, memory):
            return super().decode(src, tgt, memory) + 0 * memory.mean()

    return given(model=Spoiling(), batch=_without_an_end)


@sound(eos_id=None)
class row_of_pads_may_give_nan(_OpenNowhere):
    """A source without tokens gives NaN, and nothing says that such a source can come."""
