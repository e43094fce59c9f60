"""Sound models without a transformer's stack: recurrences, convolutions, scans."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from . import SYMBOLS, sound
from .parts import WIDTH, Embedding, Translator, real, triangle


class Recurrent(nn.Module):
    """A packed bidirectional encoder, a decoder, and an attention between them."""

    cell: type[nn.Module] = nn.GRU

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(SYMBOLS, WIDTH)
        self.encoder = self.cell(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.decoder = self.cell(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, SYMBOLS)

    def encode(self, src):
        lengths = real(src).sum(1).clamp(min=1)
        given = (self.source(src), lengths)
        packed = pack_padded_sequence(*given, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed)[0], True, total_length=src.shape[1])[0]

    def attend(self, y, memory, keep):
        scores = (y @ memory.mT).masked_fill(~keep[:, None], -1e9)
        return scores.softmax(-1) @ memory

    def forward(self, src, tgt):
        memory = self.encode(src)
        y = self.decoder(self.target(tgt))[0]
        return self.head(torch.cat((y, self.attend(y, memory, real(src))), -1))


@sound()
class gru_with_dot_products(Recurrent):
    """Luong's dot products over a packed GRU."""


@sound(eos_id=None)
class gru_without_an_end(Recurrent):
    """The same without eos_id: a source may be empty, and packing takes no row of length 0."""

    def encode(self, src):
        lengths = real(src).sum(1)
        given = (self.source(src), lengths)
        packed = pack_padded_sequence(*given, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed)[0], True, total_length=src.shape[1])[0]


@sound()
class lstm_with_dot_products(Recurrent):
    """Luong's dot products over a packed LSTM."""

    cell = nn.LSTM


@sound()
class gru_with_additive_scores(Recurrent):
    """Bahdanau's additive scores."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def attend(self, y, memory, keep):
        joined = (self.query(y)[:, :, None] + self.key(memory)[:, None]).tanh()
        scores = self.score(joined)[..., 0].masked_fill(~keep[:, None], -1e9)
        return scores.softmax(-1) @ memory


@sound()
class input_feeding(Recurrent):
    """A loop over steps, each fed with the context of the last."""

    def __init__(self):
        super().__init__()
        self.step = nn.LSTMCell(2 * WIDTH, WIDTH)

    def forward(self, src, tgt):
        memory, keep = self.encode(src), real(src)
        y = self.target(tgt)
        context = y.new_zeros(len(y), WIDTH)
        state, found = (context, context), []
        for place in range(y.shape[1]):
            state = self.step(torch.cat((y[:, place], context), -1), state)
            context = self.attend(state[0][:, None], memory, keep)[:, 0]
            found.append(self.head(torch.cat((state[0], context), -1)))
        return torch.stack(found, 1)


@sound()
class final_state_alone(Recurrent):
    """No attention: the encoder's final state starts the decoder (Sutskever et al.)."""

    def forward(self, src, tgt):
        lengths = real(src).sum(1).clamp(min=1)
        given = (self.source(src), lengths)
        packed = pack_padded_sequence(*given, batch_first=True, enforce_sorted=False)
        state = self.encoder(packed)[1].transpose(0, 1).flatten(1)
        y = self.decoder(self.target(tgt), state[None].contiguous())[0]
        return self.head(torch.cat((y, state[:, None].expand_as(y)), -1))


@sound()
class sorted_and_put_back(Recurrent):
    """Rows are sorted by length for packing, and put back."""

    def encode(self, src):
        lengths, order = real(src).sum(1).clamp(min=1).sort(descending=True)
        packed = pack_padded_sequence(self.source(src)[order], lengths, batch_first=True)
        found = pad_packed_sequence(self.encoder(packed)[0], True, total_length=src.shape[1])[0]
        return found[order.argsort()]


@sound()
class one_way_over_pads(Recurrent):
    """A one-way encoder needs no packing: pads come last and are masked in attention."""

    def __init__(self):
        super().__init__()
        self.encoder = self.cell(WIDTH, WIDTH, batch_first=True)

    def encode(self, src):
        return self.encoder(self.source(src))[0]


class _Convolutions(nn.Module):
    """ConvS2S: gated convolutions, pads zeroed before each in the encoder."""

    def __init__(self):
        super().__init__()
        self.source, self.target = Embedding(), Embedding()
        self.encoder, self.decoder = (
            nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 3) for _ in range(2)) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, src, tgt):
        keep = real(src)[..., None]
        x, y = self.source(src), self.target(tgt)
        for conv in self.encoder:
            x = (x + F.glu(conv(F.pad((x * keep).mT, (1, 1))), 1).mT) * 0.5**0.5
        for conv in self.decoder:
            y = (y + F.glu(conv(F.pad(y.mT, (2, 0))), 1).mT) * 0.5**0.5
            scores = (y @ x.mT).masked_fill(~real(src)[:, None], -1e9)
            y = (y + scores.softmax(-1) @ x) * 0.5**0.5
        return self.head(y)


@sound()
class convolutions(_Convolutions):
    """ConvS2S, which has no norms."""


class _Mixing(Translator):
    """`mix` reads the target's past in a way of its own, beside attention."""

    def embed_target(self, tgt):
        y = self.target(tgt)
        return y + self.mix(y)


