"""Backward by hand: every pair of functions, and models that are trained on them."""

import copy
import math

import pytest
import torch
from conftest import VOCABULARY, anchors_of, id_of, model_of
from torch import nn
from torch.nn import functional as F

from toytrans.config.faults import FAULTS
from toytrans.errors import UserError
from toytrans.model.build import plant
from toytrans.model.decoding import search
from toytrans.model.manual_backward import functions, gradients, layers
from toytrans.model.manual_backward.gradients import compare, train_twice
from toytrans.model.manual_backward.layers import cross_entropy, use_manual_backward
from toytrans.model.positions import SCHEMES
from toytrans.model.transformer import Transformer

SRC = torch.tensor([[1, 5, 6, 7, 4, 2], [1, 8, 13, 2, 0, 0], [1, 2, 0, 0, 0, 0]])
TGT_IN = torch.tensor([[1, 4, 7, 6, 5], [1, 8, 9, 0, 0], [1, 0, 0, 0, 0]])
TGT_OUT = torch.tensor([[4, 7, 6, 5, 2], [8, 9, 2, 0, 0], [2, 0, 0, 0, 0]])
VARIANTS = [
    {"activation": "gelu", "dropout": 0.3},
    {"activation": "gelu_tanh", "positions": "sinusoidal", "norm": "post"},
    *({"positions": name} for name in SCHEMES),
    {"positions": "relative", "cross_positions": "anchored"},
    {"pad_mask": "keys_and_queries", "share_layers": True, "dropout": 0.3},
    {"positions": "learned", "tie_embeddings": False, "score_cap": 2.0},
]


