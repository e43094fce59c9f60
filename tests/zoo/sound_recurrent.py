"""Sound models without a transformer's stack: recurrences, convolutions, scans."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from . import SYMBOLS, sound
from .parts import WIDTH, Translator, real


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


@sound("PASS or cannot judge")
class a_loop_without_a_cache(Translator):
    """Logits of each step from a pass over the prefix."""

    def decode(self, src, tgt, memory):
        prefixes = (tgt[:, : t + 1] for t in range(tgt.shape[1]))
        steps = [super(a_loop_without_a_cache, self).decode(src, p, memory) for p in prefixes]
        return torch.stack([step[:, -1] for step in steps], 1)
