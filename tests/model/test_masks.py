"""Masks by hand, and as the panels of inspect-masks show them."""

import dataclasses

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.insight.masks.conventions import LIBRARIES
from toytrans.insight.masks.mask_tables import (
    COLUMNS,
    REASONS,
    batch_of_sequences,
    batch_panels,
    converted,
    masks_as_data,
    masks_as_rows,
    panels,
    reasons,
)
from toytrans.insight.masks.softmax import panels as number_panels
from toytrans.insight.tables import ATTENTIONS, CLOSED, Panel, View, number
from toytrans.model import masks
from toytrans.model.sight import Sight
from toytrans.training.faults import plant

SRC = torch.tensor([[5, 6, 2, 0], [5, 6, 7, 2]])
TGT = torch.tensor([[1, 5, 0], [1, 7, 6]])


def test_encoder_self_attention_closes_source_pads():
    found = masks.MaskMaker().encoder_self(SRC)
    assert found.shape == (2, 1, 1, 4)
    assert found.int().tolist() == [[[[1, 1, 1, 0]]], [[[1, 1, 1, 1]]]]


def test_decoder_self_attention_closes_target_pads_and_the_future():
    found = masks.MaskMaker().decoder_self(TGT).int().tolist()
    assert found[0] == [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]
    assert found[1] == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]


def test_cross_attention_closes_source_pads_alone():
    found = masks.MaskMaker().cross(SRC, TGT)
    assert found.expand(2, 1, 3, 4)[0, 0].int().tolist() == [[1, 1, 1, 0]] * 3


