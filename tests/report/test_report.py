"""`toytrans report`: pages in a real browser, and runs in every state."""

import contextlib
import html
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, call, made_once, tiny_yaml

from toytrans import load
from toytrans.checks.rules import CHECKS
from toytrans.checks.run import check
from toytrans.measurement import write_result
from toytrans.report import sections
from toytrans.report.chart import linear, logarithm
from toytrans.training.writer import RunWriter

EVIL = (
    *("</script><script>window.ran=1</script>", "<img/src=x:/onerror=window.ran=1>"),
    *("\"'];window.ran=1;//", "]]><svg/onload=window.ran=1>", "${window.ran=1}", "\u202etxt.exe"),
)
"""Symbols of a file may be anything without blanks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three checkpoints with its page, one.html, which has every check, and a page of its
    masks, masks.html."""

    def make(folder: Path) -> None:
        data = {"train_length": [2, 8], "valid_examples": 40}
        (folder / "c.yaml").write_text(tiny_yaml(data=data, train={"keep_checkpoints": 9}))
        with contextlib.chdir(folder):
            assert call("train", "c.yaml", "--out", "one") == 0
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sections, "check", check)
                assert call("report", "one", "--out", "one.html") == 0
            pairs = ("--src", "1 2 3 4", "--src", "2")
            assert call("inspect-masks", "one", *pairs, "--html", "masks.html") == 0

    return made_once(tmp_path_factory, "report", make)


