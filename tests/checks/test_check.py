"""The checks: sound models pass, every fault is found, and bad models are refused in one line."""

import importlib
import json
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
import zoo
from conftest import VOCABULARY, config_of
from torch import nn
from zoo import hugging_face, parts
from zoo.parts import Translator

import toytrans
from toytrans.checks.adapters import TorchTransformer
from toytrans.checks.adapters.toytrans import of_model
from toytrans.checks.result import CHECKS
from toytrans.config.names import FaultName, PositionName
from toytrans.errors import UserError
from toytrans.exercises.fault_cards import CARDS
from toytrans.training.faults import build_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
]

FAULTS = get_args(FaultName)
SIZES = {"pad_id": 0, "vocabulary_size": 20}


def failing(report) -> set[str]:
    return {result.name for result in report.failures}


def lengths(report) -> set[int]:
    return {*report.to_dict()["tried"]["lengths"]}


SHORT = ("--length", "7")


def check(model, **given):
    """The shortest plan; what only longer sequences show is in tests/zoo."""
    return toytrans.check(model, **({"length": 7} | given))


def our_report(fault=None, only="", **model):
    torch.manual_seed(1)
    config = config_of(model=model, fault=fault)
    model = build_model(config, VOCABULARY)
    return check(of_model(model, config, VOCABULARY, "ours"), only=only)


class Places(nn.Module):
    """Embeddings of tokens and of at most 64 places."""

    def __init__(self, vocabulary: int = 20, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(64, width))

    def forward(self, ids):
        return self.tokens(ids) + self.places[: ids.shape[1]]


def around_torch(**options) -> TorchTransformer:
    transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True, **options)
    return TorchTransformer(transformer, Places(), Places(), nn.Linear(16, 20))


# Sound models --------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", sorted(set(get_args(PositionName)) - {"none"}))
def test_every_check_applies_to_a_sound_model_of_ours_and_passes(positions, norm):
    report = our_report(positions=positions, norm=norm, dropout=0.1)
    assert {found.name for found in report.results} == set(CHECKS)
    assert all(found.verdict == "PASS" for found in report.results), str(report)
    assert report.precision == "float64" and report.passed


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_transformer_passes_and_stays_as_it_is(norm_first):
    model = around_torch(norm_first=norm_first).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = check(model, **SIZES, start_id=1, eos_id=2)
    assert report.passed and report.precision == "float64"
    passed = {found.name for found in report.results if found.verdict == "PASS"}
    # without nested tensors, a source of pads alone is NaN
    assert passed == {*CHECKS} - {"steps", "loss", "labels"}
    assert model.training and model.output.weight.dtype == torch.float32
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_a_hugging_face_config_lacks_is_asked_for():
    with pytest.raises(UserError, match="start_id=..."):
        check(hugging_face.two_berts())


# Broken ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_checks_on_its_card(fault, norm):
    named, of_masks = set(CARDS[fault].checks), {"pads", "future", "rows", "steps"}
    found = failing(our_report(fault, named | of_masks, norm=norm, positions="sinusoidal"))
    assert named <= found
    harmless = of_masks - named
    if fault != "mask_flipped":
        assert not found & harmless, "masks are blamed for nothing else"


def test_the_cause_is_named():
    def words(fault, name):
        return our_report(fault, [name], positions="sinusoidal")[name].message

    assert "places 0..6 change when token 7 changes" in words("no_causal", "future")
    assert "sees the future; is the causal mask passed" in words("no_causal", "future")
    assert "off by one" in words("triangle_off_by_one", "future")
    assert "pads are seen as keys" in words("pad_visible", "pads")
    assert "not shifted" in words("labels_not_shifted", "labels")
    assert "never learns to stop" in words("pad_is_eos", "labels")
    assert "decoding with 1" in words("wrong_start", "labels")
    assert "root of the model's width" in words("wrong_scale", "scale")


