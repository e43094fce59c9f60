"""Anchored positions, and the anchors of configs/examples/anchors.py, against their formulas in
plain Python."""

import math

import pytest
import torch
from conftest import EVERY_ANCHOR, VOCABULARY, anchors_of, model_of

import toytrans
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

PLUS = VOCABULARY.encode(["+"])[0]


def bias_of(table, d):
    """Of a whole distance, which the table holds to 3 places on either side."""
    return 16 * table[max(-3, min(3, d)) + 3] - abs(d)


def counted_bias(anchor, table, t, j, src, raw):
    """The docstring's formula of a head that counts; raw: what it makes of each place of memory."""
    order = [k for k, i in enumerate(src) if i not in (PAD_ID, BOS_ID, EOS_ID)]
    order += [src.index(EOS_ID)]
    if anchor.endswith("_end"):
        order = [*order[-2::-1], 0]
    reached, running, c, added = 0.0, 0.0, {}, {}
    for k in order[:-1]:
        x = raw[k]
        bounded = max(-1.0, min(1.0, 1.1 * math.tanh(x + 1)))
        running += bounded if anchor.startswith("count") else math.exp(min(x, 6))
        added[k] = max(running, reached) - reached
        c[k] = reached = max(running, reached)
    c[order[-1]], added[order[-1]] = reached + 1, 1.0
    d = t + 1 - c.get(j, 0.0)  # what is not counted, BOS or EOS, is at the start of it
    low = math.floor(d)
    below, above = bias_of(table, low), bias_of(table, low + 1)
    return below + (d - low) * (above - below) + math.log(0.01 + added.get(j, 0.0))


def anchored_bias(anchor, table, t, j, src, tgt_in):
    """The docstring's formula for one head, one target place t and one source place j."""
    n = sum(i not in (PAD_ID, BOS_ID, EOS_ID) for i in src)
    since = j - max((k for k in range(1, j) if src[k] == PLUS), default=0)
    if anchor == "repeat":
        before, total = tgt_in[:t].count(tgt_in[t]), src.count(tgt_in[t])
        same = before - src[:j].count(src[j]) if src[j] == tgt_in[t] else n + 2
        return bias_of(table, before - total if src[j] == EOS_ID else same)
    distances = {
        "start": t - since,
        "end": t - (n + 1 - j),
        "wrap": t - n - j,
        "double": 2 * t - since,
        "double_wrap": 2 * (t - n // 2) - j,
        "first": -src[:j].count(src[j]),
    }
    return bias_of(table, distances[anchor])


@pytest.mark.parametrize(
    "positions", [{"positions": "anchored", "n_heads": 4}, EVERY_ANCHOR], ids=["ours", "examples"]
)
def test_every_anchor_in_cross_attention(positions):
    model = model_of(VOCABULARY, **positions)
    anchors = model.positions.names
    assert len(set(anchors)) == (3 if positions["positions"] == "anchored" else 11)
    counting = [anchor for anchor in anchors if anchor.startswith(("count", "fertility"))]
    src = torch.tensor(
        [[BOS_ID, 5, 6, PLUS, 5, PLUS, 5, EOS_ID], [BOS_ID, 4, 4, 5, EOS_ID, *[PAD_ID] * 3]]
    )
    tgt_in = torch.tensor([[BOS_ID, 5, 6, 5, 5, 5, 9], [BOS_ID, 4, 5, 4, 4, 6, 5]])
    attention = model.decoder_layers[0].cross_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    memory = torch.randn(2, 8, model.settings.d_model).double() * 3
    if counting:
        raw = model.positions.amounts(memory)
        assert 0 < (1 + raw < 0).sum() < raw.numel(), "some take away"
    distances = model.positions.cross_distances(memory, src, tgt_in[:, None], range(7))
    bias = model.positions.bias(attention.bias_table, distances)
    assert bias.shape == (2, len(anchors), 7, 8)
    for row, ids in enumerate(src.tolist()):
        for head, anchor in enumerate(anchors):
            table = attention.bias_table[head].tolist()
            for t in range(7):
                for j in (j for j in range(8) if ids[j] != PAD_ID):
                    if anchor in counting:
                        a = raw[row, :, counting.index(anchor)].tolist()
                        expected = counted_bias(anchor, table, t, j, ids, a)
                    else:
                        expected = anchored_bias(anchor, table, t, j, ids, tgt_in[row].tolist())
                    assert bias[row, head, t, j].item() == pytest.approx(expected, abs=1e-9)


def test_amounts_are_clipped_and_still_learn():
    model = model_of(VOCABULARY, **anchors_of("Count", n_heads=4))
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    with torch.no_grad():
        model.positions.amounts.bias.copy_(torch.tensor([2.0, -4.0]))
    reached, added = model.positions.learned_places(0.01 * torch.randn(1, 5, 24).double(), src)
    assert torch.allclose(reached[0, 0], torch.tensor([0.0, 1, 2, 3, 4]).double())
    assert torch.allclose(reached[1, 0], torch.tensor([1.0, 0, 0, 0, 0]).double())
    added[0].sum().backward()
    gradient = model.positions.amounts.bias.grad
    assert gradient[0] > 0 == gradient[1]


def test_learned_counts_read_a_stack_at_any_length(tmp_path):
    """The counting heads of configs/stack.yaml, four times as far as they were trained."""
    model = anchors_of("Stack", norm="pre", n_encoder_layers=1, n_decoder_layers=1)
    data = {"task": "stack", "symbols": 2, "batch_tokens": 1024, "train_length": [1, 12]}
    data |= {"valid_examples": 20, "test_length": [1, 48], "test_examples": 20}
    train = {"max_steps": 150, "lr": 5e-3, "eval_every": 150}
    run = toytrans.train({"data": data, "model": model, "train": train}, tmp_path / "run")
    assert run.evaluate((1, 48), examples=100)["free_exact_match"] >= 0.99


def test_sources_must_start_with_bos():
    with pytest.raises(toytrans.UserError, match="source_bos: .*Count positions count from BOS"):
        model_of(VOCABULARY, **anchors_of("Count", source_bos=False))
