"""Initialisation and data have seeds of their own."""

from pathlib import Path

import pytest
import torch
from conftest import config_of

from toytrans.config.schema import Config
from toytrans.data.batches import training_batches
from toytrans.data.open import open_dataset
from toytrans.training.trainer import Trainer


def batches(config: Config, count: int = 3) -> list[list[list[int]]]:
    dealt = training_batches(open_dataset(config), config)
    return [next(dealt)[0].src.tolist() for _ in range(count)]


def weights(config: Config, path: Path) -> torch.Tensor:
    trainer = Trainer(config, open_dataset(config), path, torch.device("cpu"), "fp32")
    return torch.cat([parameter.flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("task", ["copy", "lexicon"])
def test_data_follow_data_seed_and_weights_follow_seed(task, tmp_path):
    plain = config_of(task, seed=3)
    other_weights = config_of(task, seed=9, data={"seed": 3})
    other_data = config_of(task, seed=3, data={"seed": 9})
    assert batches(plain) == batches(other_weights) != batches(other_data)
    assert weights(plain, tmp_path).equal(weights(other_data, tmp_path))
    assert not weights(plain, tmp_path).equal(weights(other_weights, tmp_path))
    assert open_dataset(plain).facts == open_dataset(other_weights).facts
    if task == "lexicon":
        assert open_dataset(plain).facts != open_dataset(other_data).facts, "its dictionary"
