"""Torch's fused kernel equals eager attention."""

import pytest
import torch
from conftest import context_with_an_empty_row

from toytrans.model.attention import eager_attention
from toytrans.model.backends import cpu, sdpa
from toytrans.model.context import AttentionContext, for_kernel, has_visible_key


def of_gpu(mask: torch.Tensor, dtype: torch.dtype) -> AttentionContext:
    """The context that a GPU has of a mask."""
    visible = has_visible_key(mask)
    return AttentionContext(mask, for_kernel(mask, visible, dtype), visible)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("bias", [False, True])
def test_eager_attention_equals_torchs_kernel(bias, scale):
    context, added = context_with_an_empty_row(bias)
    q, k, v = (torch.randn(2, 3, 7, 5).requires_grad_() for _ in range(3))
    gradients = []
    outputs = []
    assert not context.has_visible_key.all()
    eager = (eager_attention, context), (eager_attention, of_gpu(context.mask, q.dtype))
    for backend, given in (*eager, (sdpa.attend, of_gpu(context.mask, q.dtype))):
        output = backend(q, k, v, given, added, scale=scale)
        output = output if isinstance(output, torch.Tensor) else output.outputs
        outputs.append(output.detach())
        gradients.append(torch.autograd.grad((output * torch.arange(5)).sum(), (q, k, v)))
    for one in (1, 2):
        assert torch.allclose(outputs[0], outputs[one], atol=1e-5)
        for ours, theirs in zip(gradients[0], gradients[one], strict=True):
            assert ours.isfinite().all()
            assert torch.allclose(ours, theirs, atol=1e-5)
    assert (outputs[0][1] == 0).all(), "nothing to look at gives zeros, never NaN"
    assert outputs[0][0].abs().min() > 0


@pytest.mark.parametrize(("quick", "cap"), [(cpu.attend, {"cap": 2.0}), (sdpa.attend, {})])
def test_backends_in_bf16_are_near_eager_attention_in_fp64(quick, cap):
    """Outputs and gradients, to 3% of the largest number."""
    mask = torch.rand(2, 1, 1, 20) < 0.7
    given = [torch.randn(2, 3, 20, 8).bfloat16() for _ in range(3)]
    found = []
    for dtype, backend in ((torch.float64, eager_attention), (torch.bfloat16, quick)):
        q, k, v = (x.to(dtype).requires_grad_() for x in given)
        output = backend(q, k, v, of_gpu(mask, dtype), **cap)
        output = output if isinstance(output, torch.Tensor) else output.outputs
        gradients = torch.autograd.grad(output.double().square().sum(), (q, k, v))
        found.append([x.double() for x in (output, *gradients)])
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).abs().max() < 0.03 * exact.abs().max()


def test_sdpa_drops_weights_at_the_rate_and_makes_up_for_it():
    """Equal weights on 50 keys whose values are one-hot, so that the context is the weights."""
    mask = torch.ones(40, 1, 1, 50, dtype=torch.bool)
    mask[0] = False
    context = of_gpu(mask, torch.float32)
    nought, values = torch.zeros(40, 3, 50, 8), torch.eye(50).expand(40, 3, 50, 50)
    context = sdpa.attend(nought, nought, values, context, dropout=0.3)
    assert (context[0] == 0).all(), "a row that sees nothing"
    kept = context[1:][context[1:] != 0]
    assert torch.allclose(kept, torch.tensor(1 / 50 / 0.7))
    assert kept.numel() / context[1:].numel() == pytest.approx(0.7, abs=0.01)
