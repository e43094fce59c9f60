"""The page in which a model learns: what a reader can do with it, in a real browser. Whether it
learns what PyTorch learns is asked in test_learning.py."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from live.test_page import assert_accessible, counts_of, text_of
from toytrans import load
from toytrans.live_pages.page import learning_page
from toytrans.measure import Measure

TINY = "#size=16.1.1.1.16&lengths=1.3&steps=20"
"""A model that has learned in a moment, though not much."""

LONGER = TINY.replace("steps=20", "steps=40")
"""One that gets some pairs right."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learning") / "live.html"
    path.write_text(learning_page())
    return path


@pytest.fixture
def still(opened: Callable[..., Any], file: Path) -> Callable[[str], Any]:
    """Opens the page for a reader who wants stillness, so that nothing begins by itself."""

    def open_still(state: str = TINY) -> Any:
        return opened(file, state, reduced_motion="reduce")

    return open_still


def learned(page: Any) -> list[int]:
    """Waits until it has learned and its pairs are counted. Right alone, given, and all."""
    page.wait_for_selector("body[data-learning=no]")
    return counts_of(page)


def weights_of(page: Any) -> str:
    return page.evaluate("Object.values(subject.weights.get(subject.step)).map(String).join()")


def test_the_command_writes_a_small_page(here: Path, command: Command) -> None:
    answer = command("live")
    assert answer.code == 0 and answer.out.startswith("wrote live.html, ")
    assert Path("live.html").stat().st_size <= 200_000


def test_it_begins_by_itself_and_is_taken_apart_in_place(
    opened: Callable[..., Any], file: Path
) -> None:
    page = opened(file, f"{LONGER}&run=-causal&pads=2")
    alone, given, of = learned(page)
    assert of == 500 and given < alone, "it runs without the causal mask now, as the address says"
    assert "Model A learned with everything; it now runs without the causal" in text_of(
        page, "status"
    )
    page.click("#as-learned")
    counts = counts_of(page)
    assert counts[0] == counts[1]
    assert page.evaluate("[subject.counted.alone, subject.counted.given]") == counts[:2]
    seen = page.evaluate("subject.pairs.filter((pair) => pair.seen).length")
    assert f"{500 - seen} never seen" in text_of(page, "counted") and seen > 0
    page.fill("#source", "3 1 4 1")
    page.fill("#source", "3 1")
    assert page.locator('[data-line="alone"] .label b').text_content() != "", "it is judged"


def test_what_a_reader_has_scrolled_to_follows_the_learning(still: Callable[..., Any]) -> None:
    page = still(TINY.replace("steps=20", "steps=20000"))
    page.click("#learn")
    page.locator("#weights").scroll_into_view_if_needed()
    page.wait_for_function("() => subject.isLearning && subject.step > 20")
    shown, right = page.evaluate("""() => {
      const shown = byId("reading").textContent + byId("arithmetic").textContent;
      showChosen();
      return [shown, byId("reading").textContent + byId("arithmetic").textContent];
    }""")
    assert shown == right != ""


def test_switches_wait_until_it_has_learned(still: Callable[..., Any]) -> None:
    page = still(TINY.replace("steps=20", "steps=20000"))
    assert page.locator("body").get_attribute("data-learning") == "no", "nothing moves by itself"
    assert text_of(page, "learn") == "Learn"
    page.click("#learn")
    page.wait_for_function("() => subject.step > 0")
    for name in ("switch-causal", "learn-causal", "more", "task", "seed"):
        assert page.locator(f"#{name}").is_disabled()
    page.click("#learn")
    page.wait_for_selector("body[data-learning=paused]")
    assert text_of(page, "learn") == "Go on"
    page.click("#stop-here")
    learned(page)
    steps = page.evaluate("[subject.step, subject.curve.length, subject.settings.steps]")
    assert steps[0] == steps[1] < steps[2] == 20000
    assert page.locator("#switch-causal").is_enabled()


def test_a_pause_changes_no_bit(still: Callable[..., Any]) -> None:
    page = still(LONGER)
    page.click("#learn")
    learned(page)
    whole = weights_of(page)
    page.click("#learn")
    for _ in range(2):
        page.wait_for_selector("body[data-learning=yes]")
        page.click("#learn")
        page.wait_for_selector("body[data-learning=paused]")
        page.click("#learn")
        if page.evaluate("running === null"):
            break
    learned(page)
    assert page.evaluate("shelf.length") == 2 and weights_of(page) == whole


def test_learning_again_makes_another_model(still: Callable[..., Any]) -> None:
    page = still()
    page.click("#learn")
    learned(page)
    first = weights_of(page)
    page.click("label:has(#learn-causal)")
    assert text_of(page, "learn") == "Learn again without the causal mask"
    assert "Model A stays" in text_of(page, "learn-why")
    assert "as it learned" in text_of(page, "status"), "Learn touches nothing that runs"
    page.click("#learn")
    learned(page)
    assert weights_of(page) != first
    assert "Model B learned with everything but the causal mask" in text_of(page, "status")
    assert not page.locator("#switch-causal").is_checked()
    page.locator("#shelf button").first.click()
    assert weights_of(page) == first and "Model A" in text_of(page, "status")
    assert "learn=" not in page.evaluate("location.hash")


