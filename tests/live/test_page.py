"""`toytrans live`: the page in a real browser, and runs that it refuses."""

import base64
import contextlib
import csv
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ANCHORED, Command, call, made_once, tensors_of, tiny_yaml

from live.switched import switched
from toytrans import live, load
from toytrans.data.batches import Batch
from toytrans.inspection.record import capture
from toytrans.live_pages import payload as payloads
from toytrans.measure import Measure
from toytrans.scores import wilson_interval
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID

EVIL = (
    *("</script><script>window.ran=1</script>", "<img/src=x:/onerror=window.ran=1>"),
    *("\"'];window.ran=1;//", "${window.ran=1}", "\u202etxt.exe", "a.b%2E", "#&=", "__proto__"),
    "@STYLE@",
)
"""Symbols of a file may be anything without blanks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, one, that reverses a little better than by chance, and its page, one.html; and
    few.html, the same page with fewer pairs to count."""

    def make(folder: Path) -> None:
        data = {"task": "reverse", "train_length": [1, 5], "valid_examples": 60}
        data |= {"test_length": [1, 9], "test_examples": 60}
        train = {"max_steps": 60, "eval_every": 30}
        model = {"positions": "sinusoidal", "norm": "post", "n_decoder_layers": 2}
        (folder / "c.yaml").write_text(tiny_yaml(data=data, model=ANCHORED | model, train=train))
        with contextlib.chdir(folder):
            assert call("train", "c.yaml", "--out", "one") == 0
            assert call("live", "one", "--out", "one.html") == 0
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(payloads, "COUNTED", 80)
                patch.setattr(payloads, "LONGER", 20)
                assert call("live", "one", "--out", "few.html") == 0

    return made_once(tmp_path_factory, "live", make)


@pytest.fixture
def page(opened: Callable[..., Any], folder: Path) -> Any:
    return opened(folder / "few.html")


def counts_of(page: Any) -> list[int]:
    """Right alone, right with the answer given, and all, once they are counted."""
    page.wait_for_selector("body[data-counted]")
    return [int(number) for number in page.locator("body").get_attribute("data-counted").split()]


def text_of(page: Any, name: str) -> str:
    return page.locator(f"#{name}").text_content()


# What it holds ---------------------------------------------------------------------------------


def data_in(page: Path) -> dict[str, Any]:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text()
    )
    return json.loads(text)


def test_the_weights_are_those_of_the_run_bit_for_bit(folder: Path) -> None:
    data, saved = (
        data_in(folder / "one.html"),
        tensors_of(folder / "one", load(folder / "one").step),
    )
    *_, shown = data["snapshots"]
    raw, start = base64.b64decode(shown["weights"]), 0
    names = {name.removeprefix("weights/") for name in saved if name.startswith("weights/")}
    assert {name for name, _ in data["shapes"]} == names
    for name, shape in data["shapes"]:
        size = 4 * int(np.prod(shape))
        assert raw[start : start + size] == saved[f"weights/{name}"]
        start += size
    assert start == len(raw)


def test_snapshots_are_rounded_as_numpy_rounds(here: Path, command: Command) -> None:
    """The weights of a step in the page are those of its checkpoint, in fp16."""
    keep = ("--set", "train.keep_checkpoints=9", "--set", "train.eval_every=1")
    assert command("train", "c.yaml", *keep, "--out", "r").code == 0
    assert command("live", "r", "--checkpoint", "6", "--out", "r.html").code == 0
    data = data_in(Path("r.html"))
    assert [each["step"] for each in data["snapshots"]] == [0, 1, 3, 6]
    assert [each["kind"] for each in data["snapshots"]] == ["f2", "f2", "f2", "f4"]
    for snapshot in data["snapshots"][1:3]:
        saved = tensors_of("r", snapshot["step"])
        names = [f"weights/{name}" for name, _ in data["shapes"]]
        numbers = np.frombuffer(b"".join(saved[name] for name in names), "<f4")
        assert base64.b64decode(snapshot["weights"]) == numbers.astype("<f2").tobytes()


