"""The CPU backend equals eager attention; which library multiplies."""

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.model.attention import eager_attention
from toytrans.model.backends import cpu
from toytrans.model.context import AttentionContext
from toytrans.model.decoding import search


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
    explicit = eager_attention(*given[:3], context, *given[3:], cap=cap).outputs
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


def test_the_cpu_backend_drops_the_same_weights_forwards_and_backwards():
    """With dropout both backends draw the same mask from the same random state."""
    context = AttentionContext.of(torch.ones(1, 1, 1, 20).bool(), None, torch.float64)
    given = [torch.randn(2, 3, 20, 5).double().requires_grad_() for _ in range(3)]
    found = []
    for backend in (eager_attention, cpu.attend):
        torch.manual_seed(5)
        output = backend(*given, context, dropout=0.3)
        output = output if isinstance(output, torch.Tensor) else output.outputs
        found.append((output, *torch.autograd.grad(output.square().sum(), given)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-11)
    undropped = cpu.attend(*given, context)
    assert not torch.allclose(found[0][0], undropped)


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
