"""The bias of self-attention."""

import torch


def self_bias(model, length):
    """(H, Tq, Tk) of the first encoder layer, its table shaken."""
    attention = model.encoder_layers[0].self_attention
    if attention.bias_table is not None:
        with torch.no_grad():
            attention.bias_table.normal_()
    places = range(length)
    distances = model.positions.self_distances(places, places, torch.device("cpu"))
    return attention, model.positions.bias(attention.bias_table, distances)[0]
