"""Masks as the tables of inspect-masks show them, and what they do to softmax."""

import dataclasses

import pytest
import torch
from conftest import VOCABULARY, masks_of, model_of

from toytrans.inspection.masks import notes_of_batch, tables
from toytrans.inspection.other_libraries import LIBRARIES, converted
from toytrans.inspection.panels import CLOSED, matrix, number
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch, batch_of_sequences
from toytrans.model.build import plant
from toytrans.table import Table

LESSON = (["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"])
"""4 of 5 places are real in the first source, and 3 of 5 in the first target."""


def inspected_of(
    src: list[str], tgt: list[str], fault: str | None = None, **model: str
) -> InspectedBatch:
    """Sequences of digits, and a small model that reads them."""
    batch, _ = batch_of_sequences(src, tgt, VOCABULARY)
    built = model_of(VOCABULARY, **({"positions": "sinusoidal"} | model))
    if fault is not None:
        plant(fault, built)
    return InspectedBatch(batch, VOCABULARY, built, "fresh weights")


def of(inspected: InspectedBatch, number: str) -> list[Table]:
    return [table for table in tables(inspected) if table.panel == number]


def cells(table: Table) -> list[str]:
    """The rows of a mask as words such as "11·"."""
    return ["".join(row) for _, *row in table.rows]


def test_data_of_a_padded_batch_by_hand():
    data = inspected_of(["5 7 9", "4"], ["9 7 5", ""]).to_dict()
    assert list(data) == ["src", "tgt_in", "tgt_out", "encoder_self", "decoder_self", "cross"]
    assert data["src"] == [[8, 10, 12, 2], [7, 2, 0, 0]]
    assert data["tgt_in"] == [[1, 12, 10, 8], [1, 0, 0, 0]]
    assert data["tgt_out"] == [[12, 10, 8, 2], [2, 0, 0, 0]]
    assert data["encoder_self"][1] == [[1, 1, 0, 0]] * 4
    assert data["decoder_self"][0] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert data["decoder_self"][1] == [[1, 0, 0, 0]] * 4
    assert data["cross"][1] == [[1, 1, 0, 0]] * 4


def test_words_and_large_numbers_get_ids_too():
    batch, vocabulary = batch_of_sequences(["jump twice"], ["JUMP JUMP"])
    assert vocabulary.symbols == ("JUMP", "jump", "twice")
    assert batch.src.tolist() == [[4, 5, 2]]
    assert batch_of_sequences(["07 99999"], [""])[1].symbols == ("07", "99999")


