"""`toytrans trace`: its numbers are those of the pass, its examples are those of the lessons."""

import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, Command, config_of, model_of
from safetensors.torch import load_file

from toytrans.insight.attention import examples
from toytrans.insight.attention.ablations import leaks, scales, sharpness
from toytrans.insight.attention.trace import Trace, TraceReport, trace
from toytrans.insight.attention.trace_tables import (
    accounts,
    attempt_view,
    layout,
    report,
    rounding,
)
from toytrans.insight.inspected import InspectedBatch, batch_of_sequences, fresh
from toytrans.insight.tables import CLOSED, Table
from toytrans.model.attention import Attention
from toytrans.model.masks import padding_mask
from toytrans.safe_io import json_text
from toytrans.training.faults import build_model

GIVEN = ("--src", "5 7 9", "--tgt", "9 7", "--src", "4 6 8 3", "--tgt", "3 8 6 4")
PARTS = ("encoder", "decoder", "cross")
TINY = """\
seed: 3
data: {task: copy, symbols: 5, train_length: [1, 4], valid_examples: 8, test_examples: 8}
model: {d_model: 8, n_heads: 2, n_encoder_layers: 2, n_decoder_layers: 2, d_ff: 8}
train: {max_steps: 2, precision: fp32}
"""


def view_of(**model: object) -> InspectedBatch:
    """Two pairs of a small model in fp64; the first has one pad in src and two in tgt_in."""
    batch, _ = batch_of_sequences(["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"], VOCABULARY)
    assert (batch.src == 0).sum(1).tolist() == [1, 0]
    assert (batch.tgt_in == 0).sum(1).tolist() == [2, 0]
    sizes = {"n_encoder_layers": 2, "n_decoder_layers": 2, "positions": "sinusoidal"}
    return InspectedBatch(
        batch, VOCABULARY, model_of(VOCABULARY, **(sizes | model)), "test weights"
    )


def cells(table: Table) -> list[list[str]]:
    return [row for _, row in table.rows]


def named(tables: list[Table], name: str) -> Table:
    (found,) = [table for table in tables if table.name.startswith(name)]
    return found


# The pass ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_every_number_was_made_from_the_one_before(part: str) -> None:
    found = trace(view_of(), part, 2).tensors
    q, k, v = found["q"], found["k"], found["v"]
    width = q.shape[-1]
    assert torch.allclose(found["scores"], torch.einsum("bhqd,bhkd->bhqk", q, k) / width**0.5)
    closed = ~found["mask"].expand_as(found["scores"])
    assert closed.any() and (found["weights"][closed] == 0).all()
    expected = found["capped"].masked_fill(closed, -torch.inf).softmax(-1)
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
    view = view_of(share_layers=shared, norm=norm)
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
    view = view_of()
    before = {name: value.clone() for name, value in view.model.state_dict().items()}
    trace(view, "cross", 1)
    assert not any(module._forward_hooks for module in view.model.modules())
    assert all(torch.equal(value, before[n]) for n, value in view.model.state_dict().items())


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
    found = trace(view_of(**model), part, 2)
    listed = {each.tensor: each for each in accounts(found)}
    sums = [name for name in listed if name.endswith("_sum")]
    assert len(sums) == (2 if part == "encoder" else 3)
    for name in (*sums, "merged", "layer_output"):
        assert listed[name].verdict == "exact" and listed[name].difference == 0
    for name in ("attention_normed", "feed_forward_normed", "attention_output"):
        assert listed[name].verdict in ("exact", "rounding") and listed[name].difference < 1e-12
    assert found.backend_difference < 1e-12


