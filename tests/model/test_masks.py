"""Masks by hand."""

import torch

from toytrans.model import masks
from toytrans.model.attention import AttentionContext, mask_as_numbers

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
    maker = masks.MaskMaker("keys_and_queries")
    encoder_self, decoder_self = maker.encoder_self(SRC), maker.decoder_self(TGT)
    cross = maker.cross(SRC, TGT)
    assert encoder_self[0, 0].int().tolist() == [[1, 1, 1, 0]] * 3 + [[0, 0, 0, 0]]
    assert decoder_self[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert cross[0, 0].int().tolist() == [[1, 1, 1, 0]] * 2 + [[0] * 4]
    context = AttentionContext.of(cross, torch.float32)
    assert context.has_visible_key[0, 0, :, 0].tolist() == [True, True, False]


def test_closed_places_are_finite_numbers_in_every_precision():
    mask = masks.MaskMaker().encoder_self(SRC)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        numbers = mask_as_numbers(mask, dtype)
        assert numbers.isfinite().all() and numbers[0, 0, 0].tolist()[:3] == [0, 0, 0]
        assert numbers[0, 0, 0, 3] < -6e4
    context = AttentionContext.of(mask, torch.float32)
    assert context.has_visible_key is None, "every row sees something"
