"""Sound models pass, every fault is found, verdicts are no better than what was judged, and what
cannot be checked is refused. tests/zoo holds single mistakes, and what looks like them."""

import runpy
import warnings
from pathlib import Path

import pytest
import torch
import zoo
from conftest import VOCABULARY, config_of
from torch import nn
from zoo import built, hugging_face, parts, with_part
from zoo.attention_by_hand import Hand
from zoo.faulty_models import _open
from zoo.parts import (
    Attention,
    Embedding,
    Torchs,
    Translator,
    real,
    waves,
)
from zoo.signatures import Named

import toytrans
from toytrans.checks import run, shrink
from toytrans.checks.adapters import TorchTransformer
from toytrans.checks.adapters.toytrans import of_model
from toytrans.checks.rules import CAUSES, CHECKS, future
from toytrans.config.fault_cards import CARDS
from toytrans.config.faults import FAULTS
from toytrans.errors import UserError
from toytrans.model.build import build_model
from toytrans.testing import CheckFailed, assert_sound

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
]

SIZES = {"pad_id": 0, "vocabulary_size": 20}
IDS = SIZES | {"start_id": 1, "eos_id": 2}
CAUSE_OF = {
    "no_causal": "future.mask_missing",
    "triangle_off_by_one": "future.off_by_one",
    "pad_visible": "pads.seen_behind_source",
    "labels_not_shifted": "labels.not_shifted",
    "pad_is_eos": "labels.end_not_scored",
    "wrong_start": "labels.other_start",
    "no_scale": "scale.missing",
    "wrong_scale": "scale.model_width",
    "no_position": "order.source_unseen",
    "no_residual": "sublayers.residual_missing",
    "no_norm": "sublayers.norm_missing",
    "no_feed_forward": "sublayers.feed_forward_missing",
}


def failing(report) -> set[str]:
    return {result.name for result in report.failures}


def causes(report) -> set[str]:
    """The codes of the causes of all that fails."""
    return {result.cause.code for result in report.failures}


def passing(report) -> set[str]:
    return {result.name for result in report.of("PASS")}


def check(model, **given):
    """The shortest plan; what only longer sequences show is in tests/zoo."""
    return toytrans.check(model, **({"length": 7} | given))


def ask(model, **given):
    return check(model, **(SIZES | given))


def ours(fault=None, **model):
    torch.manual_seed(1)
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    config = config_of(model=layers | model, fault=fault)
    return of_model(build_model(config, VOCABULARY), config, VOCABULARY, "ours")


def around_torch(**options) -> TorchTransformer:
    transformer = nn.Transformer(8, 2, 2, 2, 16, batch_first=True, **options)
    return TorchTransformer(transformer, Embedding(), Embedding(), nn.Linear(8, 20))


class Running(nn.Module):
    """ids -> logits: a running mean of embeddings, so each call is cheap at any length."""

    def __init__(self, leaks_beyond: int = 10**6) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.leaks_beyond = leaks_beyond

    def forward(self, ids):
        x = self.tokens(ids) * (ids != 0)[..., None]
        y = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None].to(x)
        leak = nn.functional.pad(x[:, 1:], (0, 0, 0, 1)) * 0.01
        return self.out((y + leak * (ids.shape[1] > self.leaks_beyond)).tanh() + x)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_check_applies_to_a_sound_model_of_ours_and_passes(norm):
    report = check(ours(norm=norm, dropout=0.1))
    assert [found.name for found in report.results] == [*CHECKS]
    assert all(found.verdict == "PASS" for found in report.results), str(report)
    assert report.precision == "float64" and report.passed


