"""Masks as the tables of inspect-masks show them."""

import dataclasses

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.inspection.masks import (
    batch_tables,
    converted,
    tables,
)
from toytrans.inspection.other_libraries import LIBRARIES
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch, batch_of_sequences
from toytrans.inspection.table import CLOSED, Table
from toytrans.training.faults import plant


def inspected_of(
    src: list[str], tgt: list[str], pad_mask: str = "keys", fault: str | None = None
) -> InspectedBatch:
    """Sequences of digits, and a small model that reads them."""
    batch, _ = batch_of_sequences(src, tgt, VOCABULARY)
    model = model_of(VOCABULARY, pad_mask=pad_mask, positions="sinusoidal")
    if fault is not None:
        plant(fault, model)
    return InspectedBatch(batch, VOCABULARY, model, "fresh weights")


def of(found: list[Table], number: str) -> list[Table]:
    return [table for table in found if table.number == number]


def cells(table: Table) -> list[str]:
    """The rows of a mask as words such as "11·"."""
    return ["".join(row) for _, row in table.rows]


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


def test_words_get_ids_too():
    batch, vocabulary = batch_of_sequences(["jump twice"], ["JUMP JUMP"])
    assert vocabulary.symbols == ("JUMP", "jump", "twice")
    assert batch.src.tolist() == [[4, 5, 2]]


# The example of lesson 2: 4 of 5 places real in the source, 3 of 5 in the target.
LESSON = (["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"])


def test_the_first_six_tables_of_a_padded_pair_by_hand():
    found = list(tables(inspected_of(*LESSON)))
    batch = of(found, "1")[0]
    assert dict(batch.rows)["tgt_in"] == ["<bos>", "9", "7", "<pad>", "<pad>"]
    assert dict(batch.rows)["tgt_out"] == ["9", "7", "<eos>", "<pad>", "<pad>"]
    assert dict(batch.rows)["loss"] == ["1", "1", "1", CLOSED, CLOSED]
    assert "src 4 of 5" in batch.shape and "tgt_in 3 of 5" in batch.shape
    source = of(found, "2")[0]
    assert source.columns == ["5", "7", "9", "<eos>", "<pad>"]
    assert cells(source) == ["1111·"] * 5
    assert source.shape == "(2, 5) -> (2, 1, 1, 5) -> (2, 1, 5, 5)"
    keys, both = of(found, "3")[:2]
    assert cells(keys) == ["1111·|    4"] * 5
    assert cells(both) == ["1111·|    4"] * 4 + ["·····|    0"]
    pads, triangle, used = of(found, "4")[:3]
    assert cells(pads) == ["111··"] * 5
    assert cells(triangle) == ["1····", "11···", "111··", "1111·", "11111"]
    seen = ["1····|    1", "11···|    2", "111··|    3", "111··|    3", "111··|    3"]
    assert cells(used) == seen
    assert [label for label, _ in of(found, "5")[0].rows] == ["<bos>", "9", "7", "<pad>", "<pad>"]
    assert cells(of(found, "5")[0]) == ["1111·"] * 5
    encoder, decoder, cross = of(found, "6")[:3]
    assert cells(encoder) == cells(cross) == ["1111p"] * 5
    assert cells(decoder) == ["1ttbb", "11tbb", "111bb", "111pb", "111pp"]
    assert decoder.notes == ("masked 13 of 25: p 3, t 3, b 7",)


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_tables_are_the_masks_that_the_model_makes(pad_mask):
    inspected = inspected_of(["5 7 9", "4"], ["9 7 5 5", "4 4"], pad_mask)
    src, tgt_in, _ = inspected.batch
    used = inspected.model.masks.all(src, tgt_in)
    found = list(tables(inspected))
    for row in (0, 1):
        shown = (of(found, "2")[row], of(found, "4")[3 * row + 2], of(found, "5")[row])
        for table, mask in zip(shown, used, strict=True):
            keys = [column for column in table.columns if "sees" not in column]
            drawn = [[cell == "1" for cell in row[: len(keys)]] for _, row in table.rows]
            assert drawn == mask[row, 0].expand(len(drawn), -1).tolist()
    assert not any("NOT" in note for table in found for note in table.notes)


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("fault", [None, "no_causal", "pad_visible", "mask_flipped"])
def test_every_closed_cell_has_one_reason(pad_mask, fault):
    inspected = inspected_of(*LESSON, pad_mask, fault)
    for name in ATTENTIONS:
        letters = [c for grid in inspected.reasons(name) for line in grid for c in line]
        closed = int((~inspected.full_mask(name)).sum())
        assert sum(letters.count(letter) for letter in "ptbq?") == closed
        assert len(letters) == closed + letters.count("1") + letters.count("!")
        assert ("!" in letters or "?" in letters) == (
            fault in ("pad_visible", "mask_flipped")
            or (fault == "no_causal" and name == "decoder_self")
        )


def test_pad_queries_have_a_letter_of_their_own():
    inspected = inspected_of(*LESSON, "keys_and_queries")
    (grid, _) = inspected.reasons("encoder_self")
    assert grid == [["1"] * 4 + ["p"]] * 4 + [["q"] * 4 + ["p"]]


def test_a_fault_is_seen_in_the_tables():
    found = list(tables(inspected_of(*LESSON, fault="triangle_off_by_one")))
    used = of(found, "4")[2]
    assert cells(used)[0] == "11···|    2" and "NOT" in used.notes[0]
    assert cells(of(found, "6")[1])[0] == "1!tbb"
    inspected = inspected_of(*LESSON)
    moved = dataclasses.replace(inspected.batch, tgt_out=inspected.batch.tgt_in)
    (_, last) = batch_tables(dataclasses.replace(inspected, batch=moved))
    assert "NOT" in last.notes[0]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("fault", [None, "mask_flipped"])
def test_a_pair_of_another_librarys_masks_is_that_pairs(library, pad_mask, fault):
    """Read back in our polarity, the arguments of one attention close what its mask closes."""
    inspected = inspected_of(["5 7 9", "4 6 8 3"], ["9", "3 8"], pad_mask, fault)
    src, tgt_in, _ = inspected.batch
    assert src.shape[1] != tgt_in.shape[1] and not inspected.full_mask("cross")[0].all()
    blocked = {"T"} if library in ("torch-mha", "sockeye") else {"F", "-inf", "-1e9", "-3.4e38"}
    for row in (0, 1):
        shown = {name: torch.ones_like(inspected.full_mask(name)[row]) for name in ATTENTIONS}
        for table in converted(inspected, row, library):
            (name,) = [name for name, words in ATTENTIONS.items() if words in table.name]
            of_keys = library == "hf" and "int64" in table.shape
            closed = {"0"} if of_keys else blocked
            drawn = [[cell not in closed for cell in line] for _, line in table.rows]
            shown[name] = shown[name] & torch.tensor(drawn)
            if of_keys and name == "decoder_self":  # the library lays the triangle over it
                shown[name] = shown[name].tril()
        for name in ATTENTIONS:
            assert torch.equal(shown[name], inspected.full_mask(name)[row]), (library, name, row)