def test_the_first_six_tables_of_a_padded_pair_by_hand():
    inspected = inspected_of(*LESSON)
    batch, source = of(inspected, "1")[0], of(inspected, "2")[0]
    lines = {label: cells for label, *cells in batch.rows}
    assert lines["tgt_in"] == ["<bos>", "9", "7", "<pad>", "<pad>"]
    assert lines["tgt_out"] == ["9", "7", "<eos>", "<pad>", "<pad>"]
    assert lines["loss"] == ["1", "1", "1", CLOSED, CLOSED]
    assert "src 4 of 5" in batch.above[0] and "tgt_in 3 of 5" in batch.above[0]
    assert source.columns == ["", "5", "7", "9", "<eos>", "<pad>"]
    assert cells(source) == ["1111·"] * 5
    assert source.above[0] == "(2, 5) -> (2, 1, 1, 5) -> (2, 1, 5, 5)"
    keys, both = map(cells, of(inspected, "3")[:2])
    assert keys == ["1111·|    4"] * 5 and both == ["1111·|    4"] * 4 + ["·····|    0"]
    pads, triangle, used = map(cells, of(inspected, "4")[:3])
    assert pads == ["111··"] * 5
    assert triangle == ["1····", "11···", "111··", "1111·", "11111"]
    assert used == ["1····|    1", "11···|    2", *["111··|    3"] * 3]
    cross = of(inspected, "5")[0]
    assert [label for label, *_ in cross.rows] == ["<bos>", "9", "7", "<pad>", "<pad>"]
    assert cells(cross) == ["1111·"] * 5
    encoder, decoder, cross = of(inspected, "6")[:3]
    assert cells(encoder) == cells(cross) == ["1111p"] * 5
    assert cells(decoder) == ["1ttbb", "11tbb", "111bb", "111pb", "111pp"]
    assert decoder.notes == ("masked 13 of 25: p 3, t 3, b 7",)


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("fault", [None, "no_causal", "pad_visible", "mask_flipped"])
def test_tables_are_the_masks_that_the_model_makes_and_each_closed_cell_has_one_reason(
    pad_mask, fault
):
    inspected = inspected_of(*LESSON, fault, pad_mask=pad_mask)
    src, tgt_in = inspected.batch.src, inspected.batch.tgt_in
    used = masks_of(inspected.model.masks, src, tgt_in)
    for row in (0, 1):
        shown = (of(inspected, number)[k] for number, k in (("2", row), ("4", 3 * row + 2)))
        for table, mask in zip((*shown, of(inspected, "5")[row]), used, strict=True):
            drawn = [[cell == "1" for cell in line if "|" not in cell] for _, *line in table.rows]
            assert drawn == mask[row, 0].expand(len(drawn), -1).tolist()
    assert any("NOT" in note for t in tables(inspected) for note in t.notes) == bool(fault)
    for name in ATTENTIONS:
        letters = [c for grid in inspected.reasons(name) for line in grid for c in line]
        closed = int((~inspected.full_mask(name)).sum())
        assert sum(letters.count(letter) for letter in "ptbq?") == closed
        assert len(letters) == closed + letters.count("1") + letters.count("!")
        assert ("!" in letters or "?" in letters) == (
            fault in ("pad_visible", "mask_flipped")
            or (fault == "no_causal" and name == "decoder_self")
        )


def test_pad_queries_have_a_letter_and_wrong_cells_are_told():
    inspected = inspected_of(*LESSON, pad_mask="keys_and_queries")
    (grid, _) = inspected.reasons("encoder_self")
    assert grid == [["1"] * 4 + ["p"]] * 4 + [["q"] * 4 + ["p"]]
    inspected = inspected_of(*LESSON, fault="triangle_off_by_one")
    assert cells(of(inspected, "4")[2])[0] == "11···|    2"
    assert cells(of(inspected, "6")[1])[0] == "1!tbb"
    first = inspected.cells("decoder_self", 0)[0]
    assert "".join(first) == f"1!{CLOSED * 3}"
    assert first[1].says.startswith("query 0 <bos>, key 1 9: open: visible, but")
    assert first[4].says == "query 0 <bos>, key 4 <pad>: closed: both"
    moved = dataclasses.replace(inspected.batch, tgt_out=inspected.batch.tgt_in)
    assert "NOT" in notes_of_batch(dataclasses.replace(inspected, batch=moved))[0]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("fault", [None, "mask_flipped"])
def test_a_pair_of_another_librarys_masks_is_that_pairs(library, pad_mask, fault):
    """Read back in our polarity, the arguments of one attention close what its mask closes."""
    inspected = inspected_of(["5 7 9", "4 6 8 3"], ["9", "3 8"], fault, pad_mask=pad_mask)
    src, tgt_in = inspected.batch.src, inspected.batch.tgt_in
    assert src.shape[1] != tgt_in.shape[1] and not inspected.full_mask("cross")[0].all()
    blocked = {"T"} if library in ("torch-mha", "sockeye") else {"F", "-inf", "-1e9", "-3.4e38"}
    *found, polarity = converted(inspected, library)
    two_masks = library == "hf" and pad_mask == "keys_and_queries"
    assert ("encoder_outputs" in " ".join(polarity.notes)) == two_masks
    found = [table for table in found if table.panel == library]
    for row in (0, 1):
        shown = {name: torch.ones_like(inspected.full_mask(name)[row]) for name in ATTENTIONS}
        for table in (table for table in found if f"pair {row + 1}" in table.title):
            (name,) = [name for name, words in ATTENTIONS.items() if words in table.title]
            of_keys = library == "hf" and "int64" in table.above[0]
            closed = {"0"} if of_keys else blocked
            drawn = [[cell not in closed for cell in line] for _, *line in table.rows]
            shown[name] = shown[name] & torch.tensor(drawn)
            if of_keys and name == "decoder_self":  # the library lays the triangle over it
                shown[name] = shown[name].tril()
        for name in ATTENTIONS:
            assert torch.equal(shown[name], inspected.full_mask(name)[row]), (library, name, row)


