"""Learned positions."""

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.model.positions.absolute import Absolute
from toytrans.tokens import Vocabulary


class Learned(Absolute):
    """A learned vector per place (Gehring et al. 2017, section 3.1).

    The table starts normal with standard deviation 0.1. It has `max_positions` rows, and no
    sequence may be longer.
    """

    given = "given a vector for each place, learned in training"

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        assert model.max_positions
        self.table = nn.Parameter(torch.randn(model.max_positions, model.d_model) * 0.1)

    def vectors(self, places: range, like: Tensor) -> Tensor:
        return self.table[places.start : places.stop]


SCHEME = Learned
