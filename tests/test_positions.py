"""Position schemes against their formulas in plain Python."""

import math
from typing import get_args

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of

from toytrans.config import PositionName
from toytrans.errors import UserError
from toytrans.model.positions import POSITIONS, sinusoids
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


def test_configuration_and_model_name_the_same_schemes():
    assert set(get_args(PositionName)) == set(POSITIONS)


def test_sinusoids_follow_the_paper():
    table = sinusoids(2, 3, 6)
    for row in range(3):
        for i in range(3):
            angle = (row + 2) / 10_000 ** (2 * i / 6)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_a_learned_table_ends_where_it_ends():
    model = model_of(VOCABULARY, positions="learned", max_positions=7)
    model(torch.tensor([[3] * 6 + [2]]), torch.tensor([[1, 3]]))
    with pytest.raises(UserError, match="8 places is longer than the learned position table of 7"):
        model(torch.tensor([[3] * 7 + [2]]), torch.tensor([[1, 3]]))


def anchored_bias(anchor, table, t, j, src):
    """The docstring's formula for one head, one target place t and one source place j."""
    gain, slope, plus = 16.0, 1.0, VOCABULARY.encode(["+"])[0]
    n = sum(i not in (PAD_ID, BOS_ID, EOS_ID) for i in src)
    if anchor == "start":
        separators = [k for k in range(1, j) if src[k] == plus]
        d = t - (j - separators[-1] if separators else j)
    elif anchor == "end":
        d = t - (n + 1 - j)
    else:
        d = t - n - j
    return gain * table[max(-3, min(3, d)) + 3] - slope * abs(d)


def test_anchored_bias_in_cross_attention():
    model = model_of(VOCABULARY, d_model=16, n_heads=4, positions="anchored")
    plus = VOCABULARY.encode(["+"])[0]
    src = torch.tensor(
        [[BOS_ID, 5, 6, plus, 7, plus, 8, EOS_ID], [BOS_ID, 4, 4, EOS_ID, *[PAD_ID] * 4]]
    )
    attention = model.decoder_layers[0].cross_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    features = model.positions.cross_features(range(11), src)
    bias = model.positions.bias(attention.bias_table, features)
    assert bias.shape == (2, 4, 11, 8)
    anchors = model.config.cross_anchors
    assert anchors == ("start", "end", "wrap", "start")
    for row, ids in enumerate(src.tolist()):
        for head, anchor in enumerate(anchors):
            table = attention.bias_table[head].tolist()
            for t in range(11):
                for j in range(8):
                    if ids[j] == PAD_ID:
                        continue
                    expected = anchored_bias(anchor, table, t, j, ids)
                    assert bias[row, head, t, j].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("rows", [1, 2])
def test_anchored_bias_in_self_attention_counts_from_key_to_query(rows):
    model = model_of(VOCABULARY, d_model=16, n_heads=2, positions="anchored")
    attention = model.encoder_layers[0].self_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    features = model.positions.self_features(range(9), range(9), torch.device("cpu"))
    bias = model.positions.bias(attention.bias_table, features)
    for head, i, j in [(0, 0, 8), (1, 4, 4), (0, 5, 3), (1, 8, 0), (1, 2, 3)]:
        expected = 16 * attention.bias_table[head, max(-3, min(3, i - j)) + 3] - abs(i - j)
        assert bias[0, head, i, j].item() == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize("anchors", [["end"], ["wrap", "start"], ["end", "end", "start"]])
def test_heads_may_have_any_anchors(anchors):
    heads = len(anchors)
    model = model_of(
        VOCABULARY, d_model=12 * heads, n_heads=heads, positions="anchored", cross_anchors=anchors
    )
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    attention = model.decoder_layers[0].cross_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    bias = model.positions.bias(attention.bias_table, model.positions.cross_features(range(4), src))
    for head, anchor in enumerate(anchors):
        expected = anchored_bias(anchor, attention.bias_table[head].tolist(), 2, 3, src[0].tolist())
        assert bias[0, head, 2, 3].item() == pytest.approx(expected, abs=1e-9)


def test_only_anchored_sources_carry_both_ends():
    marks = {
        name: config_of(model={"positions": name}).marks_both_ends
        for name in get_args(PositionName)
    }
    assert marks == {"sinusoidal": False, "learned": False, "none": False, "anchored": True}
