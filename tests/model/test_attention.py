"""Attention: a case by hand, rows without a visible key, the cap, dropout."""

import math

import pytest
import torch
from conftest import context_with_an_empty_row

from toytrans.model.attention import AttentionContext, eager_attention


def test_two_by_two_by_hand():
    """Scores 1 and 0 over root 4, so weights e^0.5 / (e^0.5 + 1) and the rest."""
    q = torch.tensor([[[[1.0, 0, 0, 0], [0, 0, 0, 0]]]])
    k = torch.tensor([[[[1.0, 0, 0, 0], [0, 1, 0, 0]]]])
    v = torch.tensor([[[[1.0, 0, 0, 0], [0, 10, 0, 0]]]])
    steps = eager_attention(q, k, v, AttentionContext.of(torch.ones(1, 1, 1, 2).bool(), q.dtype))
    first = math.exp(0.5) / (math.exp(0.5) + 1)
    assert steps.scores[0, 0].tolist() == [[0.5, 0], [0, 0]]
    assert steps.weights[0, 0, 0].tolist() == pytest.approx([first, 1 - first])
    assert steps.outputs[0, 0, 0].tolist() == pytest.approx([first, 10 * (1 - first), 0, 0])
    assert steps.outputs[0, 0, 1].tolist() == pytest.approx([0.5, 5, 0, 0])


def test_weights_sum_to_one_and_closed_keys_get_exactly_nothing():
    context, added = context_with_an_empty_row(True)
    steps = eager_attention(*(torch.randn(2, 3, 7, 5) for _ in range(3)), context, added)
    has_visible_key = context.mask.any(-1).expand(2, 3, 7)
    assert torch.allclose(steps.weights.sum(-1), has_visible_key.float(), atol=1e-6)
    assert (steps.weights[~context.mask.expand_as(steps.weights)] == 0).all()


def test_the_cap_bounds_scores_and_keeps_small_ones():
    q, k, v = (torch.randn(1, 2, 5, 3) for _ in range(3))
    context = AttentionContext.of(torch.ones(1, 1, 1, 5).bool(), q.dtype)
    steps = eager_attention(100 * q, k, v, context, cap=2.0)
    assert steps.scores.abs().max() > 2 and steps.capped.abs().max() <= 2
    small = eager_attention(0.001 * q, k, v, context, cap=2.0)
    assert torch.allclose(small.scores, small.capped, atol=1e-6)