def test_what_is_not_accounted_for_is_said() -> None:
    config = config_of(fault="no_residual", model={"n_encoder_layers": 1})
    sound = view_of()
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    view = InspectedBatch(sound.batch, VOCABULARY, model, "broken")
    table = report(trace(view, "encoder", 1), 0, 0).tables[-1]
    assert "NOT accounted for: attention sum" in table.notes[0] and "fault" in table.notes[0]
    assert "NOT EQUAL" in [row[-1] for row in cells(table)]
    assert rounding(1e-3, 1.0, torch.float32) == "NOT EQUAL"
    assert rounding(1e-6, 1.0, torch.float32) == "rounding"
    assert rounding(float("nan"), 1.0, torch.float32) == "NOT EQUAL"


def test_a_trained_looking_post_norm_is_summed_number_by_number() -> None:
    view = view_of(norm="post")
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


# Memory --------------------------------------------------------------------------------------


def test_strides_by_hand() -> None:
    """B 2, S 5, D 24, H 3, Dh 8."""
    found = trace(view_of(), "encoder", 1).tensors
    expected = {
        "projected": ((2, 5, 72), (360, 72, 1), True),
        "parted": ((2, 5, 3, 3, 8), (360, 72, 24, 8, 1), True),
        "transposed": ((3, 2, 3, 5, 8), (24, 360, 8, 72, 1), False),
        "pieces": ((3, 2, 3, 5, 8), (240, 120, 40, 8, 1), True),
        "q": ((2, 3, 5, 8), (120, 40, 8, 1), True),
        "context_transposed": ((2, 5, 3, 8), (120, 8, 40, 1), False),
        "merged": ((2, 5, 24), (120, 24, 1), True),
    }
    for name, (shape, strides, contiguous) in expected.items():
        tensor = found[name]
        assert (tuple(tensor.shape), tensor.stride()) == (shape, strides)
        assert tensor.is_contiguous() == contiguous
    memory = {name: row[-1] for name, row in layout("1", "", found).rows}
    assert memory["parted"] == memory["transposed"] == "projected"
    assert memory["q"] == memory["k"] == memory["v"] == "pieces"
    assert memory["pieces"] == memory["merged"] == "its own"
    assert memory["context transposed"] == "context"


def test_views_are_really_tried() -> None:
    found = trace(view_of(), "encoder", 1)
    (table,) = [each for each in report(found, 0, 0).tables if each.number == "3"]
    notes = " ".join(table.notes)
    assert "context_transposed.view(2, 5, 24) fails: view size is not compatible" in notes
    assert "transposed.view(3, 2, 3, 40) fails: view size is not compatible" in notes
    one_head = trace(view_of(n_heads=1), "encoder", 1).tensors["context_transposed"]
    assert "works: at these sizes nothing has to move" in attempt_view("x", one_head, 2, 5, 24)


@pytest.mark.parametrize("head", [0, 2])
def test_what_is_shown_of_a_head_is_that_heads(head: int) -> None:
    found = trace(view_of(), "encoder", 1)
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


# Without the mask, without the scale ---------------------------------------------------------


def even(view: InspectedBatch) -> InspectedBatch:
    """Queries are zero, so without a mask every weight is the same."""
    for module in view.model.modules():
        if isinstance(module, Attention):
            with torch.no_grad():
                module.in_proj.weight[: module.in_proj.in_features] = 0
                module.in_proj.bias[: module.in_proj.in_features] = 0
    return view


def test_leaks_by_hand() -> None:
    """Pair 1 has 1 pad of 5 in src and 2 of 5 in tgt_in; its real target places are 0 to 2."""
    view = even(view_of())
    encoder = leaks(trace(view, "encoder", 1), 0)
    assert list(encoder.tensors) == ["on_pads_without_the_mask", "on_pads_with_the_mask"]
    without, with_mask = encoder.tensors.values()
    assert without.shape == (2, 3, 5)
    assert torch.allclose(without[0], torch.tensor(0.2).double())
    assert not without[1].any() and not with_mask.any()
    decoder = leaks(trace(view, "decoder", 2), 0).tensors
    assert torch.allclose(decoder["on_pads_without_the_mask"][0], torch.tensor(0.4).double())
    later = decoder["on_the_future_without_the_mask"][0, 0]
    assert torch.allclose(later[:3], torch.tensor([0.4, 0.2, 0.0]).double())
    later = decoder["on_the_future_without_the_mask"][1, 0]
    assert torch.allclose(later, torch.tensor([0.8, 0.6, 0.4, 0.2, 0.0]).double())
    assert not decoder["on_the_future_with_the_mask"].any()
    cross = leaks(trace(view, "cross", 1), 0)
    assert torch.allclose(cross.tensors["on_pads_without_the_mask"][0], torch.tensor(0.2).double())
    shown = named(cross.tables, "On pads, without")
    assert [name for name, _ in shown.rows] == ["<bos>", "9", "7"], "real queries alone"
    assert cells(shown) == [["0.200", "0.200", "0.200", "| 0.200"]] * 3
    assert "Mean 0.200; of every pair's real queries 0.075" in shown.notes[0], "3 of 8 queries"