@sound()
class causal_convolution(_Mixing):
    """A convolution padded at the start alone."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)

    def mix(self, y):
        return self.conv(y.mT)[..., :-2].mT


@sound()
class dilated_causal_convolutions(_Mixing):
    """ByteNet's dilated convolutions."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(WIDTH, WIDTH, 2, dilation=2**k, padding=2**k) for k in range(3)
        )

    def mix(self, y):
        x = y.mT
        for conv in self.convs:
            x = conv(x)[..., : x.shape[2]].relu()
        return x.mT


@sound()
class dynamic_convolution(_Mixing):
    """Kernels by each token, softmax over their three weights (Wu et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Linear(WIDTH, 3)

    def mix(self, y):
        windows = F.pad(y, (0, 0, 2, 0)).unfold(1, 3, 1)
        return (windows * self.kernel(y).softmax(-1)[:, :, None]).sum(-1)


@sound()
class shifted_tokens(_Mixing):
    """RWKV's token shift."""

    def mix(self, y):
        return 0.5 * F.pad(y, (0, 0, 1, 0))[:, :-1]


@sound()
class decaying_sum(_Mixing):
    """A diagonal state-space scan, step by step."""

    def mix(self, y):
        state, found = torch.zeros_like(y[:, 0]), []
        for x in y.unbind(1):
            state = 0.9 * state + 0.1 * x
            found.append(state)
        return torch.stack(found, 1)


@sound()
class long_convolution(_Mixing):
    """A long convolution by FFT, with zeros behind."""

    def mix(self, y):
        length = y.shape[1]
        kernel = 0.8 ** torch.arange(length, dtype=y.dtype)[:, None]
        by_rate = torch.fft.rfft(y, 2 * length, 1) * torch.fft.rfft(kernel, 2 * length, 0)
        return 0.1 * torch.fft.irfft(by_rate, 2 * length, 1)[:, :length]


@sound()
class retention(_Mixing):
    """RetNet's products under a decay and a triangle."""

    def mix(self, y):
        places = torch.arange(y.shape[1])
        decay = 0.9 ** (places[:, None] - places).clamp(min=0) * triangle(y.shape[1])
        return 0.1 * (y @ y.mT * decay.to(y)) @ y


@sound()
class running_mean(_Mixing):
    """The mean of all places so far (average attention)."""

    def mix(self, y):
        return y.cumsum(1) / torch.arange(1, y.shape[1] + 1)[:, None]


@sound()
class running_maximum(_Mixing):
    """The maximum of all places so far."""

    def mix(self, y):
        return y.cummax(1).values


@sound()
class lower_matrix_over_places(_Mixing):
    """gMLP's matrix over places under its triangle."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(600, 600) / 24)

    def mix(self, y):
        return self.matrix[: y.shape[1], : y.shape[1]].tril() @ y


@sound()
class norm_over_the_past(_Mixing):
    """Cumulative layer norm: the statistics of all places so far."""

    def mix(self, y):
        count = torch.arange(1, y.shape[1] + 1)[:, None] * y.shape[2]
        mean = y.cumsum(1).sum(-1, keepdim=True) / count
        square = (y**2).cumsum(1).sum(-1, keepdim=True) / count
        return (y - mean) / (square - mean**2 + 1e-5) ** 0.5


@sound()
class mean_of_the_source(Translator):
    """The mean of the source's real places is added to the decoder's output."""

    def decode(self, src, tgt, memory):
        keep = real(src)[..., None]
        mean = (memory * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True).clamp(min=1)
        return super().decode(src, tgt, memory) + mean


@sound()
class length_of_the_source(Translator):
    """The decoder is told how many real places the source has."""

    def __init__(self):
        super().__init__()
        self.lengths = nn.Embedding(600, WIDTH)

    def embed_target(self, tgt):
        return self.target(tgt) + self.count

    def decode(self, src, tgt, memory):
        self.count = self.lengths(real(src).sum(1))[:, None]
        return super().decode(src, tgt, memory)


# Step by step --------------------------------------------------------------------------------


@sound("PASS or cannot judge")
class a_loop_without_a_cache(Translator):
    """Logits of each step from a pass over the prefix."""

    def decode(self, src, tgt, memory):
        prefixes = (tgt[:, : t + 1] for t in range(tgt.shape[1]))
        steps = [super(a_loop_without_a_cache, self).decode(src, p, memory) for p in prefixes]
        return torch.stack([step[:, -1] for step in steps], 1)


@sound("PASS or cannot judge")
class a_loop_with_a_cache(Translator):
    """One step after the other over kept inputs of the attention."""

    def decode(self, src, tgt, memory):
        (layer,), keep = self.decoder, self.cross_mask(src, tgt, 0)
        kept, found = [], []
        places = self.target.places(tgt).to(memory)
        for t, token in enumerate(tgt.split(1, 1)):
            y = self.target.tokens(token) + places[t]
            kept.append(layer.self_attn_norm(y))
            past = torch.cat(kept, 1)
            y = y + layer.self_attn(kept[-1], past, torch.ones(1, 1, 1, t + 1, dtype=torch.bool))
            y = y + layer.encoder_attn(layer.encoder_attn_norm(y), memory, keep)
            found.append(y + layer.feed_forward(layer.fc_norm(y)))
        return self.decoder_norm(torch.cat(found, 1))
