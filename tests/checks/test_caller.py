"""A program that calls `check` goes on as if it had not; what cannot be asked costs one line."""

import random
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import toytrans
from toytrans.errors import UserError

SIZES = {"pad_id": 0, "vocabulary_size": 12}


class Odd(nn.Module):
    """A decoder that keeps statistics, draws random numbers, counts its calls, and shrinks its
    table of embeddings while it reads it."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 8, max_norm=0.5)
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 12)
        self.spectral = nn.utils.spectral_norm(nn.Linear(8, 8))
        self.calls = 0

    def forward(self, ids):
        self.calls += 1
        x = self.spectral(self.tokens(ids).cumsum(1))
        noise = 0 * torch.rand(()) * random.random()
        return self.out(F.dropout(self.norm(x.mT).mT, 0.1, self.training)) + noise


class Locked(Odd):
    def __deepcopy__(self, memo):
        raise ValueError("a lock")


class Leaving(Odd):
    """It ends the program at its sixth call."""

    def forward(self, ids):
        if self.calls == 5:
            sys.exit("enough")
        return super().forward(ids)


def state_of(model):
    """All that must stay: numbers, modes, attributes and random numbers."""
    modules = [(part.training, sorted(vars(part))) for part in model.modules()]
    numbers = {name: value.clone() for name, value in model.state_dict().items()}
    return numbers, modules, model.calls, torch.get_rng_state(), random.getstate()


def assert_unchanged(model, before):
    after = state_of(model)
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3]) and before[4] == after[4]


def asked_as_module(model):
    return {"model": model}


def asked_as_function(model):
    return {"model": lambda ids: model(ids)}


def asked_to_decode(model):
    return {"model": model, "generate": lambda src, ids: model.eval()(ids)}


@pytest.mark.parametrize("kind", [Odd, Locked, Leaving])
@pytest.mark.parametrize("asked", [asked_as_module, asked_as_function, asked_to_decode])
def test_the_caller_is_left_as_it_was(kind, asked):
    torch.manual_seed(0)
    model = kind().train()
    model.tokens.train(False)
    before = state_of(model)
    try:
        report = toytrans.check(**asked(model), **SIZES, kind="decoder", effort="quick")
        assert report.results
    except UserError as refusal:
        assert "\n" not in str(refusal)
    assert_unchanged(model, before)


def test_a_model_that_ends_the_program_is_told_in_one_line():
    class Never(nn.Module):
        def forward(self, ids):
            sys.exit("enough")

    with pytest.raises(UserError, match="raised SystemExit: enough"):
        toytrans.check(Never(), **SIZES, kind="decoder")
    report = toytrans.check(Leaving(), **SIZES, kind="decoder", effort="quick", only="scale")
    assert report.verdict == "cannot judge"


def dense(ids):
    return F.one_hot(ids, 12).double().cumsum(1)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (Odd().to("meta"), {}, "weights on the meta device"),
        (Odd(), {"device": "meta"}, "device 'meta' cannot be taken"),
        (lambda ids: dense(ids).to_sparse(), {}, "gave a sparse tensor; expected floating-point"),
        (dense, {"vocabulary_size": 10**12}, "raised RuntimeError: Class values"),
        (dense, {"vocabulary_size": 10**30}, "give a whole number"),
    ],
    ids=["meta", "device", "sparse", "vocabulary", "number"],
)
def test_what_holds_no_numbers_or_too_many_is_refused_in_one_line(model, given, said):
    with pytest.raises(UserError) as refusal:
        toytrans.check(model, **SIZES | {"kind": "decoder", "effort": "quick"} | given)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)
