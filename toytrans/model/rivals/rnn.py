"""A recurrent encoder-decoder with attention (Bahdanau et al. 2015, or Luong et al. 2015)."""

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.model.masks import padding_mask
from toytrans.model.rivals.base import Rival, Written, masked_weights
from toytrans.tokens import Vocabulary

CELLS: dict[str | None, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}


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
        """x (N, S, D); backwards: as `_backwards` gives it -> states (N, S, D), side by side."""
        forward, _ = self.forward_cell(x)
        backward, _ = self.backward_cell(_gather(x, backwards))
        return torch.cat((forward, _gather(backward, backwards)), -1)


class Recurrent(Rival):
    """A bidirectional encoder and a decoder with attention, of GRU or LSTM cells.

    The decoder starts from tanh(W [last forward state, first backward state]).

    bahdanau: the previous state asks, and what it finds goes into the next step with the token.
    luong: all states are computed first, then all of them ask; no input feeding.
    Either way the logits come from tanh(W [state, context]).
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        width, depth, cell = model.d_model, model.n_decoder_layers, CELLS[model.cell]
        self.asks_first = model.rnn_attention == "bahdanau"
        self.encoder = nn.ModuleList(
            Bidirectional(cell, width) for _ in range(model.n_encoder_layers)
        )
        self.attention = Additive(width) if self.asks_first else General(width)
        self.decoder = cell(
            width * (2 if self.asks_first else 1),
            width,
            depth,
            batch_first=True,
            dropout=model.dropout if depth > 1 else 0.0,
        )
        self.parts = 2 if model.cell == "lstm" else 1  # hidden state, and an LSTM's cell state
        self.start = nn.Linear(width, self.parts * depth * width)
        self.combine = nn.Linear(2 * width, width)

    def read(self, src: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Source ids (N, S) -> ids, memory (N, S, D) and its keys; states (N, layers, D)."""
        real = padding_mask(src)
        backwards, last = _backwards(real)
        x = self.embed(self.src_embedding, src)
        for layer in self.encoder:
            x = self.drop(layer(x, backwards))
        memory = x * real[..., None]
        half = memory.shape[-1] // 2
        ends = torch.cat((_gather(memory[..., :half], last)[:, 0], memory[:, 0, half:]), -1)
        states = self.start(ends).tanh().view(len(src), self.parts, -1, memory.shape[-1])
        return [src, memory, self.attention.keys(memory)], list(states.unbind(1))

    def write(
        self, tokens: Tensor, source: list[Tensor], state: list[Tensor], place: int = 0
    ) -> Written:
        """One target token after the other, or with Luong's attention all states at once."""
        src, memory, keys = source
        mask = self.masks.cross(src, tokens).expand(-1, -1, tokens.shape[1], -1)  # (N, 1, T, S)
        x = self.embed(self.tgt_embedding, tokens, place)
        if self.asks_first:
            steps = []
            for t, token in enumerate(x.split(1, 1)):
                top = state[0][:, -1:]  # (N, 1, D)
                context, weights = self._context(top, keys, memory, mask[:, :, t : t + 1])
                states, state = self._run(torch.cat((token, context), -1), state)
                steps.append((states, context, weights))
            states, context, weights = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
        else:
            states, state = self._run(x, state)
            context, weights = self._context(states, keys, memory, mask)
        x = self.combine(torch.cat((states, context), -1)).tanh()
        return Written(self.output(self.drop(x)), state, [weights])

    def _context(
        self, states: Tensor, keys: Tensor, memory: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What states (N, T, D) find in memory, (N, T, D), and the weights (N, T, S)."""
        weights = masked_weights(self.attention(states, keys), mask)
        return weights.to(memory.dtype) @ memory, weights

    def _run(self, x: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Inputs (N, T, .) and states (N, layers, D) -> top states (N, T, D), and those after."""
        before = [part.transpose(0, 1).contiguous() for part in state]
        states, after = self.decoder(x, before[0] if self.parts == 1 else tuple(before))
        ended = [after] if self.parts == 1 else after
        return states, [part.transpose(0, 1) for part in ended]


def _backwards(real: Tensor) -> tuple[Tensor, Tensor]:
    """Which place to take, so that tokens are in reverse and the pads behind them stay, (N, S); and
    the last real place, (N, 1). real: (N, S)."""
    places = torch.arange(real.shape[1], device=real.device)
    ends = ((places + 1) * real).amax(1, keepdim=True)
    return torch.where(places < ends, ends - 1 - places, places), (ends - 1).clamp(min=0)


def _gather(x: Tensor, places: Tensor) -> Tensor:
    """x (N, S, D) at places (N, P) -> (N, P, D)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
