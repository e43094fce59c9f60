"""Faults planted into model.js, each of which the comparison with PyTorch must see."""

from typing import Any

import pytest
import torch
from conftest import VOCABULARY
from live.switched import STATES, greedy, switched
from live.test_model_js import GROWTH, given_to_page, ragged, rounded

from toytrans.live_pages.templates import template
from toytrans.model.decoding import token_limits
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID

pytestmark = pytest.mark.slow

MODELS: list[dict[str, Any]] = [
    {"positions": "sinusoidal", "pad_mask": "keys_and_queries"},
    {"positions": "learned", "norm": "pre", "random_positions": True},
    {"positions": "learned", "activation": "gelu"},
    {"positions": "rotary", "activation": "gelu_tanh", "share_layers": True},
    {"positions": "alibi", "tie_embeddings": False},
    {"positions": "relative", "score_cap": 2.0},
    {"positions": "t5", "norm": "pre"},
    {"positions": "anchored", "n_heads": 6, "source_bos": True},
]

FAULTS = {
    "a place does not see itself": ("(closesLater && j > i)", "(closesLater && j >= i)"),
    "a place sees the next one": ("(closesLater && j > i)", "(closesLater && j > i + 1)"),
    "ends are closed in place of pads": ("key === PAD ||", "key === EOS ||"),
    "pad queries stay open": ('padMask === "keys_and_queries" && query', "false && query"),
    "no pad mask in the decoder": ("switches.decoderPads, switches.causal", "0, switches.causal"),
    "the switch of another mask": ("src, switches.crossPads", "src, switches.encoderPads"),
    "the scale of the model's width": ("headWidth ** -0.5", "width ** -0.5"),
    "a cap that is not put back": ("cap * Math.tanh(score / cap)", "Math.tanh(score / cap)"),
    "another epsilon": ("variance + 1e-5", "variance + 1.1e-5"),
    "a norm without its mean": ("(x[row + c] - mean) / root", "x[row + c] / root"),
    "no residual": ("const sum = added(x, ", "const sum = added(x.map(() => 0), "),
    "no final norm": ("? this.layerNorm(name, x) : x", "? x : x"),
    "embeddings not scaled": ("root = Math.sqrt(this.width)", "root = 1"),
    "sines alone": ("c % 2 ? Math.cos(angle)", "c % 2 ? Math.sin(angle)"),
    "other wavelengths": ("place * 10000 ** (-(c", "place * 9999 ** (-(c"),
    "places from 1": ("place * width, (place + 1)", "(place + 1) * width, (place + 2)"),
    "random places not taken": ("drawn ? drawn[start + n]", "false ? drawn[start + n]"),
    "a reflection, no rotation": ("first * Math.cos(angle) -", "first * Math.cos(angle) +"),
    "rotated from 0 at each step": ("start + Math.floor(row", "Math.floor(row"),
    "slopes of the next head": ("-8 * (head + 1) / heads", "-8 * (head + 2) / heads"),
    "distances with a sign": ("heads)) * Math.abs(distance)", "heads)) * distance"),
    "a nearer clip": ("clip(distance, 16) + 16", "clip(distance, 15) + 16"),
    "past and future exchanged": ("(distance < 0 ? 16 : 0)", "(distance > 0 ? 16 : 0)"),
    "wider buckets": ("/ Math.log(16))", "/ Math.log(17))"),
    "too few buckets": ("Math.min(wide, 15)", "Math.min(wide, 14)"),
    "a smaller gain": ("16 * learned[clip", "15 * learned[clip"),
    "an anchor beside the end": ("(symbols + 1 - j)", "(symbols - j)"),
    "an anchor beside the wrap": ("t - symbols - j;", "t - symbols + 1 - j;"),
    "separators not seen": ("if (separators.includes(id)) last = j;", ""),
    "anchors in another order": ("[start, end, wrap, start]", "[start, end, start, wrap]"),
    "gelu of another width": ("erf(x / Math.SQRT2)", "erf(x / 1.41)"),
    "the error function cut off": ("Math.abs(x) > 6", "Math.abs(x) > 2"),
    "another constant of gelu": ("0.044715", "0.0447"),
    "tied logits": ('this.weights["output.weight"] ||', ""),
    "one embedding for both sides": ("this.weights[`${name}.weight`] || this", "this"),
    "layers not shared": ("shared ? 0 : n", "n"),
    "distances from 0 at each step": ("start + i - j", "i - j"),
    "rows without a key": ("if (sum) for (let j", "for (let j"),
    "pads may be written": ("let best = EOS;", "let best = PAD;"),
    "earlier keys forgotten": ("k: joined(past.k, k)", "k: k"),
    "one sum of four lost": ("weight[w + 3 * inner]", "weight[w + 2 * inner]"),
    "no bias of projections": ("if (bias) for", "if (false) for"),
}


