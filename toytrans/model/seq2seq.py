"""The one interface of models: a parallel pass for training, and decoding step by step.

In decoding every beam is a row: W beams of A sources are N = A W rows, those of a source together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings


class DecoderState(ABC):
    """What decoding keeps from step to step, for N rows: sources, each with its beams.

    The rows of a source stand together, and sources keep their order.
    """

    @abstractmethod
    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each row (N,) -> logits of the next one (N, V).

        They equal the last row of the model's parallel pass over all tokens so far.
        """

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Row n continues what was row rows[n] of the same source; sources without a row have left.

        rows: (N',), as many for each source as before
        """


Step = Callable[[Tensor, list[Tensor], list[Tensor], int], tuple[Tensor, list[Tensor]]]


class RowState(DecoderState):
    """A state of tensors with a row for each beam.

    step: (newest tokens (N, 1), source, past, place) -> logits (N, 1, V), past after the tokens
    source: what is kept of sources, of any shape (A, ...) when it is given
    past: what is kept of tokens, (A, ...) when it is given
    """

    def __init__(
        self, step: Step, source: list[Tensor], past: list[Tensor], beams: int = 1
    ) -> None:
        self.step, self.place = step, 0
        self.source = [part.repeat_interleave(beams, 0) for part in source]
        self.past = [part.repeat_interleave(beams, 0) for part in past]
        self.rows = len(self.source[0])

    def next_logits(self, tokens: Tensor) -> Tensor:
        logits, self.past = self.step(tokens[:, None], self.source, self.past, self.place)
        self.place += 1
        return logits[:, 0]

    def select(self, rows: Tensor) -> None:
        if len(rows) < self.rows:  # else all sources stay, each the same in all of its rows
            self.source = [part[rows] for part in self.source]
        self.past = [part[rows] for part in self.past]
        self.rows = len(rows)


class Seq2Seq(nn.Module):
    """A model that translates: all that training, decoding and measuring ask of one.

    A subclass defines `forward`, and `start_decoding` if it can do better than read all tokens anew
    at each step. Ids are 0 = PAD, 1 = BOS, 2 = EOS, then symbols. Rows of pads fill batches up: no
    logits of theirs count, but none may be NaN.

    settings: the section `model`, complete. Its `max_length` bounds the places, if it is set.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings

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


def count_parameters(model: nn.Module) -> int:
    """Trained numbers, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
