"""Demonstrations: their numbers are right. tests/test_documented_commands.py compares the rest."""

import math
from itertools import pairwise

import pytest
from conftest import VOCABULARY, config_of, inspected_of

from toytrans.inspection import demos
from toytrans.inspection.panels import CLOSED
from toytrans.inspection.shown import InspectedBatch, fresh
from toytrans.model.build import build_model
from toytrans.table import Table


def numbers_of(table: Table) -> dict[str, list[float]]:
    return {name: list(map(float, cells)) for name, *cells in table.rows}


def test_ten_lists_become_heads_and_come_back():
    lists, memory, _, leak = demos.heads()
    lengths = [line.index("E") for _, *line in lists.rows]
    assert lengths == [16, 5, 11, 2, 5, 5, 1, 20, 16, 14]
    assert all(1 <= int(cell) <= 99 for _, *line in lists.rows for cell in line if cell.isdigit())
    assert lists.rows[6][3:] == [CLOSED] * 19
    assert {label: cells for label, *cells in memory.rows}["transposed"][0] == "3 10 8 21 64"
    shares = list(numbers_of(leak).values())
    assert shares[7] == [0, 0, 0], "the longest has no pads"
    assert all(0 < row[1] < 1 and row[2] == 0 for i, row in enumerate(shares) if i != 7)
    assert shares[6][0] == pytest.approx(19 / 21, abs=0.001)


def test_thirty_queries_and_fifty_keys():
    memory, roots = demos.sdpa()
    assert "One head equals no head axis: the contexts differ by 0." in memory.notes[1]
    right, wrong = numbers_of(roots).values()
    assert right[0] == pytest.approx(1, abs=0.05)
    assert wrong[0] == pytest.approx(0.25, abs=0.02), "(32 / 128) of the variance"
    assert right[1] < wrong[1] < math.log(50) and right[2] > wrong[2] > 1 / 50


def test_one_wide_projection_is_one_per_head():
    (table,) = demos.projections()
    assert [name for name, *_ in table.rows] == [
        *("q", "k", "v", "context", "output", "output as a sum")
    ]
    for _, _, largest, apart in table.rows:
        assert float(largest) > 0.5 and float(apart) < 1e-14


def test_one_masked_pass_is_every_step():
    view = inspected_of(norm="post")
    same, opened = numbers_of(*demos.decoding(view, 1)).values()
    assert max(same) < 1e-12 < 1e-2 < max(opened)
    config = config_of(fault="no_causal", model={"positions": "sinusoidal"})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    (table,) = demos.decoding(InspectedBatch(view.batch, VOCABULARY, model, ""), 0)
    assert "NOT step t of decoding" in table.notes[0]


def test_without_the_scale_softmax_saturates():
    table, *_ = demos.scale()
    variance, scaled, entropy, kept, even = numbers_of(table).values()
    assert variance == pytest.approx([int(width) for width in table.columns[1:]], rel=0.15)
    assert scaled == pytest.approx([1] * 7, rel=0.15)
    assert all(wide < narrow for narrow, wide in pairwise(entropy)) and entropy[-1] < 0.5
    assert all(3.5 < each < even[0] for each in kept) and max(kept) - min(kept) < 0.15
