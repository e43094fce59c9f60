"""`toytrans report`: pages in a real browser, and runs in every state."""

import contextlib
import html
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command, call, made_once, tiny_yaml

from toytrans.inspection.masks import masks_as_rows
from toytrans.report.runs import read_view
from toytrans.report.sections import inspected_of_run
from toytrans.training.folder import locked_folder
from toytrans.training.run import state_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

PADS = {"train_length": [2, 8], "valid_examples": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three checkpoints and the page of it."""

    def make(folder: Path) -> None:
        (folder / "c.yaml").write_text(tiny_yaml(data=PADS, train={"keep_checkpoints": 9}))
        with contextlib.chdir(folder):
            assert call("train", "c.yaml", "--out", "one") == 0
            assert call("report", "one", "--out", "one.html") == 0

    return made_once(tmp_path_factory, "report", make)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, folder: Path) -> Iterator[object]:
    """The page of the run, drawn; every request and every complaint of the browser is a failure."""
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto((folder / "one.html").as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    yield page
    assert complaints == [(folder / "one.html").as_uri()]
    page.close()


def test_a_mask_says_its_query_its_key_and_why_it_is_closed(opened, folder: Path) -> None:
    run = read_view(folder / "one").run
    assert run is not None
    rows = list(masks_as_rows(inspected_of_run(run)))
    grids = opened.locator("#masks table.mask")
    assert grids.count() == 6
    reading = opened.locator("#masks .reading")
    order = {"encoder_self": 0, "decoder_self": 1, "cross": 2}
    reasons = set()
    for pair, mask, q, query, k, key, allowed, reason in rows[::17]:
        grid = grids.nth(3 * (pair - 1) + order[mask])
        grid.locator("tbody tr").nth(q).locator("td").nth(k).hover()
        why = "open" if allowed else f"closed: {reason}"
        assert reading.text_content() == f"query {q} {query}, key {k} {key}: {why}"
        reasons.add(why)
    assert {"open", "closed: future", "closed: pad key"} <= reasons


def test_the_arrow_keys_move_through_a_mask(opened) -> None:
    opened.locator("#masks table.mask").nth(1).focus()
    reading = opened.locator("#masks .reading")
    assert reading.text_content().endswith("open")
    opened.keyboard.press("ArrowRight")
    assert reading.text_content().endswith("closed: future")
    opened.keyboard.press("ArrowDown")
    assert reading.text_content().endswith("open")


def test_the_slider_shows_the_attention_of_another_checkpoint(opened) -> None:
    plot = opened.locator("#attention .chart svg")
    slider = opened.locator("#attention input[type=range]")
    assert slider.get_attribute("max") == "2"
    assert "step 6" in plot.text_content()
    before = plot.inner_html()
    slider.focus()
    opened.keyboard.press("ArrowLeft")
    opened.wait_for_function(
        "document.querySelector('#attention .chart svg').textContent.includes('step 4')"
    )
    assert plot.inner_html() != before


def test_a_plot_has_a_text_for_screen_readers(opened) -> None:
    for chart in opened.locator(".chart").all():
        assert chart.get_attribute("aria-label")
        assert chart.locator("svg [aria-roledescription], svg[aria-label]").count()


def test_print_cuts_no_plot_off(opened) -> None:
    opened.emulate_media(media="print")
    opened.evaluate("document.documentElement.style.width = '718px'")  # A4; no event of a resize
    for chart in opened.locator(".chart svg").all():
        box = chart.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 718


def test_a_page_is_whole_and_asks_for_nothing(folder: Path) -> None:
    text = (folder / "one.html").read_text()
    assert len(text.encode()) < 6 * 2**20
    head = text[: text.index("<body>")]
    assert "default-src 'none'" in head
    body = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", body)
    for name in ("summary", "curves", "lengths", "masks", "attention", "translations", "check"):
        assert f'<section id="{name}"' in text
    assert "train.keep_checkpoints</td><td>9</td><td>2</td>" in text


EVIL = (
    *("</script><script>window.ran=1</script>", "<img/src=x:/onerror=window.ran=1>"),
    *("\"'];window.ran=1;//", "]]><svg/onload=window.ran=1>", "${window.ran=1}", "\u202etxt.exe"),
)
"""Symbols of a file may be anything without blanks."""


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pages about runs whose symbols and names are code: one.html and two.html."""

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
            assert call("report", names[1], "--out", "one.html") == 0
            assert call("report", *names, "--out", "two.html") == 0

    return made_once(tmp_path_factory, "evil", make)


@pytest.mark.parametrize("name", ["one.html", "two.html"])
def test_no_script_of_a_name_ends_the_page(evil: Path, name: str) -> None:
    text = (evil / name).read_text()
    for symbol in EVIL[:2]:
        assert symbol not in text and symbol.replace("/", "\\") not in text
    assert html.escape(EVIL[1].replace("/", "\\")) in text
    assert "\u202e" not in text and "\\u202etxt.exe" in text


@pytest.mark.parametrize("name", ["one.html", "two.html"])
def test_no_script_of_a_name_runs(browser, evil: Path, name: str) -> None:
    """Nothing is asked for either, also not by what a pointer shows."""
    page = browser.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto((evil / name).as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    for chart in page.locator(".chart svg").all():
        chart.hover(force=True)
    for cell in page.locator("#masks table.mask td").all()[:5]:
        cell.hover()
    for button in page.locator("th button").all():
        button.click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.ran") is None
    assert asked == [(evil / name).as_uri()] and complaints == []
    shown = page.locator("body").inner_text()
    assert "onerror=window.ran=1" in shown, "the name is there, as text"
    turned = "document.documentElement.textContent.includes('\\u202e')"
    assert not page.evaluate(turned), "no text is written from right to left"
    page.close()


def test_several_runs_with_a_damaged_and_an_unfinished_one(
    folder: Path, here: Path, command: Command
) -> None:
    for name in ("one", "two", "bad", "started"):
        shutil.copytree(folder / "one", here / name)
    (here / "bad" / "data.json").write_text("{")
    shutil.rmtree(here / "started" / "checkpoints")
    config = here / "two" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    answer = command("report", "one", "two", "bad", "started", "--out", "all.html")
    assert answer.code == 0
    text = (here / "all.html").read_text()
    assert "bad/data.json: damaged" in text or "bad: bad/data.json: damaged" in text
    assert "<td>damaged</td>" in text and "started: " in text
    assert "<td>seed</td><td>0</td><td>1</td><td>0</td>" in text


def test_a_run_that_is_being_written(folder: Path, here: Path, command: Command) -> None:
    shutil.copytree(folder / "one", here / "one")
    with locked_folder(here / "one", ""):
        assert str(state_of(here / "one")) == "being written, step 6 of 6"
        assert command("report", "one").code == 0
    assert "being written" in (here / "report.html").read_text()
    assert str(state_of(here / "one")) == "finished"


def test_what_a_report_refuses(
    folder: Path, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no run here yet" in command("report").err
    assert "no such run directory" in command("report", "nope").err
    shutil.copytree(folder / "one", here / "one")
    (here / "report.html").write_text("mine")
    answer = command("report", "one", "--out", "report.html")
    assert answer.code == 2 and "exists already; give --overwrite" in answer.err
    assert (here / "report.html").read_text() == "mine"
    answer = command("report", "one", "--out", "no/such/folder.html")
    assert answer.code == 2 and "there is no folder no/such" in answer.err
    monkeypatch.setitem(sys.modules, "altair", None)
    answer = command("report", "one", "--overwrite")
    assert answer.code == 2 and "pip install altair" in answer.err
    assert (here / "report.html").read_text() == "mine"
