"""The numbers of a trace are those of the forward pass."""

import json
import math
from itertools import product

import pytest
import torch
from conftest import inspected_of

from toytrans.files import json_text
from toytrans.insight.attention.trace import Trace, TraceReport, trace
from toytrans.insight.capture import PARTS


@pytest.mark.parametrize("part", PARTS)
def test_every_number_was_made_from_the_one_before(part: str) -> None:
    found = trace(inspected_of(), part, 2).tensors
    q, k, v = found["q"], found["k"], found["v"]
    width = q.shape[-1]
    assert torch.allclose(found["scores"], torch.einsum("bhqd,bhkd->bhqk", q, k) / width**0.5)
    closed = ~found["mask"].expand_as(found["scores"])
    assert closed.any() and (found["weights"][closed] == 0).all()
    expected = found["scores"].masked_fill(closed, -torch.inf).softmax(-1)
    assert torch.allclose(found["weights"], expected)
    assert torch.allclose(found["weights"].sum(-1), torch.ones(()).double())
    assert torch.allclose(found["context"], found["weights"] @ v)
    for head in range(3):
        columns = found["merged"][..., head * width : (head + 1) * width]
        assert torch.equal(columns, found["context"][:, head])
    assert torch.equal(q[:, 1], found["projected"][..., width : 2 * width])


@pytest.mark.parametrize(
    ("part", "shared", "norm"), list(product(PARTS, [False, True], ["pre", "post"]))
)
def test_a_layer_goes_on_from_the_layer_before_it(part: str, shared: bool, norm: str) -> None:
    view = inspected_of(share_layers=shared, norm=norm)
    first, second = (trace(view, part, layer).tensors for layer in (1, 2))
    # the pass of the second trace takes its first layer by the quick road
    assert torch.allclose(first["layer_output"], second["layer_input"], atol=1e-12)
    assert not torch.allclose(first["layer_output"], second["layer_output"], atol=1e-2)
    assert torch.equal(first["layer_input"], first["embedded"])
    model = view.model
    with torch.no_grad():
        memory = model.encode(view.batch.src)
        logits = model(view.batch.src, view.batch.tgt_in)
        if part == "encoder":
            assert torch.allclose(model.encoder_norm(second["layer_output"]), memory, atol=1e-12)
        else:
            made = model.output(model.decoder_norm(second["layer_output"]))
            assert torch.allclose(made, logits, atol=1e-12)
        if part == "cross":
            assert torch.allclose(second["memory"], memory, atol=1e-12)


def test_tracing_leaves_the_model_as_it_was() -> None:
    view = inspected_of()
    before = {name: value.clone() for name, value in view.model.state_dict().items()}
    trace(view, "cross", 1)
    assert not any(module._forward_hooks for module in view.model.modules())
    assert all(torch.equal(value, before[n]) for n, value in view.model.state_dict().items())


def test_a_trace_names_its_attention() -> None:
    found: Trace = trace(inspected_of(), "cross", 2)
    assert found.title == "cross-attention, layer 2, test weights"


def test_numbers_that_json_lacks_become_null() -> None:
    values = torch.tensor([[1.0, -math.inf], [math.nan, 2.0]])
    document = json.loads(json_text(TraceReport([], {"x": values}).to_dict()))
    assert document["tensors"][0]["values"] == [[1.0, None], [None, 2.0]]
