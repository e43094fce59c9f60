"""The trained textbook model in a page: its numbers and its decodings are PyTorch's, and what the
page counts without decoding is what decoding gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from live.switched import STATES, greedy, switched
from live.test_model_js import ragged

from toytrans import live, load
from toytrans.live_pages.payload import packed
from toytrans.live_pages.templates import template
from toytrans.model.decoding import token_limits

pytestmark = pytest.mark.slow

BATCHES = 100


@torch.no_grad()
def test_a_hundred_batches_in_every_state(browser: Any, trained: tuple[Path, str]) -> None:
    """100 ragged batches of 4 rows in 9 states of the switches: 3,600 decodings."""
    run = load(trained[0] / "runs/textbook", device="cpu")
    model, draw = run.model.double(), torch.Generator().manual_seed(0)
    js = browser.new_page()
    for name in ("model.js", "count.js"):
        js.add_script_tag(content=template(name))
    weights = {name: values.float() for name, values in model.named_parameters()}
    about = {"model": model.settings.model_dump(mode="json"), "symbols": run.vocabulary.symbols}
    about |= {"separators": [], "source_bos": False, "target_growth": 2, "max_length": None}
    shapes = [[name, list(values.shape)] for name, values in weights.items()]
    js.evaluate(
        "([about, text, shapes]) => {"
        " window.model = new Model(about, unpacked(text, 'f4', shapes)); }",
        [about, packed(weights, "<f4"), shapes],
    )
    furthest = 0.0
    for _ in range(BATCHES):
        src, tgt_in = ragged(draw, False, ids=len(run.vocabulary))
        limits = token_limits(src, 2, None).clamp(max=12).tolist()
        for off in STATES.values():
            with switched(model, off):
                logits, outputs = model(src, tgt_in), greedy(model, src, limits)
            there = js.evaluate(
                """([src, tgtIn, off, limits]) => {
                  const switches = { ...EVERYTHING };
                  for (const name of off) switches[name] = false;
                  return src.map((row, n) => {
                    const pass = model.forward(row, tgtIn[n], switches);
                    const steps = model.greedy(pass, switches, limits[n]);
                    return [Array.from(pass.logits), steps.map((step) => step.id)];
                  });
                }""",
                [src.tolist(), tgt_in.tolist(), list(off), limits],
            )
            assert [ids for _, ids in there] == outputs
            found = torch.tensor([row for row, _ in there], dtype=torch.float64)
            furthest = max(furthest, float((found - logits.flatten(1)).abs().max()))
    js.close()
    assert furthest < 1e-9


def test_counting_needs_no_decoding_under_the_causal_mask(
    opened: Any, trained: tuple[Path, str], tmp_path: Path
) -> None:
    """For each pair, with pads and without their mask, against decoding it step by step."""
    page_file = tmp_path / "page.html"
    page_file.write_text(live(load(trained[0] / "runs/textbook")).text)
    page = opened(page_file)
    differing = page.evaluate(
        """() => [[0, []], [3, []], [3, SWITCHES.pad.parts], [0, ["places"]], [1, ["scale"]]].map(
          ([pads, off]) => subject.pairs.filter((pair) => {
            const model = modelAt(subject.step), switches = switchesOf({ off, headOff: "" });
            const encoded = model.encode(model.sourceIds(pair.source, pads), switches);
            const ids = model.greedy(encoded, switches).map((step) => nameOf(step.id)).join(" ");
            const isRight = ids === [...pair.answer, "eos"].join(" ");
            return isRight !== judged(model, pair, pads, switches).alone;
          }).length)"""
    )
    assert differing == [0, 0, 0, 0, 0]