def test_torchs_transformer_passes_and_stays_as_it_is():
    model = around_torch(norm_first=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = check(model, **IDS)
    assert report.passed and report.precision == "float64"
    assert passing(report) == {*CHECKS} - {"steps", "loss", "labels"}
    assert model.training and model.output.weight.dtype == torch.float32
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


FAULTS = [(fault, "pre") for fault in FAULTS]
FAULTS += [(fault, "post") for fault in ("no_causal", "no_residual", "no_norm", "no_feed_forward")]


@pytest.mark.parametrize(("fault", "norm"), FAULTS)
def test_a_fault_fails_the_checks_on_its_card(fault, norm, monkeypatch):
    monkeypatch.setattr(shrink, "MOST_TRIED", 0)  # the smallest example changes no verdict
    named, of_masks = set(CARDS[fault].checks), {"pads", "future", "rows", "steps"}
    report = check(ours(fault, norm=norm, positions="sinusoidal"), only=named | of_masks)
    assert named <= failing(report)
    if fault != "mask_flipped":
        assert not failing(report) & (of_masks - named), "masks are blamed for nothing else"
    if fault in CAUSE_OF:
        assert CAUSE_OF[fault] in causes(report)
    assert "pads.how_many" not in causes(report)


def test_the_number_of_pads_is_told_from_what_they_hold():
    by_width = lambda model, src: model.source(src) * src.shape[1]  # noqa: E731
    model = with_part("embed_source", by_width)
    report = check(model, **IDS, embedding=(model.source, model.target))
    assert failing(report) == {"pads"}, "neither rows nor the future have moved anything"
    assert report["pads"].cause.code == "pads.length"


def test_what_rows_do_to_each_other_is_no_leak_of_the_future():
    for name in ("places counted along the rows", "torchs layers that take rows for places"):
        report = check(**built(name), only="rows,future")
        assert failing(report) == {"rows"}, str(report)
        assert report["future"].cause is None or report["future"].cause.code == "any.rows_alone"


def test_what_rounds_to_single_precision_inside_is_measured_as_such():
    def weights(attention, scores, mask):
        return Attention.weights(attention, scores.float(), mask).to(scores)

    model = around_torch().eval()
    half = with_part("attention.weights", weights)
    for single in (half, lambda src, tgt: model(src, tgt).double()):
        report = ask(single, length=20, eos_id=2, only="rows,pads,future")
        assert report.precision == "float32" and not failing(report)


def test_a_triangle_of_cross_attention_is_named():
    def cross_mask(model, src, tgt):
        return model.keys(src) & torch.ones(tgt.shape[1], src.shape[1], dtype=torch.bool).tril()

    found = check(with_part("cross_mask", cross_mask), **IDS, only="reach")["reach"]
    assert found.verdict == "FAIL" and found.cause.code == "reach.triangle"


def test_a_model_that_changes_later_fails():
    model, calls = around_torch().eval(), []

    def drifting(src, tgt_in):
        calls.append(1)
        return model(src, tgt_in) + (len(calls) > 20)

    assert not failing(ask(drifting, only="calls"))
    assert failing(ask(drifting)), "whichever check asks when it changes"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x, ids: nn.functional.dropout(x, 0.2), "calls.draws_random_numbers"),
        (lambda x, ids: x + torch.rand(()), "calls.draws_random_numbers"),
        (lambda x, ids: (x, ids.clamp_(max=3))[0], "calls.changes_ids"),
    ],
    ids=["dropout", "noise", "ids"],
)
def test_what_a_module_does_at_each_call_fails(change, cause):
    class Odd(Running):
        def forward(self, ids):
            return change(super().forward(ids), ids)

    report = ask(Odd(), kind="decoder")
    assert cause in causes(report)
    if "random" in cause:  # in a function it may be a switch that its user forgot
        model = Odd()
        with pytest.raises(UserError, match=r"model\.eval\(\)"):
            ask(lambda ids: model(ids), kind="decoder")


def test_what_cannot_be_copied_is_left_as_it_is():
    class Locked(Translator):
        def __deepcopy__(self, memo):
            raise ValueError("not me")

    model = Locked()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []
    model.register_forward_hook(lambda *_: seen.append(float(model.head.weight.detach().sum())))
    report = ask(model, eos_id=2)
    assert len(set(seen)) == 1 and report.precision == "float32"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Classifier(nn.Module):
    """An encoder that pools: ids (B, L) -> logits (B, 5)."""

    def __init__(self, masks_pads: bool):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.tokens, self.head, self.masks_pads = Embedding(), nn.Linear(8, 5), masks_pads

    def forward(self, ids):
        pads = (ids == 0) & self.masks_pads
        x = self.layers(self.tokens(ids), src_key_padding_mask=pads)
        return self.head(x.masked_fill(pads[..., None], 0).sum(1) / (~pads).sum(1, keepdim=True))


