"""The recorder of attention calls."""

import torch
from conftest import inspected_of

from toytrans.inspection.record import capture, recording
from toytrans.inspection.trace import split_heads


def test_every_attention_is_recorded_once_with_its_own_numbers() -> None:
    inspected = inspected_of()
    calls = capture(inspected.model, inspected.batch)
    assert list(calls) == [(part, n) for part in ("encoder", "decoder", "cross") for n in (1, 2)]
    for (part, _), call in calls.items():
        steps, output = call.run()
        assert (call.memory_kv is not None) == (part == "cross")
        torch.testing.assert_close(output, call.output)
        closed = ~call.context.mask.expand_as(steps.weights)
        assert closed.any() and not steps.weights[closed].any()
        assert call.unmasked().weights[closed].all()
    assert not any(module._forward_hooks for module in inspected.model.modules())


def test_shared_layers_are_recorded_call_by_call() -> None:
    inspected = inspected_of(share_layers=True)
    calls = capture(inspected.model, inspected.batch)
    first, second = calls["encoder", 1], calls["encoder", 2]
    assert first.module is second.module and not torch.equal(first.x, second.x)
    layer, batch = inspected.model.encoder_stack()[0], inspected.batch
    with recording({"layer": layer}) as recorded, torch.no_grad():
        inspected.model(batch.src, batch.tgt_in)
    one, two = recorded["layer"]
    with torch.no_grad():
        assert torch.equal(first.x, layer.residuals[0].norm(one.args[0]))
        assert torch.equal(second.x, layer.residuals[0].norm(one.output))
    assert torch.equal(two.args[0], one.output)


def test_heads_by_hand() -> None:
    """B 1, L 2, two parts, H 2, Dh 1."""
    projected = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    split = split_heads(projected, 2, 2)
    assert split.pieces.tolist() == [[[[[1], [5]], [[2], [6]]]], [[[[3], [7]], [[4], [8]]]]]
    assert split.transposed.data_ptr() == split.parted.data_ptr() == projected.data_ptr()
    assert split.pieces.is_contiguous() and not split.transposed.is_contiguous()
