"""`toytrans trace` and `toytrans demo`: forms, names, refusals."""

import json
from pathlib import Path

import pytest
import torch
from conftest import PAIRS, SMALL_YAML, Command

from toytrans.inspection.record import PARTS

CONFIG = SMALL_YAML  # of the fixture `here`


@pytest.mark.parametrize("part", PARTS)
def test_everything_fits_eighty_columns(here: Path, command: Command, part: str) -> None:
    answer = command("trace", *PAIRS, "--part", part, "--head", "2", "--panel", "all")
    assert (answer.code, answer.err) == (0, "")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "<pad>" in answer.out and "56 more columns" in answer.out
    assert "Accounted for" in answer.out and "NOT" not in answer.out
    assert "head 2 of 4" in answer.out and "q, head 2" in answer.out
    assert "pair 1 of 2" in answer.out, "that with the most pads"


def test_a_panel_is_found_by_its_title_without_the_name_of_the_run(here: Path, command: Command):
    assert command("train", "c.yaml", "--out", "weights").code == 0
    shown = command("trace", "weights", "--panel", "weights").out
    assert "7 weights, head 1" in shown and "2 In memory" not in shown
    assert (
        "2 In memory: encoder self-attention"
        in command("trace", "weights", "--panel", "memory").out
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("heads",), ("list 10", "10 8 21 64", "10 21 512", "leaks onto pads", "+ 3")),
        (("sdpa",), ("2 30 256", "2 30 50", "self weights")),
        (("projections",), ("(24, 8)", "largest difference")),
        (("decoding",), ("step t of decoding", "without the triangle")),
        (("scale",), ("entropy without scale", "x = without the scale")),
        (("leaks",), ("On pads, without the mask", "On pads, with the mask")),
        (("scale", "--part", "cross"), ("This model: cross-attention",)),
    ],
)
def test_demos_fit_too(
    here: Path, command: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    answer = command("demo", *arguments)
    assert (answer.code, answer.err) == (0, "")
    assert max(map(len, answer.out.splitlines())) <= 80
    for word in words:
        assert word in answer.out


def test_json_holds_every_tensor_in_full(here: Path, command: Command) -> None:
    answer = command("trace", *PAIRS, "--part", "cross", "--json")
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


def test_a_trace_is_a_page(here: Path, command: Command) -> None:
    page = command("trace", *PAIRS, "--html").out
    assert page.startswith("<!DOCTYPE html>") and "Accounted for" in page


def test_a_run_is_found_and_named(here: Path, command: Command) -> None:
    assert command("train", "--config", "c.yaml").code == 0
    newest = command("trace", "--layer", "2", "--panel", "all")
    assert newest.code == 0 and "weights of runs/c, step 2" in " ".join(newest.out.split())
    assert newest.out == command("trace", "runs/c", "--layer", "2", "--panel", "all").out
    assert "layer input" in newest.out and "embedded = layer input" not in newest.out
    assert "fresh weights, seed 3" in command("trace", "--config", "c.yaml").out
    steps = command("demo", "decoding", "runs/c")
    assert steps.code == 0 and "step t of decoding, to rounding" in steps.out
    assert "runs/c, the newest" in command("demo", "decoding").err
    assert "fresh weights" in command("trace", *PAIRS).out, "of pairs alone"


def test_a_fault_is_announced(here: Path, command: Command) -> None:
    Path("c.yaml").write_text(f"fault: no_residual\n{SMALL_YAML}")
    answer = command("trace", "--config", "c.yaml")
    assert answer.code == 0 and "broken on purpose: no_residual" in answer.err
    assert "NOT accounted for" in answer.out


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((), ("nothing to inspect", "--config FILE", "--src")),
        (("--src", "1"), ("1 --src and 0 --tgt",)),
        (("--config", "c.yaml", "--layer", "3"), ("layer 3", "layers 1 to 2")),
        ((*PAIRS, "--head", "5"), ("--head 5", "has 4")),
        ((*PAIRS, "--json", "--html"), ("--json and --html", "give one")),
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
