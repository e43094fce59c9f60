"""Attention: a case by hand, torch's kernel, empty rows, the cap."""

import math

import pytest
import torch
from conftest import VOCABULARY, distances_of, model_of

from toytrans.insight.capture import intermediates
from toytrans.model.attention import eager_attention
from toytrans.model.backends import cpu, sdpa
from toytrans.model.backends.cpu import leave_products_to_onednn
from toytrans.model.context import AttentionContext
from toytrans.model.decoding import greedy
from toytrans.model.kv_cache import KVCache
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
    assert steps.context[0, 0, 0].tolist() == pytest.approx([first, 10 * (1 - first), 0, 0])
    assert steps.context[0, 0, 1].tolist() == pytest.approx([0.5, 5, 0, 0])


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def context_with_an_empty_row(bias: bool) -> tuple[AttentionContext, torch.Tensor | None]:
    tgt_in = torch.tensor([[1, 5, 6, 7, 0, 0, 0], [0] * 7])
    mask = MaskMaker().decoder_self(tgt_in)
    assert not mask[1].any(), "the second row of the batch sees nothing"
    return AttentionContext.of(mask, None, torch.float32), torch.randn(1, 3, 7, 7) if bias else None


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("bias", [False, True])
def test_eager_attention_equals_torchs_kernel(bias, scale):
    context, added = context_with_an_empty_row(bias)
    q, k, v = (heads(2, 3, 7, 5).requires_grad_() for _ in range(3))
    gradients = []
    outputs = []
    for backend in (eager_attention, sdpa.attend):
        output = backend(q, k, v, context, added, scale=scale)
        output = output if isinstance(output, torch.Tensor) else output.context
        outputs.append(output.detach())
        gradients.append(torch.autograd.grad((output * torch.arange(5)).sum(), (q, k, v)))
    assert torch.allclose(*outputs, atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.isfinite().all()
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert (outputs[0][1] == 0).all(), "nothing to look at gives zeros, never NaN"
    assert outputs[0][0].abs().min() > 0


@pytest.mark.parametrize("keys", [7, 20])
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("bias", [None, (1, 3, 7, 1), (2, 3, 7, 1)])
def test_the_cpu_backend_equals_eager_attention(keys, cap, bias):
    """Outputs and all gradients, empty rows included; below and above the width from which on
    softmax takes another way."""
    mask = torch.rand(2, 1, 7, keys) < 0.5
    mask[1, :, 3:] = False
    assert not mask.any(-1).all() and mask.any(-1).any()
    context = AttentionContext.of(mask, None, torch.float64)
    inputs = [torch.randn(2, 3, n, 5).double() for n in (7, keys, keys)]
    if bias:
        inputs.append(torch.randn(*bias[:3], keys).double())
    given = [x.requires_grad_() for x in inputs]
    explicit = eager_attention(*given[:3], context, *given[3:], cap=cap).context
    lean = cpu.attend(*given[:3], context, *given[3:], cap=cap)
    assert torch.allclose(explicit, lean, rtol=0, atol=1e-13)
    outward = torch.randn_like(lean)
    pairs = (torch.autograd.grad(output, given, outward) for output in (explicit, lean))
    for ours, theirs in zip(*pairs, strict=True):
        assert theirs.abs().max() > 0
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    before = [x.clone() for x in (*inputs, context.additive)]
    with torch.no_grad():  # in place
        again = cpu.attend(*given[:3], context, *given[3:], cap=cap)
    assert torch.allclose(explicit, again, rtol=0, atol=1e-13)
    assert all(map(torch.equal, before, (*inputs, context.additive))), "nothing given is changed"


@pytest.mark.parametrize(("quick", "cap"), [(cpu.attend, {"cap": 2.0}), (sdpa.attend, {})])
def test_backends_in_bf16_are_near_eager_attention_in_fp64(quick, cap):
    """Context and gradients, to 3% of the largest number."""
    mask = torch.rand(2, 1, 1, 20) < 0.7
    given = [torch.randn(2, 3, 20, 8).bfloat16() for _ in range(3)]
    found = []
    for dtype, backend in ((torch.float64, eager_attention), (torch.bfloat16, quick)):
        q, k, v = (x.to(dtype).requires_grad_() for x in given)
        context = backend(q, k, v, AttentionContext.of(mask, None, dtype), **cap)
        context = context if isinstance(context, torch.Tensor) else context.context
        gradients = torch.autograd.grad(context.double().square().sum(), (q, k, v))
        found.append([x.double() for x in (context, *gradients)])
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).abs().max() < 0.03 * exact.abs().max()


