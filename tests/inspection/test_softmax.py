"""Queries without a visible key, and the softmax of one row."""

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.inspection.shown import InspectedBatch, batch_of_sequences
from toytrans.inspection.softmax import tables
from toytrans.inspection.table import CLOSED, Table

LESSON = (["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"])
"""4 of 5 places are real in the first source, and 3 of 5 in the first target."""


def tables_of(number: str, src: list[str], tgt: list[str], **model: str) -> list[Table]:
    """The tables of one number for sequences of digits, and a small model."""
    batch, _ = batch_of_sequences(src, tgt, VOCABULARY)
    built = model_of(VOCABULARY, **({"positions": "sinusoidal"} | model))
    inspected = InspectedBatch(batch, VOCABULARY, built, "fresh weights")
    return [table for table in tables(inspected) if table.number == number]


def row_of(table: Table, label: str) -> list[float]:
    """One row of numbers of a table, without what stands behind the bar."""
    (found,) = [row for name, row in table.rows if name == label]
    return [float(cell) for cell in found if "|" not in cell]


def test_an_empty_row_by_the_three_policies():
    for pad_mask, which in (("keys", "suppose"), ("keys_and_queries", "one of them")):
        (table,) = tables_of("7", *LESSON, pad_mask=pad_mask)
        assert table.shape.startswith(which) and "<pad>" in table.shape
        assert all(value != value for value in row_of(table, "-inf, softmax"))
        assert row_of(table, "lowest, softmax") == [0.2] * 5
        assert row_of(table, "zeroed (here)") == [0] * 5
        assert "0.200 of it over pads" in table.notes[1]
        empty = "In this batch: none." if which == "suppose" else "pair 1: place 4"
        assert empty in table.notes[0]


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_the_softmax_of_one_row_adds_up(positions):
    (table,) = tables_of("8", *LESSON, positions=positions)
    assert "pair 1, query 9 (place 1)" in table.name
    shown = dict(table.rows)
    assert shown["may attend"][:5] == ["1", "1", CLOSED, CLOSED, CLOSED]
    raw, scaled = row_of(table, "q k^T"), row_of(table, "scaled")
    assert scaled == pytest.approx([value / 8**0.5 for value in raw], abs=0.01)  # 24 / 3 wide
    last = "+ bias" if positions == "anchored" else "scaled"
    expected = torch.tensor(row_of(table, last)[:2]).softmax(0).tolist()
    assert row_of(table, "weight") == pytest.approx([*expected, 0, 0, 0], abs=0.01)
    assert shown["weight"][-1] == shown["unmasked weight"][-1] == "| 1.000"
    loose = row_of(table, "unmasked weight")
    assert loose == pytest.approx(torch.tensor(row_of(table, last)).softmax(0).tolist(), abs=0.01)
    without = f"{loose[2]:.3f} on later tokens"
    assert without in table.notes[0] and sum(loose[3:]) > 0
    assert table.notes[1] == "With the mask 0 of the weight is on pads and 0 on later tokens."
    assert "-65504: it becomes -inf" in table.notes[2]


def test_a_batch_whose_targets_have_no_pads_shows_cross_attention_too():
    found = tables_of("8", ["5 7 9", "4"], ["9 7", "4 4"])
    assert ["decoder" in table.name for table in found] == [True, False]
    assert "cross-attention, pair 2" in found[1].name
    assert float(found[1].notes[0].split()[3]) > 0
