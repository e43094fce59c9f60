"""Demonstrations: their numbers are right."""

import math

import pytest
import torch
from conftest import VOCABULARY, config_of, inspected_of

from toytrans.inspection import demos
from toytrans.inspection.demos import leaks, scales, sharpness
from toytrans.inspection.shown import InspectedBatch, fresh
from toytrans.inspection.table import CLOSED, Table
from toytrans.inspection.trace import trace
from toytrans.model.attention import Attention
from toytrans.model.masks import padding_mask
from toytrans.training.faults import build_model


def cells(table: Table) -> list[list[str]]:
    return [row for _, row in table.rows]


def test_ten_lists_become_heads_and_come_back() -> None:
    found = demos.heads()
    ids = found.tensors["ids"]
    real = padding_mask(ids).sum(1) - 1  # without EOS
    assert real.tolist() == [16, 5, 11, 2, 5, 5, 1, 20, 16, 14]
    symbols = ids[ids > 2] - 3
    assert int(symbols.min()) >= 1 and int(symbols.max()) <= 99
    lists, *_, leak = found.tables
    assert cells(lists)[6] == [str(int(ids[6, 0]) - 3), "E", *[CLOSED] * 19]
    shares = [[float(cell) for cell in row] for row in cells(leak)]
    assert shares[7] == [0, 0, 0], "the longest has no pads"
    assert all(0 < row[1] < 1 and row[2] == 0 for i, row in enumerate(shares) if i != 7)
    assert shares[6][0] == pytest.approx(19 / 21, abs=0.001)
    assert torch.equal(ids, demos.heads().tensors["ids"]), "the same every time"


def test_thirty_queries_and_fifty_keys() -> None:
    found = demos.sdpa()
    q, k, v = (found.tensors[name] for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(found.tensors["context"], expected, atol=1e-5)
    assert torch.allclose(found.tensors["one_head_context"][:, 0], expected, atol=1e-5)
    for name in ("weights", "one_head_weights", "heads_weights", "self_weights"):
        assert torch.allclose(found.tensors[name].sum(-1), torch.ones(()))
    first, weights, root = found.tables
    assert "with 49 values torch says" in first.notes[0]
    assert all(row[-1] == "| 1.00" for row in cells(weights))
    assert "18 more rows, 38 more columns" in weights.shape
    (right, wrong) = cells(root)
    assert float(right[0]) == pytest.approx(1, abs=0.05)
    assert float(wrong[0]) == pytest.approx(0.25, abs=0.02), "(32 / 128) of the variance"


def test_one_wide_projection_is_one_per_head() -> None:
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
    assert "216 numbers in small projections, 216 in the wide one" in found.tables[-1].notes[0]


def broken(fault: str) -> InspectedBatch:
    config = config_of(fault=fault, model={"positions": "sinusoidal"})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    return InspectedBatch(inspected_of().batch, VOCABULARY, model, "")


@pytest.mark.parametrize("model", [{}, {"norm": "post"}, {"positions": "anchored"}])
def test_one_masked_pass_is_every_step(model: dict) -> None:
    view = inspected_of(**model)
    found = demos.decoding(view, 0)
    differences = found.facts["differences"]
    assert differences["step_by_step"] < 1e-12 < 1e-2 < differences["without_the_triangle"]
    assert "Row t of the pass is step t of decoding, to rounding" in found.tables[-1].notes[0]
    with torch.no_grad():
        assert torch.equal(found.tensors["parallel"], view.model(view.batch.src, view.batch.tgt_in))
    verdict = demos.decoding(broken("no_causal"), 0).tables[-1].notes[0]
    assert "NOT step t of decoding: a fault is in it" in verdict


def even(view: InspectedBatch) -> InspectedBatch:
    """Queries are zero, so without a mask every weight is the same."""
    for module in view.model.modules():
        if isinstance(module, Attention):
            with torch.no_grad():
                module.in_proj.weight[: module.in_proj.in_features] = 0
                module.in_proj.bias[: module.in_proj.in_features] = 0
    return view


def test_leaks_by_hand() -> None:
    """Pair 1 has 1 pad of 5 in src and 2 of 5 in tgt_in; its real target places are 0 to 2."""
    view = even(inspected_of())
    encoder = leaks(trace(view, "encoder", 1), 0)
    assert list(encoder.tensors) == ["on_pads_without_the_mask", "on_pads_with_the_mask"]
    without, with_mask = encoder.tensors.values()
    assert without.shape == (2, 3, 5)
    assert torch.allclose(without[0], torch.tensor(0.2).double())
    assert not without[1].any() and not with_mask.any()
    decoder = leaks(trace(view, "decoder", 2), 0).tensors
    assert torch.allclose(decoder["on_pads_without_the_mask"][0], torch.tensor(0.4).double())
    later = decoder["on_the_future_without_the_mask"][0, 0]
    assert torch.allclose(later[:3], torch.tensor([0.4, 0.2, 0.0]).double())
    later = decoder["on_the_future_without_the_mask"][1, 0]
    assert torch.allclose(later, torch.tensor([0.8, 0.6, 0.4, 0.2, 0.0]).double())
    assert not decoder["on_the_future_with_the_mask"].any()
    cross = leaks(trace(view, "cross", 1), 0)
    assert torch.allclose(cross.tensors["on_pads_without_the_mask"][0], torch.tensor(0.2).double())
    shown = cross.tables[1]
    assert [name for name, _ in shown.rows] == ["<bos>", "9", "7"], "real queries alone"
    assert cells(shown) == [["0.200", "0.200", "0.200", "| 0.200"]] * 3
    assert "Mean 0.200; of every pair's real queries 0.075" in shown.notes[0], "3 of 8 queries"
    found = leaks(trace(broken("pad_visible"), "encoder", 1), 0)
    assert (found.tensors["on_pads_with_the_mask"][0] > 0).all()


def test_without_the_scale_softmax_saturates() -> None:
    found = scales()
    widths = found.tensors["d_head"].double()
    variance, scaled = (found.tensors[f"variance_{x}_scale"] for x in ("without", "with"))
    assert torch.allclose(variance.double(), widths, rtol=0.15)
    assert torch.allclose(scaled, torch.ones(()), rtol=0.15)
    entropy, kept = (found.tensors[f"entropy_{x}_scale"] for x in ("without", "with"))
    assert (entropy.diff() < 0).all() and entropy[-1] < 0.5
    assert kept.std() < 0.05 and 3.5 < kept.mean() < math.log(64)


def test_the_models_own_sharpness() -> None:
    view = even(inspected_of())
    found = sharpness(trace(view, "decoder", 1)).tensors
    assert not found["variance_of_q_k"].any()
    # real queries see 1, 2, 3 keys and 1 to 5 keys
    seen = sum(math.log(n) for n in (1, 2, 3, 1, 2, 3, 4, 5)) / 8
    for name in ("entropy_with_scale", "entropy_without_scale", "log_of_keys_seen"):
        assert found[name].tolist() == pytest.approx([seen] * 3)
    own = sharpness(trace(inspected_of(), "encoder", 1)).tensors
    assert torch.allclose(own["variance_of_q_k"], own["variance_of_scores"] * 8), "Dh is 8"
