"""Clipped relative positions."""

import torch
from conftest import VOCABULARY, model_of
from self_biases import self_bias


def test_relative_positions_are_clipped():
    model = model_of(VOCABULARY, positions="relative")
    attention, bias = self_bias(model, 40)
    for i, j in ((0, 0), (3, 1), (1, 3), (39, 0), (0, 39), (20, 3), (3, 20)):
        wanted = attention.bias_table[:, max(-16, min(16, i - j)) + 16]
        assert torch.equal(bias[:, i, j], wanted)
