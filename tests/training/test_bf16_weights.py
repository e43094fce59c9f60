"""bf16 copies of fp32 weights: gradients against a model in bf16, learning, and what is saved."""

import copy

import pytest
import torch
from conftest import SCHEMES, VOCABULARY, config_of, ragged
from test_graphs import trainer_of

from toytrans.model.build import build
from toytrans.model.recorder import RunAgain
from toytrans.training.bf16_weights import Bf16Weights
from toytrans.training.checkpoint import load_checkpoint

PRECISION = {"precision": "bf16_weights"}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_gradients_are_those_of_a_model_in_bf16(positions, tied):
    """A tied weight counts once, and the model has its own weights again after the pass."""
    sizes = {"positions": positions, "tie_embeddings": tied, "share_layers": True}
    model = build(config_of(model=sizes).model, VOCABULARY)
    narrow = copy.deepcopy(model).bfloat16()
    before = {name: parameter for name, parameter in model.named_parameters()}
    src, tgt_in = ragged(2, 9), ragged(2, 7)
    for forward in (Bf16Weights(model), narrow):
        forward(src, tgt_in).float().logsumexp(-1).sum().backward()
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    for name, theirs in narrow.named_parameters():
        assert after[name] is before[name] and after[name].dtype == torch.float32
        assert after[name].grad.dtype == torch.float32
        assert torch.equal(after[name].grad, theirs.grad.float()), name
    assert theirs.grad.abs().max() > 0


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_scheme_has_gradients_near_those_of_fp32(scheme):
    """Random positions are drawn once for both."""
    model = build(config_of(model={"n_encoder_layers": 1, **scheme}).model, VOCABULARY)
    src, tgt_in, found = ragged(2, 12), ragged(2, 12), []
    for forward in (model, Bf16Weights(model)):
        torch.manual_seed(1)
        model.zero_grad()
        forward(src, tgt_in).float().logsumexp(-1).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert 0 < (found[0] - found[1]).norm() < 0.2 * found[0].norm()


def test_a_pass_that_fails_leaves_the_weights(monkeypatch):
    model = build(config_of().model, VOCABULARY)
    before = list(model.parameters())
    with pytest.raises(IndexError):
        Bf16Weights(model)(torch.tensor([[99]]), torch.tensor([[1]]))
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))


def test_it_learns_saves_fp32_and_resumes_bit_for_bit(tmp_path):
    train = PRECISION | {"max_steps": 120, "eval_every": 60, "log_every": 20, "lr": 0.01}
    sections = {
        "data": {"train_length": [1, 4], "batch_tokens": 256, "symbols": 4},
        "model": {"positions": "sinusoidal", "dropout": 0.05},
        "train": train,
    }
    straight = trainer_of(tmp_path / "straight", **sections)
    records = list(straight.train())
    plain = trainer_of(tmp_path / "fp32", **(sections | {"train": train | {"precision": "fp32"}}))
    expected = [record["loss"] for record in plain.train()]
    assert expected[-1] < 0.6 * expected[0], "it learns"
    assert [record["loss"] for record in records] == pytest.approx(expected, rel=0.01)
    first = trainer_of(tmp_path / "pieces", RunAgain(), **sections)
    for record in first.train():
        first.interrupted = record["step"] == 80
    second = trainer_of(tmp_path / "pieces", RunAgain(), **sections)
    assert second.resume() == ["resumed at step 80"]
    list(second.train())
    whole, pieces = (load_checkpoint(tmp_path / name, 120) for name in ("straight", "pieces"))
    for part in ("weights", "optimizer"):
        ours, theirs = getattr(whole, part), getattr(pieces, part)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    weights = whole.weights[
        "output.weight" if "output.weight" in whole.weights else "src_embedding.weight"
    ]
    assert weights.dtype == torch.float32
    assert not torch.equal(weights, weights.bfloat16().float()), "more than bf16 can hold"


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"backward": "by_hand"}}, "fp32 or fp64"),
        ({"model": {"class": "mine.py:Model"}}, "of your own"),
        ({"model": {"cross_positions": "mine.py:Scheme"}}, "of your own"),
    ],
)
def test_what_bf16_weights_do_not_go_with_is_refused(sections, says):
    with pytest.raises(ValueError, match=says):
        config_of(train=PRECISION, **sections)
