"""The heads of `toytrans trace`: maps, rules, pictures, refusals."""

import contextlib
import json
import os
import re
from pathlib import Path

import pytest
from conftest import Command, call, tiny_yaml

from toytrans.inspection import heads
from toytrans.inspection.panels import CLOSED
from toytrans.tokens import SPECIALS

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
    """tests/api/test_api.py compares the weights with those of `toytrans.attention`."""
    given = ("1 2 3 4", "2")
    answer = command("trace", str(run), *given, "--part", "cross", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    translated = command("translate", str(run), *given).out.splitlines()
    for read, said in zip(found["queries"], translated, strict=True):
        symbols = [token for token in read if token not in SPECIALS]
        assert symbols == said.split()[: len(symbols)] and read[0] == "<bos>"
    assert [head["head"] for head in found["heads"]] == [1, 2]
    for head in found["heads"]:
        assert {rule["rule"] for rule in head["rules"]} == set(heads.RULES["cross"])


def test_a_trained_reverse_model_shows_the_anti_diagonal(reverse: str, command: Command) -> None:
    """A symbol is fetched from its mirror, or from the place beside it, to where the encoder had
    copied it."""
    given = ("trace", reverse, "1 2 3 4 5 6", "--part", "cross")
    found = json.loads(command(*given, "--json").out)
    (head,) = [one for one in found["heads"] if "mirror" in one["label"]]
    best = head["rules"][0]
    assert best["share"] > 0.9 and best["weight"] > 0.5 and best["chance"] < 0.25
    assert any("mirror" in line for line in command(*given).out.splitlines() if "cross" in line)
    lines = command(*given, "--panel", "heads").out.splitlines()
    left = next(x for x in (line.find(f"layer 1 head {head['head']}") for line in lines) if x >= 0)
    maps = [line[left : left + 16].ljust(16) for line in lines]
    drawn = [line for line in maps if re.fullmatch(r"[1-6$] [ ░-▓█]*[░-▓█] *", line)]
    darkest = [max(range(2, len(row)), key=lambda k: " ░▒▓█".index(row[k])) for row in drawn[:6]]
    assert darkest == list(range(darkest[0], darkest[0] - 12, -2))


def test_pads_are_closed_columns_of_weight_zero(run: Path, command: Command) -> None:
    answer = command("trace", "runs/c", "1 2 3 4", "2", "--panel", "heads")
    assert "rows of pads are left out" in " ".join(answer.out.split())
    first, second = answer.out.split("\n\n2  ->")
    assert CLOSED not in first.split("Encoder")[1]
    (header, *rows) = second.split("\n\n")[1].splitlines()[4:]
    assert header.split() == 2 * ["^", "2", "$", "_", "_", "_"], "one for each head"
    assert [row[0] for row in rows] == ["^", "2", "$"], "pads are no rows"
    assert all(row.rstrip().endswith(f"{CLOSED} {CLOSED} {CLOSED}") for row in rows)


def test_symbols_that_look_like_marks_or_are_wide_or_long(here: Path, command: Command) -> None:
    words = ["$", "가나", "an_uncommonly_long_word", "[bold]", "\x1b"]
    Path("pairs.tsv").write_text("".join(f"{w} {v}\t{v} {w}\n" for w in words for v in words))
    files = {"train": "pairs.tsv", "valid": "pairs.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 2}))
    assert command("train", "c.yaml").code == 0
    given = ("trace", "runs/c", " ".join(words[:4]))
    out = command(*given, "--panel", "heads").out
    assert "an_u~ord" in out and "~ letters left out" in " ".join(out.split())
    assert "<eos>" in out and "_ <pad>" not in out and "\x1b" not in out
    assert "$ 가나 an_uncommonly_long_word [bold]  ->" in out
    drawn = command(*given, "--plot", "a.svg")
    assert drawn.code == 0 and drawn.err == "wrote a.svg\n"
    assert "가나" in Path("a.svg").read_text(encoding="utf-8")


def test_plots(run: Path, command: Command) -> None:
    given = ("trace", "runs/c", "1 2 3 4", "2", "--part", "cross")
    answer = command(*given, "--plot", "a.png")
    assert answer.code == 0 and "wrote a.png" in answer.err
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    answer = command(*given, "--plot", "a.svg")
    assert answer.code == 0 and "what it does" in answer.out and "█" not in answer.out
    page = Path("a.svg").read_text()
    assert page.count("cross, layer 1, head 2") == 2, "one for each pair"
    assert "1 2 3 4  -&gt;" in page and "&lt;pad&gt;" in page and page.count("<image") >= 4


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("1 2", "1 9"), ("'9'", "such as '0'")),
        (("--layer", "2", "--part", "cross", "--panel", "heads"), ("layer 2: no such", "cross 1")),
        (("--plot", "a.pdf"), ("a.pdf", ".png or .svg")),
        (("1 2",) * 400 + ("--plot", "a.png"), ("too many", "--layer")),
        ((" ".join("1" * 90), "--panel", "heads"), ("92 tokens do not fit", "--plot", "--json")),
        (("1 2", "--config", "c.yaml", "--panel", "heads"), ("rules are measured on a run",)),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(run: Path, refused, arguments, fragments):
    said = refused("trace", *([] if "--config" in arguments else ["runs/c"]), *arguments)
    assert all(fragment in said for fragment in fragments), said
