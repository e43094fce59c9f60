"""The learning-rate schedule by hand, and who is decayed."""

import math

import pytest
from conftest import VOCABULARY, model_of

from toytrans.config import TrainConfig
from toytrans.training.optimizer import learning_rate, make_optimizer


def rates(schedule, steps, **train):
    config = TrainConfig(lr=1.0, max_steps=110, warmup_steps=10, schedule=schedule, **train)
    return [learning_rate(step, config) for step in steps]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "inverse_sqrt"])
def test_warm_up_is_a_straight_line_to_the_peak(schedule):
    assert rates(schedule, [1, 5, 10]) == pytest.approx([0.1, 0.5, 1.0])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1]),
        ("linear", [0.02 + 0.98 * 0.75, 0.02 + 0.98 * 0.5, 0.02]),
        ("cosine", [0.02 + 0.98 * (1 + math.sqrt(0.5)) / 2, 0.02 + 0.98 * 0.5, 0.02]),
        ("inverse_sqrt", [math.sqrt(10 / 35), math.sqrt(10 / 60), math.sqrt(10 / 110)]),
    ],
)
def test_decay_a_quarter_half_and_all_of_the_way(schedule, expected):
    assert rates(schedule, [35, 60, 110]) == pytest.approx(expected)


def test_no_warm_up_starts_at_the_peak():
    config = TrainConfig(lr=1.0, max_steps=100, warmup_steps=0, schedule="constant")
    assert learning_rate(1, config) == 1.0


def test_only_matrices_are_decayed():
    model = model_of(VOCABULARY, positions="anchored")
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.1))
    decayed, others = optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1 and others["weight_decay"] == 0
    assert all(p.dim() == 2 for p in decayed["params"])
    assert all("bias" in names[id(p)] or "norm" in names[id(p)] for p in others["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(names)
