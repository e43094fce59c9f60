"""What schemes share that add a vector per place to the embeddings."""

import torch
from torch import Tensor

from toytrans.config.schema import ModelConfig
from toytrans.data.hashing import Use, permutation
from toytrans.errors import UserError
from toytrans.model.positions.base import Positions
from toytrans.tokens import Vocabulary


class Absolute(Positions):
    """A vector per place, added to the embedding.

    With `model.random_positions` places are drawn (Ruoss et al. 2023, Randomized Positional
    Encodings Boost Length Generalization of Transformers, section 3). N is max_positions.
        training: a batch of length L gets L different places below N, in order, drawn each time
        evaluation: the first L of N / 4 fixed places, so that a token keeps its place whatever
            follows it
    Training then sees places far beyond its longest sequence.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self.rows, self.room = model.max_positions, model.max_length
        self.random = model.random_positions
        fixed = permutation(model.max_positions or 0, Use.RANDOM_PLACES)[: model.max_length or 0]
        self.register_buffer("fixed", fixed.sort().values, persistent=False)
        self.fixed: Tensor

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, L, D) with the vectors of its places. Raises UserError past the table's room."""
        stop = start + x.shape[1]
        if self.room is not None and stop > self.room:
            raise UserError(
                f"a sequence of {stop} places is longer than the position table has room for: "
                f"{self.room} (model.max_positions {self.rows}); shorten it, or train with more"
            )
        if not self.random:
            return x + self.vectors(range(start, stop), x)
        assert self.rows
        places = self.fixed[start:stop]
        if self.training:
            places = torch.randperm(self.rows, device=x.device)[: x.shape[1]].sort().values
        return x + self.vectors(range(self.rows), x)[places]

    def vectors(self, places: range, like: Tensor) -> Tensor:
        """The vectors of some places, (L, D), of the dtype and device of `like`."""
        raise NotImplementedError
