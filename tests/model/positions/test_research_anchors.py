"""Every anchor against its formula in plain Python."""

import math
from typing import get_args

import pytest
import torch
from anchor_formulas import anchored_bias, counted_bias
from conftest import EVERY_ANCHOR, VOCABULARY, model_of

from toytrans.config.names import AnchorName
from toytrans.config.schema import COUNTING
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


@pytest.mark.parametrize(
    "anchors",
    [
        ["end"],
        ["wrap", "start"],
        ["end", "end", "start"],
        ["count"],
        ["count_end", "fertility"],
        ["fertility_end", "start"],
    ],
)
def test_heads_may_have_any_anchors(anchors):
    heads = len(anchors)
    model = model_of(
        VOCABULARY, d_model=12 * heads, n_heads=heads, positions="anchored", cross_anchors=anchors
    )
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    attention = model.decoder_layers[0].cross_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    memory = torch.randn(1, 5, 12 * heads).double()
    distances = model.positions.start(memory, src).distances(range(4))
    bias = model.positions.bias(attention.bias_table, distances)
    for head, anchor in enumerate(anchors):
        table = attention.bias_table[head].tolist()
        if anchor in COUNTING:
            raw = model.positions.amounts(memory)[0, :, head].tolist()
            expected = counted_bias(anchor, table, 2, 3, src[0].tolist(), raw)
        else:
            expected = anchored_bias(anchor, table, 2, 3, src[0].tolist())
        assert bias[0, head, 2, 3].item() == pytest.approx(expected, abs=1e-9)


def test_every_anchor_in_cross_attention():
    anchors = list(get_args(AnchorName))
    model = model_of(VOCABULARY, positions="anchored", **EVERY_ANCHOR)
    plus = VOCABULARY.encode(["+"])[0]
    src = torch.tensor(
        [[BOS_ID, 5, 6, plus, 5, plus, 5, EOS_ID], [BOS_ID, 4, 4, 5, EOS_ID, *[PAD_ID] * 3]]
    )
    tgt_in = torch.tensor([[BOS_ID, 5, 6, 5, 5, 5, 9], [BOS_ID, 4, 5, 4, 4, 6, 5]])
    attention = model.decoder_layers[0].cross_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    memory = torch.randn(2, 8, EVERY_ANCHOR["d_model"]).double() * 3
    raw = model.positions.amounts(memory)
    assert 0 < (1 + raw < 0).sum() < raw.numel(), "some take away"
    distances = model.positions.start(memory, src, tgt_in).distances(range(7))
    bias = model.positions.bias(attention.bias_table, distances)
    for row, ids in enumerate(src.tolist()):
        for head, anchor in enumerate(anchors):
            table = attention.bias_table[head].tolist()
            for t in range(7):
                for j in (j for j in range(8) if ids[j] != PAD_ID):
                    tokens = tgt_in[row].tolist()
                    if anchor in COUNTING:
                        a = raw[row, :, COUNTING.index(anchor)].tolist()
                        expected = counted_bias(anchor, table, t, j, ids, a)
                    else:
                        expected = anchored_bias(anchor, table, t, j, ids, tokens)
                    assert bias[row, head, t, j].item() == pytest.approx(expected, abs=1e-9)


def test_amounts_are_clipped_and_still_learn():
    model = model_of(VOCABULARY, n_heads=2, positions="anchored", cross_anchors=["count"] * 2)
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    with torch.no_grad():
        model.positions.amounts.bias.copy_(torch.tensor([2.0, -4.0]))
    sources = model.positions.start(0.01 * torch.randn(1, 5, 24).double(), src)
    assert torch.allclose(sources.reached[0, 0], torch.tensor([0.0, 1, 2, 3, 4]).double())
    assert torch.allclose(sources.reached[1, 0], torch.tensor([0.0, 0, 0, 0, 1]).double())
    sources.added[0].sum().backward()
    gradient = model.positions.amounts.bias.grad
    assert gradient[0] > 0 == gradient[1]


def test_fertilities_multiply_and_stay_finite():
    model = model_of(VOCABULARY, n_heads=2, positions="anchored", cross_anchors=["fertility"] * 2)
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    around, thrice = torch.zeros(2, 24).double()
    with torch.no_grad():
        amounts = model.positions.amounts
        amounts.weight.zero_()[:, :2] = torch.tensor([math.log(4), math.log(3)])
        amounts.bias.copy_(torch.tensor([0.0, 1000.0]))
    around[0] = thrice[1] = 1
    memory = torch.stack([around, around, thrice, around + thrice, thrice])[None]
    added = model.positions.start(memory, src).added
    assert added[0, 0].tolist() == pytest.approx([0, 4, 3, 12, 1])
    assert added[1, 0].tolist() == pytest.approx([0, *[math.exp(6)] * 3, 1])
