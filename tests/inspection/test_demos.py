"""Demonstrations: their numbers are right."""

import math

import pytest
import torch
from conftest import VOCABULARY, config_of, inspected_of

from toytrans.inspection import demos
from toytrans.inspection.shown import InspectedBatch, fresh
from toytrans.inspection.table import CLOSED
from toytrans.model.masks import padding_mask
from toytrans.training.faults import build_model


def test_ten_lists_become_heads_and_come_back():
    found = demos.heads()
    ids = found.tensors["ids"]
    real = padding_mask(ids).sum(1) - 1  # without EOS
    assert real.tolist() == [16, 5, 11, 2, 5, 5, 1, 20, 16, 14]
    symbols = ids[ids > 2] - 3
    assert int(symbols.min()) >= 1 and int(symbols.max()) <= 99
    lists, *_, leak = found.tables
    assert lists.rows[6][1] == [str(int(ids[6, 0]) - 3), "E", *[CLOSED] * 19]
    shares = [[float(cell) for cell in row] for _, row in leak.rows]
    assert shares[7] == [0, 0, 0], "the longest has no pads"
    assert all(0 < row[1] < 1 and row[2] == 0 for i, row in enumerate(shares) if i != 7)
    assert shares[6][0] == pytest.approx(19 / 21, abs=0.001)


def test_thirty_queries_and_fifty_keys():
    found = demos.sdpa()
    q, k, v = (found.tensors[name] for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(found.tensors["context"], expected, atol=1e-5)
    assert torch.allclose(found.tensors["one_head_context"][:, 0], expected, atol=1e-5)
    for name in ("weights", "one_head_weights", "heads_weights", "self_weights"):
        assert torch.allclose(found.tensors[name].sum(-1), torch.ones(()))
    (_, right), (_, wrong) = found.tables[-1].rows
    assert float(right[0]) == pytest.approx(1, abs=0.05)
    assert float(wrong[0]) == pytest.approx(0.25, abs=0.02), "(32 / 128) of the variance"


def test_one_wide_projection_is_one_per_head():
    found = demos.projections()
    for name in ("q", "k", "v", "context", "output"):
        wide, small = found.tensors[f"wide_{name}"], found.tensors[f"small_{name}"]
        assert wide.dtype == torch.float64 and wide.abs().max() > 0.5
        assert torch.allclose(wide, small, atol=1e-14)
    assert max(found.facts["differences"].values()) < 1e-14
    # head 2's keys by hand: rows 8 + 4 to 8 + 7 of the wide weight
    x, weight = found.tensors["x"], found.tensors["in_proj_weight"]
    apart = found.tensors["small_k"][:, 1] - x @ weight[12:16].T
    assert torch.allclose(apart, apart[:1, :1]), "but for the bias"


def test_one_masked_pass_is_every_step():
    view = inspected_of(norm="post")
    found = demos.decoding(view, 0)
    differences = found.facts["differences"]
    assert differences["step_by_step"] < 1e-12 < 1e-2 < differences["without_the_triangle"]
    with torch.no_grad():
        assert torch.equal(found.tensors["parallel"], view.model(view.batch.src, view.batch.tgt_in))
    config = config_of(fault="no_causal", model={"positions": "sinusoidal"})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    broken = InspectedBatch(view.batch, VOCABULARY, model, "")
    assert "NOT step t of decoding" in demos.decoding(broken, 0).tables[-1].notes[0]


def test_without_the_scale_softmax_saturates():
    found = demos.scale()
    widths = found.tensors["d_head"].double()
    variance, scaled = (found.tensors[f"variance_{x}_scale"] for x in ("without", "with"))
    assert torch.allclose(variance.double(), widths, rtol=0.15)
    assert torch.allclose(scaled, torch.ones(()), rtol=0.15)
    entropy, kept = (found.tensors[f"entropy_{x}_scale"] for x in ("without", "with"))
    assert (entropy.diff() < 0).all() and entropy[-1] < 0.5
    assert kept.std() < 0.05 and 3.5 < kept.mean() < math.log(64)