def long_pair(draw: torch.Generator, source_bos: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A source and a target that fill the last bucket of distances: (1, S), (1, T)."""
    symbols = torch.randint(FIRST_SYMBOL_ID, len(VOCABULARY), (2, 140), generator=draw).tolist()
    src = [*[BOS_ID] * source_bos, *symbols[0], EOS_ID]
    return torch.tensor([src]), torch.tensor([[BOS_ID, *symbols[1]]])


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    """What PyTorch says of each model, in every state of the switches, and of long sequences."""
    found = []
    for options in MODELS:
        model, draw = rounded(**options), torch.Generator().manual_seed(5)
        bos = model.settings.source_bos
        for (src, tgt_in), states in (
            (ragged(draw, bos), STATES.values()),
            (long_pair(draw, bos), [()]),
        ):
            limits = token_limits(src, GROWTH, model.settings.max_length).clamp(max=6).tolist()
            for off in states:
                with torch.no_grad(), switched(model, off):
                    logits, outputs = model(src, tgt_in), greedy(model, src, limits)
                    read = torch.tensor([[BOS_ID, *outputs[0][:-1]]])
                    steps = model(src[:1], read)[0]
                found.append(
                    {"model": given_to_page(model), "src": src.tolist(), "tgtIn": tgt_in.tolist()}
                    | {"off": list(off), "limits": limits, "outputs": outputs}
                    | {"logits": logits.flatten(1).tolist(), "steps": steps.tolist()}
                )
    return found


def is_seen(browser: Any, script: str, expected: list[dict[str, Any]]) -> bool:
    """Whether a model.js differs from PyTorch anywhere, or fails."""
    page = browser.new_page()
    page.add_script_tag(content=script)
    try:
        return any(
            page.evaluate(
                """({ model: [about, text, shapes], ...said }) => {
                  const model = new Model(about, unpacked(text, "f4", shapes));
                  const switches = { ...EVERYTHING };
                  for (const name of said.off) switches[name] = false;
                  const areNear = (some, others) =>
                    some.every((x, at) => Math.abs(x - others[at]) < 1e-9);
                  try {
                    return said.src.some((row, n) => {
                      const pass = model.forward(row, said.tgtIn[n], switches);
                      const steps = model.greedy(pass, switches, said.limits[n]);
                      const isSame = steps.map(({ id }) => id).join() === said.outputs[n].join();
                      return !isSame || !areNear(pass.logits, said.logits[n])
                        || !pass.encoder[0].weights.every(Number.isFinite)
                        || (n === 0 && switches.causal && !steps.every((step, t) =>
                          areNear(step.logits, said.steps[t])));
                    });
                  } catch {
                    return true;
                  }
                }""",
                each,
            )
            for each in expected
        )
    finally:
        page.close()


def test_every_planted_fault_is_seen(browser: Any, expected: list[dict[str, Any]]) -> None:
    sound = template("model.js")
    assert not is_seen(browser, sound, expected)
    for right, _ in FAULTS.values():
        assert right in sound, f"model.js has no {right}"
    unseen = [
        name
        for name, (right, wrong) in FAULTS.items()
        if not is_seen(browser, sound.replace(right, wrong), expected)
    ]
    assert unseen == []
