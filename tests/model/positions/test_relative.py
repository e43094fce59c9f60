"""Clipped relative positions."""

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


def test_relative_positions_are_clipped():
    model = model_of(VOCABULARY, positions="relative")
    attention, bias = self_bias(model, 40)
    for i, j in ((0, 0), (3, 1), (1, 3), (39, 0), (0, 39), (20, 3), (3, 20)):
        wanted = attention.bias_table[:, max(-16, min(16, i - j)) + 16]
        assert torch.equal(bias[:, i, j], wanted)
