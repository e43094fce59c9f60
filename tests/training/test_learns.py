"""Learning is a feature: trained at a fixed seed, with padding, to a stated exact match."""

from statistics import mean

import pytest
import torch
from conftest import ANCHORED

from toytrans.config.schema import Config
from toytrans.data.open import open_dataset
from toytrans.data.pairs import all_pairs
from toytrans.evaluation import evaluate
from toytrans.training.run import create_run
from toytrans.training.trainer import Trainer

CPU = torch.device("cpu")
ONE_LAYER = {"n_encoder_layers": 1, "n_decoder_layers": 1}


def trained(tmp_path, data, model=None, **train):
    config = Config.model_validate(
        {
            "data": {"valid_examples": 50, "test_examples": 300, "batch_tokens": 1024, **data},
            "model": ANCHORED | {"d_model": 32, "d_ff": 128} | (model or {}),
            "train": train,
        }
    )
    source = open_dataset(config)
    create_run(tmp_path / "run", config, source.facts, {})
    trainer = Trainer(config, source, tmp_path / "run", CPU, "fp32")
    records = list(trainer.train())
    padding = mean(record["padding"] for record in records)
    assert 1.05 < padding < 1.5, "batches are padded"
    pairs = all_pairs(source, "test")
    assert len(pairs.src_length.unique()) > 5
    scores = evaluate(trainer.model, pairs, source.facts, source_bos=config.source_bos)
    parts = scores.parts()
    return [parts[part]["exact_match"] for part in ("in_range", "beyond")]


@pytest.mark.parametrize("task", ["copy", "reverse", "duplicate"])
def test_anchored_positions_solve_a_task_and_go_beyond_its_lengths(tmp_path, task):
    data = {"task": task, "symbols": 20, "train_length": [1, 12], "test_length": [1, 24]}
    inside, beyond = trained(tmp_path, data, ONE_LAYER, max_steps=150, lr=5e-3)
    assert inside >= 0.99 and beyond >= 0.99


def test_the_textbook_model_learns_short_copies_but_nothing_longer(tmp_path):
    data = {"task": "copy", "symbols": 10, "train_length": [1, 6], "test_length": [1, 12]}
    model = {"positions": "sinusoidal", **ONE_LAYER}
    inside, beyond = trained(tmp_path, data, model, max_steps=250, lr=5e-3)
    assert inside >= 0.95
    assert beyond < 0.5


def test_without_positions_reverse_cannot_be_learned_but_sort_can(tmp_path):
    none = {"positions": "none", **ONE_LAYER}
    data = {"symbols": 10, "train_length": [3, 6], "test_length": [3, 8]}
    reverse, _ = trained(tmp_path / "a", {"task": "reverse", **data}, none, max_steps=100)
    assert reverse < 0.2
    sort, _ = trained(tmp_path / "b", {"task": "sort", **data}, none, max_steps=250, lr=5e-3)
    assert sort > 0.8
