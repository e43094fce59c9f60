"""Models whose sequences end at different places."""

import torch
from conftest import VOCABULARY, model_of

SRC = torch.tensor(
    [[1, 5, 6, 7, 4, 2], [1, 8, 13, 2, 0, 0], [1, 2, 0, 0, 0, 0], [1, 9, 9, 9, 2, 0]]
)


def lively(positions, **model):
    """A model whose logits differ enough for rows to end at different places. positions: a scheme,
    or its name."""
    scheme = positions if isinstance(positions, dict) else {"positions": positions}
    built = model_of(VOCABULARY, **scheme, **model)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(2)
    return built