def test_the_cpu_backend_drops_the_same_weights_forwards_and_backwards():
    """With dropout both backends draw the same mask from the same random state."""
    context = AttentionContext.of(torch.ones(1, 1, 1, 20).bool(), None, torch.float64)
    given = [torch.randn(2, 3, 20, 5).double().requires_grad_() for _ in range(3)]
    found = []
    for backend in (eager_attention, cpu.attend):
        torch.manual_seed(5)
        output = backend(*given, context, dropout=0.3)
        output = output if isinstance(output, torch.Tensor) else output.context
        found.append((output, *torch.autograd.grad(output.square().sum(), given)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-11)
    undropped = cpu.attend(*given, context)
    assert not torch.allclose(found[0][0], undropped)


def test_sdpa_drops_weights_at_the_rate_and_makes_up_for_it():
    """Equal weights on 50 keys whose values are one-hot, so that the context is the weights."""
    mask = torch.ones(40, 1, 1, 50, dtype=torch.bool)
    mask[0] = False
    context = AttentionContext.of(mask, None, torch.float32)
    nought, values = torch.zeros(40, 3, 50, 8), torch.eye(50).expand(40, 3, 50, 50)
    context = sdpa.attend(nought, nought, values, context, dropout=0.3)
    assert (context[0] == 0).all(), "a row that sees nothing"
    kept = context[1:][context[1:] != 0]
    assert torch.allclose(kept, torch.tensor(1 / 50 / 0.7))
    assert kept.numel() / context[1:].numel() == pytest.approx(0.7, abs=0.01)


def test_products_of_few_queries_are_not_onednns(monkeypatch):
    """In inference, where all others are; nothing is changed where torch was left alone."""
    bmm, seen = torch.bmm, []

    def noted(*operands: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return bmm(*operands)

    monkeypatch.setattr(torch, "bmm", noted)
    for onednn, expected in ((False, ["highest"] * 4), (True, ["highest"] * 2 + ["medium"] * 2)):
        leave_products_to_onednn(onednn)
        before = torch.get_float32_matmul_precision()
        seen.clear()
        with torch.no_grad():
            for queries in (1, 9):
                cpu.attend(
                    heads(1, 2, queries, 5),
                    heads(1, 2, 9, 5),
                    heads(1, 2, 9, 5),
                    AttentionContext(),
                )
        assert seen == expected
        assert torch.get_float32_matmul_precision() == before


def test_a_programs_own_choice_of_products_is_no_error():
    """Made by torch's newer settings, after which its older ones cannot be read."""
    chosen, model = torch.backends.cuda.matmul, model_of(VOCABULARY).eval()
    before, chosen.fp32_precision = chosen.fp32_precision, "tf32"
    try:
        with pytest.raises(RuntimeError, match="precision"):
            torch.get_float32_matmul_precision()
        assert len(greedy(model, torch.tensor([[1, 5, 6, 2]])).tokens) == 1
    finally:
        chosen.fp32_precision = before


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
    assert torch.allclose(steps.weights @ keys_values[1], steps.context)
    assert torch.allclose(steps.masked.softmax(-1), steps.weights)


def test_a_cache_keeps_what_was_appended_and_the_sources_selected():
    cache = KVCache(3, 2, 4, 2, 5, torch.zeros(1))
    parts = [torch.randn(3, 2, 2, 5) for _ in range(3)]  # two beams
    for part in parts[:2]:
        cache.extend(part, -part)
    cache.select(torch.tensor([2, 0]))
    k, v = cache.extend(parts[2][:2], -parts[2][:2])
    expected = torch.cat((*(part[[2, 0]] for part in parts[:2]), parts[2][:2]), 2)
    assert torch.equal(k, expected) and torch.equal(v, -expected)


def test_dropout_falls_on_the_weights_in_training_alone():
    model = model_of(VOCABULARY, positions="none", dropout=0.5)
    attention = model.encoder_layers[0].self_attention
    x = torch.randn(1, 6, 24).double()
    context = AttentionContext.of(torch.ones(1, 1, 1, 6).bool(), None, torch.float64)
    assert torch.equal(attention(x, context), attention(x, context))
    attention.train()
    assert not torch.equal(attention(x, context), attention(x, context))
