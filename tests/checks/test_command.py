"""The command: what it prints, its exit codes, JSON, and one line for bad words."""

import importlib
import json
import sys

import pytest
from torch import nn

import toytrans
from toytrans.checks.rules import CHECKS

MODELS = """
import torch

def function():
    table = torch.randn(20, 20)
    def f(src, tgt_in):
        weights = torch.ones(tgt_in.shape[1], tgt_in.shape[1]).tril()
        place = torch.arange(1, src.shape[1] + 1)
        seen = (table[src] * (place * (src != 0))[..., None]).sum(1)
        return weights @ table[tgt_in] + seen[:, None]
    return {"model": f, "pad_id": 0, "vocabulary_size": 20}

def of(model):
    return function() | {"model": model}

def leaking():
    inner = function()["model"]
    return of(lambda s, t: inner(s, t) + inner(s, t).roll(-1, 1))

def misspelt():
    return function() | {"vocabulary": 20}

def raising():
    raise RuntimeError("no such weights")

def leaving():
    return of(lambda src, tgt_in: exit(0))

def blind():
    return of(lambda src, tgt_in: torch.zeros(*tgt_in.shape, 20))

def masked():
    return of(lambda src, tgt, tgt_mask: tgt)

number = 5
"""


@pytest.fixture
def folder(here):
    (here / "mine.py").write_text(MODELS)
    yield here
    sys.modules.pop("mine", None)


@pytest.fixture
def check(folder, command):
    """The command, with the shortest plan."""
    return lambda *words: command("check", "--length", "7", *words)


def test_check_a_config_as_json(check):
    done = check("--config", "c.yaml", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["passed"] and found["fault"] is None and found["precision"] == "float64"
    assert [each["check"] for each in found["checks"]] == list(CHECKS)
    assert set(found["checks"][0]) == {
        "check", "title", "verdict", "difference", "tolerance", "words", "must_change", "parts",
    }  # fmt: skip


def test_check_breaks_on_purpose_and_says_so(check):
    words = ("--config", "c.yaml", "--break", "no_causal", "--only", "future,steps")
    done = check(*words)
    assert done.code == 1 and "broken on purpose: no_causal" in done.err
    assert "FAIL: future, steps" in done.out and "pytorch/tutorials#719" in done.out
    as_json = check(*words, "--json")
    assert as_json.code == 1 and json.loads(as_json.out)["fault"] == "no_causal"


def test_a_broken_run_stays_broken_and_says_so_everywhere(folder, command):
    done = command("train", "--config", "c.yaml", "--break", "no_norm")
    assert done.code == 0 and "broken on purpose: no_norm" in done.err
    assert "broken on purpose" in " ".join(done.out.split())
    run = toytrans.load("runs/c")
    assert run.settings.fault == "no_norm"
    assert not any(isinstance(part, nn.LayerNorm) for part in run.model.modules())
    for line in ("eval", "translate 1", "check --only sublayers", "inspect-masks runs/c"):
        shown = command(*line.split())
        assert "broken on purpose: no_norm" in shown.err + shown.out, line
    assert json.loads(command("eval", "--json").out)["fault"] == "no_norm"
    assert [each.name for each in toytrans.check(run, length=7).failures] == ["sublayers"]
    refused = command("check", "runs/c", "--break", "no_causal")
    assert refused.code == 2 and "leave --break out" in refused.err
    healed = command("train", "--config", "c.yaml", "--out", "runs/c", "--resume")
    assert healed.code == 2 and "fault ('no_norm' -> null)" in healed.err


def test_check_somebody_elses_model(check):
    sound = check("--model", "mine.py:function")
    assert sound.code == 0 and "scale: no softmax of torch's" in sound.out, sound.out
    assert sound.out.startswith("mine.py:function, float32")
    verdicts = ("FAIL", "PASS", "?", "not asked:", "does not apply:", "tried:", "note:")
    wrapped = sound.out.splitlines()[1:]
    assert {line[:6] for line in wrapped if not line.startswith(verdicts)} == {" " * 6}
    leaking = check("--model", "mine.py:leaking")
    assert leaking.code == 1
    assert "read on: toytrans explain future." in leaking.out


def test_a_check_without_its_argument_is_not_asked(folder, check, monkeypatch):
    lacking = {
        **dict.fromkeys(("pads by their embeddings", "pads by gradients"), ("embedding",)),
        **{"future by gradients": ("embedding",), "sublayers": ("embedding",)},
        **{"steps": ("generate",), "loss": ("loss", "start_id", "eos_id"), "labels": ("batch",)},
    }
    monkeypatch.syspath_prepend(folder)
    report = toytrans.check(**importlib.import_module("mine").function(), length=7)
    assert {name: part.give for name, part in report.with_parts("not asked").items()} == lacking
    assert report.end.endswith(f"; not asked: {', '.join(report.with_parts('not asked'))}")
    give = "steps (give generate=); loss (give loss=, start_id=, eos_id=); labels (give batch=)"
    assert give in str(report)
    assert str(report).count("; scale: no softmax of torch's") == 1
    checks = json.loads(check("--model", "mine.py:function", "--json").out)["checks"]
    given = {each["check"]: each["give"] for each in checks if "give" in each}
    assert given == {name: list(lacking[name]) for name in given} and len(given) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model mine", "'mine' names no code; write it as FILE.py:NAME"),
        ("--model mine.py:number", "mine.py has no function number"),
        ("--model mine.py:raising", "RuntimeError: no such weights (mine.py:"),
        ("--model mine.py:leaving", "raised SystemExit: 0\n"),
        ("--model mine.py:misspelt", "holds 'vocabulary'; known are"),
        ("--model mine.py:function --break no_causal", "--break plants faults"),
        ("--model mine.py:function --config c.yaml", "exclude each other"),
        ("--model mine.py:blind", "cannot judge mine.py:blind: rows: the logits never change"),
        ("nowhere", "`toytrans train CONFIG` makes one"),
        ("--set model.d_ff=3", "give --config"),
    ],
)
def test_what_cannot_be_checked_ends_with_2_and_one_line(check, words, said):
    done = check(*words.split())
    assert done.code == 2 and (not done.out or "blind" in words)
    assert len(done.err.strip().splitlines()) == 1 and said in done.err


def test_the_command_prints_the_wrapper_and_the_argument_to_give(check):
    answer = check("--model", "mine.py:masked")
    assert answer.code == 2 and not answer.out, "which --json leaves to programs"
    assert answer.err.startswith("class Asked(torch.nn.Module):\n")
    assert "takes tgt_mask beside ids" in " ".join(answer.err.split())
