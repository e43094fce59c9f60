"""`toytrans attention`: maps, labels, plots, refusals."""

import contextlib
import json
import os
import re
from pathlib import Path

import pytest
from conftest import Command, call, tiny_yaml

from toytrans import load
from toytrans.inspection import heads
from toytrans.inspection.table import CLOSED
from toytrans.tokens import BOS_ID, PAD_ID

REVERSE = """\
data: {task: reverse, symbols: 10, train_length: [1, 8], valid_examples: 100, test_examples: 50}
model:
  {positions: anchored, norm: pre, d_model: 32, n_heads: 2, n_encoder_layers: 1,
   n_decoder_layers: 1, d_ff: 64}
train: {max_steps: 120, precision: fp32}
"""


@pytest.fixture(scope="module")
def reverse(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reverse")
    (folder / "c.yaml").write_text(REVERSE)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        assert call("train", str(folder / "c.yaml"), "--out", str(folder / "run")) == 0
    return str(folder / "run")


def test_what_is_shown_is_what_translate_says(run: Path, command: Command) -> None:
    """tests/api/test_api.py compares the weights with those of `run.attention`."""
    given = ("1 2 3 4", "2")
    answer = command("attention", str(run), *given, "--json")
    assert (answer.code, answer.err) == (0, "")
    found, decode = json.loads(answer.out), load(run, device="cpu").vocabulary.decode
    translated = command("translate", str(run), *given).out.splitlines()
    assert [" ".join(decode(row)) for row in found["tgt_out"]] == translated
    for read, said in zip(found["tgt_in"], found["tgt_out"], strict=True):
        end = said.index(PAD_ID) if PAD_ID in said else len(said)
        assert read[:end] == [BOS_ID, *said[: end - 1]] and not any(read[end:])
    for head in found["heads"]:
        assert {rule["rule"] for rule in head["rules"]} == set(heads.RULES[head["part"]])


def test_a_trained_reverse_model_shows_the_anti_diagonal(reverse: str, command: Command) -> None:
    """A symbol is fetched from its mirror, or from the place beside it, to where the encoder had
    copied it."""
    given = ("attention", reverse, "1 2 3 4 5 6", "--part", "cross")
    found = json.loads(command(*given, "--json").out)
    (head,) = [one for one in found["heads"] if "mirror" in one["label"]]
    best = head["rules"][0]
    assert best["share"] > 0.9 and best["weight"] > 0.5 and best["chance"] < 0.25
    answer = command(*given, "--head", str(head["head"]))
    rows = [line for line in answer.out.splitlines() if re.match(r"[1-6$] [ ░-▓█]+$", line)]
    darkest = [max(range(2, len(row)), key=lambda k: " ░▒▓█".index(row[k])) for row in rows[:6]]
    assert darkest == list(range(darkest[0], darkest[0] - 12, -2))


def test_pads_are_closed_columns_of_weight_zero(run: Path, command: Command) -> None:
    answer = command("attention", "runs/c", "--part", "encoder", "--head", "1", "1 2 3 4", "2")
    assert "rows of pads are left out" in " ".join(answer.out.split())
    first, second = answer.out.split("\n\n2  ->")
    assert CLOSED not in first.split("Encoder")[1]
    (header, *rows) = second.split("\n\n")[1].splitlines()[4:]
    assert header.rstrip() == "  ^ 2 $ _ _ _"
    assert [row[0] for row in rows] == ["^", "2", "$"], "pads are no rows"
    assert all(row.rstrip().endswith(f"{CLOSED} {CLOSED} {CLOSED}") for row in rows)


def test_symbols_that_look_like_marks_or_are_wide_or_long(here: Path, command: Command) -> None:
    words = ["$", "가나", "an_uncommonly_long_word", "[bold]", "\x1b"]
    Path("pairs.tsv").write_text("".join(f"{w} {v}\t{v} {w}\n" for w in words for v in words))
    files = {"train": "pairs.tsv", "valid": "pairs.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 2}))
    assert command("train", "c.yaml").code == 0
    given = ("attention", "runs/c", " ".join(words[:4]), "--part", "encoder", "--head", "1")
    out = command(*given).out
    assert "an_u~ord" in out and "~ letters left out" in " ".join(out.split())
    assert "<eos>" in out and "_ <pad>" not in out and "\x1b" not in out
    assert "$ 가나 an_uncommonly_long_word [bold]  ->" in out
    drawn = command(*given, "--plot", "a.svg")
    assert drawn.code == 0 and drawn.err == "wrote a.svg\n"
    assert "가나" in Path("a.svg").read_text(encoding="utf-8")


def test_plots(run: Path, command: Command) -> None:
    given = ("attention", "runs/c", "1 2 3 4", "2", "--part", "cross")
    answer = command(*given, "--plot", "a.png", "--json")
    assert answer.code == 0 and json.loads(answer.out)["heads"]
    assert Path("a.png").read_bytes().startswith(b"\x89PNG") and "wrote a.png" in answer.err
    for name in ("a.svg", "a.html"):
        answer = command(*given, "--plot", name)
        assert answer.code == 0 and "layer head" in answer.out and "█" not in answer.out
    page = Path("a.svg").read_text()
    assert page.count("cross, layer 1, head 2") == 2, "one for each pair"
    assert "1 2 3 4  -&gt;" in page and "&lt;pad&gt;" in page and page.count("<image") >= 4
    assert Path("a.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("1 2", "1 9"), ("'9'", "such as '0'")),
        (("--layer", "2", "--part", "cross"), ("layer 2: no such", "cross 1")),
        (("--plot", "a.pdf"), ("a.pdf", ".png or .svg or .html")),
        (("1",) * 400 + ("--plot", "a.png"), ("too many", "--part")),
        ((" ".join("1" * 90), "--part", "encoder"), ("92 tokens do not fit", "--plot", "--json")),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(run: Path, refused, arguments, fragments):
    said = refused("attention", "runs/c", *arguments)
    assert all(fragment in said for fragment in fragments), said
