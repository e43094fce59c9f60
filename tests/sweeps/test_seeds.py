"""Initialisation and data have seeds of their own, and both are seeds of a group."""

import json
from pathlib import Path

import pytest
import torch
from conftest import Command, config_of, tensors_of

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


def test_runs_that_differ_in_either_seed_are_one_group(here: Path, command: Command):
    runs = ["seed=1", "seed=2", "data.seed=5", "train.lr=1e-3"]
    for changes in runs:
        assert command("train", "c.yaml", "--set", changes, "--out", changes).code == 0
    groups = json.loads(command("eval", *runs, "--json").out)["groups"]
    assert "seeds 0 0/5 1 2" in command("eval", *runs, "--metric", "loss").out
    found = [{run["run"] for run in group["runs"]} for group in groups]
    assert found == [set(runs[:3]), set(runs[3:])]
    assert command("train", "c.yaml", "--seed", "1", "--out", "short").code == 0
    assert (here / "short/config.yaml").read_text() == (here / "seed=1/config.yaml").read_text()
    assert tensors_of(here / "short") == tensors_of(here / "seed=1")