def test_keys_and_queries_closes_pad_rows_too():
    found = masks.make_masks(SRC, TGT, "keys_and_queries")
    assert found.encoder_self[0, 0].int().tolist() == [[1, 1, 1, 0]] * 3 + [[0, 0, 0, 0]]
    assert found.decoder_self[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert found.cross[0, 0].int().tolist() == [[1, 1, 1, 0]] * 2 + [[0] * 4]
    assert masks.open_rows(found.cross)[0, 0, :, 0].tolist() == [True, True, False]


def test_closed_places_are_finite_numbers_in_every_precision():
    mask = masks.MaskMaker().encoder_self(SRC)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        numbers = masks.additive(mask, dtype)
        assert numbers.isfinite().all() and numbers[0, 0, 0].tolist()[:3] == [0, 0, 0]
        assert numbers[0, 0, 0, 3] < -6e4
    sight = Sight.of(mask, None, torch.float32)
    assert sight.open_rows is None, "every row sees something"


def view_of(
    src: list[str], tgt: list[str], pad_mask: str = "keys", fault: str | None = None
) -> View:
    """Sequences of digits, and a small model that reads them."""
    batch, _ = batch_of_sequences(src, tgt, VOCABULARY)
    model = model_of(VOCABULARY, pad_mask=pad_mask, positions="sinusoidal")
    if fault is not None:
        plant(fault, model)
    return View(batch, VOCABULARY, model, "fresh weights")


def of(found: list[Panel], number: str) -> list[Panel]:
    return [panel for panel in found if panel.number == number]


def cells(panel: Panel) -> list[str]:
    """The rows of a mask as words such as "11·"."""
    return ["".join(row) for _, row in panel.rows]


def test_data_of_a_padded_batch_by_hand():
    data = masks_as_data(view_of(["5 7 9", "4"], ["9 7 5", ""]))
    assert list(data) == ["src", "tgt_in", "tgt_out", "encoder_self", "decoder_self", "cross"]
    assert data["src"] == [[8, 10, 12, 2], [7, 2, 0, 0]]
    assert data["tgt_in"] == [[1, 12, 10, 8], [1, 0, 0, 0]]
    assert data["tgt_out"] == [[12, 10, 8, 2], [2, 0, 0, 0]]
    assert data["encoder_self"][1] == [[1, 1, 0, 0]] * 4
    assert data["decoder_self"][0] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert data["decoder_self"][1] == [[1, 0, 0, 0]] * 4
    assert data["cross"][1] == [[1, 1, 0, 0]] * 4


# The example of lesson 2: 4 of 5 places real in the source, 3 of 5 in the target.
LESSON = (["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"])


def test_the_first_six_panels_of_a_padded_pair_by_hand():
    found = list(panels(view_of(*LESSON)))
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
    assert decoder.notes == ("closed 13 of 25: p 3, t 3, b 7",)


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_panels_are_the_masks_that_the_model_makes(pad_mask):
    view = view_of(["5 7 9", "4"], ["9 7 5 5", "4 4"], pad_mask)
    src, tgt_in, _ = view.batch
    used = view.model.masks.all(src, tgt_in)
    found = list(panels(view))
    for row in (0, 1):
        shown = (of(found, "2")[row], of(found, "4")[3 * row + 2], of(found, "5")[row])
        for panel, mask in zip(shown, used, strict=True):
            keys = [column for column in panel.columns if "sees" not in column]
            drawn = [[cell == "1" for cell in row[: len(keys)]] for _, row in panel.rows]
            assert drawn == mask[row, 0].expand(len(drawn), -1).tolist()
    assert not any("NOT" in note for panel in found for note in panel.notes)


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("fault", [None, "no_causal", "pad_visible", "mask_flipped"])
def test_every_closed_cell_has_one_reason(pad_mask, fault):
    view = view_of(*LESSON, pad_mask, fault)
    for name in ATTENTIONS:
        letters = [c for grid in reasons(view, name) for line in grid for c in line]
        closed = int((~view.whole(name)).sum())
        assert sum(letters.count(letter) for letter in "ptbq?") == closed
        assert len(letters) == closed + letters.count("1") + letters.count("!")
        assert ("!" in letters or "?" in letters) == (
            fault in ("pad_visible", "mask_flipped")
            or (fault == "no_causal" and name == "decoder_self")
        )


def test_pad_queries_have_a_letter_of_their_own():
    view = view_of(*LESSON, "keys_and_queries")
    (grid, _) = reasons(view, "encoder_self")
    assert grid == [["1"] * 4 + ["p"]] * 4 + [["q"] * 4 + ["p"]]


def test_a_fault_is_seen_in_the_panels():
    found = list(panels(view_of(*LESSON, fault="triangle_off_by_one")))
    used = of(found, "4")[2]
    assert cells(used)[0] == "11···|    2" and "NOT" in used.notes[0]
    assert cells(of(found, "6")[1])[0] == "1!tbb"
    view = view_of(*LESSON)
    moved = dataclasses.replace(view.batch, tgt_out=view.batch.tgt_in)
    (_, last) = batch_panels(dataclasses.replace(view, batch=moved))
    assert "NOT" in last.notes[0]


def test_rows_of_a_table_are_the_same_masks():
    view = view_of(*LESSON)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in masks_as_rows(view)]
    assert len(rows) == 2 * (25 + 25 + 25)
    for name in ATTENTIONS:
        looks = [row["look"] for row in rows if row["mask"] == name]
        assert looks == view.whole(name).flatten().int().tolist()
    assert all(bool(row["reason"]) == (row["look"] == 0) for row in rows)
    assert rows[4] == {
        "pair": 1,
        "mask": "encoder_self",
        "query": 0,
        "query_token": "5",
        "key": 4,
        "key_token": "<pad>",
        "look": 0,
        "reason": REASONS["p"],
    }


# Numbers -------------------------------------------------------------------------------------


def row_of(panel: Panel, label: str) -> list[float]:
    """One row of numbers of a panel, without what stands behind the bar."""
    (found,) = [row for name, row in panel.rows if name == label]
    return [float(cell) for cell in found if "|" not in cell]


