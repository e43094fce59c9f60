"""Attention without its mask and without its scale."""

import math

import pytest
import torch
from conftest import VOCABULARY, config_of, inspected_of

from toytrans.inspection.demos import leaks, scales, sharpness
from toytrans.inspection.shown import InspectedBatch, fresh
from toytrans.inspection.table import CLOSED, Table
from toytrans.inspection.trace import trace
from toytrans.model.attention import Attention
from toytrans.training.faults import build_model


def cells(table: Table) -> list[list[str]]:
    return [row for _, row in table.rows]


def named(tables: list[Table], name: str) -> Table:
    (found,) = [table for table in tables if table.name.startswith(name)]
    return found


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
    shown = named(cross.tables, "On pads, without")
    assert [name for name, _ in shown.rows] == ["<bos>", "9", "7"], "real queries alone"
    assert cells(shown) == [["0.200", "0.200", "0.200", "| 0.200"]] * 3
    assert "Mean 0.200; of every pair's real queries 0.075" in shown.notes[0], "3 of 8 queries"


def test_a_broken_mask_leaks() -> None:
    config = config_of(fault="pad_visible", model={"positions": "sinusoidal"})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    inspected = InspectedBatch(inspected_of().batch, VOCABULARY, model, "")
    found = leaks(trace(inspected, "encoder", 1), 0)
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
    plots = found.tables[1:]
    assert [len(plot.rows) for plot in plots] == [9, 13]
    for plot in plots:
        marks = ["".join(column) for column in zip(*cells(plot), strict=True)]
        assert all(set(column) == {"x", "o", CLOSED} for column in marks)
        heights = [column.index("x") for column in marks]
        assert heights == sorted(heights, reverse=plot is plots[0]), "up, and down"


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
