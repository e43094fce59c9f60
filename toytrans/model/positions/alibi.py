"""ALiBi."""

import torch
from torch import Tensor

from toytrans.config.schema import ModelConfig
from toytrans.model.positions.base import Distances
from toytrans.model.positions.relative import Relative
from toytrans.tokens import Vocabulary


class Alibi(Relative):
    """-m_h |d| on the scores of head h = 1 .. H, with m_h = 2^(-8h / H) (Press et al. 2022, Train
    Short, Test Long, section 3).

    The encoder has it in both directions. Nothing is learned.
    """

    given = "given how far apart two tokens of a sequence are, as a penalty"

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        heads = torch.arange(1, model.n_heads + 1)
        self.register_buffer(
            "slopes", 2.0 ** (-8.0 * heads / model.n_heads)[:, None], persistent=False
        )
        self.slopes: Tensor

    def bias(self, table: Tensor | None, distances: Distances) -> Tensor:
        return super().bias(self.slopes, distances)

    def features(self, distance: Tensor) -> Tensor:
        return -distance.abs()[..., None]


SCHEME = Alibi
