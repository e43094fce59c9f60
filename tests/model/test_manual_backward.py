"""Backward by hand: every pair of functions, and models that are trained on them."""

import copy
import math
from typing import get_args

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of, trainer_of

from toytrans.config.names import FaultName
from toytrans.config.schema import TrainConfig
from toytrans.data.batches import Batch
from toytrans.model.decoding import search
from toytrans.model.manual_backward import functions, gradients, layers
from toytrans.model.manual_backward.gradients import compare
from toytrans.model.transformer import Transformer
from toytrans.training.faults import build_model, objective_of
from toytrans.training.run import RunFolder
from toytrans.training.step import AdamW, Update

CPU = torch.device("cpu")
SRC = torch.tensor([[1, 5, 6, 7, 4, 2], [1, 8, 13, 2, 0, 0], [1, 2, 0, 0, 0, 0]])
TGT_IN = torch.tensor([[1, 4, 7, 6, 5], [1, 8, 9, 0, 0], [1, 0, 0, 0, 0]])
TGT_OUT = torch.tensor([[4, 7, 6, 5, 2], [8, 9, 2, 0, 0], [2, 0, 0, 0, 0]])
VARIANTS = [
    {"activation": "gelu", "dropout": 0.3},
    {"activation": "gelu_tanh", "positions": "sinusoidal", "norm": "post"},
    {"positions": "rotary"},
    {"positions": "alibi"},
    {"positions": "t5"},
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
    assert {f"{case.name}_backward" for case in cases(0)} == derived
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


def test_the_table_holds_the_numbers_of_the_run(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = command("demo", "gradients")
    printed, expected = " ".join(answer.out.split()), compare(3)
    assert answer.code == 0 and not answer.err
    for each in expected:
        assert f" {each.absolute:.1e} {each.relative:.1e} PASS" in printed
    assert f"{len(expected)} passed, 0 failed" in printed


@pytest.mark.parametrize("factor", [1.0, math.nan])
def test_a_difference_makes_the_command_fail(factor, command, monkeypatch):
    monkeypatch.setattr(functions, "relu_backward", lambda gradient, _: (factor * gradient,))
    answer = command("demo", "gradients")
    assert answer.code == 1 and "FAIL" in answer.out and "failed" in answer.out


# Whole models --------------------------------------------------------------------------------


def pair_of_models(**model) -> list[Transformer]:
    """The same weights, trained by autograd and by hand; autograd's attention is no kernel's."""
    built = []
    for road in ("autograd", "by_hand"):
        torch.manual_seed(3)
        built.append(model_of(VOCABULARY, backward=road, **model).train())
    return built


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_models_loss_and_gradients_are_autograds(variant):
    found = []
    for model in pair_of_models(**variant):
        torch.manual_seed(5)  # the same dropout
        loss = objective_of(None, model.config.backward).loss(model(SRC, TGT_IN), TGT_OUT, 0.1)
        found.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    (loss, theirs), (ours_loss, ours) = found
    assert abs(loss.item() - ours_loss.item()) < 1e-12
    for one, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0
        assert (one - other).abs().max() < 1e-11


def nodes(tensor: torch.Tensor) -> set[str]:
    """Names of all operations that autograd would walk back through."""
    found, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return {node.name().removesuffix("0").removesuffix("Backward") for node in found}


@pytest.mark.parametrize("variant", [*VARIANTS, {}], ids=str)
def test_autograd_is_left_with_glue_alone(variant):
    autograd, ours = pair_of_models(**variant)
    loss = objective_of(None, "by_hand").loss(ours(SRC, TGT_IN), TGT_OUT, 0.1)
    glue = "Add Mul Sum View UnsafeView Reshape Permute Transpose T Slice Unbind Clone Expand "
    glue += "ConstantPadNd Unsqueeze Cat AliasBackward0"
    allowed = {*glue.split(), "torch::autograd::AccumulateGrad", "_Operation"}
    assert nodes(loss) <= allowed, nodes(loss) - allowed
    theirs = nodes(objective_of(None).loss(autograd(SRC, TGT_IN), TGT_OUT, 0.1))
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


@pytest.mark.parametrize("fault", get_args(FaultName))
def test_faults_break_both_roads_alike(fault):
    """A fault is planted after the twins took over; most change layers or the loss."""
    found = []
    for road in ("autograd", "by_hand"):
        torch.manual_seed(1)
        config = config_of(model={"backward": road}, fault=fault)
        model = build_model(config, VOCABULARY).double()
        batch = Batch(SRC, TGT_IN, TGT_OUT)
        objective = objective_of(fault, road)
        train = TrainConfig(label_smoothing=0.1)
        Update(model, AdamW(model, 0.0), CPU, train, "fp64", objective).backward([batch])
        found.append({name: p.grad for name, p in model.named_parameters()})
    theirs, ours = found
    assert any(gradient is not None for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert (gradient is None) == (ours[name] is None)
        assert gradient is None or torch.allclose(gradient, ours[name], rtol=0, atol=1e-12)


def test_a_small_reverse_is_solved_by_hand_with_autograds_loss_curve(tmp_path):
    curves, layers = [], {"n_encoder_layers": 1, "n_decoder_layers": 1}
    for road in ("autograd", "by_hand"):
        trainer = trainer_of(
            tmp_path / road,
            "reverse",
            data={"symbols": 5, "batch_tokens": 192, "valid_examples": 50},
            model={"backward": road, "activation": "gelu_tanh", **layers},
            train={"precision": "fp64", "lr": 2e-2}
            | {"max_steps": 120, "log_every": 1, "eval_every": 120},
        )
        records = list(trainer.train())
        assert [record["step"] for record in records] == list(range(1, 121))
        curves.append([(record["loss"], record["grad_norm"]) for record in records])
    assert max(record["padding"] for record in records) > 1.05, "batches are padded"
    theirs, ours = torch.tensor(curves, dtype=torch.float64)
    assert theirs[0, 0] > 2 and theirs[-1, 0] < 0.1
    assert (ours - theirs).abs().max() < 1e-9
    assert records[-1]["valid_exact_match"] >= 0.99
    loaded = RunFolder.open(tmp_path / "by_hand").load()
    assert loaded.config.model.backward == "by_hand"
    assert loaded.translate(["4 3 1"]) == ["1 3 4"]
