"""The kernel that a GPU takes equals eager attention, and a softmax of few keys is torch's."""

import pytest
import torch
from conftest import context_with_an_empty_row

from toytrans.model.attention import (
    AttentionContext,
    eager_attention,
    fused_attention,
    fused_mask_bias,
    softmax,
)


def eager(*given, **options) -> torch.Tensor:
    return eager_attention(*given, **options).outputs


def of_gpu(mask: torch.Tensor, dtype: torch.dtype) -> AttentionContext:
    """The context that a GPU has of a mask."""
    visible = mask.any(-1, keepdim=True)
    return AttentionContext(mask, fused_mask_bias(mask, visible, dtype), visible)


@pytest.mark.parametrize("keys", [1, 7, 15, 16, 20])
def test_softmax_of_few_and_of_many_keys_is_torchs(keys):
    """Below 16 keys a CPU fills rows up; values and gradients are the same."""
    scores = torch.randn(2, 3, 5, keys, dtype=torch.float64, requires_grad=True)
    outward = torch.randn(scores.shape, dtype=torch.float64)
    ours, torchs = softmax(scores), torch.softmax(scores, -1)
    assert torch.allclose(ours, torchs, rtol=0, atol=1e-15)
    pairs = (torch.autograd.grad(weights, scores, outward)[0] for weights in (ours, torchs))
    assert torch.allclose(*pairs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("bias", [False, True])
def test_eager_attention_equals_torchs_kernel(bias, scale):
    context, added = context_with_an_empty_row(bias)
    q, k, v = (torch.randn(2, 3, 7, 5).requires_grad_() for _ in range(3))
    kernels = of_gpu(context.mask, q.dtype)
    found = []
    for backend, given in ((eager, context), (eager, kernels), (fused_attention, kernels)):
        output = backend(q, k, v, given, added, scale=scale)
        found.append((output, *torch.autograd.grad((output * torch.arange(5)).sum(), (q, k, v))))
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            assert ours.isfinite().all() and torch.allclose(ours, theirs, atol=1e-5)
    outputs = found[0][0]
    assert (outputs[1] == 0).all(), "nothing to look at gives zeros, never NaN"
    assert outputs[0].abs().min() > 0


def test_the_fused_kernel_in_bf16_is_near_eager_attention_in_fp64():
    """Outputs and gradients, to 3% of the largest number."""
    mask = torch.rand(2, 1, 1, 20) < 0.7
    given = [torch.randn(2, 3, 20, 8).bfloat16() for _ in range(3)]
    found = []
    for dtype, backend in ((torch.float64, eager), (torch.bfloat16, fused_attention)):
        q, k, v = (x.to(dtype).requires_grad_() for x in given)
        output = backend(q, k, v, of_gpu(mask, dtype))
        gradients = torch.autograd.grad(output.double().square().sum(), (q, k, v))
        found.append([x.double() for x in (output, *gradients)])
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).abs().max() < 0.03 * exact.abs().max()


def test_the_fused_kernel_drops_weights_at_the_rate_and_makes_up_for_it():
    """Equal weights on 50 keys whose values are one-hot, so that outputs are the weights."""
    mask = torch.ones(40, 1, 1, 50, dtype=torch.bool)
    mask[0] = False
    nought, values = torch.zeros(40, 3, 50, 8), torch.eye(50).expand(40, 3, 50, 50)
    output = fused_attention(nought, nought, values, of_gpu(mask, torch.float32), dropout_rate=0.3)
    assert (output[0] == 0).all(), "a row that sees nothing"
    kept = output[1:][output[1:] != 0]
    assert torch.allclose(kept, torch.tensor(1 / 50 / 0.7))
    assert kept.numel() / output[1:].numel() == pytest.approx(0.7, abs=0.01)
