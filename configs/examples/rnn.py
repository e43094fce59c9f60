"""A recurrent encoder-decoder with attention (Bahdanau et al. 2015, or Luong et al. 2015).

model:
  class: examples/rnn.py:Recurrent

Of the config it heeds d_model, the numbers of layers, dropout and tie_embeddings. The file stands
alone, since a run hashes the file that it names and not what that imports.
"""

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.errors import UserError
from toytrans.model.dropout import Dropout
from toytrans.model.seq2seq import RowState, Seq2Seq
from toytrans.tokens import PAD_ID


class Additive(nn.Module):
    """score(s, h) = v tanh(W s + U h + b) (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Queries (N, T, D), keys (N, S, D) -> scores (N, T, S)."""
        both = self.query(queries)[:, :, None] + keys[:, None]  # (N, T, S, D)
        return self.score(both.tanh())[..., 0]


class General(nn.Module):
    """score(s, h) = s W h (Luong et al. 2015, equation 8)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.keys = nn.Linear(width, width, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Queries (N, T, D), keys (N, S, D) -> scores (N, T, S)."""
        return queries @ keys.mT


class Bidirectional(nn.Module):
    """An encoder layer: a cell that reads forwards and one that reads backwards, D / 2 wide."""

    def __init__(self, cell: type[nn.GRU] | type[nn.LSTM], width: int) -> None:
        super().__init__()
        self.forward_cell = cell(width, width // 2, batch_first=True)
        self.backward_cell = cell(width, width // 2, batch_first=True)

    def forward(self, x: Tensor, backwards: Tensor) -> Tensor:
        """x (N, S, D); backwards: as `reading_backwards` gives it -> states (N, S, D)."""
        forward, _ = self.forward_cell(x)
        backward, _ = self.backward_cell(gather(x, backwards))
        return torch.cat((forward, gather(backward, backwards)), -1)


class Recurrent(Seq2Seq):
    """A bidirectional encoder and a decoder with attention.

    The decoder starts from tanh(W [last forward state, first backward state]). Its order comes from
    its steps; it has no positions.

    cell: of both sides.
    asks_first: the state before a step asks, and what it finds goes into the step with the token
        (Bahdanau). Else all states are computed first, then all of them ask (Luong).
    Either way the logits come from tanh(W [state, context]).
    """

    cell: type[nn.GRU] | type[nn.LSTM] = nn.GRU
    asks_first = True

    def __init__(self, settings: ModelSettings, vocabulary_size: int) -> None:
        super().__init__(settings)
        width, depth = settings.d_model, settings.n_decoder_layers
        if width % 2:
            raise UserError(f"model.d_model: {width}; each direction reads half of it, so even")
        self.src_embedding = nn.Embedding(vocabulary_size, width)
        self.tgt_embedding = self.src_embedding
        self.output = nn.Linear(width, vocabulary_size, bias=False)
        if settings.tie_embeddings:
            self.output.weight = self.src_embedding.weight
        else:
            self.tgt_embedding = nn.Embedding(vocabulary_size, width)
        for table in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(table.weight, std=width**-0.5)  # `embed` makes it variance 1
        self.drop = Dropout(settings.dropout)
        self.encoder = nn.ModuleList(
            Bidirectional(self.cell, width) for _ in range(settings.n_encoder_layers)
        )
        self.attention = Additive(width) if self.asks_first else General(width)
        self.decoder = self.cell(
            width * (2 if self.asks_first else 1),
            width,
            depth,
            batch_first=True,
            dropout=settings.dropout if depth > 1 else 0.0,
        )
        self.parts = 2 if self.cell is nn.LSTM else 1  # hidden state, and an LSTM's cell state
        self.start = nn.Linear(width, self.parts * depth * width)
        self.combine = nn.Linear(2 * width, width)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        return self.write(tgt_in, *self.read(src))[0]

    def start_decoding(self, src: Tensor, places: int, beams: int = 1) -> RowState:
        """The state before the first token: `write` goes on from it by one token at a time."""
        return RowState(self.write, *self.read(src), beams)

    def read(self, src: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Source ids (N, S) -> ids, memory (N, S, D) and its keys; states (N, layers, D)."""
        real = src != PAD_ID
        backwards, last = reading_backwards(real)
        x = self.embed(self.src_embedding, src)
        for layer in self.encoder:
            x = self.drop(layer(x, backwards))
        memory = x * real[..., None]
        half = memory.shape[-1] // 2
        ends = torch.cat((gather(memory[..., :half], last)[:, 0], memory[:, 0, half:]), -1)
        states = self.start(ends).tanh().view(len(src), self.parts, -1, memory.shape[-1])
        return [src, memory, self.attention.keys(memory)], list(states.unbind(1))

    def write(
        self, tokens: Tensor, source: list[Tensor], state: list[Tensor], place: int = 0
    ) -> tuple[Tensor, list[Tensor]]:
        """Target tokens (N, T), and what `read` gives -> logits (N, T, V), states after them."""
        src, memory, keys = source
        x = self.embed(self.tgt_embedding, tokens)
        if self.asks_first:
            steps = []
            for token in x.split(1, 1):
                context = self.context(state[0][:, -1:], keys, memory, src)  # (N, 1, D)
                states, state = self.run(torch.cat((token, context), -1), state)
                steps.append((states, context))
            states, context = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
        else:
            states, state = self.run(x, state)
            context = self.context(states, keys, memory, src)
        x = self.combine(torch.cat((states, context), -1)).tanh()
        return self.output(self.drop(x)), state

    def embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        """Ids (N, L) -> (N, L, D)."""
        return self.drop(embedding(ids) * self.settings.d_model**0.5)

    def context(self, states: Tensor, keys: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """What states (N, T, D) find in memory (N, S, D): (N, T, D)."""
        weights = softmax_over(src, self.attention(states, keys))
        return weights.to(memory.dtype) @ memory

    def run(self, x: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Inputs (N, T, .) and states (N, layers, D) -> top states (N, T, D), and those after."""
        before = [part.transpose(0, 1).contiguous() for part in state]
        states, after = self.decoder(x, before[0] if self.parts == 1 else tuple(before))
        ended = [after] if self.parts == 1 else after
        return states, [part.transpose(0, 1) for part in ended]


class RecurrentLSTM(Recurrent):
    """The same with LSTM cells."""

    cell = nn.LSTM


class Luong(Recurrent):
    """The same with Luong's attention, without input feeding."""

    asks_first = False


class LuongLSTM(Luong):
    """Luong's attention and LSTM cells."""

    cell = nn.LSTM


def softmax_over(src: Tensor, scores: Tensor) -> Tensor:
    """Softmax over the tokens of src (N, S): scores (N, T, S) -> (N, T, S). Pads get exactly 0,
    also where a row is all pads."""
    real = (src != PAD_ID)[:, None]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    open_scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
    return torch.softmax(open_scores, -1) * real.any(-1, keepdim=True)


def reading_backwards(real: Tensor) -> tuple[Tensor, Tensor]:
    """Which place to take, so that tokens are in reverse and the pads behind them stay, (N, S); and
    the last real place, (N, 1). real: (N, S)."""
    places = torch.arange(real.shape[1], device=real.device)
    ends = ((places + 1) * real).amax(1, keepdim=True)
    return torch.where(places < ends, ends - 1 - places, places), (ends - 1).clamp(min=0)


def gather(x: Tensor, places: Tensor) -> Tensor:
    """x (N, S, D) at places (N, P) -> (N, P, D)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
