"""model.js in a real browser: PyTorch's numbers for every option and every switch."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SCHEMES as POSITIONS_OF_MODELS
from conftest import VOCABULARY, model_of

from live.switched import STATES, SWITCHES, greedy, switched
from toytrans.data.batches import Batch
from toytrans.inspection.record import capture
from toytrans.live_pages.payload import packed
from toytrans.live_pages.templates import template
from toytrans.model.decoding import token_limits
from toytrans.model.positions import SCHEMES
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID

OURS = [keys for keys in POSITIONS_OF_MODELS if ".py:" not in keys["positions"]]
"""The positions of the package, without those of the user's code."""

OPTIONS: list[dict[str, Any]] = [
    *(positions | {"norm": norm} for positions in OURS for norm in ("pre", "post")),
    {"positions": "learned", "random_positions": True},
    {"positions": "anchored", "n_heads": 6, "source_bos": True},
    {"activation": "gelu", "norm": "pre"},
    {"activation": "gelu_tanh"},
    {"tie_embeddings": False, "n_encoder_layers": 3},
    {"share_layers": True, "n_decoder_layers": 3},
    {"pad_mask": "keys_and_queries"},
    {"score_cap": 3.0, "source_bos": True},
]
"""Models of which model.js must compute what PyTorch does."""

GROWTH = 2
"""Target symbols per source symbol that decoding allows."""


def name_of(options: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items())


@pytest.fixture(scope="module")
def js(browser: Any) -> Iterator[Any]:
    """An empty page that knows model.js."""
    page = browser.new_page()
    page.add_script_tag(content=template("model.js"))
    yield page
    page.close()


def rounded(**options: Any) -> Transformer:
    """A shaken model in fp64 whose weights are numbers of fp32, as those of a page are."""
    return model_of(VOCABULARY, **options).float().double()


def weights_of(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: values.detach().float() for name, values in model.named_parameters()}


def given_to_page(model: Transformer) -> list[Any]:
    """What `unpacked` and `Model` of model.js take: about, the numbers as text, their shapes."""
    weights, settings = weights_of(model), model.settings
    places = model.get_buffer("positions.fixed").tolist() if settings.random_positions else None
    about = {
        "model": settings.model_dump(mode="json"),
        "symbols": VOCABULARY.symbols,
        "separators": VOCABULARY.separator_ids,
        "source_bos": settings.source_bos,
        "target_growth": GROWTH,
        "max_length": settings.max_length,
        "fixed_places": places,
    }
    shapes = [[name, list(values.shape)] for name, values in weights.items()]
    return [about, packed(weights, "<f4"), shapes]


def load(js: Any, model: Transformer) -> None:
    """Make `model` in the page."""
    js.evaluate(
        """([about, text, shapes]) => {
          window.model = new Model(about, unpacked(text, "f4", shapes));
        }""",
        given_to_page(model),
    )


