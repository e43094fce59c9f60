"""What is recorded of a pass: every number of a trace is that of the model."""

import re

import pytest
import torch
from conftest import VOCABULARY, config_of, inspected_of

from toytrans.inspection.record import PARTS, Part, capture, recording
from toytrans.inspection.shown import InspectedBatch, fresh
from toytrans.inspection.trace import accounts, split_heads, tables, trace
from toytrans.model.attention import Attention, merge_heads
from toytrans.model.build import build_model


def test_every_attention_is_recorded_once_with_its_own_numbers():
    inspected = inspected_of()
    with recording(inspected.model.modules()) as recorded:
        calls = capture(inspected.model, inspected.batch)
    assert list(calls) == [(part, n) for part in PARTS for n in (1, 2)]
    for (part, _), call in calls.items():
        steps = call.intermediates()
        assert (call.memory_kv is not None) == (part == "cross")
        ((_, output),) = recorded[call.module]
        torch.testing.assert_close(call.module.out_proj(merge_heads(steps.outputs)), output)
        closed = ~call.context.mask.expand_as(steps.weights)
        assert closed.any() and not steps.weights[closed].any()
        assert call.unmasked().weights[closed].all()
    assert not any(module._forward_hooks for module in inspected.model.modules())


def test_heads_by_hand():
    """B 1, L 2, two parts, H 2, Dh 1."""
    projected = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    _, parted, transposed, pieces = split_heads(projected, 2, 2).values()
    assert pieces.tolist() == [[[[[1], [5]], [[2], [6]]]], [[[[3], [7]], [[4], [8]]]]]
    assert transposed.data_ptr() == parted.data_ptr() == projected.data_ptr()
    assert pieces.is_contiguous() and not transposed.is_contiguous()


@pytest.mark.parametrize("part", PARTS)
def test_every_number_was_made_from_the_one_before(part: Part):
    found = trace(inspected_of(), part, 2).tensors
    q, k, v = found["q"], found["k"], found["v"]
    width = q.shape[-1]
    assert torch.allclose(found["scores"], torch.einsum("bhqd,bhkd->bhqk", q, k) / width**0.5)
    closed = ~found["mask"].expand_as(found["scores"])
    assert closed.any() and (found["weights"][closed] == 0).all()
    expected = found["scores"].masked_fill(closed, -torch.inf).softmax(-1)
    assert torch.allclose(found["weights"], expected)
    assert torch.allclose(found["context"], found["weights"] @ v)
    for head in range(3):
        columns = found["merged"][..., head * width : (head + 1) * width]
        assert torch.equal(columns, found["context"][:, head])
    assert torch.equal(q[:, 1], found["projected"][..., width : 2 * width])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("model", [{"norm": "pre", "share_layers": True}, {"norm": "post"}])
def test_a_layer_goes_on_from_the_layer_before_it(part: Part, model: dict):
    view = inspected_of(**model)
    first, second = (trace(view, part, layer).tensors for layer in (1, 2))
    assert torch.allclose(first["layer_output"], second["layer_input"], atol=1e-12)
    assert not torch.allclose(first["layer_output"], second["layer_output"], atol=1e-2)
    assert torch.equal(first["layer_input"], first["embedded"])
    with torch.no_grad():
        memory = view.model.encode(view.batch.src)
        logits = view.model(view.batch.src, view.batch.tgt_in)
        if part == "encoder":
            made, expected = view.model.encoder_norm(second["layer_output"]), memory
        else:
            made, expected = view.model.decoder_norm(second["layer_output"]), logits
            made = view.model.output(made)
        assert torch.allclose(made, expected, atol=1e-12)
        if part == "cross":
            assert torch.allclose(second["memory"], memory, atol=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        {"share_layers": True, "positions": "anchored"},
        {"norm": "post", "activation": "gelu_tanh"},
        {"tie_embeddings": False, "pad_mask": "keys_and_queries"},
    ],
)
def test_the_layers_output_is_accounted_for(model: dict):
    for part in PARTS:
        listed = {each["tensor"]: each for each in accounts(trace(inspected_of(**model), part, 2))}
        sums = [name for name in listed if name.endswith("_sum")]
        assert len(sums) == (2 if part == "encoder" else 3)
        for name, each in listed.items():
            exact = name in (*sums, "merged", "layer_output")
            assert each["verdict"] == "exact" if exact else each["difference"] < 1e-12


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no_residual", "NOT accounted for: attention sum"),
        ("no_feed_forward", "The layer's output is accounted for"),
    ],
)
def test_what_is_not_accounted_for_is_said(fault: str, said: str):
    config = config_of(fault=fault, model={"n_encoder_layers": 1})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    view = InspectedBatch(inspected_of().batch, VOCABULARY, model, "broken")
    table = tables(trace(view, "encoder", 1), 0, 0)[-1]
    assert said in table.notes[0]
    assert {label: cells for label, *cells in table.rows}["attention sum"][-1] == (
        "NOT EQUAL" if "NOT" in said else "exact"
    )


@pytest.mark.parametrize("head", [0, 2])
def test_what_is_shown_of_a_head_is_that_heads(head: int):
    found = trace(inspected_of(), "encoder", 1)
    by_name = {table.title.partition(",")[0]: table for table in tables(found, 0, head)}
    rows = {name: [cells for _, *cells in table.rows] for name, table in by_name.items()}
    assert rows["q"] == rows["projected"] and rows["context"] == rows["merged"]
    assert by_name["merged"].columns[1] == f"d{8 * head + 1}"
    assert by_name["weights"].title == f"weights, head {head + 1}"
    assert [row[-2:] for row in rows["weights"]] == [["0", "| 1.00"]] * 5
    values = torch.tensor([[float(cell) for cell in row[:-1]] for row in rows["weights"]]).double()
    assert (values - found.tensors["weights"][0, head]).abs().max() <= 0.005


def test_leaks_by_hand():
    """Queries are zero, so without a mask all weights are the same.

    Pair 1 has 1 pad of 5 in src and 2 of 5 in tgt_in; its real target places are 0 to 2.
    """
    view = inspected_of()
    for module in view.model.modules():
        if isinstance(module, Attention):
            with torch.no_grad():
                module.in_proj.weight[: module.in_proj.in_features] = 0
                module.in_proj.bias[: module.in_proj.in_features] = 0
    rows, notes = {}, {}
    for part in PARTS:
        (table,) = (
            table
            for table in tables(trace(view, part, 1), 0, 0)
            if table.title == "unmasked weights, head 1"
        )
        rows[part] = [line[5:] for _, *line in table.rows]
        notes[part] = re.findall(r"0\.\d+", " ".join(table.notes))
    assert rows["encoder"] == rows["cross"] == [["| 0.20"]] * 5
    assert [row[0] for row in rows["decoder"]] == ["| 0.40"] * 5
    assert [float(row[1].strip("| ")) for row in rows["decoder"][:3]] == [0.4, 0.2, 0]
    assert notes["decoder"] == ["0.400", "0.400", "0.200", "0.200"]
