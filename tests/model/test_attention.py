"""Attention: a case by hand, rows without a visible key, the cap, dropout."""

import math

import pytest
import torch
from conftest import VOCABULARY, context_with_an_empty_row, distances_of, model_of

from toytrans.inspection.record import intermediates
from toytrans.model.attention import eager_attention
from toytrans.model.context import AttentionContext
from toytrans.model.masks import MaskMaker


def test_two_by_two_by_hand():
    """Scores 1 and 0 over root 4, so weights e^0.5 / (e^0.5 + 1) and the rest."""
    q = torch.tensor([[[[1.0, 0, 0, 0], [0, 0, 0, 0]]]])
    k = torch.tensor([[[[1.0, 0, 0, 0], [0, 1, 0, 0]]]])
    v = torch.tensor([[[[1.0, 0, 0, 0], [0, 10, 0, 0]]]])
    steps = eager_attention(
        q, k, v, AttentionContext.of(torch.ones(1, 1, 1, 2).bool(), None, q.dtype)
    )
    first = math.exp(0.5) / (math.exp(0.5) + 1)
    assert steps.scores[0, 0].tolist() == [[0.5, 0], [0, 0]]
    assert steps.weights[0, 0, 0].tolist() == pytest.approx([first, 1 - first])
    assert steps.outputs[0, 0, 0].tolist() == pytest.approx([first, 10 * (1 - first), 0, 0])
    assert steps.outputs[0, 0, 1].tolist() == pytest.approx([0.5, 5, 0, 0])


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def test_weights_sum_to_one_and_closed_keys_get_exactly_nothing():
    context, added = context_with_an_empty_row(True)
    steps = eager_attention(*(heads(2, 3, 7, 5) for _ in range(3)), context, added)
    has_visible_key = context.mask.any(-1).expand(2, 3, 7)
    assert torch.allclose(steps.weights.sum(-1), has_visible_key.float(), atol=1e-6)
    assert (steps.weights[~context.mask.expand_as(steps.weights)] == 0).all()


def test_the_cap_bounds_scores_and_keeps_small_ones():
    q, k, v = (heads(1, 2, 5, 3) for _ in range(3))
    context = AttentionContext.of(torch.ones(1, 1, 1, 5).bool(), None, q.dtype)
    steps = eager_attention(100 * q, k, v, context, cap=2.0)
    assert steps.scores.abs().max() > 2 and steps.capped.abs().max() <= 2
    small = eager_attention(0.001 * q, k, v, context, cap=2.0)
    assert torch.allclose(small.scores, small.capped, atol=1e-6)


def test_every_intermediate_accounts_for_the_output():
    model = model_of(VOCABULARY, positions="anchored")
    layer = model.decoder_layers[0]
    src = torch.tensor([[1, 5, 6, 2, 0], [1, 4, 2, 0, 0]])
    tgt_in = torch.tensor([[1, 6, 5], [1, 4, 0]])

    distances = distances_of(model, 3, src)
    context = AttentionContext.of(MaskMaker().cross(src, tgt_in), distances, torch.float64)
    x, memory = torch.randn(2, 3, 24).double(), torch.randn(2, 5, 24).double()
    keys_values = layer.cross_attention.keys_values(memory)
    steps, output = intermediates(layer.cross_attention, x, context, keys_values)
    assert torch.allclose(
        output, layer.cross_attention(x, context, keys_values), rtol=0, atol=1e-12
    )
    assert torch.allclose(steps.weights @ keys_values[1], steps.outputs)
    assert torch.allclose(steps.masked.softmax(-1), steps.weights)


def test_dropout_falls_on_the_weights_in_training_alone():
    model = model_of(VOCABULARY, positions="none", dropout=0.5)
    attention = model.encoder_layers[0].self_attention
    x = torch.randn(1, 6, 24).double()
    context = AttentionContext.of(torch.ones(1, 1, 1, 6).bool(), None, torch.float64)
    assert torch.equal(attention(x, context), attention(x, context))
    attention.train()
    assert not torch.equal(attention(x, context), attention(x, context))