def test_a_pooled_classifier_is_judged_in_its_own_words():
    report = ask(Classifier(True), kind="encoder")
    assert report.passed and passing(report) >= {"pads", "rows", "scale", "target", "calls"}
    report = ask(Classifier(False), kind="encoder")
    assert failing(report) == {"pads"}
    assert report["pads"].cause.code == "pads.seen_by_encoder"
    said = " ".join(f"{f.message} {f.details.get('example')}" for f in report.failures)
    assert not any(word in said for word in ("target", "tgt_in", "causal"))


def test_a_learned_position_table_is_tried_up_to_its_limit():
    model = ours(positions="learned", max_positions=9)
    report = toytrans.check(model)
    assert report.passed and report.to_dict()["tried"]["lengths"] == [5]
    with pytest.raises(UserError, match="takes 9 places and the checks need 11"):
        check(model)


def test_thorough_tries_512_places_and_32_rows():
    given = SIZES | {"kind": "decoder", "only": "pads,future"}
    model = Running(leaks_beyond=300)
    assert toytrans.check(model, **given)
    report = toytrans.check(model, **given, length=512)
    tried = report.to_dict()["tried"]
    assert {64, 256, 512} <= {*tried["lengths"]} and 32 in tried["rows"]
    assert "future" in failing(report) and "length 512" in report["future"].outcome.circumstances


def test_every_difference_of_lengths_and_number_of_rows_is_tried():
    table, asked = torch.eye(20), set()

    def losing(lost):
        def model(src, tgt_in):
            asked.add((src.shape[1], tgt_in.shape[1], len(src)))
            leak = table[tgt_in].roll(-1, 1) if lost(src, tgt_in) else 0.0
            return table[tgt_in].cumsum(1) + leak + (src != 0).sum(1)[:, None, None]

        return toytrans.check(model, **SIZES, only="future")

    longer = losing(lambda src, tgt_in: tgt_in.shape[1] == src.shape[1] + 5)["future"]
    assert longer.cause.code == "future.lost_at_a_shape"
    assert longer.outcome.evidence["places"] == "13 source and 18"
    nine = losing(lambda src, tgt_in: len(src) == 9)
    assert nine["future"].outcome.evidence["rows"] == 9
    asked.clear()
    assert losing(lambda src, tgt_in: False)
    sources, targets, rows = (set(sizes) for sizes in zip(*asked, strict=True))
    assert set(range(9, 66)) <= sources & targets and set(range(2, 18)) <= rows
    assert {target - source for source, target, _ in asked if source > 8} >= set(range(-8, 9))


def test_checks_are_chosen_by_name():
    for chosen in ({"only": "pads,future"}, {"skip": {*CHECKS} - {"pads", "future"}}):
        report = ask(Running(), kind="decoder", **chosen)
        assert [found.name for found in report.results] == ["pads", "future"]
    with pytest.raises(UserError, match="skip future, pads: no check is left"):
        ask(Running(), only="pads", skip="future,pads")
    with pytest.raises(UserError, match="no check pad; did you mean pads"):
        ask(Running(), only="pad")


def test_a_check_that_was_cut_short_says_so(monkeypatch):
    given = SIZES | {"only": "pads,future", "length": 16}
    whole = check(Torchs(), **given)
    assert str(whole).splitlines()[-1] == "PASS, judged 11 of 11 parts"
    monkeypatch.setattr(run, "WORK", 0.0)
    report = check(Torchs(), **given)
    last = str(report).splitlines()[-1]
    assert report.passed and last.startswith("PASS, judged 11 of 11 parts, reduced: lengths from ")
    assert "lengths from 16 on in eval mode" in last and "build the model small" in last
    assert report.to_dict()["tried"]["left_out"] and not whole.to_dict()["tried"]["left_out"]


def test_a_report_is_true_only_if_it_passed_and_raises_if_not():
    sound, broken = (ask(Running(beyond), kind="decoder") for beyond in (10**6, 0))
    assert sound and sound.verdict == "PASS" and sound.raise_if_failed() is None
    assert not broken and broken.verdict == "FAIL"
    with pytest.raises(AssertionError, match=r"future\.shift"):
        broken.raise_if_failed()
    assert sound.to_dict()["verdict"] == "PASS" and sound.to_dict()["tried"]["lengths"] == [7]


