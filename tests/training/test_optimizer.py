"""The learning-rate schedule by hand, and who is decayed."""

import math

import pytest
import torch

from toytrans.config.schema import TrainConfig
from toytrans.training.optimizer import AdamW, learning_rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1]),
        ("linear", [0.02 + 0.98 * 0.75, 0.02 + 0.98 * 0.5, 0.02]),
        ("cosine", [0.02 + 0.98 * (1 + math.sqrt(0.5)) / 2, 0.02 + 0.98 * 0.5, 0.02]),
        ("inverse_sqrt", [math.sqrt(10 / 35), math.sqrt(10 / 60), math.sqrt(10 / 110)]),
    ],
)
def test_rates_rise_straight_and_fall_by_schedule(schedule, expected):
    """In warm-up, and a quarter, half and all of the way behind it."""
    config = TrainConfig(lr=1.0, max_steps=110, warmup_steps=10, schedule=schedule)
    found = [learning_rate(step, config) for step in (1, 5, 10, 35, 60, 110)]
    assert found == pytest.approx([0.1, 0.5, 1.0, *expected])


def test_updates_are_those_of_torchs_class():
    """Five updates with decay, at changing rates, one parameter without a gradient in two."""
    ours, theirs = (torch.nn.Linear(4, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    adamw = AdamW(ours, weight_decay=0.1)
    groups = [
        {"params": [theirs.weight], "weight_decay": 0.1},
        {"params": [theirs.bias], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    for step in range(5):
        adamw.zero_grad()
        reference.zero_grad()
        x = torch.randn(7, 4)
        for model in (ours, theirs):
            y = model(x) if step % 2 else torch.nn.functional.linear(x, model.weight)
            y.square().sum().backward()
        for group in reference.param_groups:
            group["lr"] = 0.1 / (step + 1)
        adamw.step(0.1 / (step + 1))
        reference.step()
        assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)
    assert not torch.equal(ours.bias, torch.nn.Linear(4, 3).bias)
