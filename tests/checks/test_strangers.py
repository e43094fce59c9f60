"""What `check` says to those who bring their own model for the first time."""

import warnings

import pytest
import torch
from torch import nn
from zoo import built
from zoo.parts import Torchs, real

from toytrans import check
from toytrans.checks import plan
from toytrans.errors import UserError
from toytrans.testing import CheckFailed, assert_sound

IDS = {"pad_id": 0, "vocabulary_size": 20}
SHORT = {"length": 7}


def names(results) -> set[str]:
    return {result.name for result in results}


class Classifier(nn.Module):
    """An encoder that pools: ids (B, L) -> logits (B, 5)."""

    def __init__(self, masks_pads: bool):
        super().__init__()
        self.table, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(80, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head, self.masks_pads = nn.Linear(16, 5), masks_pads

    def forward(self, ids):
        pads = (ids == 0) & self.masks_pads
        x = self.table(ids) + self.places[: ids.shape[1]]
        x = self.layers(x, src_key_padding_mask=pads).masked_fill(pads[..., None], 0)
        return self.head(x.sum(1) / (~pads).sum(1, keepdim=True))


def test_a_pooled_classifier_is_judged():
    report = check(Classifier(True), kind="encoder", **IDS, **SHORT)
    assert report.passed
    assert names(report.of("PASS")) >= {"pads", "rows", "scale", "target", "calls"}


def test_a_pooled_classifier_that_sees_pads_fails_in_its_own_words():
    report = check(Classifier(False), kind="encoder", **IDS, **SHORT)
    assert {"pads", "rows"} <= names(report.failures)
    said = " ".join(f"{f.message} {f.details.get('example')}" for f in report.failures)
    assert "pads are appended to the ids" in said and "is the pad mask passed" in said
    assert "target" not in said and "tgt_in" not in said and "causal" not in said


class Masked(Torchs):
    """nn.Transformer whose masks are handed in."""

    def forward(self, src, tgt, src_key_padding_mask, tgt_mask, *, memory_key_padding_mask):
        masks = {
            "src_key_padding_mask": src_key_padding_mask,
            "tgt_mask": tgt_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
        }
        return self.head(self.transformer(self.source(src), self.target(tgt), **masks))


def test_the_wrapper_that_is_shown_is_ready():
    """It is run as it stands; what needs modules finds them behind it."""
    with pytest.raises(UserError, match="tgt_mask, memory_key_padding_mask beside ids") as refused:
        check(Masked(), **IDS)
    code = str(refused.value).partition("\n\n")[2]
    made: dict = {"torch": torch}
    exec(code, made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = check(made["Asked"](Masked()), **IDS, **SHORT)
    assert report.passed
    assert names(report.of("PASS")) >= set(
        ["pads", "future", "rows", "sublayers", "scale", "source", "target"]
    )


@pytest.mark.parametrize(
    ("forward", "line"),
    [
        (lambda x, mask: x, "mask = (x != 0)[:, None, None]"),
        (lambda src, src_len, trg: trg, "src_len = (src != 0).sum(1)"),
        (
            lambda src, trg, src_mask, trg_mask: trg,
            "trg_mask = (trg != 0)[:, None, None] & torch.ones(2 * trg.shape[1:]).bool().tril()",
        ),
    ],
)
def test_a_wrapper_fits_the_signature(forward, line):
    with pytest.raises(UserError) as refused:
        check(forward, **IDS)
    assert line in str(refused.value)


def test_a_check_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch):
    model = Torchs()
    whole = check(model, **IDS, only="pads,future")
    assert str(whole).splitlines()[-1] == "PASS"
    monkeypatch.setattr(plan, "WORK", 0.0)
    report = check(model, **IDS, only="pads,future")
    last = str(report).splitlines()[-1]
    assert report.passed and last.startswith("PASS, reduced: lengths from ")
    assert "lengths from 16 on in eval mode" in last and "build the model small" in last
    assert report.to_dict()["tried"]["left_out"] and not whole.to_dict()["tried"]["left_out"]


class Inverted(Torchs):
    """True stands for real places in both masks of the source's pads."""

    def masks(self, src, tgt):
        kept = real(src)
        inverted = {"src_key_padding_mask": kept, "memory_key_padding_mask": kept}
        return super().masks(src, tgt) | inverted


def test_the_first_cause_comes_first_and_what_follows_is_marked():
    with warnings.catch_warnings(), pytest.raises(CheckFailed) as failed:
        warnings.simplefilter("ignore")
        assert_sound(Inverted(), **IDS, **SHORT, start_id=1, eos_id=2)
    text = str(failed.value)
    lines = text.splitlines()
    follow = [n for n, line in enumerate(lines) if "may follow from pads" in line]
    marked = {lines[n - 1].split()[1] for n in follow}
    assert lines[1].startswith("FAIL  pads ")
    assert {"rows", "sublayers"} <= marked
    assert "residual connection is missing" not in text and "is bypassed" not in text


def test_nan_is_said_once_and_what_it_moves_is_marked():
    report = check(**built("triangle turned round"), **SHORT)
    text = str(report)
    assert text.count("output is NaN at") == 1 and "1e+09" not in text
    nan = {each.name for each in report.failures if each.difference != each.difference}
    assert {name for name, first in report.follows.items() if first == "pads"} >= nan - {"pads"}
    assert nan >= {"pads", "calls"} and "future" in names(report.failures) - nan
