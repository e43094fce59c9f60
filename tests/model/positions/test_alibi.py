"""ALiBi against the formula."""

import pytest
import torch
from conftest import VOCABULARY, model_of


def self_bias(model, length):
    """(H, Tq, Tk) of the first encoder layer, its table shaken."""
    attention = model.encoder_layers[0].self_attention
    if attention.bias_table is not None:
        with torch.no_grad():
            attention.bias_table.normal_()
    places = range(length)
    distances = model.positions.self_distances(places, places, torch.device("cpu"))
    return attention, model.positions.bias(attention.bias_table, distances)[0]


def test_alibi_follows_the_paper():
    model = model_of(VOCABULARY, d_model=32, n_heads=8, positions="alibi")
    attention, bias = self_bias(model, 9)
    assert attention.bias_table is None
    for head, slope in enumerate([2.0**-k for k in range(1, 9)]):  # the paper's for 8 heads
        for i, j in ((0, 8), (8, 0), (4, 4), (2, 7)):
            assert bias[head, i, j].item() == pytest.approx(-slope * abs(i - j), abs=1e-12)
