"""The fused kernel equals eager attention; how much dropout drops, and what it depends on."""

import pytest
import torch
from conftest import VOCABULARY, context_with_an_empty_row, model_of

from toytrans.model.attention import eager_attention
from toytrans.model.backends import (
    Dropout,
    dropout,
    fused_attention,
    keep_mask,
    softmax,
)
from toytrans.model.context import AttentionContext, for_kernel, has_visible_key
from toytrans.model.decoding import search


def eager(*given, **options) -> torch.Tensor:
    return eager_attention(*given, **options).outputs


def of_gpu(mask: torch.Tensor, dtype: torch.dtype) -> AttentionContext:
    """The context that a GPU has of a mask."""
    visible = has_visible_key(mask)
    return AttentionContext(mask, for_kernel(mask, visible, dtype), visible)


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
    output = fused_attention(nought, nought, values, of_gpu(mask, torch.float32), dropout=0.3)
    assert (output[0] == 0).all(), "a row that sees nothing"
    kept = output[1:][output[1:] != 0]
    assert torch.allclose(kept, torch.tensor(1 / 50 / 0.7))
    assert kept.numel() / output[1:].numel() == pytest.approx(0.7, abs=0.01)


def test_a_programs_own_choice_of_products_is_no_error():
    """Made by torch's newer settings, after which its older ones cannot be read."""
    chosen, model = torch.backends.cuda.matmul, model_of(VOCABULARY).eval()
    before, chosen.fp32_precision = chosen.fp32_precision, "tf32"
    try:
        with pytest.raises(RuntimeError, match="precision"):
            torch.get_float32_matmul_precision()
        assert len(search(model, torch.tensor([[1, 5, 6, 2]])).tokens) == 1
    finally:
        chosen.fp32_precision = before


# Dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_rate_falls_out_and_the_rest_makes_up_for_it(rate, dtype):
    masks = [keep_mask(torch.empty(40, 51, dtype=dtype), rate) for _ in range(300)]
    mask = torch.stack(masks)
    assert mask.dtype == dtype and mask.shape == (300, 40, 51)
    kept = mask != 0
    # five standard deviations: of 612,000 draws, and of 300 thresholds rounded to 1 / 256
    spread = 5 * ((rate * (1 - rate) / 612_000) + 0.25 / 256**2 / 300) ** 0.5
    assert kept.double().mean().item() == pytest.approx(1 - rate, abs=spread)
    assert len(mask[kept].unique()) == 1, "what is kept weighs the same"
    assert mask[kept][0].item() == pytest.approx(1 / (1 - rate), rel=5e-3)


def test_neighbours_fall_out_independently():
    kept = (keep_mask(torch.empty(1_000_000), 0.3) != 0).double() - 0.7
    for shift in (1, 2, 3, 4, 8, 16):
        together = (kept[:-shift] * kept[shift:]).mean().item()
        assert abs(together) < 5 * 0.21 / 1000, shift


def test_the_random_state_decides_the_mask_and_evaluation_has_none():
    x = torch.ones(50, requires_grad=True)
    masks = []
    for _ in range(2):
        torch.manual_seed(3)
        masks.append(dropout(x, 0.5))
    assert torch.equal(*masks) and not torch.equal(masks[0], Dropout(0.5)(x))
    (gradient,) = torch.autograd.grad(masks[0].sum(), x)
    assert torch.equal(gradient, masks[0].detach())
    assert torch.equal(Dropout(0.0)(x), x) and torch.equal(Dropout(0.5).eval()(x), x)
