"""The numbers of a trace are those of the forward pass."""

from itertools import product

import pytest
import torch
from conftest import VOCABULARY, config_of, inspected_of

from toytrans.inspection.record import PARTS
from toytrans.inspection.shown import InspectedBatch, fresh
from toytrans.inspection.table import Table
from toytrans.inspection.trace import (
    accounts,
    attempt_view,
    report,
    rounding,
    trace,
)
from toytrans.training.faults import build_model


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


def cells(table: Table) -> list[list[str]]:
    return [row for _, row in table.rows]


def named(tables: list[Table], name: str) -> Table:
    (found,) = [table for table in tables if table.name.startswith(name)]
    return found


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"norm": "post"},
        {"share_layers": True},
        {"positions": "anchored"},
        {"backward": "by_hand", "activation": "gelu_tanh"},
        {"tie_embeddings": False, "pad_mask": "keys_and_queries"},
        {"n_heads": 1},
    ],
)
@pytest.mark.parametrize("part", PARTS)
def test_the_layers_output_is_accounted_for(part: str, model: dict) -> None:
    found = trace(inspected_of(**model), part, 2)
    listed = {each["tensor"]: each for each in accounts(found)}
    sums = [name for name in listed if name.endswith("_sum")]
    assert len(sums) == (2 if part == "encoder" else 3)
    for name in (*sums, "merged", "layer_output"):
        assert listed[name]["verdict"] == "exact" and listed[name]["difference"] == 0
    for name in ("attention_normed", "feed_forward_normed", "attention_output"):
        assert listed[name]["verdict"] != "NOT EQUAL" and listed[name]["difference"] < 1e-12


def test_what_is_not_accounted_for_is_said() -> None:
    config = config_of(fault="no_residual", model={"n_encoder_layers": 1})
    sound = inspected_of()
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    view = InspectedBatch(sound.batch, VOCABULARY, model, "broken")
    table = report(trace(view, "encoder", 1), 0, 0).tables[-1]
    assert "NOT accounted for: attention sum" in table.notes[0] and "fault" in table.notes[0]
    assert "NOT EQUAL" in [row[-1] for row in cells(table)]
    assert rounding(1e-3, 1.0, torch.float32) == "NOT EQUAL"
    assert rounding(1e-6, 1.0, torch.float32) == "rounding"
    assert rounding(float("nan"), 1.0, torch.float32) == "NOT EQUAL"


def test_a_trained_looking_post_norm_is_summed_number_by_number() -> None:
    view = inspected_of(norm="post")
    found = trace(view, "decoder", 1)
    table = named(report(found, 0, 0).tables, "Number by number")
    assert "query 7, place 2, of pair 1" in table.name, "the last real one"
    table = {name: [float(cell) for cell in row] for name, row in table.rows}
    for total, parts in (
        ("= attention sum", ("layer input", "+ attention output")),
        ("= cross sum", ("norm: attention normed", "+ cross output")),
        ("= feed forward sum", ("norm: cross normed", "+ feed forward output")),
    ):
        summed = [sum(pair) for pair in zip(*(table[part] for part in parts), strict=True)]
        assert table[total] == pytest.approx(summed, abs=0.0016)
    assert table["norm: feed forward normed"] == table["layer output"]


def test_a_view_works_where_nothing_has_to_move() -> None:
    """tests/test_shown_output.py compares the strides and the errors that lessons show."""
    one_head = trace(inspected_of(n_heads=1), "encoder", 1).tensors["context_transposed"]
    (said,) = attempt_view("x", one_head, (2, 5, 24), "")
    assert "works: at these sizes nothing has to move" in said


@pytest.mark.parametrize("head", [0, 2])
def test_what_is_shown_of_a_head_is_that_heads(head: int) -> None:
    found = trace(inspected_of(), "encoder", 1)
    tables = report(found, 0, head).tables
    shown = {name: named(tables, name) for name in ("q, ", "projected", "context, ", "merged")}
    assert cells(shown["q, "]) == cells(shown["projected"])
    assert cells(shown["context, "]) == cells(shown["merged"])
    assert shown["merged"].columns[0] == f"d{8 * head + 1}"
    weights = named(tables, "weights")
    assert weights.name == f"weights, head {head + 1}" and weights.columns[-2:] == [
        "<pad>",
        "|  sum",
    ]
    assert [row[-2:] for row in cells(weights)] == [["0", "| 1.00"]] * 5
    expected = found.tensors["weights"][0, head]
    values = torch.tensor([[float(cell) for cell in row[:-1]] for row in cells(weights)]).double()
    assert (values - expected).abs().max() <= 0.005