@pytest.fixture(scope="module")
def evil(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages about runs whose symbols and names are code, for a browser: evil.html, several.html."""

    def make(folder: Path) -> None:
        lines = (f"{evil} {n}\t{n} {evil}\n" for n in range(12) for evil in EVIL)
        (folder / "pairs.tsv").write_text("".join(lines))
        files = {"files": {"train": "pairs.tsv", "valid": "pairs.tsv", "test": "pairs.tsv"}}
        (folder / "f.yaml").write_text(tiny_yaml(data=files))
        names = [evil.replace("/", "\\") for evil in EVIL]
        with contextlib.chdir(folder):
            assert call("train", "f.yaml", "--out", names[0]) == 0
            for name in names[1:]:
                shutil.copytree(names[0], name)
            assert call("report", names[1], "--out", "evil.html") == 0
            assert call("report", *names, "--out", "several.html") == 0

    return made_once(tmp_path_factory, "evil", make)


def words_of(page: Path) -> str:
    """The text of a page, without tags, with one blank for several."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).split())


GRIDS = """grids => grids.map(grid => ({
  head: [...grid.querySelectorAll("thead th")].slice(1).map(cell => cell.textContent),
  rows: [...grid.tBodies[0].rows].map(row => ({
    query: row.querySelector("th").textContent,
    cells: [...row.querySelectorAll("td")].map(cell => [cell.textContent, cell.title]),
  })),
}))"""
"""What the grids of masks show, asked for in one go."""


def test_a_mask_says_why_a_cell_is_closed(opened, folder: Path) -> None:
    page = opened(folder / "masks.html")
    grids = page.locator("#masks table.mask")
    shown = grids.evaluate_all(GRIDS)
    masks = [grid for grid in shown if grid["rows"][0]["query"] != "src"]  # the others have labels
    assert len(masks) == 6
    reasons = set()
    for number, grid in enumerate(masks):
        for q, row in enumerate(grid["rows"]):
            for k, (key, (mark, says)) in enumerate(zip(grid["head"], row["cells"], strict=True)):
                future, pad = number % 3 == 1 and k > q, key == "<pad>"
                why = " and ".join(["future"] * future + ["pad key"] * pad)
                start = f"query {q} {row['query']}, key {k} {key}: "
                assert says.startswith(start + ("closed: " if why else "open"))
                assert mark == ("·" if why else "1")
                reasons.add(says.removeprefix(start))
    assert {"open", "closed: future", "closed: pad key"} <= reasons
    reading = page.locator("#masks .reading")
    decoder_self = grids.nth(shown.index(masks[1]))
    decoder_self.locator("tbody td").first.hover()
    assert reading.text_content().endswith("open")
    page.mouse.move(0, 0)  # else a page that scrolls moves a cell below it
    for key, end in {"ArrowRight": "closed: future", "ArrowDown": "open"}.items():
        decoder_self.focus()
        page.keyboard.press(key)
        assert reading.text_content().endswith(end)


@pytest.mark.parametrize("name", ["one.html", "masks.html"])
def test_a_page_fits_a_telephone(opened, folder: Path, name: str) -> None:
    """What is wider than the screen, such as a table, is moved within itself."""
    page = opened(folder / name)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_plot_can_be_read_out_and_printed(opened, folder: Path) -> None:
    page = opened(folder / "one.html")
    for chart in page.locator(".chart").all():
        assert chart.locator("svg[aria-label]").count() == 1
        assert "step" in chart.text_content() or "length" in chart.text_content()
    page.emulate_media(media="print")
    page.evaluate("document.documentElement.style.width = '718px'")  # A4; no event of a resize
    for chart in page.locator(".chart svg").all():
        box = chart.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 718


def test_a_page_is_whole_and_asks_for_nothing(folder: Path) -> None:
    text = (folder / "one.html").read_text()
    assert len(text.encode()) < 2**20
    assert all(f"<td>{name}</td>" in text for name in CHECKS)
    assert "default-src 'none'" in text[: text.index("<body>")]
    body = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", body)
    for name in ("summary", "curves", "lengths", "translations", "check"):
        assert f'<section id="{name}"' in text
    assert re.search(r"train.keep_checkpoints</td>\s*<td class=\"differs\">9</td>", text)


@pytest.mark.parametrize("name", ["evil.html", "several.html"])
def test_no_script_of_a_name_runs(opened, evil: Path, name: str) -> None:
    """Nothing is asked for either, also not by what a pointer shows."""
    text = (evil / name).read_text()
    for symbol in EVIL[:2]:
        assert symbol not in text and symbol.replace("/", "\\") not in text
    assert html.escape(EVIL[1].replace("/", "\\")) in text
    assert "\u202e" not in text and "\\u202etxt.exe" in text
    page = opened(evil / name)
    for chart in page.locator(".chart svg").all():
        chart.hover(force=True)
    for button in page.locator("th button").all():
        button.click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.ran") is None
    assert "onerror=window.ran=1" in page.locator("body").inner_text(), "it is there, as text"


def test_runs_in_every_state(folder: Path, here: Path, command: Command) -> None:
    """Given as a folder of them, such as a sweep, and one of them by its name too."""
    runs = here / "runs"
    config = str(folder / "c.yaml")
    assert command("train", config, "--seed", "1", "--out", "runs/b").code == 0
    for name in ("a", "bad", "started"):
        shutil.copytree(folder / "one", runs / name)
    (runs / "bad" / "data.json").write_text("{")
    shutil.rmtree(runs / "started" / "checkpoints")
    write_result(runs / "a", load(runs / "a").evaluate())
    kept = runs / "a/eval.json"
    made_up = re.sub(r'("free_exact_match": )[\d.]+', r"\g<1>0.5", kept.read_text())
    kept.write_text(made_up)
    answer = command("report", "runs", "runs/a", "--out", "all.html")
    assert answer.code == 0 and "the page lacks parts of Runs: started: " in answer.err
    text = words_of(here / "all.html")
    assert "toytrans: 4 runs" in text
    assert "bad: runs/bad/data.json: damaged" in text and " bad damaged " in text
    assert "bands: 95% intervals" in text
    lines = command("eval", "runs").out.splitlines()
    compared = [" ".join(line.split()) for line in lines if not re.search("─|symbol|errors ", line)]
    assert any("2 of 3 0." in line for line in compared)
    assert [line for line in compared if line not in text] == [], "as eval compares them"
    with RunWriter(runs / "a").locked():
        answer = command("report", "runs/a")
    assert answer.code == 0 and "lacks" not in answer.err
    assert "being written, step 6 of 6" in words_of(here / "report.html")


def test_what_own_code_would_show_is_missed_on_the_terminal(here: Path, command: Command) -> None:
    (here / "own.py").write_text("def f(source):\n    return source[::-1]\n")
    assert command("train", "c.yaml", "--set", "data.task=own.py:f", "--out", "own").code == 0
    answer = command("report", "own")
    (said,) = [line for line in answer.err.splitlines() if "the page lacks" in line]
    parts = "parts of Exact match by length, Translations"
    assert answer.code == 0 and f"{parts}: own.py:f: code that" in said and "--trust-code" in said
    assert "lacks" not in command("report", "own", "--trust-code").err


def test_a_page_needs_no_matplotlib(
    folder: Path, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    shutil.copytree(folder / "one", here / "one")
    answer = command("report", "one")
    assert answer.code == 0 and "lacks" not in answer.err
    page = (here / "report.html").read_text()
    assert page.count("<svg ") == 5, "four curves, and one by length"
    assert all(
        f'aria-label="{title}"' in page for title in ("Learning rate", "Loss in nats a token")
    )


def test_a_page_is_of_the_checkpoint_that_is_asked_for(
    folder: Path, here: Path, command: Command
) -> None:
    """Of one run and of several; step 2 is neither the best nor the last."""
    for name in ("one", "two"):
        shutil.copytree(folder / "one", here / name)
    best = load(here / "one")
    assert best.step != 2 < best.steps[-1]
    losses = [
        json.loads(
            command("eval", "one", "--examples", "1000", "--checkpoint", which, "--json").out
        )
        for which in ("2", "best")
    ]
    loss, of_best = (f"{each['parts']['in_range']['loss']:.4f}" for each in losses)
    assert loss != of_best
    for runs in (("one",), ("one", "two")):
        out = f"{len(runs)}.html"
        assert command("report", *runs, "--checkpoint", "2", "--out", out).code == 0
        shown = words_of(here / out)
        assert "step 2" in shown if len(runs) == 1 else "checkpoint 2" in shown
        assert len(runs) > 1 or (loss in shown and of_best not in shown)


@pytest.mark.parametrize(
    ("low", "high", "least"),
    [(0.9, 1.1, 2), (3e-5, 4.0, 3), (0.5, 0.5, 2), (2.0, 9.0, 2), (1.01, 1.04, 2)],
)
def test_an_axis_has_several_values_and_all_of_them_in_it(low, high, least) -> None:
    """One value alone says nothing of a scale."""
    for axis in (linear, logarithm):
        scale = axis(low, high, 0.0, 100.0)
        assert least <= len(scale.ticks) <= 10
        assert all(-1e-6 <= scale.place(value) <= 100 + 1e-6 for value in scale.ticks)
        assert list(scale.ticks) == sorted(scale.ticks)
    assert linear(low, high, 0, 100).place((low + high) / 2) == pytest.approx(50)


def test_what_a_report_refuses(folder: Path, here: Path, refused: Callable[..., str]) -> None:
    assert "no run here yet" in refused("report")
    shutil.copytree(folder / "one", here / "one")
    (here / "report.html").write_text("mine")
    assert "exists already" in refused("report", "one", "--out", "report.html")
    assert "there is no folder no/such" in refused("report", "one", "--out", "no/such/folder.html")
    assert (here / "report.html").read_text() == "mine"


@pytest.mark.usefixtures("here")
def test_a_run_that_diverged_at_once_has_a_page_and_is_told_as_that(command: Command, refused):
    """Its rate is so large that a half more or less changes nothing."""
    Path("c.yaml").write_text(tiny_yaml(train={"lr": 1e30, "warmup_steps": 0}))
    assert command("train", "c.yaml", "--out", "r").code == 1
    assert command("report", "r", "--out", "r.html").code == 0
    assert "1e+30" in Path("r.html").read_text()
    assert "training diverged before its first checkpoint" in refused("eval", "r")
