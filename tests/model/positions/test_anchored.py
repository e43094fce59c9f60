"""Anchored positions against their formula in plain Python."""

import pytest
import torch
from anchor_formulas import anchored_bias
from conftest import VOCABULARY, distances_of, model_of

from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


def test_anchored_bias_in_cross_attention():
    model = model_of(VOCABULARY, d_model=16, n_heads=4, positions="anchored")
    plus = VOCABULARY.encode(["+"])[0]
    src = torch.tensor(
        [[BOS_ID, 5, 6, plus, 7, plus, 8, EOS_ID], [BOS_ID, 4, 4, EOS_ID, *[PAD_ID] * 4]]
    )
    attention = model.decoder_layers[0].cross_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    distances = distances_of(model, 11, src)
    bias = model.positions.bias(attention.bias_table, distances)
    assert bias.shape == (2, 4, 11, 8)
    anchors = ("start", "end", "wrap", "start")
    for row, ids in enumerate(src.tolist()):
        for head, anchor in enumerate(anchors):
            table = attention.bias_table[head].tolist()
            for t in range(11):
                for j in range(8):
                    if ids[j] == PAD_ID:
                        continue
                    expected = anchored_bias(anchor, table, t, j, ids)
                    assert bias[row, head, t, j].item() == pytest.approx(expected, abs=1e-9)


def test_anchored_bias_in_self_attention_counts_from_key_to_query():
    model = model_of(VOCABULARY, d_model=16, n_heads=2, positions="anchored")
    attention = model.encoder_layers[0].self_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    distances = model.positions.self_distances(range(9), range(9), torch.device("cpu"))
    bias = model.positions.bias(attention.bias_table, distances)
    for head, i, j in [(0, 0, 8), (1, 4, 4), (0, 5, 3), (1, 8, 0), (1, 2, 3)]:
        expected = 16 * attention.bias_table[head, max(-3, min(3, i - j)) + 3] - abs(i - j)
        assert bias[0, head, i, j].item() == pytest.approx(expected.item(), abs=1e-9)
