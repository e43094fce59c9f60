"""How much dropout drops, and what it depends on."""

import pytest
import torch

from toytrans.model.dropout import Dropout, dropout, keep_mask


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
