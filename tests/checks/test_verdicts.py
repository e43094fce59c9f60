"""Verdicts that must not be better than what was judged, nor depend on the machine."""

import pytest
import torch
from torch.nn import functional as F
from zoo import START
from zoo.parts import Attention, Layer, Translator, split_heads

import toytrans
from toytrans.checks.subject import padded
from toytrans.errors import UserError
from toytrans.testing import CheckFailed, assert_sound

IDS = {"pad_id": 0, "vocabulary_size": 20, "start_id": 1, "eos_id": 2, "length": 7}


def made(pairs):
    """src and tgt_in of some pairs."""
    return [padded(rows, 0) for rows in zip(*pairs, strict=True)]


def test_a_check_that_cannot_be_asked_is_no_pass():
    with pytest.raises(CheckFailed, match=r"not asked: loss \(give loss=\)"):
        assert_sound(Translator(), **IDS, only="loss")
    with pytest.raises(CheckFailed, match=r"^loss not asked: needs a loss function"):
        assert_sound(Translator(), **IDS, only="future,loss")
    assert toytrans.check(Translator(), **IDS, only="loss").verdict == "cannot judge"
    assert assert_sound(Translator(), **IDS, only="future")


@pytest.mark.parametrize(
    ("lacking", "given"),
    [({"start_id": None}, "start_id"), ({"batch": lambda p: [*made(p), None]}, "batch")],
)
def test_a_loss_that_was_given_and_cannot_be_asked_is_no_pass(lacking, given):
    loss = lambda logits, tgt_out: F.cross_entropy(logits.mT, tgt_out)  # noqa: E731
    report = toytrans.check(Translator(), **IDS | lacking, loss=loss, only="pads,loss")
    assert report["pads"].verdict == "PASS" and report.verdict == "cannot judge"
    assert report["loss"].give == (given,) and report.decisive[0] == "loss"
    assert f"loss: labels for the loss that was given are missing: give {given}=..." in str(report)


def test_a_decoding_of_nothing_is_not_judged_and_named_last():
    start = lambda src: torch.full((len(src), 1), START)  # noqa: E731
    report = toytrans.check(Translator(), **IDS, only="future,steps", generate=start)
    assert report["steps"].verdict == "cannot judge"
    assert str(report).endswith("\nPASS; not judged: steps")


def test_a_model_of_pictures_is_refused_in_one_line():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=8, image_size=8, patch_size=4)
    with pytest.raises(UserError, match="does not say its vocabulary_size in its config"):
        toytrans.check(transformers.ViTModel(config))


def test_layers_of_any_name_are_judged_and_what_is_not_is_said():
    class Mixing(Attention):
        """Its last matrix has a name that nobody knows."""

        def __init__(self):
            super().__init__()
            self.mix = self.out_proj
            del self.out_proj

        def forward(self, x, memory, mask):
            q, k, v = map(split_heads, (self.q_proj(x), self.k_proj(memory), self.v_proj(memory)))
            return self.mix(self.merge(self.weights(self.scores(q, k), mask) @ v))

    class Sound(Translator):
        attention, depth = Mixing, 2

    class Lost(Sound):
        class layer(Layer):
            def branch(self, x, norm, sublayer):
                return sublayer(norm(x))

    for kind, verdict in ((Sound, "PASS"), (Lost, "FAIL")):
        model = kind()
        report = toytrans.check(model, **IDS, only="sublayers")
        assert report.verdict == verdict, str(report)
        assert "not judged: sublayers by feed-forward" in report.end
        function = lambda src, tgt, model=model: model.eval()(src, tgt)  # noqa: E731
        assert toytrans.check(function, **IDS, only="sublayers").verdict == verdict
