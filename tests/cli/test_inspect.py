"""`toytrans inspect-masks` as a person sees it: forms, widths, terminals, runs, refusals."""

import contextlib
import html
import io
import json
import re
import sys
from itertools import groupby
from pathlib import Path

import pytest
import typer
from conftest import PAIRS, SMALL_YAML, Command, Screen, call, on_screen

from toytrans.inspection.table import CLOSED

CONFIG = SMALL_YAML  # of the fixture `here`

pytestmark = pytest.mark.usefixtures("here")


def test_the_nine_tables_in_their_order(command: Command) -> None:
    answer = command("inspect-masks", *PAIRS, "--panel", "all")
    assert (answer.code, answer.err) == (0, "")
    titles = [line for line in answer.out.splitlines() if re.match(r"\d ", line)]
    order = [int(title[0]) for title in titles]
    # tables that stand beside each other share a line
    assert order == [1, 1, *2 * [2, 3, 4, 4, 5, 6, 6], 7, 8, 9]
    assert "fresh weights" in answer.out and "1 = True = may attend" in answer.out
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_wide_masks_fold_with_a_notice(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    long = ("--src", " ".join("7" * 40), "--tgt", "7")
    answer = command("inspect-masks", *long, "--panel", "all")
    (first, *_) = re.findall(r"columns \d+ to \d+ of 41, continued:", answer.out)
    assert max(map(len, answer.out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "300")
    assert "continued" not in command("inspect-masks", *long, "--panel", "all").out


def test_a_terminal_gets_colour_and_nothing_else_does(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = command("inspect-masks", *PAIRS, "--panel", "all").out
    shown = on_screen(monkeypatch, "inspect-masks", *PAIRS, "--panel", "all")
    without = on_screen(monkeypatch, "inspect-masks", *PAIRS, "--panel", "all", NO_COLOR="1")
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == without == piped
    assert CLOSED in piped


def test_control_characters_and_markup_of_symbols_are_shown(command: Command) -> None:
    answer = command("inspect-masks", "--src", "\x1b[31m [bold]", "--tgt", "a")
    assert "\x1b" not in answer.out and "\\x1b[31m" in answer.out and "[bold]" in answer.out


def test_json_is_as_documented(command: Command) -> None:
    found = json.loads(command("inspect-masks", *PAIRS, "--json").out)
    assert list(found) == ["src", "tgt_in", "tgt_out", "encoder_self", "decoder_self", "cross"]
    assert found["cross"][0] == [[1, 1, 1, 1, 0]] * 5


def test_html_is_one_document_that_needs_no_network(command: Command) -> None:
    answer = command("inspect-masks", "--src", "<b>&", "--tgt", "\uac00", *PAIRS, "--html")
    assert (answer.code, answer.err) == (0, "")
    page = answer.out
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert not re.search(r"https?:|\bsrc\s*=\s*[\"']|href=\"[^#d]|url\(|@import", page)
    assert "default-src 'none'" in page and "\x1b" not in page
    assert page.isascii() and "<b>" not in page
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for number in range(1, 10):
        assert re.search(rf"^{number} \w", text, re.MULTILINE)
    assert CLOSED in text and "\uac00" in text and "<b>&" in text


def test_as_a_library_prints_its_arguments(command: Command) -> None:
    """tests/inspection/test_other_libraries.py proves the arguments of each."""
    answer = command("inspect-masks", *PAIRS, "--as", "hf")
    titles = re.findall(r"hf [\w -]+: \w+, pair [12]\b", answer.out)
    assert len(titles) >= 6, "two pairs, three attentions"
    assert "9 Polarity" in answer.out and "1 Batch" in answer.out


# Runs and configs ----------------------------------------------------------------------------


@pytest.fixture
def run(here: Path) -> Path:
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        assert call("train", "--config", "c.yaml") == 0
    return Path("runs/c")


def test_a_run_gives_its_config_its_symbols_and_its_weights(command: Command, run: Path) -> None:
    of_run = command("inspect-masks", str(run), "--panel", "all")
    assert (of_run.code, of_run.err) == (0, "")
    assert f"weights of {run}, step 2" in " ".join(of_run.out.split())
    of_config = command("inspect-masks", "--config", "c.yaml", "--panel", "all").out
    assert "fresh weights, seed 3" in of_config

    def part(out: str, first: int) -> str:
        return out[out.index(f"\n{first} ") :]

    assert of_run.out.split("\n7 ")[0] == of_config.split("\n7 ")[0], "the same pairs and masks"
    assert part(of_run.out, 8) != part(of_config, 8), "other weights"
    same = command("inspect-masks", "--config", "c.yaml", "--panel", "all").out
    assert same == of_config, "fresh weights follow from the seed"
    given = command("inspect-masks", str(run), "--src", "1 2", "--tgt", "2", "--json")
    assert json.loads(given.out)["src"] == [[1, 4, 5, 2]]


def test_a_fault_of_the_config_is_in_the_masks(command: Command) -> None:
    given = ("inspect-masks", "--config", "c.yaml", "--src", "1 2 3", "--tgt", "3 2")
    sound = json.loads(command(*given, "--json").out)
    Path("c.yaml").write_text(f"fault: no_causal\n{SMALL_YAML}")
    broken = json.loads(command(*given, "--json").out)
    assert sound["decoder_self"][0] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert broken["decoder_self"][0] == [[1, 1, 1]] * 3
    screen = command(*given).out
    assert "Decoder self-attention: 3 cells (!) are open on a pad or the future." in " ".join(
        screen.split()
    )
    shown = command(*given, "--panel", "all").out
    assert "NOT the two combined" in shown and "1 ! !" in shown


# Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((*PAIRS, "--json", "--html"), ("--json and --html", "give one")),
        ((*PAIRS, "--as", "hf", "--json"), ("--as hf", "--json", "leave one out")),
        ((*PAIRS, "--as", "keras"), ("unknown library 'keras'", "torch-mha")),
        (("x", "--config", "c.yaml"), ("c.yaml", "x", "give one")),
        (("nowhere",), ("nowhere", "no such run directory", "toytrans train")),
        ((), ("nothing to inspect", "no run here", "--config", "--src", "--tgt")),
        (("--config", "c.yaml", "--src", "9", "--tgt", "1", "--steps"), ("src '9'", "'9'")),
        (
            (*("--config", "learned.yaml", "--src", " ".join("1" * 20), "--tgt", "1"),),
            ("21 places", "max_positions", "shorten"),
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    command: Command, arguments: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    learned = SMALL_YAML.replace("anchored", "learned, max_positions: 12")
    Path("learned.yaml").write_text(learned)
    answer = command("inspect-masks", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("toytrans: ") and answer.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in answer.err


# Steps ---------------------------------------------------------------------------------------


def test_steps_piped_come_all_at_once(command: Command) -> None:
    answer = command("inspect-masks", "--steps")
    assert (answer.code, answer.err) == (0, "")
    numbers = re.findall(r"^(\d+[abc]?) ", answer.out, re.MULTILINE)
    order = [*map(str, range(8)), "7a", "7b", "7c", *map(str, range(8, 18))]
    assert list(dict.fromkeys(numbers)) == order
    assert "any key" not in answer.out and "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "continued" not in answer.out, "every matrix fits 80 columns"


def test_all_steps_are_one_page(command: Command) -> None:
    answer = command("inspect-masks", "--steps", "--html")
    assert (answer.code, answer.err) == (0, "") and answer.out.startswith("<!DOCTYPE html>")
    text = html.unescape(re.sub(r"<[^>]+>", "", answer.out))
    titles = [line for line in text.splitlines() if re.match(r"(7[abc]|\d+) [A-Z]", line)]
    assert titles[0].startswith("0 Batch") and titles[-1].startswith("17 Conclusion")
    assert len(titles) == 31 and "Trap: the missing scale" in text


@pytest.mark.parametrize(
    ("keys", "shown", "code"),
    [
        (["x", " ", "q"], ["0", "1", "2"], 0),
        (["x", "b", "x", "\x1b[D", "q"], ["0", "1", "0", "1", "0"], 0),
        (["x", KeyboardInterrupt()], ["0", "1"], 130),
    ],
)
def test_steps_on_a_terminal_come_one_a_key_press(
    monkeypatch: pytest.MonkeyPatch, keys: list[str | BaseException], shown: list[str], code: int
) -> None:
    pressed = iter(keys)

    def getchar() -> str:
        key = next(pressed)
        if isinstance(key, BaseException):
            raise key
        return key

    screen = Screen()
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


# Rendering -----------------------------------------------------------------------------------


def test_every_panel_that_is_listed_can_be_asked_for(command: Command, refused):
    words = ("inspect-masks", "--config", "c.yaml", "--as", "joeynmt")
    listed = refused(*words, "--panel", "no such").partition("there are ")[2].strip().split(", ")
    assert len(listed) >= 3
    for name in listed:
        assert command(*words, "--panel", name).code == 0