def test_a_broken_mask_leaks() -> None:
    config = config_of(fault="pad_visible", model={"positions": "sinusoidal"})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    found = leaks(trace(InspectedBatch(view_of().batch, VOCABULARY, model, ""), "encoder", 1), 0)
    assert (found.tensors["on_pads_with_the_mask"][0] > 0).all()


def test_without_the_scale_softmax_saturates() -> None:
    found = scales()
    widths = found.tensors["d_head"].double()
    variance, scaled = (found.tensors[f"variance_{x}_scale"] for x in ("without", "with"))
    assert torch.allclose(variance.double(), widths, rtol=0.15)
    assert torch.allclose(scaled, torch.ones(()), rtol=0.15)
    entropy, kept = (found.tensors[f"entropy_{x}_scale"] for x in ("without", "with"))
    assert (entropy.diff() < 0).all() and entropy[-1] < 0.5
    assert kept.std() < 0.05 and 3.5 < kept.mean() < math.log(64)
    plots = found.tables[1:]
    assert [len(plot.rows) for plot in plots] == [9, 13]
    for plot in plots:
        marks = ["".join(column) for column in zip(*cells(plot), strict=True)]
        assert all(set(column) == {"x", "o", CLOSED} for column in marks)
        heights = [column.index("x") for column in marks]
        assert heights == sorted(heights, reverse=plot is plots[0]), "up, and down"


def test_the_models_own_sharpness() -> None:
    view = even(view_of())
    found = sharpness(trace(view, "decoder", 1)).tensors
    assert not found["variance_of_q_k"].any()
    # real queries see 1, 2, 3 keys and 1 to 5 keys
    seen = sum(math.log(n) for n in (1, 2, 3, 1, 2, 3, 4, 5)) / 8
    for name in ("entropy_with_scale", "entropy_without_scale", "log_of_keys_seen"):
        assert found[name].tolist() == pytest.approx([seen] * 3)
    own = sharpness(trace(view_of(), "encoder", 1)).tensors
    assert torch.allclose(own["variance_of_q_k"], own["variance_of_scores"] * 8), "Dh is 8"


# Examples ------------------------------------------------------------------------------------


def test_ten_lists_become_heads_and_come_back() -> None:
    found = examples.heads()
    shapes = {name: tuple(tensor.shape) for name, tensor in found.tensors.items()}
    assert shapes["ids"] == (10, 21)
    assert shapes["embedded"] == shapes["merged"] == shapes["attention_output"] == (10, 21, 512)
    assert shapes["q"] == shapes["k"] == shapes["v"] == shapes["context"] == (10, 8, 21, 64)
    assert shapes["scores"] == shapes["weights"] == (10, 8, 21, 21)
    assert found.tensors["context_transposed"].stride() == (10752, 64, 1344, 1)
    ids = found.tensors["ids"]
    real = padding_mask(ids).sum(1) - 1  # without EOS
    assert real.tolist() == [16, 5, 11, 2, 5, 5, 1, 20, 16, 14]
    symbols = ids[ids > 2] - 3
    assert int(symbols.min()) >= 1 and int(symbols.max()) <= 99
    lists, *_, leak = found.tables
    assert cells(lists)[6] == [str(int(ids[6, 0]) - 3), "E", *[CLOSED] * 19]
    shares = [[float(cell) for cell in row] for row in cells(leak)]
    assert shares[7] == [0, 0, 0], "the longest has no pads"
    assert all(0 < row[1] < 1 and row[2] == 0 for i, row in enumerate(shares) if i != 7)
    assert shares[6][0] == pytest.approx(19 / 21, abs=0.001)
    assert torch.equal(ids, examples.heads().tensors["ids"]), "the same every time"


