"""Position schemes: their names, and cross-attention with a scheme of its own."""

from typing import get_args

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of

from toytrans.config.names import PositionName
from toytrans.model.positions import position_scheme
from toytrans.model.positions.base import Positions
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


def test_configuration_and_model_name_the_same_schemes():
    for name in get_args(PositionName):
        model = config_of(model={"positions": name}).model
        assert isinstance(position_scheme(name, model, VOCABULARY), Positions)


def test_cross_attention_may_have_a_scheme_of_its_own():
    model = model_of(VOCABULARY, positions="rotary", cross_positions="anchored")
    assert model.config.source_bos
    layer = model.decoder_layers[0]
    assert layer.self_attention.bias_table is None and layer.cross_attention.bias_table is not None
    alone = model_of(VOCABULARY, positions="anchored", cross_positions="none")
    assert alone.decoder_layers[0].cross_attention.bias_table is None
    src = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID], [BOS_ID, 8, EOS_ID, PAD_ID, PAD_ID]])
    tgt_in = torch.tensor([[BOS_ID, 7, 6], [BOS_ID, 8, PAD_ID]])
    for each in (model, alone):
        parallel, state = each(src, tgt_in), each.start_decoding(src, 3)
        steps = [state.next_logits(tokens[:, None])[:, 0] for tokens in tgt_in.T]
        assert torch.allclose(parallel[0], torch.stack(steps, 1)[0], atol=1e-12)


def test_only_anchored_sources_carry_both_ends():
    marks = {
        name: config_of(model={"positions": name}).source_bos for name in get_args(PositionName)
    }
    assert {name for name, both in marks.items() if both} == {"anchored"}


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative", "anchored"])
def test_a_table_serves_a_training_and_grows_with_the_length_alone(positions):
    """It may have been made in inference mode, for a pass in another dtype."""
    model = model_of(VOCABULARY, positions=positions).double()
    ids = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    scheme = model.positions
    with torch.inference_mode():
        model(ids, ids)
    model(ids, ids).sum().backward()
    shape = scheme._table.shape
    for _ in range(2):
        for dtype in (torch.float32, torch.float64):
            model.to(dtype)(ids, ids)
            assert scheme._table.shape == shape and scheme._table.dtype == dtype
    before = scheme._table
    with torch.autocast("cpu", torch.bfloat16):
        model.float()(ids[:, :3], ids)
    kept = scheme._table
    model(ids, ids.repeat(1, 2))
    assert kept.dtype == torch.float32 and kept.shape == before.shape < scheme._table.shape
