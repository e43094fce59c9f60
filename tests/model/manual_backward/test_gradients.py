"""`toytrans demo gradients`: what it compares, and that it finds the mistakes people make."""

import math

import pytest
import torch

from toytrans.model.manual_backward import functions
from toytrans.model.manual_backward.gradients import (
    Comparison,
    compare,
    difference,
)

OPERATIONS = {
    "linear",
    "LayerNorm",
    "LayerNorm, small x",
    "ReLU",
    "GELU",
    "GELU, tanh form",
    "softmax",
    "rotary",
    "embedding",
    "dropout",
    "attention",
    "capped, dropped out",
    "cross entropy",
    "cross entropy, smoothed",
    "whole model",
}


def failing() -> set[tuple[str, str]]:
    return {(each.operation, each.of) for each in compare(1) if not each.passed}


def test_every_operation_agrees():
    found = compare(5)
    assert {each.operation for each in found} == OPERATIONS
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


def test_the_table_holds_the_numbers_of_the_run(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = command("demo", "gradients")
    lines, expected = answer.out.splitlines(), compare(3)
    assert answer.code == 0 and not answer.err
    assert max(map(len, lines)) <= 80 and "…" not in answer.out
    for each in expected:
        assert f" {each.absolute:.1e} {each.relative:.1e} PASS" in " ".join(answer.out.split())
    assert f"{len(expected)} passed, 0 failed" in lines[-1]


def test_a_difference_makes_the_command_fail(command, monkeypatch):
    monkeypatch.setattr(functions, "relu_backward", lambda gradient, _: (gradient,))
    answer = command("demo", "gradients")
    assert answer.code == 1 and "FAIL" in answer.out and "failed" in answer.out


def test_nan_is_no_pass():
    nan = Comparison("x", "y", (1,), math.nan, 0.0)
    assert not nan.passed
    assert not Comparison("x", "y", (1,), 2e-10, 0.0).passed
    assert not Comparison("x", "y", (1,), 0.0, 2e-10).passed
    broken = difference(torch.tensor([1.0, math.nan]), torch.ones(2))
    assert math.isnan(broken[0])