def row_of(table: Table, label: str) -> list[float]:
    """One row of numbers of a table, without what stands behind the bar."""
    return [
        float(cell)
        for cell in {label: cells for label, *cells in table.rows}[label]
        if "|" not in cell
    ]


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_an_empty_row_by_the_three_policies(pad_mask):
    (table,) = of(inspected_of(*LESSON, pad_mask=pad_mask), "7")
    assert all(value != value for value in row_of(table, "-inf, softmax"))
    assert row_of(table, "lowest, softmax") == [0.2] * 5
    assert row_of(table, "zeroed (here)") == [0] * 5
    assert "0.200 of it over pads" in table.notes[1]
    assert ("pair 1: places 4" in table.notes[0]) == (pad_mask == "keys_and_queries")


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_the_softmax_of_one_row_adds_up(positions):
    (table,) = of(inspected_of(*LESSON, positions=positions), "8")
    assert "pair 1, query 9 (place 1)" in table.title
    shown = {label: cells for label, *cells in table.rows}
    assert shown["may attend"][:5] == ["1", "1", CLOSED, CLOSED, CLOSED]
    raw, scaled = row_of(table, "q k^T"), row_of(table, "scaled")
    assert scaled == pytest.approx([value / 8**0.5 for value in raw], abs=0.01)  # 24 / 3 wide
    last = torch.tensor(row_of(table, "+ bias" if positions == "anchored" else "scaled"))
    expected = last[:2].softmax(0).tolist()
    assert row_of(table, "weight") == pytest.approx([*expected, 0, 0, 0], abs=0.01)
    assert shown["weight"][-1] == shown["unmasked weight"][-1] == "| 1.000"
    loose = row_of(table, "unmasked weight")
    assert loose == pytest.approx(last.softmax(0).tolist(), abs=0.01)
    assert f"{loose[2]:.3f} on later tokens" in table.notes[0] and sum(loose[3:]) > 0
    assert table.notes[1] == "With the mask 0 of the weight is on pads and 0 on later tokens."
    assert "-65504: it becomes -inf" in table.notes[2]


def test_numbers_are_short_and_zero_means_zero():
    shown = [number(x) for x in (0.0, -0.0, 0.001, -0.001, 1.5, -3.4028e38, -1e9, -65504)]
    assert shown == ["0", "0", "0.00", "0.00", "1.50", "-3.4e38", "-1e9", "-65504.00"]
    assert [number(x) for x in (float("-inf"), float("nan"))] == ["-inf", "nan"]


def test_wide_tensors_are_cut_with_a_notice():
    values = torch.arange(600.0).view(20, 30)
    rows = [f"r{i}" for i in range(20)]
    table = matrix("1", "x", values, rows, summaries={"sum": values.sum(-1)}, first=24)
    assert table.above[0] == "(20, 30), 8 more rows, 24 more columns"
    assert table.columns == ["", "d25", "d26", "d27", "d28", "d29", "d30", "|      sum"]
    assert table.rows[1] == ["r1", *(f"{x}.00" for x in range(54, 60)), "|  1335.00"]
