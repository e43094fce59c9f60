"""Recorded work on a GPU that is not there: tensors of torch that know shapes and devices only.

A capture fails where the host reads a number, and where memory is copied to the device.
"""

from typing import Any

import pytest
import torch
from conftest import SCHEMES, VOCABULARY, config_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toytrans.data.batches import Batch
from toytrans.model.build import build
from toytrans.model.decoding.recorded import RecordedSearch
from toytrans.model.recorder import RunAgain
from toytrans.training.bf16_weights import Bf16Weights
from toytrans.training.graphs import RecordedUpdate
from toytrans.training.optimizer import AdamW
from toytrans.training.step import Update

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a torch that was built with CUDA"
)
GPU = torch.device("cuda", 0)


class OnGpu(TorchDispatchMode):
    """Every operation takes tensors of the GPU, gives such, and reads nothing back."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = str(func), (args, kwargs or {})
        self.names.add(name)
        assert "local_scalar" not in name and "nonzero" not in name, f"{name} reads"
        if "_fused_adamw_" in name:  # torch does not know its shapes
            assert _devices(given) == {"cuda"}
            return None
        found = func(*args, **given[1])
        assert name.startswith("prim.") or "cpu" not in _devices((given, found)), name
        return found


def _devices(tree: Any) -> set[str]:
    return {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


class Watched(RunAgain):
    """Runs work once, under the eyes of `OnGpu`, in place of a record."""

    def __init__(self) -> None:
        self.watch = OnGpu()

    def warm_up(self, work):
        work()

    def record(self, work):
        with self.watch:
            work()
        return lambda: None


@pytest.fixture
def model_on():
    """Makes a model of a config whose weights are on the GPU. Call it inside of `fake`."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield lambda model: model.to(GPU)
    torch.__future__.set_overwrite_module_params_on_conversion(False)


def model_config(scheme: dict[str, Any]) -> dict[str, Any]:
    heads = len(scheme.get("cross_anchors", range(4)))
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1, "dropout": 0.1}
    return {"d_model": 8 * heads, "d_ff": 16, "n_heads": heads} | layers | scheme


@pytest.mark.parametrize("precision", ["fp32", "bf16_weights"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_an_update_stays_on_the_gpu(monkeypatch, model_on, scheme, precision):
    """All but the backward pass, for which torch wants a real device."""
    config = config_of("reverse", model=model_config(scheme), train={"label_smoothing": 0.1})
    model, recorder = build(config.model, VOCABULARY), Watched()

    def backward(loss: Tensor) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)

    monkeypatch.setattr(Tensor, "backward", backward)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model_on(model)
        forward = Bf16Weights(model) if precision == "bf16_weights" else model
        eager = Update(forward, AdamW(model, 0.1), GPU, config.train, precision)
        batch = Batch(*(torch.zeros(6, n, dtype=torch.long, device=GPU) for n in (9, 7, 7)), (9, 9))
        RecordedUpdate(recorder, eager, model, 60)([batch], lr=0.1)
    assert any("_fused_adamw_.tensor_lr" in name for name in recorder.watch.names)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@torch.no_grad()
def test_a_search_stays_on_the_gpu(model_on, scheme, beam):
    config = config_of("reverse", model=model_config(scheme))
    model, recorder = build(config.model, VOCABULARY).eval(), Watched()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model_on(model)
        search = RecordedSearch(recorder, model)
        src = torch.zeros(8, 9, dtype=torch.long, device=GPU)
        recorded, few = (search._of(src[:rows], beam, 2, 1.0, False) for rows in (8, 2))
        recorded.begin(src, src[:, 0])
        assert [recorded.run_chunk(place) for place in (0, 4)] == [4, 8]
        few.take_over(recorded, src[:2, 0])
        few.run_chunk(8)
    assert len(recorder.watch.names) > 20


def test_the_watch_notices_what_leaves_the_gpu():
    with FakeTensorMode():
        x = torch.empty(3, device=GPU)
        for work in (
            lambda: torch.tensor([1, 2], device=GPU),
            lambda: x + torch.ones(()),
            lambda: float(x.sum()),
            lambda: x[x > 0],
        ):
            with pytest.raises((AssertionError, RuntimeError)), OnGpu():
                work()
