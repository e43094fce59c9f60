"""What several test files share."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the command line does, before torch starts

import pytest
import torch

from toytrans.config import Config
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)


def config_of(task: str = "copy", **sections: dict) -> Config:
    """A small config; `data`, `model` and `train` add to it."""
    data = {"task": task, "symbols": 7, "train_length": [1, 6]} | sections.pop("data", {})
    model = {"d_model": 16, "n_heads": 2, "d_ff": 32} | sections.pop("model", {})
    return Config.model_validate({"data": data, "model": model, **sections})


def model_of(vocabulary: Vocabulary, **model: object) -> Transformer:
    """A small model in fp64 and eval mode, its norms and biases shaken away from 1 and 0."""
    config = config_of(model={"d_model": 24, "n_heads": 3, **model}).model
    built = Transformer(config, vocabulary).double().eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() == 1 or "bias_table" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built


VOCABULARY = Vocabulary((*(str(k) for k in range(10)), "+"), separators=("+",))