def test_thirty_queries_and_fifty_keys() -> None:
    found = examples.sdpa()
    shapes = {name: tuple(tensor.shape) for name, tensor in found.tensors.items()}
    assert (shapes["q"], shapes["k"], shapes["v"]) == ((2, 30, 128), (2, 50, 128), (2, 50, 256))
    assert (shapes["weights"], shapes["context"]) == ((2, 30, 50), (2, 30, 256))
    assert (shapes["heads_weights"], shapes["heads_context"]) == ((2, 4, 30, 50), (2, 4, 30, 64))
    assert shapes["self_weights"] == (2, 50, 50) and shapes["self_context"] == (2, 50, 128)
    q, k, v = (found.tensors[name] for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(found.tensors["context"], expected, atol=1e-5)
    assert torch.allclose(found.tensors["one_head_context"][:, 0], expected, atol=1e-5)
    for name in ("weights", "one_head_weights", "heads_weights", "self_weights"):
        assert torch.allclose(found.tensors[name].sum(-1), torch.ones(()))
    first, weights, root = found.tables
    assert "with 49 values torch says" in first.notes[0]
    assert all(row[-1] == "| 1.00" for row in cells(weights))
    assert "18 more rows, 38 more columns" in weights.shape
    (right, wrong) = cells(root)
    assert float(right[0]) == pytest.approx(1, abs=0.05)
    assert float(wrong[0]) == pytest.approx(0.25, abs=0.02), "(32 / 128) of the variance"


def test_one_wide_projection_is_one_per_head() -> None:
    found = examples.projections()
    for name in ("q", "k", "v", "context", "output"):
        wide, small = found.tensors[f"wide_{name}"], found.tensors[f"small_{name}"]
        assert wide.dtype == torch.float64 and wide.abs().max() > 0.5
        assert torch.allclose(wide, small, atol=1e-14)
    assert max(found.facts["differences"].values()) < 1e-14
    # head 2's keys by hand: rows 8 + 4 to 8 + 7 of the wide weight
    x, weight = found.tensors["x"], found.tensors["in_proj_weight"]
    apart = found.tensors["small_k"][:, 1] - x @ weight[12:16].T
    assert torch.allclose(apart, apart[:1, :1]), "but for the bias"
    assert "216 numbers in small projections, 216 in the wide one" in found.tables[-1].notes[0]


@pytest.mark.parametrize("model", [{}, {"norm": "post"}, {"positions": "anchored"}])
def test_one_masked_pass_is_every_step(model: dict) -> None:
    view = view_of(**model)
    found = examples.decoding(view, 0)
    differences = found.facts["differences"]
    assert differences["step_by_step"] < 1e-12 < 1e-2 < differences["without_the_triangle"]
    assert "Row t of the pass is step t of decoding, to rounding" in found.tables[-1].notes[0]
    with torch.no_grad():
        assert torch.equal(found.tensors["parallel"], view.model(view.batch.src, view.batch.tgt_in))


def test_a_model_without_the_triangle_is_no_decoder() -> None:
    config = config_of(fault="no_causal", model={"positions": "sinusoidal"})
    model = fresh(lambda: build_model(config, VOCABULARY), 0)
    found = examples.decoding(InspectedBatch(view_of().batch, VOCABULARY, model, ""), 0)
    assert "NOT step t of decoding: a fault is in it" in found.tables[-1].notes[0]


# The command ---------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.mark.parametrize("part", PARTS)
def test_everything_fits_eighty_columns(here: Path, command: Command, part: str) -> None:
    answer = command("trace", *GIVEN, "--part", part, "--head", "2")
    assert (answer.code, answer.err) == (0, "")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "<pad>" in answer.out and "56 more columns" in answer.out
    assert "Accounted for" in answer.out and "NOT" not in answer.out
    assert "head 2 of 4" in answer.out and "q, head 2" in answer.out
    assert "pair 1 of 2" in answer.out, "that with the most pads"
    assert command("trace", *GIVEN, "--part", part, "--pair", "2").out != answer.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--example", "heads"), ("list 10", "10 8 21 64", "10 21 512", "leaks onto pads", "+ 3")),
        (("--example", "sdpa"), ("2 30 256", "2 30 50", "self weights")),
        (("--example", "projections"), ("(24, 8)", "largest difference")),
        (("--example", "decoding"), ("step t of decoding", "without the triangle")),
        (("--no-scale",), ("entropy without scale", "x = without the scale")),
        ((*GIVEN, "--no-mask"), ("On pads, without the mask", "On pads, with the mask")),
        ((*GIVEN, "--no-scale", "--part", "cross"), ("This model: cross-attention",)),
    ],
)
def test_examples_and_questions_fit_too(
    here: Path, command: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    answer = command("trace", *arguments)
    assert (answer.code, answer.err) == (0, "")
    assert max(map(len, answer.out.splitlines())) <= 80
    for word in words:
        assert word in answer.out


def test_json_holds_every_tensor_in_full(here: Path, command: Command) -> None:
    answer = command("trace", *GIVEN, "--part", "cross", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert (found["part"], found["layer"]) == ("cross", 1)
    assert found["queries"][0] == ["<bos>", "9", "7", "<pad>", "<pad>"]
    assert found["keys"][0] == ["5", "7", "9", "<eos>", "<pad>"]
    tensors = {each["name"]: each for each in found["tensors"]}
    weights = tensors["weights"]
    assert (weights["shape"], weights["strides"]) == ([2, 4, 5, 5], [100, 25, 5, 1])
    assert weights["contiguous"] and weights["dtype"] == "float32"
    values = torch.tensor(weights["values"])
    assert values.shape == (2, 4, 5, 5) and not values[0, :, :, 4].any()
    assert torch.allclose(values.sum(-1), torch.ones(()))
    assert {each["verdict"] for each in found["accounts"]} == {"exact", "rounding"}
    assert not tensors["context_transposed"]["contiguous"]


def test_numbers_that_json_lacks_become_null() -> None:
    values = torch.tensor([[1.0, -math.inf], [math.nan, 2.0]])
    document = json.loads(json_text(TraceReport([], {"x": values}).to_dict()))
    assert document["tensors"][0]["values"] == [[1.0, None], [None, 2.0]]


def test_saved_tensors_are_those_shown(here: Path, command: Command) -> None:
    answer = command("trace", *GIVEN, "--json", "--save", "x.safetensors")
    assert answer.code == 0 and "saved in x.safetensors" in answer.err
    saved = load_file("x.safetensors")
    shown = {each["name"]: each for each in json.loads(answer.out)["tensors"]}
    assert set(saved) == set(shown)
    for name, tensor in saved.items():
        assert torch.equal(tensor, torch.tensor(shown[name]["values"], dtype=tensor.dtype))
    before = Path("x.safetensors").read_bytes()
    again = command("trace", *GIVEN, "--save", "x.safetensors")
    assert again.code == 2 and "x.safetensors" in again.err and "name another" in again.err
    assert Path("x.safetensors").read_bytes() == before


def test_a_run_is_found_and_named(here: Path, command: Command) -> None:
    assert command("train", "--config", "tiny.yaml").code == 0
    newest = command("trace", "--layer", "2")
    assert newest.code == 0 and "weights of runs/tiny, step 2" in " ".join(newest.out.split())
    assert newest.out == command("trace", "runs/tiny", "--layer", "2").out
    assert "layer input" in newest.out and "embedded = layer input" not in newest.out
    assert "fresh weights, seed 3" in command("trace", "--config", "tiny.yaml").out
    steps = command("trace", "runs/tiny", "--example", "decoding")
    assert steps.code == 0 and "step t of decoding, to rounding" in steps.out
    unknown = command("trace", "--src", "9", "--tgt", "1")
    assert unknown.code == 2 and "runs/tiny, the newest run: --src '9'" in unknown.err


def test_a_fault_is_announced(here: Path, command: Command) -> None:
    answer = command("trace", "--config", "tiny.yaml", "--set", "fault=no_residual")
    assert answer.code == 0 and "broken on purpose: no_residual" in answer.err
    assert "NOT accounted for" in answer.out


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((), ("nothing to trace", "--config FILE", "--src", "trace example heads")),
        (("nowhere",), ("nowhere", "no such run directory", "toytrans train")),
        (("--src", "1"), ("1 --src and 0 --tgt",)),
        (("x", "--config", "tiny.yaml"), ("tiny.yaml", "run x", "give one")),
        ((*GIVEN, "--set", "seed=1"), ("--set seed=1", "--config FILE")),
        ((*GIVEN, "--layer", "2"), ("--layer 2", "layer 1 alone")),
        (("--config", "tiny.yaml", "--layer", "3"), ("--layer 3", "layers 1 to 2")),
        ((*GIVEN, "--head", "5"), ("--head 5", "has 4")),
        ((*GIVEN, "--pair", "3"), ("--pair 3", "has 2")),
        (("--config", "tiny.yaml", "--src", "9", "--tgt", "1"), ("--src '9'", "'9'")),
        (("--no-scale", "--save", "no/x.safetensors"), ("no/x.safetensors", "cannot be written")),
    ],
)
def test_what_cannot_be_traced_is_refused_in_one_line(
    here: Path, command: Command, arguments: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    answer = command("trace", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("toytrans: ") and answer.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in answer.err


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("leaks", "--no-scale"), ("leaks", "--no-scale")),
        (("--no-mask", "--no-scale"), ("leaks", "--no-scale")),
        ((*GIVEN, "--no-mask", "--head", "1"), ("leaks", "--head")),
        ((*GIVEN, "--example", "sdpa"), ("example", "--src")),
        (("--example=heads", "--layer", "1"), ("example", "--layer")),
        (("--example", "decoding", "--part", "cross"), ("decoding", "--part")),
        (("--example", "nothing"), ("'nothing'", "sdpa")),
    ],
)
def test_options_of_other_sub_commands_are_refused(
    here: Path, command: Command, arguments: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    answer = command("trace", *arguments)
    assert (answer.code, answer.out) == (2, "")
    for fragment in fragments:
        assert fragment in answer.err


@pytest.mark.parametrize(
    ("flags", "sub_command"),
    [
        ((*GIVEN, "--head", "2"), ("layer", *GIVEN, "--head", "2")),
        ((*GIVEN, "--no-mask"), ("leaks", *GIVEN)),
        (("--no-scale",), ("scale",)),
        (("--no-scale", *GIVEN), ("scale", *GIVEN)),
        (("--example", "projections"), ("example", "projections")),
        (("--example=decoding", "--pair", "2"), ("decoding", "--pair", "2")),
    ],
)
def test_flags_of_earlier_versions_choose_sub_commands(
    here: Path, command: Command, flags: tuple[str, ...], sub_command: tuple[str, ...]
) -> None:
    answer = command("trace", *flags, "--json")
    assert answer.code == 0 and json.loads(answer.out)
    assert command("trace", *sub_command, "--json").out == answer.out


def test_a_trace_names_its_attention() -> None:
    found: Trace = trace(view_of(), "cross", 2)
    assert found.title == "cross-attention, layer 2, test weights"
