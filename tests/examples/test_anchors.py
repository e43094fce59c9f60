"""The anchors of configs/examples/anchors.py against their formula in plain Python."""

import pytest
import torch
from anchor_formulas import anchored_bias, counted_bias
from conftest import EVERY_ANCHOR, VOCABULARY, anchors_of, model_of

import toytrans
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


def test_every_anchor_in_cross_attention():
    model = model_of(VOCABULARY, **EVERY_ANCHOR)
    anchors = model.positions.names
    counting = [anchor for anchor in anchors if anchor.startswith(("count", "fertility"))]
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
    distances = model.positions.cross_state(memory, src, tgt_in).distances(range(7))
    bias = model.positions.bias(attention.bias_table, distances)
    for row, ids in enumerate(src.tolist()):
        for head, anchor in enumerate(anchors):
            table = attention.bias_table[head].tolist()
            for t in range(7):
                for j in (j for j in range(8) if ids[j] != PAD_ID):
                    tokens = tgt_in[row].tolist()
                    if anchor in counting:
                        a = raw[row, :, counting.index(anchor)].tolist()
                        expected = counted_bias(anchor, table, t, j, ids, a)
                    else:
                        expected = anchored_bias(anchor, table, t, j, ids, tokens)
                    assert bias[row, head, t, j].item() == pytest.approx(expected, abs=1e-9)


def test_amounts_are_clipped_and_still_learn():
    model = model_of(VOCABULARY, **anchors_of("Count", n_heads=4))
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    with torch.no_grad():
        model.positions.amounts.bias.copy_(torch.tensor([2.0, -4.0]))
    sources = model.positions.cross_state(0.01 * torch.randn(1, 5, 24).double(), src)
    assert torch.allclose(sources.reached[0, 0], torch.tensor([0.0, 1, 2, 3, 4]).double())
    assert torch.allclose(sources.reached[1, 0], torch.tensor([1.0, 0, 0, 0, 0]).double())
    sources.added[0].sum().backward()
    gradient = model.positions.amounts.bias.grad
    assert gradient[0] > 0 == gradient[1]


def test_learned_counts_read_a_stack_at_any_length(tmp_path):
    """The counting heads of configs/stack.yaml, four times as far as they were trained."""
    model = anchors_of("Stack", norm="pre", n_encoder_layers=1, n_decoder_layers=1)
    lengths = {"train_length": [1, 12], "test_length": [1, 48]}
    data = {"task": "stack", "symbols": 2, "batch_tokens": 1536, **lengths}
    train = {"max_steps": 150, "lr": 5e-3, "eval_every": 150}
    run = toytrans.train({"data": data, "model": model, "train": train}, tmp_path / "run")
    assert run.evaluate((1, 48), examples=200).exact_match >= 0.99


def test_sources_must_start_with_bos():
    with pytest.raises(toytrans.UserError, match="model.source_bos: false"):
        model_of(VOCABULARY, **anchors_of("Count", source_bos=False))
