"""Masks by hand, and as the panels of inspect-masks show them."""

import pytest
import torch

from toytrans.insight.mask_panels import batch_of_sequences, masks_as_data, panels
from toytrans.model import masks
from toytrans.model.attention import Sight

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


def test_data_of_a_padded_batch_by_hand():
    batch, _ = batch_of_sequences(["5 7 9", "4"], ["9 7 5", ""])
    data = masks_as_data(batch)
    assert list(data) == ["src", "tgt_in", "tgt_out", "encoder_self", "decoder_self", "cross"]
    assert data["src"] == [[8, 10, 12, 2], [7, 2, 0, 0]]
    assert data["tgt_in"] == [[1, 12, 10, 8], [1, 0, 0, 0]]
    assert data["tgt_out"] == [[12, 10, 8, 2], [2, 0, 0, 0]]
    assert data["encoder_self"][1] == [[1, 1, 0, 0]] * 4
    assert data["decoder_self"][0] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert data["decoder_self"][1] == [[1, 0, 0, 0]] * 4
    assert data["cross"][1] == [[1, 1, 0, 0]] * 4


@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_panels_are_the_masks_that_attention_uses(pad_mask):
    batch, vocabulary = batch_of_sequences(["5 7 9", "4"], ["9 7 5 5", "4 4"])
    used = masks.make_masks(batch.src, batch.tgt_in, pad_mask)
    shown = panels(batch, 1, vocabulary, pad_mask)
    assert len(shown) == 5
    assert shown[0].keys == ["4", "<eos>", "<pad>", "<pad>"]
    assert shown[4].queries == ["<bos>", "4", "4", "<pad>", "<pad>"]
    for panel, mask in ((shown[0], used[0]), (shown[3], used[1]), (shown[4], used[2])):
        shape = (len(panel.queries), len(panel.keys))
        assert panel.mask == mask[1, 0].expand(shape).tolist()
    pads, triangle = shown[1].mask, shown[2].mask
    assert pads == [[True, True, True, False, False]] * 5
    assert triangle[1] == [True, True, False, False, False]


def test_words_get_ids_too():
    batch, vocabulary = batch_of_sequences(["jump twice"], ["JUMP JUMP"])
    assert vocabulary.symbols == ("JUMP", "jump", "twice")
    assert batch.src.tolist() == [[4, 5, 2]]
