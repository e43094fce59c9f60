"""`toytrans attention`: maps, labels, plots, refusals."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
import torch
from conftest import SMALL_YAML, Command, call

from toytrans import load
from toytrans.data.batches import Batch
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


def trained(folder: Path, config: str, *arguments: str) -> str:
    (folder / "config.yaml").write_text(config)
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        given = ("--config", str(folder / "config.yaml"), "--out", str(folder / "run"))
        assert call("train", *given, *arguments) == 0
    return str(folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(tmp_path_factory.mktemp("tiny"), SMALL_YAML)


@pytest.fixture(scope="module")
def reverse(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(tmp_path_factory.mktemp("reverse"), REVERSE)


@pytest.fixture(autouse=True)
def _as_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_what_is_shown_is_what_translate_says(run: str, command: Command) -> None:
    given = ("1 2 3 4", "2")
    answer = command("attention", run, *given, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    loaded = load(run, device="cpu")
    assert [loaded.vocabulary.decode(row) for row in found["tgt_out"]] == [
        line.split() for line in command("translate", run, *given).out.split("\n")[:-1]
    ]
    for read, said in zip(found["tgt_in"], found["tgt_out"], strict=True):
        end = said.index(PAD_ID) if PAD_ID in said else len(said)
        assert read[:end] == [BOS_ID, *said[: end - 1]] and not any(read[end:])
    batch = Batch(*(torch.tensor(found[name]) for name in ("src", "tgt_in", "tgt_out")))
    seen = {one[:3]: one.weights for one in heads.attend(loaded.model, batch)}
    assert len(found["heads"]) == 2 * 4
    for head in found["heads"]:
        weights = seen[head["part"], head["layer"], head["head"]]
        assert torch.tensor(head["weights"]).equal(weights)
        assert {rule["rule"] for rule in head["rules"]} == set(heads.RULES[head["part"]])
    assert found["measured_on"] == "30 validation pairs", "all that there are"


def test_a_trained_reverse_model_shows_the_anti_diagonal(reverse: str, command: Command) -> None:
    """A symbol is fetched from its mirror, or from the place beside it, to where the encoder had
    copied it."""
    given = ("attention", reverse, "1 2 3 4 5 6", "--part", "cross")
    found = json.loads(command(*given, "--json").out)
    (head,) = [one for one in found["heads"] if "mirror" in one["label"]]
    best = head["rules"][0]
    assert best["share"] > 0.9 and best["weight"] > 0.5 and best["chance"] < 0.25
    answer = command(*given, "--head", str(head["head"]))
    assert "1 2 3 4 5 6  ->  6 5 4 3 2 1" in answer.out and head["label"] in answer.out
    rows = [
        line for line in answer.out.splitlines() if re.match(r"[1-6$] [ \u2591-\u2593█]+$", line)
    ]
    darkest = [max(range(2, len(row)), key=lambda k: " ░▒▓█".index(row[k])) for row in rows[:6]]
    assert darkest == list(range(darkest[0], darkest[0] - 12, -2))


def test_pads_are_closed_columns_of_weight_zero(run: str, command: Command) -> None:
    given = (run, "--part", "encoder", "--layer", "1", "--head", "1")
    answer = command("attention", *given, "1 2 3 4", "2")
    assert "rows of pads are left out" in " ".join(answer.out.split())
    first, second = answer.out.split("\n\n2  ->")
    assert CLOSED not in first.split("Encoder")[1]
    (header, *rows) = second.split("\n\n")[1].splitlines()[4:]
    assert header.rstrip() == "  ^ 2 $ _ _ _"
    assert [row[0] for row in rows] == ["^", "2", "$"], "pads are no rows"
    assert all(row.rstrip().endswith(f"{CLOSED} {CLOSED} {CLOSED}") for row in rows)


def test_without_a_sequence_validation_pairs_are_shown(run: str, command: Command) -> None:
    answer = command("attention", run, "--part", "all")
    sources = re.findall(r"^([\d ]+)  ->  ", answer.out, re.MULTILINE)
    assert [len(source.split()) for source in sources] == [6, 4]
    assert max(map(len, answer.out.splitlines())) <= 80
    of_shown = load(run).attention(sample=0)
    assert of_shown.basis == "the translations shown (2)"
    assert {head.queries for head in of_shown.heads if head.part == "encoder"} == {10}, "of both"


def test_a_sequence_that_is_too_long_to_draw_is_refused(run: str, command: Command) -> None:
    given = ("attention", run, " ".join("1" * 90), "--part", "encoder")
    refused = command(*given)
    assert (refused.code, refused.out) == (2, "")
    assert "92 tokens do not fit" in refused.err and "--plot" in refused.err
    assert command(*given, "--json").code == 0


def test_symbols_that_look_like_marks_or_are_wide_or_long(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["$", "\uac00\ub098", "an_uncommonly_long_word", "[bold]", "\x1b"]
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{w} {v}\t{v} {w}\n" for w in words for v in words)
    )
    files = (
        f"data: {{files: {{train: {tmp_path / 'pairs.tsv'}, valid: {tmp_path / 'pairs.tsv'}}}}}\n"
    )
    run = trained(tmp_path, files + SMALL_YAML.split("\n", 2)[2])
    given = ("attention", run, " ".join(words[:4]), "--part", "encoder", "--head", "1")
    out = command(*given).out
    assert "an_u~ord" in out and "~ letters left out" in " ".join(out.split())
    assert "<eos>" in out and "_ <pad>" not in out
    assert "$ \uac00\ub098 an_uncommonly_long_word [bold]  ->" in out
    assert "\x1b" not in out
    picture = tmp_path / "a.svg"
    drawn = command(*given, "--plot", str(picture))
    assert drawn.code == 0 and "font lacks" in drawn.err
    assert "\uac00\ub098" in picture.read_text(encoding="utf-8")


def test_plots(run: str, command: Command, tmp_path: Path) -> None:
    given = ("attention", run, "1 2 3 4", "2")
    answer = command(*given, "--plot", str(tmp_path / "a.png"))
    assert answer.code == 0 and "layer head" in answer.out and "█" not in answer.out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {tmp_path / 'a.png'}" in answer.err
    for name in ("a.svg", "b.SVG"):
        assert command(*given, "--part", "cross", "--plot", str(tmp_path / name)).code == 0
    page = (tmp_path / "a.svg").read_text()
    assert page == (tmp_path / "b.SVG").read_text(), "the same picture, the same bytes"
    assert page.count("cross, layer 1, head 2") == 2, "one for each pair"
    assert "1 2 3 4  -&gt;" in page and "&lt;pad&gt;" in page
    assert page.count("<image") >= 4
    for name in ("a.html", "b.html"):
        assert command(*given, "--plot", str(tmp_path / name)).code == 0
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page == (tmp_path / "b.html").read_text()
    both = command(*given, "--json", "--plot", str(tmp_path / "c.png"))
    assert json.loads(both.out)["heads"] and (tmp_path / "c.png").exists()


def test_a_broken_run_says_so(run: str, command: Command, tmp_path: Path) -> None:
    broken = trained(tmp_path, SMALL_YAML, "--set", "fault=pad_visible")
    answer = command("attention", broken, "1 2 3 4", "2", "--part", "encoder")
    assert answer.err.startswith("broken on purpose: pad_visible")
    assert "broken on purpose: pad_visible" in answer.out.splitlines()[0]
    assert CLOSED not in answer.out.split("Encoder")[2], "no pad is masked"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("1 2", "1 9"), ("'9'", "such as '0'")),
        (("--layer", "2", "--part", "cross"), ("layer 2: no such", "cross 1")),
        (("--plot", "a.pdf"), ("--plot a.pdf", ".png or .svg or .html")),
        (("1",) * 400 + ("--plot", "a.png"), ("too many", "--part")),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    run: str, command: Command, arguments: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    answer = command("attention", run, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("toytrans: ") and answer.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in answer.err