def test_a_page_is_whole_and_asks_for_nothing(folder: Path) -> None:
    text = (folder / "one.html").read_text()
    assert "default-src 'none'" in text[: text.index("<body>")]
    without_data = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", without_data)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "localStorage", "fetch("):
        assert word not in without_data


def test_the_page_of_the_first_run(trained: tuple[Path, str], here: Path, command: Command) -> None:
    """It is small enough to be sent: with the steps of its training, and without."""
    shutil.copytree(trained[0] / "runs/textbook", here / "textbook")
    answer = command("live", "textbook")
    assert answer.code == 0 and "wrote live.html, 5." in answer.out
    assert len(data_in(Path("live.html"))["snapshots"]) == 8
    assert Path("live.html").stat().st_size <= 6e6
    shutil.rmtree("textbook/snapshots")
    assert command("live", "textbook").out.startswith("wrote live-2.html, 1.4 MB")
    assert Path("live-2.html").stat().st_size <= 1.4e6


# What it counts --------------------------------------------------------------------------------


def test_counts_are_those_of_eval(opened: Callable[..., Any], folder: Path) -> None:
    page = opened(folder / "one.html")
    run = load(folder / "one", device="cpu")
    scores = run.measure(Measure(split="valid", examples=500))
    right, given = (
        round(scores[name] * scores["pairs"]) for name in ("free_exact_match", "forced_exact_match")
    )
    assert 0 < right < scores["pairs"]
    assert counts_of(page) == [right, given, scores["pairs"]]
    low, high = wilson_interval(right, scores["pairs"])
    assert (
        text_of(page, "alone-count")
        == f"{right} of 500; 95% interval {100 * low:.1f} to {100 * high:.1f}%"
    )


def test_which_sources_training_has_met(folder: Path) -> None:
    """Against the sources of all batches, read one by one."""
    from toytrans.data.batches import training_batches
    from toytrans.data.open import open_dataset

    run = load(folder / "one", device="cpu")
    met = set()
    for number, dealt in enumerate(training_batches(open_dataset(run.settings), run.settings)):
        if number == run.step:
            break
        met |= {tuple(i for i in row if i >= FIRST_SYMBOL_ID) for row in dealt.batch.src.tolist()}
    pairs = data_in(folder / "one.html")["pairs"]
    expected = [tuple(run.vocabulary.encode(source.split())) in met for source, _, _ in pairs]
    assert [seen for *_, seen in pairs] == expected
    assert len(set(expected)) == 2, "both occur"


@torch.no_grad()
def test_counts_follow_the_switches(page: Any, folder: Path) -> None:
    """With pads that nothing hides, against PyTorch with the same masks."""
    before = counts_of(page)
    for _ in range(2):
        page.click("#more")
    page.click("label:has(#switch-pad)")
    after = counts_of(page)
    run, right = load(folder / "one", device="cpu"), 0
    model = run.model.double()
    with switched(model, ("encoderPads", "decoderPads", "crossPads")):
        for source, target, _ in data_in(folder / "few.html")["pairs"]:
            src = torch.tensor([[*run.vocabulary.encode(source.split()), EOS_ID, PAD_ID, PAD_ID]])
            answer = run.vocabulary.encode(target.split())
            tgt_in = torch.tensor([[BOS_ID, *answer, PAD_ID, PAD_ID]])
            best = model(src, tgt_in)[0, : len(answer) + 1, EOS_ID:].argmax(-1) + EOS_ID
            right += best.tolist() == [*answer, EOS_ID]
    assert after[1] == right != before[1]
    page.click("#as-learned")
    assert counts_of(page) == before


# What it shows ---------------------------------------------------------------------------------


def letters(page: Any, part: str) -> list[str]:
    rows = page.locator(f'.mask-card[data-part="{part}"] tbody tr').all()
    return ["".join(row.locator("td").all_text_contents()) for row in rows]


def test_every_switch_changes_its_mask_and_says_so(page: Any) -> None:
    page.fill("#source", "3 1 4")
    page.fill("#answer", "4 1 3")
    page.click("#more")
    assert letters(page, "encoder") == ["1111p"] * 5
    assert letters(page, "decoder") == ["1tttb", "11ttb", "111tb", "1111b", "1111p"]
    assert letters(page, "cross") == ["1111p"] * 5
    assert "equal to the last bit" in text_of(page, "status")
    page.click("label:has(#switch-causal)")
    assert letters(page, "decoder") == ["1!!!p", "11!!p", "111!p", "1111p", "1111p"]
    assert "without the causal mask" in text_of(page, "status")
    assert "on later places" in text_of(page, "leak-decoder")
    page.click("label:has(#pads-of-encoder)")
    assert letters(page, "encoder") == ["1111!"] * 5
    assert letters(page, "cross") == ["1111p"] * 5
    assert page.locator("#switch-pad").evaluate("(box) => box.indeterminate")
    assert "on pads" in text_of(page, "leak-encoder")
    page.click("#as-learned")
    assert letters(page, "decoder")[0] == "1ttt" and "as it learned" in text_of(page, "status")


def test_a_wrong_symbol_shows_the_right_one_below(page: Any) -> None:
    page.fill("#source", "3 1 4")
    own = page.locator('[data-line="alone"] .chip').evaluate_all(
        "(chips) => chips.map((chip) => chip.firstChild.textContent)"
    )
    page.fill("#answer", " ".join(["2", *own[1:-1]]) if own[0] != "2" else "1")
    first = page.locator('[data-line="alone"] .chip').first
    assert "wrong" in first.get_attribute("class")
    assert first.locator("small").text_content() in ("2", "1")
    assert "wrong, the answer has" in first.get_attribute("aria-label")
    page.fill("#source", "3 1 4 1")
    page.fill("#answer", "")
    assert page.locator(".chip.right, .chip.wrong").count() == 0
    assert "not known" in text_of(page, "note")


def test_input_that_is_refused_leaves_no_verdict(page: Any) -> None:
    page.fill("#source", "3 x 4")
    assert "x is no symbol of this model" in text_of(page, "error")
    assert "stale" in page.locator("#lines").get_attribute("class")
    page.fill("#source", "1 2 3 4 0 1 2 3")
    assert text_of(page, "error") == ""
    assert "longer than it learned (1 to 5)" in text_of(page, "note")


@torch.no_grad()
def test_the_arithmetic_of_a_cell(page: Any, folder: Path) -> None:
    """Each number by the name that `toytrans trace` gives it."""
    run = load(folder / "one", device="cpu")
    model, ids = run.model.double(), page.evaluate("[now.src, now.tgtIn]")
    batch = Batch(*(torch.tensor([each]) for each in (*ids, ids[1])))
    for (part, layer), call_ in capture(model, batch).items():
        steps = call_.intermediates()
        for head, query, key in ((0, 1, 0), (1, 2, 1)):
            cell = page.evaluate(
                """([part, layer, head, query, key]) => {
                  const attention = now.pass[part][layer - 1];
                  const cell = now.model.cell(attention, head, query, key, now.switches);
                  const { scores, capped, weights } = cell;
                  const [share, q] = [cell.share, cell.q].map((vector) => Array.from(vector));
                  return { scores, capped, weights, share, q };
                }""",
                [part, layer, head, query, key],
            )
            for name in ("scores", "capped", "weights"):
                assert cell[name] == pytest.approx(
                    float(getattr(steps, name)[0, head, query, key]), abs=1e-9
                )
            assert np.allclose(cell["q"], steps.q[0, head, query], atol=1e-9)
            share = steps.weights[0, head, query, key] * steps.v[0, head, key]
            assert np.allclose(cell["share"], share, atol=1e-9)
            page.evaluate(
                """([part, layer, head, query, key]) => {
                  choose(part, query, key);
                  look({ layer, head: head + 1, key });
                }""",
                [part, layer, head, query, key],
            )
            shown = re.search(r"softmax → ([\d.e-]+)", text_of(page, "sum"))
            assert shown and float(shown[1]) == pytest.approx(cell["weights"], abs=6e-4)


@torch.no_grad()
def test_the_gradient_of_the_loss_at_a_step(page: Any, folder: Path) -> None:
    model, (src, tgt_in) = (
        load(folder / "one", device="cpu").model.double(),
        page.evaluate("[now.src, now.tgtIn]"),
    )
    with torch.enable_grad():
        logits = model(torch.tensor([src]), torch.tensor([tgt_in]))[0].detach().requires_grad_()
        labels = torch.tensor([*tgt_in[1:], EOS_ID])
        torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    page.click("#next")
    shown = [float(text) for text in page.locator("#bars tbody td:last-child").all_text_contents()]
    assert shown == pytest.approx(logits.grad[1, EOS_ID:].tolist(), abs=6e-4)


def test_steps_of_decoding_are_rows_of_the_pass(page: Any) -> None:
    page.fill("#source", "3 1 4")
    page.fill("#answer", "4 1 3")
    page.locator("#first").evaluate("(button) => button.click()")
    assert "equal to the last bit" in text_of(page, "same")
    page.click("label:has(#switch-causal)")
    assert "is NOT step 0 of writing alone" in text_of(page, "same")
    assert "for the pass reads later places" in text_of(page, "same")
    page.click("#next")
    assert text_of(page, "step-name").startswith("step 1 of ")


def test_a_head_that_is_off(page: Any) -> None:
    before = page.evaluate("now.pass.logits.slice(0, 9).join()")
    page.locator("#heads button").nth(1).click()
    page.click("label:has(#head-off)")
    assert "without head 2 of cross layer 1" in text_of(page, "status")
    assert page.evaluate("now.pass.logits.slice(0, 9).join()") != before
    assert "2 off" in page.locator("#heads button").nth(1).text_content()
    page.click("label:has(#head-off)")
    assert page.evaluate("now.pass.logits.slice(0, 9).join()") == before


def test_hovering_previews_and_a_click_pins(page: Any) -> None:
    page.click("#next")
    cells = page.locator("#weights tbody tr")
    cells.nth(3).locator("td").first.hover()
    assert text_of(page, "reading").startswith("Place 3 ")
    assert text_of(page, "step-name").startswith("step 1 ")
    page.locator("#decoding-title").hover()
    assert text_of(page, "reading").startswith("Place 1 ")
    cells.nth(3).locator("td").first.click()
    assert text_of(page, "step-name").startswith("step 3 ")


def test_the_model_at_another_step_of_its_training(page: Any, folder: Path) -> None:
    steps = [each["step"] for each in data_in(folder / "one.html")["snapshots"]]
    assert steps[0] == 0 and len(steps) > 3
    trained = counts_of(page)
    page.locator("#at").focus()
    page.keyboard.press("Home")
    assert text_of(page, "at-step") == "step 0" and "at=0" in page.evaluate("location.hash")
    assert counts_of(page)[0] < trained[0]
    assert "as learned" in text_of(page, "alone-usual")
    page.wait_for_selector("#fate td[data-column]")
    columns = page.locator("#fate thead th").all_text_contents()
    assert columns == [str(step) for step in steps]
    shares = page.locator("#fate tbody tr").first.locator("td[data-column]")
    shown = float(shares.first.get_attribute("aria-label").split()[-1])
    name = page.locator("#fate tbody th").first.text_content()
    given = page.evaluate(
        "(name) => softmax(now.given[0].logits)[[...Array(now.size).keys()].find("
        "(id) => nameOf(id) === name)]",
        name,
    )
    assert shown == pytest.approx(given, abs=6e-4)
    shares.last.click()
    assert counts_of(page) == trained


# Experiments and notes -------------------------------------------------------------------------


def test_an_experiment_asks_first_and_answers_afterwards(page: Any) -> None:
    for _ in range(2):
        page.click("#try-next")
    assert text_of(page, "try-number") == "3 of 5"
    act = page.locator("#try-text .do").first
    act.click()
    assert "Guess first" in text_of(page, "try-note")
    assert page.locator("#switch-causal").is_checked()
    page.keyboard.type("80")
    act.click()
    alone, given, of = counts_of(page)
    said = page.locator("#guesses .answer").all_text_contents()
    assert said == [
        page.evaluate(f"`it is ${{percent({right} / {of})}}`") for right in (alone, given)
    ]
    (row,) = page.locator("#notes-table tbody tr").all()
    cells = row.locator("td").all_text_contents()
    assert cells[1:5] == ["without the causal mask", "0", f"{alone / of:.3f}", f"{given / of:.3f}"]
    assert "% alone: guessed 80, it is" in cells[-1]
    page.reload()
    assert page.locator("#guesses input").first.input_value() == "80"
    assert page.locator("#guesses .answer").first.text_content() == said[0]
    assert text_of(page, "notes-link") == "Notes 1"
    page.fill("#name", "Kim, 2b")
    with page.expect_download() as saved:
        page.click("#save-notes")
    with open(saved.value.path(), newline="") as file:
        heading, noted = csv.reader(file)
    assert noted == ["Kim, 2b", *cells] and heading[4] == "right alone"
    page.click("#clear-notes")
    assert text_of(page, "notes-link") == "Notes 0"
    assert page.locator("#guesses input").first.input_value() == ""


def test_back_leads_to_what_was_there_before(page: Any) -> None:
    page.click("label:has(#switch-causal)")
    page.click("#more")
    page.go_back()
    page.wait_for_function("state.pads === 0")
    assert not page.locator("#switch-causal").is_checked()
    page.go_back()
    page.wait_for_function("state.off.length === 0")
    page.click("#try-next")
    page.click("#try-back")
    assert text_of(page, "try-number") == "1 of 5"


def test_a_wrong_pair_can_be_seen(page: Any) -> None:
    counts_of(page)
    page.click("#see-wrong")
    assert "wrong" in page.locator('[data-line="alone"] .label').text_content()


def test_longer_sources_are_counted_apart(page: Any, folder: Path) -> None:
    longer = data_in(folder / "few.html")["longer"]
    assert min(len(source.split()) for source, _ in longer) > 5
    counts_of(page)
    right = page.evaluate(
        """() => subject.longer.filter(({ source, answer }) => {
          const model = modelAt(subject.step), steps = model.greedy(
            model.encode(model.sourceIds(source)));
          return steps.map(({ id }) => nameOf(id)).join(" ") === [...answer, "eos"].join(" ");
        }).length"""
    )
    assert f"{right} of {len(longer)} alone." in text_of(page, "longer-counted")


# Its address -----------------------------------------------------------------------------------


def test_a_state_comes_back_from_its_address(
    opened: Callable[..., Any], page: Any, folder: Path
) -> None:
    page.fill("#source", "3 1 4 0")
    page.fill("#answer", "0 4 1 3")
    page.click("#more")
    page.click("label:has(#switch-causal)")
    page.click("label:has(#pads-of-cross)")
    page.locator("#heads button").nth(1).click()
    page.click("label:has(#head-off)")
    page.click("#next")
    page.click("#big")
    state = page.evaluate("[location.hash, JSON.stringify(state)]")
    assert "pads=1" in state[0] and "src=3.1.4.0" in state[0] and "view=big" in state[0]
    page.goto("about:blank")
    assert (
        opened(folder / "few.html", state[0]).evaluate("[location.hash, JSON.stringify(state)]")
        == state
    )


def test_an_address_from_elsewhere(opened: Callable[..., Any], folder: Path) -> None:
    """Words of lessons work; what means nothing is passed over."""
    page = opened(
        folder / "few.html", "#run=-causal-pad&pads=3&src=3.1.4&head=cross.1.2&step=2&exp=3"
    )
    assert "without the causal mask and the pad mask" in text_of(page, "status")
    assert page.evaluate("[state.pads, state.head, state.step, state.experiment]") == [3, 2, 2, 2]
    page.evaluate(
        "location.hash = '#run=-magic-constructor&pads=99&src=9.%zz&head=cross.7.7&at=5&step=-1'"
    )
    page.wait_for_function("state.pads === 0")
    for word in ("-magic", "-constructor", "pads=99", "src=9.%zz", "head=cross.7.7", "at=5"):
        assert word in text_of(page, "error")
    assert page.evaluate("[state.off, state.head, state.at]") == [[], 1, load(folder / "one").step]


def test_symbols_that_are_code(opened: Callable[..., Any], here: Path) -> None:
    lines = (f"{evil} {n}\t{n} {evil}\n" for n in range(12) for evil in EVIL)
    (here / "pairs.tsv").write_text("".join(lines))
    files = {"files": {"train": "pairs.tsv", "valid": "pairs.tsv", "test": "pairs.tsv"}}
    (here / "f.yaml").write_text(tiny_yaml(data=files))
    name = EVIL[1].replace("/", "\\")
    assert call("train", "f.yaml", "--out", name) == 0
    assert call("live", name, "--out", "evil.html") == 0
    text = (here / "evil.html").read_text()
    assert "<img" not in text and "</script><script>w" not in text
    page = opened(here / "evil.html")
    for symbol in EVIL:
        page.fill("#source", f"{symbol} 3")
        assert text_of(page, "error") == ""
        chips = page.locator('[data-line="source"] .chip[data-kind=""]')
        assert chips.first.text_content() == symbol.replace("\u202e", "\\u{202e}")
        assert page.evaluate("readAddress(location.hash).source") == [symbol, "3"]
    assert page.evaluate("window.ran") is None


def test_a_run_of_files_without_test_data(opened: Callable[..., Any], here: Path) -> None:
    lines = (f"{n % 7} {n % 5} {n % 3}\t{n % 3} {n % 5}\n" for n in range(200))
    (here / "pairs.tsv").write_text("".join(lines))
    (here / "f.yaml").write_text(tiny_yaml(data={"files": {"train": "pairs.tsv"}}))
    assert call("train", "f.yaml", "--out", "files") == 0
    assert call("live", "files", "--out", "files.html") == 0
    page = opened(here / "files.html")
    run = load(here / "files", device="cpu")
    scores = run.measure(Measure(split="valid", examples=500))
    right, given = (
        round(scores[name] * scores["pairs"]) for name in ("free_exact_match", "forced_exact_match")
    )
    assert counts_of(page) == [right, given, scores["pairs"]] and scores["pairs"] < 500
    assert page.locator("#longer").is_disabled()


# How it is reached -----------------------------------------------------------------------------


def test_keys_reach_every_part(page: Any) -> None:
    seen = []
    for _ in range(70):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.closest('[id]').id"))
        if seen[-1] == "check-again":
            break
    for name in (
        "source",
        "answer",
        "lines",
        "small-heads",
        "switch-causal",
        "pads-of-cross",
        "heads",
        "weights",
        "next",
    ):
        assert name in seen
    assert seen.index("next") < 45
    page.locator("#weights td[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.column") == "1"
    assert page.evaluate("[state.step, state.key]") == [1, 1]
    page.locator("#part-tabs [aria-selected=true]").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("state.part") == "decoder"
    page.locator("#lines [tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.step") == "1"


def assert_accessible(page: Any, width: int, scheme: Any) -> None:
    """axe finds nothing, and nothing scrolls sideways."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 844})
    page.wait_for_timeout(300)
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def broken(browser: Any, folder: Path) -> Iterator[Any]:
    """A page whose masks are broken, and whose answer is another one."""
    page = browser.new_page(reduced_motion="reduce")
    page.goto((folder / "few.html").as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    page.evaluate("change({ pads: 2, off: ['causal', 'crossPads'], answer: ['1', '2'] })")
    yield page
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_accessible(broken: Any, width: int, scheme: Any) -> None:
    assert_accessible(broken, width, scheme)


def test_a_notebook_shows_the_page_in_a_cell(browser: Any, folder: Path) -> None:
    shown = live(load(folder / "one"))
    assert "step 30" in repr(shown)
    page = browser.new_page()
    page.set_content(shown._repr_html_())
    inside = page.frame_locator("iframe")
    assert inside.locator("#proof").text_content().startswith("Checked in this browser")
    inside.locator("label:has(#switch-causal)").click()
    assert "without the causal mask" in inside.locator("#status").text_content()
    page.close()


# What it proves, and what is refused -----------------------------------------------------------


def test_the_page_proves_its_numbers(opened: Callable[..., Any], folder: Path, here: Path) -> None:
    assert "those of PyTorch" in text_of(opened(folder / "one.html"), "proof")
    text = (folder / "one.html").read_text()
    broken = text.replace("variance + 1e-5", "variance + 2e-5")
    assert broken != text
    (here / "broken.html").write_text(broken)
    page = opened(here / "broken.html")
    assert "Do not trust this page" in text_of(page, "proof")
    assert "bad" in page.locator("#proof").get_attribute("class")


@pytest.mark.parametrize("fault", payloads.LEARNED_WITHOUT)
def test_a_broken_run_runs_as_it_learned(
    opened: Callable[..., Any], here: Path, command: Command, fault: str
) -> None:
    model = {"positions": "sinusoidal", "cross_positions": "none"}
    (here / "c.yaml").write_text(tiny_yaml(model=ANCHORED | model))
    assert command("train", "c.yaml", "--break", fault, "--out", "broken").code == 0
    assert command("live", "broken", "--out", "broken.html").code == 0
    page = opened(here / "broken.html")
    assert page.locator("body").get_attribute("data-proof") == "sound"
    (name,) = (
        {"no_causal": "causal", "pad_visible": "pad", "no_scale": "scale", "no_position": "places"}[
            fault
        ],
    )
    assert not page.locator(f"#switch-{name}").is_checked()
    assert "learned with everything but" in text_of(page, "status")
    run = load(here / "broken", device="cpu")
    scores = run.measure(Measure(split="valid", examples=500))
    assert counts_of(page)[0] == round(scores["free_exact_match"] * scores["pairs"])


ONE_STEP = ("--set", "train.max_steps=1")


def test_what_is_refused(
    run: Path,
    here: Path,
    refused: Callable[..., str],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "are about a run; name one" in refused("live", "--checkpoint", "last")
    assert "no such run" in refused("live", "nothing")
    assert "there is no folder no" in refused("live", str(run), "--out", "no/live.html")
    assert "no checkpoint 5" in refused("live", str(run), "--checkpoint", "5")
    for fault in ("no_norm", "mask_flipped"):
        assert command("train", "c.yaml", *ONE_STEP, "--break", fault, "--out", fault).code == 0
        assert "which the page cannot run" in refused("live", fault)
    positions = Path(__file__).parents[2] / "docs/examples/my_positions.py"
    shutil.copy(positions, here / "mine.py")
    names = re.findall(r"^class (\w+)", positions.read_text(), re.MULTILINE)
    own = ("--set", f"model.positions=mine.py:{names[0]}")
    assert command("train", "c.yaml", *ONE_STEP, *own, "--out", "own").code == 0
    assert "the page cannot run your own code, model.positions" in refused(
        "live", "own", "--trust-code"
    )
    from toytrans.config.faults import hide

    hidden = ("--set", f"fault={hide('no_scale')}")
    assert command("train", "c.yaml", *ONE_STEP, *hidden, "--out", "exercise").code == 0
    answer = command("live", "exercise")
    assert answer.code == 2 and "an exercise, and the page would tell its fault" in answer.err
    monkeypatch.setattr(payloads, "MOST_PARAMETERS", 100)
    assert "numbers would make a page of" in refused("live", str(run))
    assert not list(here.glob("live*.html"))