def cases(seed: int) -> list[gradients.Case]:
    return list(gradients.cases(torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("number", range(len(cases(0))), ids=[c.title for c in cases(0)])
def test_gradcheck_of_every_pair(number):
    """Against finite differences, as functions of autograd."""
    case = cases(7)[number]
    given = [x.clone().requires_grad_() for x in case.inputs.values()]
    small = "small" in case.title  # x near 0.001, so a smaller step; gradients near 1000
    assert torch.autograd.gradcheck(
        lambda *inputs: layers.run(case.name, *inputs, *case.settings),
        given,
        eps=1e-9 if small else 1e-6,
        rtol=1e-3,
        atol=1e-2 if small else 1e-5,
    )


# What `toytrans demo gradients` compares, and the mistakes people make that it finds -----------


def failing() -> set[tuple[str, str]]:
    return {(each.operation, each.of) for each in compare(1) if not each.passed}


def test_every_operation_agrees():
    derived = {name for name in vars(functions) if name.endswith("_backward")}
    tried = {f"{case.name}_backward" for case in cases(0)}
    assert tried == derived, "manual_backward/gradients.py: each operation needs a Case in cases()"
    found = compare(5)
    assert {each.operation for each in found} == {c.title for c in cases(0)} | {"whole model"}
    assert all(each.passed for each in found)
    assert all(each.relative < 1e-13 for each in found), "rounding, far below the tolerance"


def test_a_softmax_gradient_of_its_diagonal_alone_is_found(monkeypatch):
    def diagonal(gradient, needed):
        (weights,) = needed
        return (gradient * weights * (1 - weights),)

    monkeypatch.setattr(functions, "softmax_backward", diagonal)
    found = failing()
    assert ("softmax", "x") in found and ("softmax", "(output)") not in found
    assert {("attention", name) for name in ("q", "k", "bias")} <= found
    assert ("attention", "v") not in found


def test_a_gradient_of_k_without_its_transpose_is_found(monkeypatch):
    """In self-attention it fits; where Tq and Tk differ, the sizes themselves refuse it."""
    sound = functions.attention_backward

    def untransposed(gradient, needed):
        q, _, v, weights, *_, scale, _ = needed
        d_q, d_k, d_v, d_bias = sound(gradient, needed)
        (d_scores,) = functions.softmax_backward(gradient @ v.mT, (weights,))
        if d_scores.shape[-1] == d_scores.shape[-2]:
            d_k = scale * d_scores @ q
        else:
            with pytest.raises(RuntimeError):
                d_scores @ q
        return d_q, d_k, d_v, d_bias

    monkeypatch.setattr(functions, "attention_backward", untransposed)
    assert {operation for operation, _ in failing()} == {"whole model"}


def test_a_layer_norm_without_its_epsilon_is_found(monkeypatch):
    sound = functions.layer_norm_backward

    def bare(gradient, needed):
        normal, inverse, weight = needed
        variance = inverse**-2 - 1e-5
        return sound(gradient, (normal, variance.rsqrt(), weight))

    monkeypatch.setattr(functions, "layer_norm_backward", bare)
    found = failing()
    assert {("LayerNorm", "x"), ("LayerNorm, small x", "x")} <= found
    assert ("LayerNorm", "weight") not in found


def test_a_wrong_forward_pass_is_found(monkeypatch):
    sound = functions.relu
    monkeypatch.setattr(functions, "relu", lambda x: (sound(x)[0] + 1, sound(x)[1]))
    assert failing() >= {("ReLU", "(output)")}


@pytest.fixture
def few_steps(monkeypatch):
    """The command trains for a moment only; lesson 4 runs all of it."""
    monkeypatch.setattr("toytrans.cli.demo.TRAINED_STEPS", 8)


@pytest.mark.usefixtures("few_steps")
def test_the_table_holds_the_numbers_of_the_run(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = command("demo", "gradients")
    printed, expected = " ".join(answer.out.split()), compare(3)
    assert answer.code == 0 and not answer.err
    for each in expected:
        assert f" {each.absolute:.1e} {each.relative:.1e} PASS" in printed
    assert f"{len(expected)} passed, 0 failed" in printed
    assert "loss by autograd loss by hand" in printed and printed.endswith("below 1e-09: PASS")


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("factor", [1.0, math.nan])
def test_a_difference_makes_the_command_fail(factor, command, monkeypatch):
    monkeypatch.setattr(functions, "relu_backward", lambda gradient, _: (factor * gradient,))
    answer = command("demo", "gradients")
    assert answer.code == 1 and "FAIL" in answer.out and "failed" in answer.out


# Whole models --------------------------------------------------------------------------------


def pair_of_models(**model) -> tuple[Transformer, Transformer]:
    """The same weights, with autograd's gradients and with derived ones."""
    built = []
    for _ in range(2):
        torch.manual_seed(3)
        built.append(model_of(VOCABULARY, **model).train())
    use_manual_backward(built[1])
    return tuple(built)


def loss_of(model: Transformer, entropy=F.cross_entropy, label_smoothing=0.1) -> torch.Tensor:
    torch.manual_seed(5)  # the same dropout
    logits, labels = model(SRC, TGT_IN).flatten(0, 1), TGT_OUT.flatten()
    return entropy(logits, labels, ignore_index=0, label_smoothing=label_smoothing)


@pytest.mark.parametrize("variant", VARIANTS, ids=id_of)
def test_a_models_loss_and_gradients_are_autograds(variant):
    autograd, by_hand = pair_of_models(**variant)
    expected, loss = loss_of(autograd), loss_of(by_hand, cross_entropy)
    assert abs(expected.item() - loss.item()) < 1e-12
    theirs = torch.autograd.grad(expected, list(autograd.parameters()))
    ours = torch.autograd.grad(loss, list(by_hand.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0
        assert (one - other).abs().max() < 1e-11


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_reduces_as_torchs_does(reduction):
    logits, labels = torch.randn(7, 5).double(), torch.tensor([1, 0, 4, 0, 2, 3, 0])
    for options in ({}, {"ignore_index": 0}, {"ignore_index": 0, "label_smoothing": 0.2}):
        expected = F.cross_entropy(logits, labels, reduction=reduction, **options)
        found = cross_entropy(logits, labels, reduction=reduction, **options)
        assert found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-14)
    assert torch.allclose(cross_entropy(logits, labels), F.cross_entropy(logits, labels))
    with pytest.raises(ValueError, match="middle"):
        cross_entropy(logits, labels, reduction="middle")


def test_what_nobody_has_derived_is_refused():
    """A new scheme of toytrans fails the tests above with this line, which names the file."""
    for changed in (anchors_of("Count", n_heads=4), None):
        model = model_of(VOCABULARY, **(changed or {}))
        if changed is None:
            model.decoder_layers[0].feed_forward[1] = nn.SiLU()
        with pytest.raises(UserError, match="not derived in toytrans/model/manual_backward/layers"):
            use_manual_backward(model)


def nodes(tensor: torch.Tensor) -> set[str]:
    """Names of all operations that autograd would walk back through."""
    found, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return {node.name().removesuffix("0").removesuffix("Backward") for node in found}


@pytest.mark.parametrize("variant", [*VARIANTS, {}], ids=id_of)
def test_autograd_is_left_with_glue_alone(variant):
    autograd, ours = pair_of_models(**variant)
    loss = loss_of(ours, cross_entropy)
    glue = "Add Mul Sum View UnsafeView Reshape Permute Transpose T Slice Unbind Clone Expand "
    glue += "Sub Div Unsqueeze Cat AliasBackward0"
    allowed = {*glue.split(), "torch::autograd::AccumulateGrad", "_Operation"}
    without = nodes(loss) - allowed
    assert not without, f"{without}: make it an operation in manual_backward/functions.py"
    theirs = nodes(loss_of(autograd))
    assert {"NativeLayerNorm", "Embedding", "NllLoss"} <= theirs


def test_weights_keep_their_names_and_load_either_way():
    autograd, ours = pair_of_models()
    assert list(autograd.state_dict()) == list(ours.state_dict())
    assert ours.output.weight is ours.src_embedding.weight
    with torch.no_grad():
        for parameter in autograd.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours.load_state_dict(autograd.state_dict())
    for model in (autograd.eval(), ours.eval()):
        model.requires_grad_(False)
    assert torch.allclose(autograd(SRC, TGT_IN), ours(SRC, TGT_IN), rtol=0, atol=1e-12)
    assert torch.equal(search(autograd, SRC).tokens, search(ours, SRC).tokens)
    copied, expected = copy.deepcopy(ours), ours(SRC, TGT_IN)
    ours.load_state_dict({name: 0 * values for name, values in ours.state_dict().items()})
    assert torch.equal(copied(SRC, TGT_IN), expected), "a copy has weights of its own"


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_break_both_alike(fault):
    autograd, by_hand = pair_of_models(positions="anchored")
    for model in (autograd, by_hand):
        plant(fault, model)
    loss_of(autograd).backward()
    loss_of(by_hand, cross_entropy).backward()
    ours = {name: parameter.grad for name, parameter in by_hand.named_parameters()}
    assert any(gradient is not None for gradient in ours.values())
    for name, parameter in autograd.named_parameters():
        assert (parameter.grad is None) == (ours[name] is None)
        assert parameter.grad is None or torch.allclose(
            parameter.grad, ours[name], rtol=0, atol=1e-12
        )


def test_a_training_by_hand_has_autograds_losses_and_learns():
    trained = train_twice(60)
    assert len(trained.autograd) == len(trained.by_hand) == 60
    assert trained.autograd[0] > 2.5 and trained.by_hand[-1] < 0.8 * trained.by_hand[0]
    assert trained.autograd[0] != trained.autograd[1] and trained.difference < 1e-9
