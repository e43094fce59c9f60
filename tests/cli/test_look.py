"""`toytrans inspect-masks`, `trace` and `demo`: forms, widths, terminals, runs, refusals."""

import html
import io
import json
import re
import sys
from itertools import groupby
from pathlib import Path

import pytest
import torch
import typer
from conftest import PAIRS, Command, call, tiny_yaml

from toytrans.inspection.panels import CLOSED

pytestmark = pytest.mark.usefixtures("here")
EVERY = ("inspect-masks", *PAIRS, "--panel", "all")
TRACED = ("trace", "--config", "textbook", "5 7 9", "4 6 8 3", "--tgt", "9 7", "--tgt", "3 8 6 4")
BROKEN = ("--break", "no_causal", "--out", "broken")


class Screen(io.StringIO):
    """A terminal to print to."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def on_screen(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> str:
    """What a command prints on a terminal of 80 columns."""
    for name, value in ({"TERM": "xterm-256color", "COLUMNS": "80"} | environment).items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        assert call(*arguments) == 0
    return screen.getvalue()


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


# Masks ---------------------------------------------------------------------------------------


def test_wide_masks_fold_with_a_notice(command: Command, monkeypatch):
    long = ("inspect-masks", "--src", " ".join("7" * 40), "--tgt", "7", "--panel", "3")
    folded = command(*long).out
    assert re.search(r"columns \d+ to \d+ of 42, continued", folded)
    assert max(map(len, folded.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "300")
    assert "continued" not in command(*long).out


def test_a_terminal_gets_colour_and_nothing_else_does(command: Command, monkeypatch):
    piped = command(*EVERY).out
    shown = on_screen(monkeypatch, *EVERY)
    assert "\x1b[" in shown and CLOSED in piped
    without = on_screen(monkeypatch, *EVERY, NO_COLOR="1")
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == without == piped


def test_html_is_one_document_that_needs_no_network(command: Command):
    given = ("inspect-masks", "--src", "<b>&", "--tgt", "가", *PAIRS)
    answer = command(*given, "--html", "masks.html")
    assert answer == (0, "wrote masks.html\n", "")
    page = Path("masks.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert not re.search(r"https?:|\bsrc\s*=\s*[\"']|href=\"[^#d]|url\(|@import", page)
    assert "default-src 'none'" in page and "<b>" not in page
    for number in range(1, 10):
        assert re.search(rf"^{number} \w", text_of(page), re.MULTILINE)
    assert all(mark in text_of(page) for mark in (CLOSED, "가", "<b>&"))
    rows = re.findall("^loss", text_of(page), re.MULTILINE)
    assert len(rows) == 6, "of each pair, beside its masks and in table 1"
    for form in ("--steps", "--as=hf"):
        assert command(*given, form, "--html", f"{form}.html").code == 0
        assert Path(f"{form}.html").read_text().startswith("<!DOCTYPE html>")


def test_a_run_gives_its_config_its_symbols_and_its_weights(command: Command, run: Path):
    of_run = command("inspect-masks", "runs/c", "--panel", "all")
    assert (of_run.code, of_run.err) == (0, "")
    assert "weights of runs/c, step 6" in " ".join(of_run.out.split())
    of_config = command("inspect-masks", "--config", "c.yaml", "--panel", "all").out
    assert "fresh weights, seed 0" in of_config
    assert of_run.out.split("\n7 ")[0] == of_config.split("\n7 ")[0], "the same pairs and masks"
    assert of_run.out.split("\n8 ")[1] != of_config.split("\n8 ")[1], "other weights"


def test_a_fault_is_announced_and_in_the_masks(command: Command):
    assert command("train", "c.yaml", *BROKEN).code == 0
    given = ("inspect-masks", "broken", "--src", "1 2 3", "--tgt", "3 2")
    assert json.loads(command(*given, "--json").out)["decoder_self"][0] == [[1, 1, 1]] * 3
    screen, err = command(*given)[1:]
    assert err.startswith("broken on purpose: no_causal")
    wrong = "Decoder self-attention: 3 cells (!) are open on a pad or the future."
    assert wrong in " ".join(screen.split())
    shown = command(*given, "--panel", "all").out
    assert "NOT the two combined" in shown and "1 ! !" in shown


# Steps ---------------------------------------------------------------------------------------


def test_steps_piped_come_all_at_once_or_as_one_page(command: Command):
    answer = command("inspect-masks", "--steps")
    assert (answer.code, answer.err) == (0, "")
    numbers = re.findall(r"^(\d+[abc]?) ", answer.out, re.MULTILINE)
    order = [*map(str, range(8)), "7a", "7b", "7c", *map(str, range(8, 18))]
    assert list(dict.fromkeys(numbers)) == order
    assert max(map(len, answer.out.splitlines())) <= 80
    of_config = command("inspect-masks", "--config", "c.yaml", "--steps").out
    assert "The pairs are yours, the model is not." in " ".join(of_config.split())
    assert command("inspect-masks", "--steps", "--html", "steps.html").code == 0
    text = text_of(Path("steps.html").read_text())
    assert "0 Batch" in text and "17 Conclusion" in text and "Trap: the missing scale" in text


@pytest.mark.parametrize(
    ("keys", "shown", "code"),
    [
        (["x", "b", "x", "\x1b[D", "q"], ["0", "1", "0", "1", "0"], 0),
        (["x", KeyboardInterrupt()], ["0", "1"], 130),
    ],
)
def test_steps_on_a_terminal_come_one_a_key_press(monkeypatch, keys, shown, code):
    pressed, screen = iter(keys), Screen()

    def getchar() -> str:
        key = next(pressed)
        if isinstance(key, BaseException):
            raise key
        return key

    with monkeypatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", "80")
        patch.setattr(typer, "getchar", getchar)
        patch.setattr(sys, "stdin", Screen())
        patch.setattr(sys, "stdout", screen)
        assert call("inspect-masks", "--steps") == code
    steps = [line.split("\r")[-1] for line in screen.getvalue().splitlines()]
    numbers = [found[1] for line in steps if (found := re.match(r"(\d+[abc]?) ", line))]
    assert [number for number, _ in groupby(numbers)] == shown


# Traces --------------------------------------------------------------------------------------


def test_everything_fits_eighty_columns(command: Command):
    answer = command(*TRACED, "--part", "cross", "--head", "2", "--panel", "all")
    assert (answer.code, answer.err) == (0, "")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "Accounted for" in answer.out and "NOT" not in answer.out
    assert "head 2 of 4" in answer.out and "pair 1 of 2" in answer.out, "that with the most pads"


def test_a_panel_is_found_by_its_title_without_the_name_of_the_run(run: Path, command: Command):
    run.rename("weights")
    shown = command("trace", "weights", "--panel", "weights").out
    assert "7 weights, head 1" in shown and "2 In memory" not in shown
    in_memory = command("trace", "weights", "--panel", "memory").out
    assert "2 In memory: encoder self-attention" in in_memory


def test_sequences_of_a_run_have_its_translations_as_targets(run: Path, command: Command):
    found = json.loads(command("trace", str(run), "1 2 3", "--part", "decoder", "--json").out)
    said = command("translate", str(run), "1 2 3").out.split()
    assert found["queries"][0] == ["<bos>", *said][: len(found["queries"][0])]


def test_masks_of_a_runs_sources_have_its_translations(run: Path, command: Command):
    found = json.loads(command("inspect-masks", str(run), "--src", "1 2 3", "--json").out)
    traced = json.loads(command("trace", str(run), "1 2 3", "--part", "decoder", "--json").out)
    assert len(found["tgt_in"][0]) == len(traced["queries"][0]) > 1


def test_json_holds_every_tensor_in_full(command: Command):
    answer = command(*TRACED, "--part", "cross", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert (found["part"], found["layer"]) == ("cross", 1)
    assert found["queries"][0] == ["<bos>", "9", "7", "<pad>", "<pad>"]
    assert found["keys"][0] == ["5", "7", "9", "<eos>", "<pad>"]
    assert {each["verdict"] for each in found["accounts"]} == {"exact", "rounding"}
    weights = next(each for each in found["tensors"] if each["name"] == "weights")
    assert (weights["shape"], weights["strides"]) == ([2, 4, 5, 5], [100, 25, 5, 1])
    assert weights["contiguous"] and weights["dtype"] == "float32"
    values = torch.tensor(weights["values"])
    assert values.shape == (2, 4, 5, 5) and not values[0, :, :, 4].any()


# Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ("PAIRS --json --html x.html", ("--json and --html", "give one")),
        ("PAIRS --html c.yaml", ("c.yaml", "exists already")),
        ("PAIRS --checkpoint 4", ("--checkpoint 4", "a run has checkpoints")),
        ("PAIRS --as hf --json", ("--json and --as", "give one")),
        ("PAIRS --as keras", ("unknown library 'keras'", "torch-mha")),
        ("x --config c.yaml", ("c.yaml", "x", "give one")),
        ("nowhere", ("nowhere", "no such run directory", "toytrans train")),
        ("--config c.yaml --src 9 --tgt 1", ("src '9'", "symbol '9'")),
        ("--src 1 --src 2 --tgt 1", ("2 sources and 1 --tgt", "one --tgt for each source")),
        ("--src 5,7,9", ("spaces between symbols",)),
        ("--src 5 7 9 --tgt 9 7", ("7 9 7: ", '--src "5 7 9"')),
        ("runs/c --src 5 7 --tgt 9 --steps", ("runs/c 7: ", '--src "5 7 9"')),
        ("--src 5 --tgt 9 --panel Bach", ("--panel Bach: no such panel; did you mean 1 Batch?",)),
    ],
)
def test_masks_that_cannot_be_shown(refused, arguments: str, fragments):
    words = (PAIRS if word == "PAIRS" else (word,) for word in arguments.split())
    said = refused("inspect-masks", *(word for part in words for word in part))
    assert all(fragment in said for fragment in fragments), said


def test_what_else_cannot_be_shown(refused):
    assert "layers 1 to 1" in refused("trace", "--config", "c.yaml", "--layer", "3")
    said = refused("trace", "--config", "textbook", "5 7", "4", "--tgt", "7 5")
    assert "2 sources and 1 --tgt" in said
    assert "has 4 of them" in refused(*TRACED, "--head", "5")
    assert "did you mean heads?" in refused("demo", "head")
    assert "no demo 'x'; there are sdpa, " in refused("demo", "x")
    assert "demo scale shows numbers of its own" in refused("demo", "scale", "runs/c")
    Path("c.yaml").write_text(tiny_yaml(model={"positions": "learned", "max_positions": 12}))
    long = ("--config", "c.yaml", "--src", " ".join("1" * 20), "--tgt", "1")
    said = refused("inspect-masks", *long)
    assert all(words in said for words in ("21 places", "max_positions", "shorten"))