def test_an_empty_row_by_the_three_policies():
    for pad_mask, which in (("keys", "suppose"), ("keys_and_queries", "one of them")):
        (panel,) = of(list(number_panels(view_of(*LESSON, pad_mask))), "7")
        assert panel.shape.startswith(which) and "<pad>" in panel.shape
        assert all(value != value for value in row_of(panel, "-inf, softmax"))
        assert row_of(panel, "lowest, softmax") == [0.2] * 5
        assert row_of(panel, "zeroed (here)") == [0] * 5
        assert "0.200 of it over pads" in panel.notes[1]
        empty = "In this batch: none." if which == "suppose" else "pair 1: place 4"
        assert empty in panel.notes[0]


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_the_softmax_of_one_row_adds_up(positions):
    model = model_of(VOCABULARY, positions=positions)
    batch, _ = batch_of_sequences(*LESSON, VOCABULARY)
    view = View(batch, VOCABULARY, model, "fresh weights")
    (panel,) = of(list(number_panels(view)), "8")
    assert "pair 1, query 9 (place 1)" in panel.name
    shown = dict(panel.rows)
    assert shown["may look"][:5] == ["1", "1", CLOSED, CLOSED, CLOSED]
    raw, scaled = row_of(panel, "q k^T"), row_of(panel, "scaled")
    assert scaled == pytest.approx([value / 8**0.5 for value in raw], abs=0.01)  # 24 / 3 wide
    last = "+ bias" if positions == "anchored" else "scaled"
    expected = torch.tensor(row_of(panel, last)[:2]).softmax(0).tolist()
    assert row_of(panel, "weight") == pytest.approx([*expected, 0, 0, 0], abs=0.01)
    assert shown["weight"][-1] == shown["unmasked weight"][-1] == "| 1.000"
    loose = row_of(panel, "unmasked weight")
    assert loose == pytest.approx(torch.tensor(row_of(panel, last)).softmax(0).tolist(), abs=0.01)
    without = f"{loose[2]:.3f} on later tokens"
    assert without in panel.notes[0] and sum(loose[3:]) > 0
    assert panel.notes[1] == "With the mask 0 of the weight is on pads and 0 on later tokens."
    assert "-65504: it becomes -inf" in panel.notes[2]


def test_a_batch_whose_targets_have_no_pads_shows_cross_attention_too():
    found = of(list(number_panels(view_of(["5 7 9", "4"], ["9 7", "4 4"]))), "8")
    assert ["decoder" in panel.name for panel in found] == [True, False]
    assert "cross-attention, pair 2" in found[1].name
    assert float(found[1].notes[0].split()[3]) > 0


def test_numbers_are_short_and_zero_means_zero():
    shown = [number(x) for x in (0.0, -0.0, 0.001, -0.001, 1.5, -3.4028e38, -1e9, -65504)]
    assert shown == ["0", "0", "0.00", "0.00", "1.50", "-3.4e38", "-1e9", "-65504.00"]
    assert [number(x) for x in (float("-inf"), float("nan"))] == ["-inf", "nan"]


# Other libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("fault", [None, "mask_flipped"])
def test_a_pair_of_another_librarys_masks_is_that_pairs(library, pad_mask, fault):
    """Read back in our polarity, the arguments of one attention close what its mask closes."""
    view = view_of(["5 7 9", "4 6 8 3"], ["9", "3 8"], pad_mask, fault)
    src, tgt_in, _ = view.batch
    assert src.shape[1] != tgt_in.shape[1] and not view.whole("cross")[0].all()
    blocked = {"T"} if library in ("torch-mha", "sockeye") else {"F", "-inf", "-1e9", "-3.4e38"}
    for row in (0, 1):
        shown = {name: torch.ones_like(view.whole(name)[row]) for name in ATTENTIONS}
        for panel in converted(view, row, library):
            (name,) = [name for name, words in ATTENTIONS.items() if words in panel.name]
            of_keys = library == "hf" and "int64" in panel.shape
            closed = {"0"} if of_keys else blocked
            drawn = [[cell not in closed for cell in line] for _, line in panel.rows]
            shown[name] = shown[name] & torch.tensor(drawn)
            if of_keys and name == "decoder_self":  # the library lays the triangle over it
                shown[name] = shown[name].tril()
        for name in ATTENTIONS:
            assert torch.equal(shown[name], view.whole(name)[row]), (library, name, row)


def test_words_get_ids_too():
    batch, vocabulary = batch_of_sequences(["jump twice"], ["JUMP JUMP"])
    assert vocabulary.symbols == ("JUMP", "jump", "twice")
    assert batch.src.tolist() == [[4, 5, 2]]
