"""Learning is a feature: trained at a fixed seed, with padding, to a stated exact match. That of
README's first model is in tests/test_documented_commands.py."""

from pathlib import Path
from statistics import mean

import pytest
from conftest import ANCHORED

import toytrans

ONE_LAYER = {"n_encoder_layers": 1, "n_decoder_layers": 1}


def trained(folder: Path, data: dict, model: dict, **train: float) -> tuple[float, float]:
    """Free-running exact match on the test pairs in and beyond the training lengths."""
    sizes = {"valid_examples": 50, "test_examples": 300, "batch_tokens": 1024}
    config = {
        "data": sizes | data,
        "model": ANCHORED | {"d_model": 32, "d_ff": 128} | ONE_LAYER | model,
        "train": {"precision": "fp32"} | train,
    }
    run = toytrans.train(config, folder)
    assert 1.05 < mean(record["padding"] for record in run.records) < 1.5, "batches are padded"
    measured = run.evaluate()
    assert len(measured.by_length) > 5
    return tuple(measured.parts[part]["free_exact_match"] for part in ("in_range", "beyond"))


@pytest.mark.parametrize("task", ["reverse", pytest.param("duplicate", marks=pytest.mark.slow)])
def test_anchored_positions_solve_a_task_and_go_beyond_its_lengths(tmp_path, task):
    data = {"task": task, "symbols": 20, "train_length": [1, 12], "test_length": [1, 24]}
    inside, beyond = trained(tmp_path, data, {}, max_steps=150, lr=5e-3)
    assert inside >= 0.99 and beyond >= 0.99


@pytest.mark.slow
def test_without_positions_reverse_cannot_be_learned_but_sort_can(tmp_path):
    none = {"positions": "none"}
    data = {"symbols": 10, "train_length": [3, 6], "test_length": [3, 8]}
    reverse, _ = trained(tmp_path / "a", {"task": "reverse", **data}, none, max_steps=100)
    assert reverse < 0.2
    sort, _ = trained(tmp_path / "b", {"task": "sort", **data}, none, max_steps=250, lr=5e-3)
    assert sort > 0.8