def ragged(
    draw: torch.Generator,
    source_bos: bool,
    rows: int = 4,
    longest: int = 10,
    ids: int = len(VOCABULARY),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sources and target inputs of 0 to `longest` symbols, with up to two pads more than
    they need: (B, S), (B, T)."""

    def side(bos: bool, eos: bool) -> torch.Tensor:
        sequences = []
        for _ in range(rows):
            length = int(torch.randint(0, longest + 1, (), generator=draw))
            symbols = torch.randint(FIRST_SYMBOL_ID, ids, (length,), generator=draw).tolist()
            sequences.append([BOS_ID] * bos + symbols + [EOS_ID] * eos)
        width = max(map(len, sequences)) + int(torch.randint(0, 3, (), generator=draw))
        return torch.tensor([each + [PAD_ID] * (width - len(each)) for each in sequences])

    return side(source_bos, True), side(True, False)


def in_page(
    js: Any, src: torch.Tensor, tgt_in: torch.Tensor, off: Iterable[str] = (), head: str = ""
) -> torch.Tensor:
    """Logits (B, T, V) of the page's model, row by row."""
    rows = js.evaluate(
        """([src, tgtIn, off, headOff]) => {
          const switches = { ...EVERYTHING, headOff };
          for (const name of off) switches[name] = false;
          return src.map((row, n) => Array.from(model.forward(row, tgtIn[n], switches).logits));
        }""",
        [src.tolist(), tgt_in.tolist(), list(off), head],
    )
    return torch.tensor(rows, dtype=torch.float64).view(*tgt_in.shape, -1)


def decoded_in_page(
    js: Any, src: torch.Tensor, off: Iterable[str], limits: list[int]
) -> list[list[int]]:
    return js.evaluate(
        """([src, off, limits]) => {
          const switches = { ...EVERYTHING };
          for (const name of off) switches[name] = false;
          return src.map((row, n) => {
            const encoded = model.encode(row, switches);
            return model.greedy(encoded, switches, limits[n]).map((step) => step.id);
          });
        }""",
        [src.tolist(), list(off), limits],
    )


def test_the_page_knows_every_switch_and_every_scheme(js: Any) -> None:
    """A scheme that is new in SCHEMES is wanted in model.js too."""
    known = set(js.evaluate("Object.keys(POSITIONS)"))
    assert known == set(SCHEMES), "toytrans/live_pages/templates/model.js: POSITIONS"
    assert js.evaluate("Object.keys(EVERYTHING)") == [*SWITCHES, "headOff"]


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_logits_and_decoding_are_those_of_pytorch(js: Any, options: dict[str, Any]) -> None:
    model, draw = rounded(**options), torch.Generator().manual_seed(1)
    load(js, model)
    src, tgt_in = ragged(draw, model.settings.source_bos, rows=3)
    assert bool((src == PAD_ID).any()) and bool((tgt_in == PAD_ID).any())
    limits = token_limits(src, GROWTH, model.settings.max_length).clamp(max=6).tolist()
    logits = []
    for off in STATES.values():
        with switched(model, off):
            logits.append(model(src, tgt_in))
            outputs = greedy(model, src, limits)
        assert (in_page(js, src, tgt_in, off) - logits[-1]).abs().max() < 1e-9
        assert decoded_in_page(js, src, off, limits) == outputs
    assert (logits[0] - logits[-1]).abs().max() > 0.01, "the switches do something"


@torch.no_grad()
def test_a_head_that_is_off_gives_nothing(js: Any) -> None:
    model, draw = rounded(), torch.Generator().manual_seed(2)
    load(js, model)
    src, tgt_in = ragged(draw, False)
    whole = in_page(js, src, tgt_in)
    for head in ("encoder.1.2", "decoder.2.3", "cross.2.1"):
        with switched(model, (), head):
            expected = model(src, tgt_in)
        there = in_page(js, src, tgt_in, head=head)
        assert (there - expected).abs().max() < 1e-9
        assert (there - whole).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", SCHEMES)
def test_long_sequences(js: Any, name: str) -> None:
    """Beyond 128 places the wide buckets of t5 and the clip of relative distances count too."""
    model, draw = rounded(positions=name), torch.Generator().manual_seed(3)
    load(js, model)
    src, tgt_in = ragged(draw, model.settings.source_bos, rows=2, longest=150)
    assert max(src.shape[1], tgt_in.shape[1]) > 100
    assert (in_page(js, src, tgt_in) - model(src, tgt_in)).abs().max() < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_every_step_of_every_attention(js: Any, pad_mask: str) -> None:
    """By the names that `toytrans trace` gives them."""
    model = rounded(score_cap=2.0, positions="t5", pad_mask=pad_mask)
    draw = torch.Generator().manual_seed(4)
    load(js, model)
    src, tgt_in = ragged(draw, False)
    names = ("q", "k", "v", "masked", "weights", "outputs")
    there = js.evaluate(
        """([src, tgtIn, names]) => src.map((row, n) => {
          const pass = model.forward(row, tgtIn[n]);
          const steps = {};
          for (const part of ["encoder", "decoder", "cross"]) {
            pass[part].forEach((each, layer) => {
              const at = `${part} ${layer + 1}`;
              for (const name of names) steps[`${at} ${name}`] = Array.from(each[name]);
              steps[`${at} open`] = Array.from(each.mask.open);
            });
          }
          return steps;
        })""",
        [src.tolist(), tgt_in.tolist(), names],
    )
    calls = capture(model, Batch(src, tgt_in, tgt_in))
    for (part, layer), call in calls.items():
        steps = call.intermediates()
        mask = call.context.mask.expand(-1, -1, steps.scores.shape[2], -1)
        for row, found in enumerate(there):
            opened = torch.tensor(found[f"{part} {layer} open"]).view(mask.shape[2:]).bool()
            assert torch.equal(opened, mask[row, 0])
            for name in names:
                expected = getattr(steps, name)[row]  # (H, L, Dh) or (H, Tq, Tk)
                if name in ("q", "k", "v", "outputs"):
                    expected = expected.transpose(0, 1)
                expected = expected.reshape(-1)
                actual = torch.tensor(found[f"{part} {layer} {name}"], dtype=torch.float64)
                shown = opened.repeat(3, 1, 1).view(-1) if name == "masked" else slice(None)
                assert (actual - expected)[shown].abs().max() < 1e-12, name


@pytest.mark.parametrize("name", SCHEMES)
def test_a_shortcut_of_decoding_gives_the_same_bits(js: Any, name: str) -> None:
    """Under the causal mask decoding keeps what earlier places have computed."""
    load(js, rounded(positions=name))
    src = [5, 9, 3, 7, 11, EOS_ID, PAD_ID]
    assert js.evaluate(
        """(src) => {
          const encoded = model.encode(src), prefix = [BOS];
          return model.greedy(encoded).every((step) => {
            const { logits } = model.decode(prefix, encoded);
            prefix.push(step.id);
            return step.logits.every((x, n) => Object.is(x, logits.slice(-step.logits.length)[n]));
          });
        }""",
        src,
    )


def test_half_precision_is_read_as_numpy_reads_it(js: Any) -> None:
    bits = np.arange(2**16, dtype="<u2")
    halves = bits.view("<f2")
    finite = halves[np.isfinite(halves)]
    text = base64.b64encode(finite.tobytes()).decode()
    found = js.evaluate(
        "([text, n]) => Array.from(unpacked(text, 'f2', [['x', [n]]]).x)", [text, len(finite)]
    )
    assert np.array_equal(np.array(found), finite.astype(float))
