"""The recorder of attention calls."""

import torch
from conftest import inspected_of

from toytrans.inspection.record import capture, recording
from toytrans.inspection.trace import split_heads
from toytrans.model.attention import merge_heads


def test_every_attention_is_recorded_once_with_its_own_numbers() -> None:
    inspected = inspected_of()
    with recording(inspected.model.modules()) as recorded:
        calls = capture(inspected.model, inspected.batch)
    assert list(calls) == [(part, n) for part in ("encoder", "decoder", "cross") for n in (1, 2)]
    for (part, _), call in calls.items():
        steps = call.intermediates()
        assert (call.memory_kv is not None) == (part == "cross")
        ((_, output),) = recorded[call.module]
        torch.testing.assert_close(call.module.out_proj(merge_heads(steps.outputs)), output)
        closed = ~call.context.mask.expand_as(steps.weights)
        assert closed.any() and not steps.weights[closed].any()
        assert call.unmasked().weights[closed].all()
    assert not any(module._forward_hooks for module in inspected.model.modules())


def test_shared_layers_are_recorded_call_by_call() -> None:
    inspected = inspected_of(share_layers=True)
    layer = inspected.model.encoder_stack()[0]
    with recording([layer]) as recorded, torch.no_grad():
        calls = capture(inspected.model, inspected.batch)
        pair = calls["encoder", 1], calls["encoder", 2]
        for call, (args, _) in zip(pair, recorded[layer], strict=True):
            assert call.module is layer.self_attention
            assert torch.equal(call.x, layer.residuals[0].norm(args[0]))
    one, two = recorded[layer]
    assert torch.equal(two.args[0], one.output)


def test_heads_by_hand() -> None:
    """B 1, L 2, two parts, H 2, Dh 1."""
    projected = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    _, parted, transposed, pieces = split_heads(projected, 2, 2).values()
    assert pieces.tolist() == [[[[[1], [5]], [[2], [6]]]], [[[[3], [7]], [[4], [8]]]]]
    assert transposed.data_ptr() == parted.data_ptr() == projected.data_ptr()
    assert pieces.is_contiguous() and not transposed.is_contiguous()