def test_a_failure_shows_its_module_the_smallest_example_and_how_to_see_it_again():
    model = around_torch()
    masks = model.masks
    model.masks = lambda src, tgt_in: masks(src, tgt_in) | {"tgt_mask": None}
    details = check(model, **IDS, only="future")["future"].details
    assert details["where"] == "in transformer.decoder.layers.0.self_attn (layer 1)"
    assert "token 1 from" in details["example"] and "output 0 moves" in details["example"]
    assert details["reproduce"] == 'toytrans.check(model, ..., only="future", length=7, seed=0)'


@pytest.mark.parametrize(("beyond", "length"), [(0, 7), (20, 33)])
def test_a_failure_is_seen_again_at_the_length_it_names(beyond, length):
    given = SIZES | {"kind": "decoder", "only": "future"}
    model = Running(beyond)
    failure = toytrans.check(model, **given)["future"]
    assert f"length={length}, seed=0)" in failure.details["reproduce"]
    again = toytrans.check(model, **given, length=length)["future"]
    assert again.cause == failure.cause and again.difference == failure.difference


def test_a_failure_in_another_shape_is_seen_again_at_the_length_it_names():
    table = torch.eye(20)

    def losing(ids):
        leak = table[ids].roll(-1, 1) if ids.shape[1] == 15 else 0.0
        return table[ids].cumsum(1) + leak

    given = SIZES | {"kind": "decoder", "only": "future"}
    failure = toytrans.check(losing, **given)["future"]
    assert failure.cause.code == "future.lost_at_a_shape"
    assert "length=64," in failure.details["reproduce"]
    assert toytrans.check(losing, **given, length=7), "the shape is a wider one"


class Seen(Running):
    """What widths it is asked in, in each mode."""

    def __init__(self, mixes_rows: bool = False) -> None:
        super().__init__()
        self.mixes_rows, self.widths = mixes_rows, {}

    def __deepcopy__(self, memo):
        made = Seen(self.mixes_rows)
        made.load_state_dict(self.state_dict())
        made.widths = self.widths
        return made

    def forward(self, ids):
        self.widths.setdefault("train" if self.training else "eval", set()).add(ids.shape[1])
        row = torch.arange(len(ids))[:, None, None] * torch.arange(20) * self.mixes_rows
        return super().forward(ids) + row


@pytest.mark.parametrize(
    ("only", "modes"), [("sublayers", {"eval"}), ("order", {"eval"}), ("rows", {"eval", "train"})]
)
def test_longer_batches_are_made_where_a_part_is_asked_of_them(only, modes):
    model = Seen()
    report = toytrans.check(model, **SIZES, kind="decoder", only=only)
    assert {*model.widths} == modes == {*report.tried["modes"]}
    longest = max(*model.widths["eval"])
    assert longest >= 64 if only != "sublayers" else longest < 16


def test_what_has_failed_is_not_asked_longer_and_all_that_was_asked_is_named():
    model = Seen(mixes_rows=True)
    report = toytrans.check(model, **SIZES, kind="decoder", only="rows")
    assert {part.verdict for part in report["rows"].parts.values()} >= {"FAIL"}
    compared = {run.MORE_PLACES}  # where two precisions are compared
    assert max(model.widths["eval"] - compared) < 16 and report.tried["lengths"] == [7]
    assert {*model.widths} == {*report.tried["modes"]} == {"eval", "train"}
    assert "eval, train mode" in str(report)


def test_the_first_cause_comes_first_and_what_follows_is_marked():
    class Inverted(Torchs):
        """True stands for real places in both masks of the source's pads."""

        def masks(self, src, tgt):
            inverted = dict.fromkeys(("src_key_padding_mask", "memory_key_padding_mask"), real(src))
            return super().masks(src, tgt) | inverted

    with warnings.catch_warnings(), pytest.raises(CheckFailed) as failed:
        warnings.simplefilter("ignore")
        assert_sound(Inverted(), **IDS, length=7)
    text = str(failed.value)
    lines = text.splitlines()
    follow = [n for n, line in enumerate(lines) if "may follow from rows" in line]
    assert lines[1].startswith("FAIL  rows ")
    assert "sublayers" in {lines[n - 1].split()[1] for n in follow}
    assert "explain sublayers." not in text, "what follows from rows has no cause of its own"


def test_nan_is_said_once_and_what_it_moves_is_marked():
    report = check(**built("triangle turned round"), only="rows,pads,future,calls,order")
    text = str(report)
    assert text.count("explain any.nan") == 1 and "1e+09" not in text
    nan = {each.name for each in report.failures if each.difference != each.difference}
    assert {name for name, first in report.follows.items() if first == "rows"} >= nan - {"rows"}
    assert nan >= {"rows", "pads", "calls"} and "future" in failing(report) - nan


