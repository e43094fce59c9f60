"""Clipped relative positions."""

import pytest
import torch
from conftest import VOCABULARY, model_of
from self_biases import self_bias

from toytrans.model.positions.relative import DistanceBias, for_gradients


def test_relative_positions_are_clipped():
    model = model_of(VOCABULARY, positions="relative")
    attention, bias = self_bias(model, 40)
    for i, j in ((0, 0), (3, 1), (1, 3), (39, 0), (0, 39), (20, 3), (3, 20)):
        wanted = attention.bias_table[:, max(-16, min(16, i - j)) + 16]
        assert torch.equal(bias[:, i, j], wanted)


@pytest.mark.parametrize("ways", [1, 2])
def test_the_gradient_for_a_gpu_is_that_of_a_cpu(ways):
    torch.manual_seed(0)
    weights = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    features = torch.randn(9, 4, dtype=torch.float64)
    index = torch.randint(9, (ways, 2, 5, 6))
    rows = [0] * 3 if ways == 1 else [1, 0, 1]
    expected = DistanceBias()(weights, features, index, rows)
    places = [index[row].flatten() for row in (rows if ways > 1 else [0])]
    found = for_gradients(weights, features, places)
    found = found.view(3, 2, 5, 6).transpose(0, 1)
    assert torch.allclose(found, expected, rtol=1e-12)
    upstream = torch.randn_like(expected)
    (wanted,), (given,) = (torch.autograd.grad(out, weights, upstream) for out in (expected, found))
    assert torch.allclose(given, wanted, rtol=1e-12)
