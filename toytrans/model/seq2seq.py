"""The one interface of models: a parallel pass for training, and decoding step by step."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig


class DecoderState(ABC):
    """What decoding keeps from step to step, for A sources of W beams each.

    place: the next place. Whoever decodes reads it here; `next_logits` moves it on.
    """

    place = 0

    @abstractmethod
    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each beam (A, W) -> logits of the next one (A, W, V).

        Equal to the last row of the model's parallel pass over all tokens so far.
        """

    @abstractmethod
    def select_beams(self, parents: Tensor) -> None:
        """Beam w of source a continues its beam parents[a, w]: (A, W)."""

    @abstractmethod
    def select_sources(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order."""


Step = Callable[[Tensor, list[Tensor], list[Tensor], int], tuple[Tensor, list[Tensor]]]


class RowState(DecoderState):
    """A state of tensors in which every beam is a row: N = A W rows, those of a source together.

    step: (newest tokens (N, 1), source, past, place) -> logits (N, 1, V), past after the tokens
    source: what is kept of sources, of any shape (A, ...) when it is given
    past: what is kept of tokens, (A, ...) when it is given
    """

    def __init__(
        self, step: Step, source: list[Tensor], past: list[Tensor], beams: int = 1
    ) -> None:
        self.step, self.beams = step, beams
        self.source = [part.repeat_interleave(beams, 0) for part in source]
        self.past = [part.repeat_interleave(beams, 0) for part in past]

    def next_logits(self, tokens: Tensor) -> Tensor:
        logits, self.past = self.step(tokens.reshape(-1, 1), self.source, self.past, self.place)
        self.place += 1
        return logits.view(*tokens.shape, -1)

    def select_beams(self, parents: Tensor) -> None:
        first = torch.arange(len(parents), device=parents.device) * self.beams
        rows = (first[:, None] + parents).flatten()
        self.past = [part[rows] for part in self.past]

    def select_sources(self, sources: Tensor) -> None:
        beams = torch.arange(self.beams, device=sources.device)
        rows = (sources[:, None] * self.beams + beams).flatten()
        self.source = [part[rows] for part in self.source]
        self.past = [part[rows] for part in self.past]


class Seq2Seq(nn.Module):
    """A model that translates: all that training, decoding and measuring ask of one.

    A subclass defines `forward`, and `start_decoding` if it can do better than read all tokens anew
    at each step. Ids are 0 = PAD, 1 = BOS, 2 = EOS, then symbols. Rows of pads fill batches up: no
    logits of theirs count, but none may be NaN.

    config: the section `model` of the config. Its `max_length` bounds the places, if it is set.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        raise NotImplementedError

    def start_decoding(self, src: Tensor, places: int, beams: int = 1) -> DecoderState:
        """The state before the first token, for sources (A, S).

        places: most tokens of a target. beams: targets of each source.
        """

        def step(
            tokens: Tensor, source: list[Tensor], past: list[Tensor], place: int
        ) -> tuple[Tensor, list[Tensor]]:
            so_far = torch.cat((*past, tokens), 1)
            return self(source[0], so_far)[:, -1:], [so_far]

        return RowState(step, [src], [src[:, :0]], beams)

    @property
    def decodes_from_a_state(self) -> bool:
        """Whether decoding is other code than the parallel pass, so that the two may differ."""
        return type(self).start_decoding is not Seq2Seq.start_decoding

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())