def test_experiments_learn_answer_and_note(still: Callable[..., Any]) -> None:
    page = still()
    for number in range(1, 5):
        assert text_of(page, "try-number") == f"{number} of 6"
        page.locator("#guesses input").first.fill("50")
        page.locator("#guesses input").nth(1).fill("60")
        for act in range(2 if number == 2 else 1):
            page.locator("#try-text .do").nth(act).click()
            learned(page)
        said = page.locator("#guesses .answer").all_text_contents()
        assert all(re.fullmatch(r"it is [\d.]+%", each) for each in said)
        page.click("#try-next")
    rows = page.locator("#notes-table tbody tr").all()
    assert len(rows) == 5 and "guessed 50, it is" in rows[0].text_content()
    assert "learned without the causal mask" in rows[-1].text_content()
    page.locator("#try-text .do").nth(1).click()
    page.locator("#try-text .do").nth(1).click()
    assert "First let one learn without the pad mask" in text_of(page, "try-note")


def test_it_learns_in_a_tab_that_nobody_sees(still: Callable[..., Any]) -> None:
    page = still()
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true })")
    page.click("#learn")
    learned(page)
    assert page.evaluate("[state.at, subject.step]") == [20, 20]
    assert text_of(page, "learn") == "Learn again"


def test_an_experiment_does_not_learn_what_cannot_be(still: Callable[..., Any]) -> None:
    page = still()
    page.fill("#seed", "")
    for _ in range(2):
        page.locator("#try-text .do").first.click()
    assert "First choose above" in text_of(page, "try-note")
    assert page.evaluate("shelf.length") == 0


def test_five_seeds(still: Callable[..., Any]) -> None:
    page = still(TINY.replace("steps=20", "steps=10"))
    page.click("#five")
    page.wait_for_function("() => shelf.length === 5 && !running")
    learned(page)
    shares = page.evaluate("shelf.map(({ counted }) => counted.alone / counted.of)")
    low, high = (page.evaluate(f"percent({share})") for share in (min(shares), max(shares)))
    assert f"Seeds 0, 1, 2, 3, 4: right alone {low} to {high}" in text_of(page, "seeds")
    assert text_of(page, "notes-link") == "Notes 5"


def test_a_link_learns_the_same_model(opened: Callable[..., Any], file: Path) -> None:
    hash_ = f"#task=sort&{TINY[1:]}&seed=3&learn=-pad-scale"
    page = opened(file, hash_)
    learned(page)
    said = page.evaluate("location.hash")
    assert set(said[1:].split("&")) == set(hash_[1:].split("&"))
    assert page.evaluate("[subject.chosen.task, subject.chosen.seed]") == ["sort", 3]
    assert "but the pad mask and the scale" in text_of(page, "status")
    weights = weights_of(page)
    page.evaluate(f"location.hash = '{TINY}&task=dance&seed=-3&lengths=9'")
    page.wait_for_function("() => shelf.length === 2")
    for word in ("task=dance", "seed=-3", "lengths=9"):
        assert word in text_of(page, "error")
    learned(page)
    page.evaluate(f"location.hash = '{said}'")
    page.wait_for_function("() => subject.name === 'A'")
    assert weights_of(page) == weights and page.evaluate("shelf.length") == 2


def test_what_cannot_be_learned_is_said(still: Callable[..., Any]) -> None:
    page = still()
    for wrong in ("-3", "1.5", ""):
        page.fill("#seed", wrong)
        assert "the seed is a whole number" in text_of(page, "choice-error")
        page.click("#learn")
        assert page.evaluate("shelf.length") == 0
    page.fill("#seed", "1")
    assert text_of(page, "choice-error") == ""
    page.fill("#size-d_model", "20")
    assert "each head has a width of 8" in text_of(page, "choice-error")


def test_it_is_carried_home(still: Callable[..., Any], here: Path, command: Command) -> None:
    """The two files are a run; the command trains the same one; the line is graded."""
    page = still(LONGER)
    page.click("#learn")
    alone, given, of = learned(page)
    line = text_of(page, "result")
    assert line.endswith(f"answer given {given / of:.3f}, alone {alone / of:.3f}, 40 steps")
    Path("home").mkdir()
    for name, file in (("save-model", "model.safetensors"), ("save-config", "config.yaml")):
        with page.expect_download() as saved:
            page.click(f"#{name}")
        saved.value.save_as(f"home/{file}")
    run = load("home", device="cpu")
    assert run.settings.data.task == "reverse" and run.settings.model.d_model == 16
    scores = run.measure(Measure(split="valid", examples=500))
    assert round(500 * scores["free_exact_match"]) == alone
    Path("lines.txt").write_text(f"{line}\n")
    assert f"{alone / of:.3f}" in command("exercise", "grade", "lines.txt").out
    page.click("label:has(#learn-scale)")
    page.click("label:has(#learn-causal)")
    page.click("#learn")
    learned(page)
    assert "No command does the same" in text_of(page, "command")
    assert page.locator("#save-config").is_disabled()


def test_keys_reach_the_row_of_learning(still: Callable[..., Any]) -> None:
    page, seen = still(), []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    for name in ("task", "model", "seed", "learn-causal", "learn"):
        assert name in seen
    page.locator("#learn").focus()
    page.keyboard.press("Enter")
    learned(page)
    assert page.evaluate("document.activeElement.id") == "learn"


@pytest.fixture(scope="module")
def taken(browser: Any, file: Path) -> Iterator[Any]:
    """A page in which two models have learned, of which one runs without some of its masks."""
    page = browser.new_page(reduced_motion="reduce")
    page.goto(file.as_uri() + TINY)
    for _ in range(2):
        page.click("#learn")
        learned(page)
        page.evaluate("byId('learn-causal').click()")
    page.evaluate("change({ pads: 2, off: ['causal', 'crossPads'] })")
    yield page
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_accessible(taken: Any, width: int, scheme: Any) -> None:
    assert_accessible(taken, width, scheme)