def test_the_example_for_other_repositories_passes():
    example = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "example_test_model.py"))
    tests = [value for name, value in example.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_a_check_that_cannot_be_asked_is_no_pass():
    with pytest.raises(CheckFailed, match=r"not asked: loss \(give loss=\)"):
        assert_sound(Translator(), **IDS, length=7, only="loss")
    with pytest.raises(CheckFailed, match=r"^loss not asked: needs a loss function"):
        assert_sound(Translator(), **IDS, length=7, only="future,loss")
    assert check(Translator(), **IDS, only="loss").verdict == "cannot judge"
    assert assert_sound(Translator(), **IDS, length=7, only="future")


def _without_labels(pairs):
    return (*parts.make_batch(pairs)[:2], None)


@pytest.mark.parametrize(
    ("lacking", "given"), [({"start_id": None}, "start_id"), ({"batch": _without_labels}, "batch")]
)
def test_a_loss_that_was_given_and_cannot_be_asked_is_no_pass(lacking, given):
    report = check(Translator(), **IDS | lacking, loss=parts.mean_loss, only="pads,loss")
    assert report["pads"].verdict == "PASS" and report.verdict == "cannot judge"
    assert report["loss"].give == (given,) and report.decisive is report["loss"]
    assert f"loss: labels for the loss that was given are missing: give {given}=..." in str(report)


def test_a_loss_that_sees_no_logits_cannot_be_judged():
    blind = of_loss(lambda logits, labels: (0 * logits).sum() + 1)
    found = ask(Translator(), **blind, only="loss")["loss"].parts["likelier labels"]
    assert found.verdict == "cannot judge" and "the loss is 1.0000, whatever" in found.message


def test_a_decoding_of_nothing_is_not_judged_and_named_last():
    start = lambda src: torch.full((len(src), 1), zoo.START)  # noqa: E731
    report = check(Translator(), **IDS, only="future,steps", generate=start)
    assert report["steps"].verdict == "cannot judge"
    assert report.verdict == "cannot judge"
    assert str(report).endswith("\ncannot judge; not judged: steps")


def test_embeddings_that_are_not_used_prove_nothing():
    model = around_torch().eval()
    report = ask(lambda s, t: model(s, t), embedding=nn.Embedding(20, 16), only="pads")
    found = report["pads"].parts["their embeddings"]
    assert report.passed and found.verdict == "cannot judge"
    assert "not what the model embeds" in found.message


def test_layers_of_any_name_are_judged_and_what_is_not_is_said():
    class Sound(Translator):
        attention, depth = Hand, 2

    lost = with_part("layer.branch", lambda layer, x, norm, part: part(norm(x)), Sound)
    for model, verdict in ((Sound(), "PASS"), (lost, "FAIL")):
        report = check(model, **IDS, only="sublayers")
        assert report.verdict == verdict, str(report)
        assert "sublayers by feed-forward" in report.end.partition("not judged")[2]
        function = lambda src, tgt, model=model: model.eval()(src, tgt)  # noqa: E731
        assert check(function, **IDS, only="sublayers").verdict == verdict


def scale_of(**given):
    return check(**given, only="scale")["scale"]


def test_a_scale_is_judged_in_a_plain_function_and_may_be_given():
    arguments = built("no scale by hand")
    model = arguments.pop("model").eval()
    found = scale_of(**arguments, model=lambda src, tgt: model(src, tgt))
    assert found.verdict == "FAIL" and found.cause.code == "scale.missing"
    arguments = built("scale on both")
    assert scale_of(**arguments | {"scale": 0.5}).verdict == "PASS"
    found = scale_of(**arguments | {"scale": 1})
    assert found.verdict == "FAIL" and found.cause.code == "scale.not_as_given"
    for scale in ("1", 0, True, float("nan")):
        with pytest.raises(UserError, match="above 0, that multiplies q k"):
            check(**arguments | {"scale": scale})


def test_a_scale_of_hugging_faces_config_is_no_mistake():
    hf = pytest.importorskip("transformers")
    sizes = hugging_face.ONE | {"num_attention_heads": 4}
    by_layer = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, scale_attn_by_inverse_layer_idx=True))
    granite = hf.GraniteForCausalLM(hf.GraniteConfig(**sizes, attention_multiplier=1 / 4))
    for model in (by_layer, granite):
        found = scale_of(model=model)
        assert found.verdict == "cannot judge" and "give scale=0.25" in found.message
    assert scale_of(model=granite, scale=0.25).verdict == "PASS"
    assert scale_of(model=granite, scale=0.5).verdict == "FAIL"