def test_a_loss_that_sees_no_logits_cannot_be_judged():
    blind = parts.given(loss=lambda logits, labels: (0 * logits).sum() + 1)
    found = check(**SIZES, **blind, only="loss")["loss"].parts["likelier labels"]
    assert found.verdict == "cannot judge" and "the loss is 1.0000, whatever" in found.message


def test_the_number_of_pads_is_told_from_what_they_hold():
    class ByWidth(Translator):
        def embed_source(self, src):
            return self.source(src) * src.shape[1]

    model = ByWidth().eval()
    both = (model.source, model.target)
    report = check(model, **SIZES, start_id=1, eos_id=2, embedding=both)
    assert failing(report) >= {"pads", "rows"} and report["future"].verdict == "PASS"
    assert "it may be how many there are" in report["pads"].message
    seen = our_report("pad_visible", positions="sinusoidal")
    assert "how many there are" not in seen["pads"].message


# Models that are odd and sound, or look sound and are not -------------------------------------


class Own(nn.Module):
    """A small model of one attention, to be spoilt in one place."""

    def __init__(self, closed: float = -1e9, half: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(64, 16)
        self.ask, self.out = nn.Linear(16, 16), nn.Linear(16, 20)
        self.closed, self.half = closed, half

    def attend(self, x, memory, mask):
        scores = self.ask(x) @ memory.mT + torch.zeros(mask.shape).masked_fill(~mask, self.closed)
        if self.half:  # the usual way to keep softmax exact in half precision
            scores = scores.float()
        return scores.softmax(-1).to(x.dtype) @ memory

    def forward(self, src, tgt_in):
        def embed(ids):
            return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

        length = tgt_in.shape[1]
        past = torch.ones(length, length, dtype=torch.bool).tril()
        memory, y = embed(src), embed(tgt_in)
        y = y + self.attend(y, y, past & (tgt_in != 0)[:, None] | torch.eye(length).bool())
        return self.out(y + self.attend(y, memory, (src != 0)[:, None].expand(-1, length, -1)))


def ask(model, **given):
    return check(model, **(SIZES | given))


def test_a_row_of_pads_alone_that_turns_into_nan_is_found_where_it_can_come():
    def judged(model, **given):
        return ask(model, **given)["rows"].parts["an empty pair"]

    sound, spoilt = Own(), Own(closed=-torch.inf)
    assert judged(sound).verdict == "PASS"
    unsure = judged(spoilt, eos_id=2)  # whether an empty source has an end, who knows?
    assert unsure.verdict == "cannot judge" and "a source of pads alone" in unsure.message
    assert judged(spoilt, eos_id=2, batch=parts.make_batch).verdict == "PASS"


@pytest.mark.parametrize("length", [7, 20])
def test_what_rounds_to_single_precision_inside_is_measured_as_such(length):
    report = ask(Own(half=True), length=length, eos_id=2)
    assert report.precision == "float32" and not failing(report)
    model = around_torch().eval()
    report = ask(lambda s, t: model(s, t).double(), length=length)
    assert report.precision == "float32" and not failing(report)
    assert ask(Own(), eos_id=2).precision == "float64"


def test_a_model_that_changes_later_fails():
    model, calls = around_torch().eval(), []

    def drifting(src, tgt_in):
        calls.append(1)
        return model(src, tgt_in) + (len(calls) > 20)

    report = ask(drifting, length=7, only="calls")
    assert not failing(report)
    assert "calls" in failing(ask(drifting, length=7))


def test_what_cannot_be_copied_is_left_as_it_is():
    class Locked(Own):
        def __deepcopy__(self, memo):
            raise ValueError("not me")

    model = Locked()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []
    model.register_forward_hook(
        lambda *_: seen.append(float(model.out.weight.detach().abs().sum()))
    )
    report = ask(model, eos_id=2)
    assert len(set(seen)) == 1 and report.precision == "float32"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "given", "fragments"),
    [
        (5, {}, ["int cannot be called", "f(src, tgt_in)"]),
        (lambda s, t: t, {"vocabulary_size": 9}, ["needs pad_id"]),
        (
            nn.Transformer(8, 2, 1, 1, 8, batch_first=True),
            SIZES,
            ["takes vectors, not ids", "TorchTransformer(model"],
        ),
        (lambda s, t: t, SIZES, ["gave torch.int64", "expected floating-point logits"]),
        (lambda s, t: torch.zeros(1, 2, 3), SIZES, ["gave torch.float32 (1, 2, 3)", "batch first"]),
        (lambda s, t: torch.full((*t.shape, 20), torch.nan), SIZES, ["NaN in every row"]),
        (lambda s, t: torch.rand(*t.shape, 20), SIZES, ["twice", "model.eval()"]),
        (lambda s, t: 1 / 0, SIZES, ["raised ZeroDivisionError"]),
        (lambda s, t: t, SIZES | {"vocabulary_size": 2}, ["1 symbols are left", "need two"]),
        (lambda s, t: t, SIZES | {"max_length": 9, "length": 30}, ["takes 9", "smaller length"]),
        (lambda s, t: t, SIZES | {"length": 3}, ["length 3", "4 symbols or more"]),
        (lambda s, t: t, SIZES | {"vocabulary_size": "20"}, ["vocabulary_size '20'", "whole"]),
        (lambda s, t: t, SIZES | {"pad_id": 50}, ["pad_id 50 is not below vocabulary_size 20"]),
        (
            lambda s, t: torch.zeros(5)[t.shape[1]],
            SIZES,
            ["IndexError", "take 10 places (max_length=...), and ids up to 19 on both sides"],
        ),
        (lambda s, t: t, SIZES | {"embedding": 3}, ["embedding is a torch.nn.Module"]),
        (lambda s, t: t, SIZES | {"batch": lambda p: 1 / 0}, ["batch maker raised"]),
        (
            lambda s, t: t,
            SIZES | {"batch": lambda p: [torch.tensor([[0, 0, 5]]).repeat(len(p), 1)] * 3},
            ["pads targets on the left"],
        ),
        (nn.LazyLinear(20), SIZES, ["lazy layers without sizes"]),
        (
            lambda s, t: t,
            SIZES | {"batch": lambda p: (torch.ones(2, 3), {}, None)},
            ["batch maker gave tuple of torch.float32 (2, 3), dict, NoneType; expected src"],
        ),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, list) else "",
)
def test_a_model_that_cannot_be_checked_is_refused_in_one_line(model, given, fragments):
    with pytest.raises(UserError) as refusal:
        check(model, **given)
    message = str(refusal.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_a_learned_position_table_is_tried_up_to_its_limit():
    config = config_of(
        data={"train_length": [1, 6]}, model={"positions": "learned", "max_positions": 9}
    )
    model = build_model(config, VOCABULARY)
    ours = of_model(model, config, VOCABULARY, "ours")
    report = toytrans.check(ours)
    assert report.passed and lengths(report) == {5}
    with pytest.raises(UserError, match="takes 9 places and the checks need 11"):
        check(ours)


@pytest.mark.parametrize(
    ("loss", "fragment"),
    [
        (
            lambda logits, labels: 1 / 0,
            r"given \(logits .*, tgt_out .*\), raised ZeroDivisionError",
        ),
        (lambda logits, labels: logits, r"the loss function gave torch.float64 \(4"),
        (lambda logits, labels: torch.tensor(1.0), "without a gradient"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, fragment):
    def batch(pairs):
        rows = torch.tensor([[1, 3, 4], [1, 5, 0]]).repeat(9, 1)[: len(pairs)]
        return rows, rows, rows

    def model(src, tgt_in):
        return tgt_in[..., None].double() * torch.arange(20)

    with pytest.raises(UserError, match=fragment):
        check(model, **SIZES, batch=batch, loss=loss)


def test_embeddings_that_are_not_used_prove_nothing():
    model = around_torch().eval()
    report = check(lambda s, t: model(s, t), **SIZES, embedding=nn.Embedding(20, 16))
    why = report.not_judged["pads by their embeddings"]
    assert report.passed and "not what the model embeds" in why


# The commands --------------------------------------------------------------------------------

MODELS = """
import torch
from torch import nn

def function():
    table = torch.randn(20, 20)
    def f(src, tgt_in):
        weights = torch.ones(tgt_in.shape[1], tgt_in.shape[1]).tril()
        place = torch.arange(1, src.shape[1] + 1)
        seen = (table[src] * (place * (src != 0))[..., None]).sum(1)
        return weights @ table[tgt_in] + seen[:, None]
    return {"model": f, "pad_id": 0, "vocabulary_size": 20}

def leaking():
    given = function()
    inner = given["model"]
    return given | {"model": lambda s, t: inner(s, t) + inner(s, t).roll(-1, 1)}

def bare():
    return function()["model"]

def misspelt():
    return function() | {"vocabulary": 20}

def raising():
    raise RuntimeError("no such weights")

def leaving():
    return function() | {"model": lambda src, tgt_in: exit(0)}

number = 5
"""


@pytest.fixture
def folder(here):
    (here / "mine.py").write_text(MODELS)
    yield here
    sys.modules.pop("mine", None)


def test_check_a_config_as_json(folder, command):
    done = command("check", *SHORT, "--config", "c.yaml", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["passed"] and found["fault"] is None and found["precision"] == "float64"
    assert [each["check"] for each in found["checks"]] == list(CHECKS)
    assert set(found["checks"][0]) == {
        "check", "title", "verdict", "difference", "tolerance", "must_change", "words", "parts",
    }  # fmt: skip


def test_check_breaks_on_purpose_and_says_so(folder, command):
    done = command("check", *SHORT, "--config", "c.yaml", "--break", "no_causal")
    assert done.code == 1
    assert "broken on purpose: no_causal" in done.err
    assert "FAIL: future, steps" in done.out and "pytorch/tutorials#719" in done.out
    as_json = command("check", *SHORT, "--config", "c.yaml", "--break", "no_causal", "--json")
    assert as_json.code == 1 and json.loads(as_json.out)["fault"] == "no_causal"


def test_a_broken_run_stays_broken_and_says_so_everywhere(folder, command):
    done = command("train", "--config", "c.yaml", "--break", "no_norm")
    assert done.code == 0
    assert "broken on purpose: no_norm" in done.err
    assert "broken on purpose" in " ".join(done.out.split())
    run = toytrans.load("runs/c")
    assert run.config.fault == "no_norm"
    assert not any(isinstance(part, nn.LayerNorm) for part in run.model.modules())
    for line in ("eval", "translate 1", "check --length 7", "inspect-masks runs/c"):
        shown = command(*line.split())
        assert "broken on purpose: no_norm" in shown.err + shown.out, line
    assert json.loads(command("eval", "--json").out)["fault"] == "no_norm"
    assert failing(check(run)) == {"sublayers"}
    refused = command("check", "runs/c", "--break", "no_causal")
    assert refused.code == 2 and "leave --break out" in refused.err
    healed = command("train", "--config", "c.yaml", "--out", "runs/c", "--resume")
    assert healed.code == 2 and "fault (no_norm -> None)" in healed.err


def test_check_somebody_elses_model(folder, command):
    sound = command("check", *SHORT, "--model", "mine.py:function")
    assert sound.code == 0 and "does not apply: scale" in sound.out, sound.out
    assert sound.out.startswith("mine.py:function, float32")
    verdicts = ("FAIL", "PASS", "?", "not asked:", "does not apply:", "tried:", "note:")
    wrapped = sound.out.splitlines()[1:]
    assert {line[:6] for line in wrapped if not line.startswith(verdicts)} == {" " * 6}
    leaking = command("check", *SHORT, "--model", "mine.py:leaking")
    assert leaking.code == 1
    assert "place 6 change" in leaking.out or "off by one" in leaking.out


def test_a_check_without_its_argument_is_not_asked(folder, command, monkeypatch):
    lacking = {
        **dict.fromkeys(("pads by their embeddings", "pads by gradients"), ("embedding",)),
        **{"future by gradients": ("embedding",), "sublayers": ("embedding",)},
        **{"steps": ("generate",), "loss": ("loss", "start_id", "eos_id"), "labels": ("batch",)},
    }
    monkeypatch.syspath_prepend(folder)
    report = toytrans.check(**importlib.import_module("mine").function(), length=7)
    assert report.not_asked == lacking
    assert str(report).endswith(f"; not asked: {', '.join(lacking)}") or "not asked" in report.end
    assert (
        "steps (give generate=); loss (give loss=, start_id=, eos_id=); labels (give batch=)"
        in str(report)
    )
    assert str(report).count("\ndoes not apply: scale: no softmax of torch's") == 1

    words = ("check", *SHORT, "--model", "mine.py:function")
    checks = json.loads(command(*words, "--json").out)["checks"]
    given = {each["check"]: each["give"] for each in checks if "give" in each}
    assert given == {name: list(lacking[name]) for name in given} and len(given) == 4


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--model", "mine"], ["'mine' names no code; write it as FILE.py:NAME"]),
        (["--model", "mine.py:number"], ["mine.py has no function number"]),
        (["--model", "mine.py:raising"], ["RuntimeError: no such weights (mine.py:"]),
        (["--model", "mine.py:leaving"], ["raised SystemExit: 0\n"]),
        (["--model", "mine.py:misspelt"], ["'vocabulary'", "known are"]),
        (["--model", "mine.py:function", "--break", "no_causal"], ["--break plants faults"]),
        (
            ["--model", "mine.py:bare"],
            [
                "pad_id and vocabulary_size of a function; give pad_id=... and vocabulary_size",
            ],
        ),
        (["--model", "mine.py:function", "--config", "c.yaml"], ["exclude each other"]),
        (["c.yaml"], ["c.yaml: not a run directory", "`toytrans train CONFIG` makes one"]),
        (["--set", "model.d_ff=3"], ["give --config"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_bad_words_are_refused_in_one_line(folder, command, words, fragments):
    done = command("check", *SHORT, *words)
    assert done.code == 2 and not done.out
    assert len(done.err.strip().splitlines()) == 1, done.err
    for fragment in fragments:
        assert fragment in done.err


# Verdicts, and where they go -------------------------------------------------------------------


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


def test_a_report_is_true_only_if_it_passed_and_raises_if_not():
    sound, broken = (ask(Running(beyond), kind="decoder", length=7) for beyond in (10**6, 0))
    assert sound and sound.verdict == "PASS" and sound.raise_if_failed() is None
    assert not broken and broken.verdict == "FAIL"
    with pytest.raises(AssertionError, match="sees the future"):
        broken.raise_if_failed()
    assert sound.to_dict()["verdict"] == "PASS" and sound.to_dict()["tried"]["lengths"] == [7]


def test_a_failure_shows_its_module_the_smallest_example_and_how_to_see_it_again():
    model = around_torch()
    model.masks = lambda src, tgt_in: (
        TorchTransformer.masks(model, src, tgt_in) | {"tgt_mask": None}
    )
    found = ask(model, start_id=1, eos_id=2, only="future")["future"]
    assert found.details["where"] == "in transformer.decoder.layers.0.self_attn (layer 1)"
    assert (
        "token 1 from" in found.details["example"] and "output 0 moves" in found.details["example"]
    )
    assert (
        found.details["reproduce"] == 'toytrans.check(model, ..., only="future", length=7, seed=0)'
    )


def test_thorough_tries_512_places_and_32_rows():
    model = Running(leaks_beyond=300)
    assert toytrans.check(model, **SIZES, kind="decoder", only="pads,future")
    report = toytrans.check(model, **SIZES, kind="decoder", only="pads,future", length=512)
    assert {64, 256, 512} <= lengths(report) and 32 in report.to_dict()["tried"]["rows"]
    assert "future" in failing(report) and "length 512" in report["future"].message
    sound = toytrans.check(Running(), **SIZES, kind="decoder", only="pads,future,rows", length=512)
    assert sound and max(lengths(sound)) == 512


def test_every_difference_of_lengths_and_number_of_rows_is_tried():
    table, asked = torch.eye(20), set()

    def losing(lost):
        def model(src, tgt_in):
            asked.add((src.shape[1], tgt_in.shape[1], len(src)))
            leak = table[tgt_in].roll(-1, 1) if lost(src, tgt_in) else 0.0
            return table[tgt_in].cumsum(1) + leak + (src != 0).sum(1)[:, None, None]

        return toytrans.check(model, **SIZES, only="future")

    longer = losing(lambda src, tgt_in: tgt_in.shape[1] == src.shape[1] + 5)["future"]
    assert "13 source and 18 target places" in longer.message
    nine = losing(lambda src, tgt_in: len(src) == 9)
    assert "in a batch of 9 rows" in nine["future"].message
    asked.clear()
    assert losing(lambda src, tgt_in: False)
    sources, targets, rows = (set(sizes) for sizes in zip(*asked, strict=True))
    assert set(range(9, 66)) <= sources & targets and set(range(2, 18)) <= rows
    assert {target - source for source, target, _ in asked if source > 8} >= set(range(-8, 9))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x, ids: nn.functional.dropout(x, 0.2), "functional dropout without training="),
        (lambda x, ids: x + torch.rand(()), "draws random numbers in eval mode"),
        (lambda x, ids: (x, ids.clamp_(max=3))[0], "changes the ids that it is handed: tgt_in"),
    ],
    ids=["dropout", "noise", "ids"],
)
def test_what_a_module_does_at_each_call_fails(change, cause):
    class Odd(Running):
        def forward(self, ids):
            return change(super().forward(ids), ids)

    report = ask(Odd(), kind="decoder")
    assert "calls" in failing(report) and cause in report["calls"].message
    if "random" in cause:  # in a function it may be a switch that its user forgot
        model = Odd()
        with pytest.raises(UserError, match=r"model\.eval\(\)"):
            ask(lambda ids: model(ids), kind="decoder")


def test_a_source_of_fewer_ids_or_of_another_pad_is_asked_for():
    model = around_torch().eval()
    model.src_embedding = Places(12)
    with pytest.raises(UserError, match="ids up to 19 on both sides \\(source_size="):
        ask(model)
    assert ask(model, source_size=12)
    other = zoo.built("another source pad that is not given")
    assert check(**other | {"source_pad_id": 3})


def test_checks_are_chosen_by_name():
    report = ask(Running(), kind="decoder", only="pads,future", length=7)
    assert [found.name for found in report.results] == ["pads", "future"]
    assert "order" not in {f.name for f in ask(Running(), kind="decoder", skip="order").results}
    with pytest.raises(UserError, match="skip future, pads: no check is left"):
        ask(Running(), only="pads", skip="future,pads")
    with pytest.raises(UserError, match="no check pad; did you mean pads"):
        ask(Running(), only="pad")


def test_the_example_for_other_repositories_passes():
    import runpy

    example = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "example_test_model.py"))
    tests = [value for name, value in example.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_what_cannot_be_judged_ends_with_2_and_one_line(folder, command):
    Path("blind.py").write_text(
        "import torch\n"
        "def f():\n    return {'model': lambda s, t: torch.zeros(*t.shape, 9), 'pad_id': 0,\n"
        "            'vocabulary_size': 9}\n"
    )
    done = command("check", "--model", "blind.py:f", "--length", "7")
    assert done.code == 2 and "cannot judge" in done.err and len(done.err.splitlines()) == 1