def of_loss(loss):
    return {"batch": parts.make_batch, "loss": loss}


def of_batch(*tensors):
    return {"batch": lambda pairs: tensors}


LEFT = torch.tensor([[0, 0, 5]] * 4)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (5, {}, "int cannot be called; give f(src, tgt_in)"),
        (lambda s, t: t, {"pad_id": None}, "needs pad_id"),
        (lambda ids: ids, {}, "give kind='decoder'"),
        (nn.Transformer(8, 2, 1, 1, 8, batch_first=True), {}, "takes vectors, not ids: give"),
        (lambda s, t: t, {}, "gave torch.int64 (4, 7); expected floating-point logits"),
        (lambda s, t: torch.zeros(1, 2, 3), {}, "gave torch.float32 (1, 2, 3); expected"),
        (lambda s, t: torch.full((*t.shape, 20), torch.nan), {}, "NaN in every row"),
        (lambda s, t: torch.rand(*t.shape, 20), {}, "call model.eval() first"),
        (lambda s, t: 1 / 0, {}, "raised ZeroDivisionError"),
        (lambda s, t: t, {"vocabulary_size": 2}, "1 symbols are left of a vocabulary of 2"),
        (lambda s, t: t, {"max_length": 9, "length": 30}, "takes 9 places and the checks need 34"),
        (lambda s, t: t, {"length": 3}, "length 3: the checks need sequences of 4 symbols or more"),
        (lambda s, t: t, {"vocabulary_size": "20"}, "vocabulary_size '20': give a whole number"),
        (lambda s, t: t, {"pad_id": 50}, "pad_id 50 is not below vocabulary_size 20"),
        (
            lambda s, t: torch.zeros(5)[t.shape[1]],
            {},
            "take 10 places (max_length=...), and ids up to 19 on both sides (source_size=",
        ),
        (lambda s, t: t, {"embedding": 3}, "embedding is a torch.nn.Module"),
        (lambda s, t: t, {"batch": lambda p: 1 / 0}, "the batch maker raised ZeroDivisionError"),
        (lambda s, t: t, of_batch(LEFT, LEFT, LEFT), "pads targets on the left"),
        (
            lambda s, t: t,
            of_batch(LEFT / 2, {}, None),
            "gave tuple of torch.float32 (4, 3), dict",
        ),
        (Translator(), of_loss(lambda a, b: 1 / 0), "), raised ZeroDivisionError"),
        (Translator(), of_loss(lambda a, b: a), "the loss function gave torch.float64 (4"),
        (Translator(), of_loss(lambda a, b: torch.tensor(1.0)), "without a gradient"),
        (nn.LazyLinear(20), {}, "lazy layers without sizes"),
        (lambda ids: torch.zeros(len(ids), 3, 5), {"kind": "encoder"}, "logits (4, 7, C): batch"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_model_that_cannot_be_checked_is_refused_in_one_line(model, given, said):
    with pytest.raises(UserError) as refusal:
        ask(model, **given)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_source_of_fewer_ids_or_of_another_pad_is_asked_for():
    model = around_torch().eval()
    model.src_embedding = Embedding(12)
    with pytest.raises(UserError, match="ids up to 19 on both sides \\(source_size="):
        ask(model)
    assert ask(model, source_size=12)
    other = built("another source pad that is not given")
    assert check(**other | {"source_pad_id": 3})
    with pytest.raises(UserError, match="start_id=..."):
        check(hugging_face.two_berts())


class Masked(Torchs):
    """nn.Transformer whose masks are handed in."""

    def forward(self, src, tgt, src_key_padding_mask, tgt_mask, *, memory_key_padding_mask):
        masks = {"src_key_padding_mask": src_key_padding_mask, "tgt_mask": tgt_mask}
        masks["memory_key_padding_mask"] = memory_key_padding_mask
        return self.head(self.transformer(self.source(src), self.target(tgt), **masks))


def test_the_wrapper_that_is_shown_is_ready():
    """It is run as it stands; what needs modules finds them behind it."""
    with pytest.raises(UserError, match="tgt_mask, memory_key_padding_mask beside ids") as refused:
        ask(Masked())
    code = str(refused.value).partition("\n\n")[2]
    made: dict = {"torch": torch}
    exec(code, made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = ask(made["Asked"](Masked()))
    judged = {"pads", "future", "rows", "sublayers", "scale", "source", "target"}
    assert report.passed and passing(report) >= judged


class LengthFirst(Torchs):
    """As torch's tutorial has it: ids (S, B) and (T, B), and every mask is handed in."""

    def __init__(self):
        super().__init__(batch_first=False)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, memory_key_padding_mask):
        x, y = (f(ids.mT).transpose(0, 1) for f, ids in ((self.source, src), (self.target, trg)))
        masks = {"src_mask": src_mask, "tgt_mask": tgt_mask}
        masks["src_key_padding_mask"] = src_padding_mask
        masks["memory_key_padding_mask"] = memory_key_padding_mask
        return self.head(self.transformer(x, y, **masks))


class Language(nn.Module):
    """A language model of torch's encoder, to which the triangle is handed as `attn_mask`."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.tokens, self.head = Embedding(), nn.Linear(8, 20)

    def forward(self, ids, attn_mask):
        return self.head(self.layers(self.tokens(ids), mask=attn_mask))


@pytest.mark.parametrize(
    ("model", "given"), [(LengthFirst, {}), (Language, {"kind": "decoder"})], ids=["first", "mask"]
)
def test_a_wrapper_works_as_it_is_pasted(model, given):
    given = {"effort": "quick", "only": "pads,future", "length": None, **given}
    with pytest.raises(UserError) as refused:
        ask(model(), **given)
    made: dict = {"torch": torch}
    exec(str(refused.value).partition("\n\n")[2], made)
    report = ask(made["Asked"](model()), **given)
    assert report.passed and passing(report) == {"pads", "future"}, str(report)


WRAPPERS = {
    "mask = (x != 0)[:, None, None]": lambda x, mask: x,
    "src_len = (src != 0).sum(1)": lambda src, src_len, trg: trg,
    "trg_mask = (trg != 0)[:, None, None] & torch.ones(2 * trg.shape[1:]).bool().tril()": (
        lambda src, trg, src_mask, trg_mask: trg
    ),
}


@pytest.mark.parametrize("line", WRAPPERS)
def test_a_wrapper_fits_the_signature(line):
    with pytest.raises(UserError) as refused:
        ask(WRAPPERS[line])
    assert line in str(refused.value)


# What is meant -----------------------------------------------------------------------------------


def test_a_failure_that_is_expected_does_not_count():
    given = {"kind": "decoder", "only": "pads,future", "effort": "quick", "length": None}
    broken = Running(leaks_beyond=0)
    assert failing(ask(broken, **given)) == {"future"}
    for name in ("future", "future.shift"):
        report = ask(broken, **given, expected={name: "it looks one ahead"})
        assert report.passed and report["future"].verdict == "FAIL"
        assert [each.name for each in report.expected] == ["future"] and not report.failures
        assert "it looks one ahead" in str(report)
        assert str(report).endswith("; failed as expected: future")
        assert report.to_dict()["checks"][1]["expected"] == "it looks one ahead"
    other = {"future.mask_missing": "it sees both sides"}
    assert failing(ask(broken, **given, expected=other)) == {"future"}, "another cause is not meant"
    report = ask(Running(), **given, expected={"future": "it looks one ahead"})
    assert report.passed and [each.name for each in report.surprises] == ["future"]
    assert str(report).endswith("; passed unexpectedly: future")
    with pytest.raises(UserError, match="did you mean future"):
        ask(broken, **given, expected={"futur": "?"})


def test_a_doubt_has_a_code_by_which_it_can_be_expected():
    def constant(ids):
        return torch.ones(*ids.shape, 20)

    given = {"kind": "decoder", "only": "pads,calls"}
    report = ask(constant, **given)
    assert report.verdict == "cannot judge"
    assert report["pads"].cause.code == "any.constant_logits"
    assert report.to_dict()["checks"][0]["cause"] == "any.constant_logits"
    assert "give it other weights (any.constant_logits)" in str(report)
    assert "cannot be judged" in toytrans.explain("any.constant_logits")
    report = ask(constant, **given, expected={"any.constant_logits": "no weights yet"})
    assert report["pads"].expected == "no weights yet" and "no weights yet" in str(report)
    assert report.verdict == "PASS", "what is known to be unjudged does not stand in the way"


def test_what_is_promised_and_missing_is_a_failure():
    model = built("no norms")["model"]
    given = IDS | {"embedding": (model.source, model.target), "only": "sublayers"}
    assert check(model, **given)["sublayers"].parts["norms"].verdict == "cannot judge"
    report = check(model, **given, promises=["norms"])
    assert causes(report) == {"sublayers.norm_missing"} and report.given == {"promises": {"norms"}}
    assert "given: promises=norms" in str(report)
    with pytest.raises(UserError, match="no promise norm; did you mean norms"):
        check(model, **given, promises=["norm"])


def test_a_quick_check_asks_the_shortest_batch_alone():
    report = toytrans.check(Running(), **SIZES, kind="decoder", only="pads", effort="quick")
    assert report and report.to_dict()["tried"]["lengths"] == [7]
    with pytest.raises(UserError, match="leave length out"):
        ask(Running(), effort="quick")


def test_the_mode_that_fails_is_evidence():
    report = check(**built("open in train mode"), only="future")
    assert report["future"].outcome.evidence["mode_alone"] == "train"
    report = check(with_part("target_mask", lambda _, tgt: _open(tgt)), **IDS, only="future")
    assert "mode_alone" not in report["future"].outcome.evidence


# The registry ------------------------------------------------------------------------------------


@pytest.fixture
def another_check():
    """The check that CONTRIBUTING adds."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    code = page.split("## Add a check")[1].split("```python\n")[1].split("```")[0]
    before = dict(CHECKS), dict(CAUSES)
    exec(compile(code, "twice.py", "exec"), {})
    yield CHECKS["twice"]
    for registered, old in zip((CHECKS, CAUSES), before, strict=True):
        registered.clear()
        registered.update(old)


def test_a_check_that_is_added_is_asked_reported_and_explained(another_check):
    assert another_check.title in toytrans.explain("twice")
    assert another_check.causes[0].words in toytrans.explain("twice.mixed")
    assert ask(Running(), kind="decoder")["twice"].verdict == "PASS"

    class Mixing(Running):
        def forward(self, ids):
            return super().forward(ids) + 0.1 * len(ids) * torch.arange(20)

    report = ask(Mixing(), kind="decoder", only="twice")
    assert causes(report) == {"twice.mixed"} and report.to_dict()["checks"][0]["check"] == "twice"


def test_the_name_of_a_cause_begins_with_its_check_and_is_explained():
    for code, cause in CAUSES.items():
        check_name = code.partition(".")[0]
        assert check_name == "any" or cause in CHECKS[check_name].causes
        assert toytrans.explain(code).splitlines()[0] == code


def test_the_precision_that_a_model_came_in_is_told():
    (entry,) = [each for each in zoo.entries() if each.cause == "modes.not_finite"]
    said = str(toytrans.check(**entry.build(), only="modes", length=7))
    assert "in float16 on cpu" in said and "a copy in float64" in said


def test_the_own_loss_of_a_model_whose_outputs_move_with_pads_follows_from_them():
    def places_from_the_end(self, tgt):
        y = self.target.tokens(tgt)
        return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)

    torch.manual_seed(0)
    model = with_part("embed_target", places_from_the_end, Named)
    report = check(model, only="pads,loss")
    assert report["loss"].verdict == "FAIL" and report.follows["loss"] == "pads"


def test_a_fault_of_the_checks_is_no_doubt_about_a_model(monkeypatch):
    monkeypatch.delattr(future, "spread_out")
    with pytest.raises(NameError):
        ask(Translator(), only="future")


def test_parts_that_do_not_apply_are_not_counted():
    report = ask(Running(), kind="decoder", only=["pads", "source"])
    parts = [part for result in report.results for part in result.parts.values()]
    assert {part.verdict for part in parts} == {"PASS", "does not apply"}
    assert str(report).splitlines()[-1] == "PASS, judged {0} of {0} parts".format(
        sum(part.verdict == "PASS" for part in parts)
    )
