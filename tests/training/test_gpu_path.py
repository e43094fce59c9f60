"""What a GPU needs of the training, shown without one: nothing is read back in a step.

`meta` stands in for the GPU. Its tensors hold no numbers, so that to read one is an error, and so
is to mix one with a tensor of the host; `Far` ones claim to be on it and do hold numbers.
"""

import contextlib
from itertools import islice
from typing import Any, get_args

import pytest
import torch
from conftest import EVERY_ANCHOR, config_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from toytrans.config.names import TaskName
from toytrans.config.schema import Config
from toytrans.data import batches
from toytrans.data.batches import Batch, plan_batches, training_batches
from toytrans.data.open import open_dataset
from toytrans.model.backends import sdpa
from toytrans.model.context import AttentionContext
from toytrans.tokens import PAD_ID
from toytrans.training import devices
from toytrans.training.run import create_run
from toytrans.training.trainer import Trainer

META = torch.device("meta")
TASKS = get_args(TaskName)


class Far(Tensor):
    """Claims to be on the other device; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Far":
        far = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=META
        )
        far.held = held
        return far

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the other device's mode")


class OtherDevice(TorchDispatchMode):
    """Runs what is on the other device; notes what the host reads from it and sends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.sent: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        far = any(isinstance(tensor, Far) for tensor in tensors)
        name, to = str(func), kwargs.get("device")
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        moves = func is torch.ops.aten._to_copy.default and to is not None
        mixed = [tensor for tensor in tensors if not isinstance(tensor, Far) and tensor.dim()]
        assert not (far and mixed), f"{name} mixes devices"
        masked = "index" in name and any(t.dtype == torch.bool and t.dim() for t in tensors)
        if far and ((moves and to != META) or masked or "nonzero" in name or "local_sc" in name):
            self.reads.append(name)
        if moves and to == META and not far:
            self.sent.append(name)
        args, kwargs = tree_map(lambda x: x.held if isinstance(x, Far) else x, (args, kwargs))
        found = func(*args, **kwargs)
        if far and func._schema.is_mutable:
            return next(tensor for tensor in tensors if isinstance(tensor, Far))
        there = to == META if to is not None else far
        return tree_map(lambda x: Far(x) if there and isinstance(x, Tensor) else x, found)


class Sends(TorchDispatchMode):
    """Notes what the host sends to `meta`."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        from_host = any(isinstance(x, Tensor) and x.device.type == "cpu" for x in args)
        if from_host and isinstance(found, Tensor) and found.device == META:
            self.noted.append(str(func))
        return found


def configs() -> dict[str, dict]:
    found = {
        task: {"task": task, "symbols": 9, "train_length": [3, 14], "batch_tokens": 512}
        for task in TASKS
    }
    return found | {"limited": found["copy"] | {"train_examples": 500}}


def stream_config(name: str, folder: Any) -> Config:
    if name != "file":
        return config_of(data=configs()[name])
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{'a ' * (n % 7)}b\t{'c ' * (n % 11)}\n" for n in range(300)))
    data = {"files": {"train": str(path)}, "batch_tokens": 512}
    return Config.model_validate({"data": data, "model": {"d_model": 16, "n_heads": 2}})


@pytest.mark.parametrize("name", [*configs(), "file"])
def test_pools_are_made_on_the_device_and_read_back_once(tmp_path, monkeypatch, name):
    monkeypatch.setattr(batches, "SMALLEST_POOL", 512)
    config = stream_config(name, tmp_path)
    source = open_dataset(config)
    expected = list(islice(training_batches(source, config), 100))
    pools, reads, sent = [], [], []

    def planned(lengths: Tensor, *rest: Any, **more: Any) -> Any:
        pools.append(lengths)
        return plan_batches(lengths, *rest, **more)

    monkeypatch.setattr(batches, "plan_batches", planned)
    with OtherDevice() as other:
        for (batch, dealt), (like, like_dealt) in zip(
            islice(training_batches(source, config, device=META), 100), expected, strict=True
        ):
            assert all(isinstance(ids, Far) for ids in batch)
            assert all(torch.equal(ids.held, same) for ids, same in zip(batch, like, strict=True))
            assert dealt == like_dealt and batch.known == like.known is not None
            reads.append(len(other.reads))
            sent.append(len(other.sent))
    assert len(set(reads)) == len(pools) > 1, "read only when a pool was made"
    assert len(set(sent)) == len(pools), "sent only when a pool was made"


@pytest.mark.parametrize("name", [*configs(), "file"])
def test_tokens_known_beforehand_are_those_that_are_there(tmp_path, name):
    config = stream_config(name, tmp_path)
    for source_bos in (True, False):
        model = config.model.model_copy(update={"source_bos": source_bos})
        config = config.model_copy(update={"model": model})
        for batch, _ in islice(training_batches(open_dataset(config), config), 40):
            assert batch.known is not None
            counted = Batch(*batch)
            assert counted.known is None
            assert batch.target_tokens == counted.target_tokens == (batch.tgt_out != PAD_ID).sum()
            assert batch.real_tokens == counted.real_tokens > batch.target_tokens


@pytest.mark.parametrize(
    "scheme",
    [{"positions": name} for name in ("anchored", "sinusoidal", "learned", "none", "rotary", "t5")]
    + [EVERY_ANCHOR],
    ids=str,
)
@pytest.mark.parametrize("task", ["addition", "copy"])
def test_a_step_reads_nothing_back_and_sends_nothing(tmp_path, monkeypatch, scheme, task):
    """Forward, loss, backward, clipping and AdamW of two batches, all without numbers."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    config = config_of(
        task,
        data={"train_length": [3, 6], "batch_tokens": 256},
        model={**scheme, "dropout": 0.1},
        train={"accumulate": 2, "warmup_steps": 0, "label_smoothing": 0.1},
    )
    source = open_dataset(config)
    create_run(tmp_path / "run", config, source.facts, {})
    trainer = Trainer(config, source, tmp_path / "run", META, "fp32")
    dealt = [(batch.to(META), n) for batch, n in islice(training_batches(source, config), 2)]
    tokens = sum(batch.target_tokens for batch, _ in dealt)
    trainer._step(dealt)  # makes the tables of positions, once
    with Sends() as sends, monkeypatch.context() as patch:
        patch.setattr(torch, "tensor", lambda *_, **__: sends.noted.append("torch.tensor"))
        trainer._step(dealt)
    assert trainer.progress.step == 2 and trainer.progress.target_tokens == 2 * tokens
    assert not sends.noted
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(trainer._loss_sum)


def test_fused_attention_reads_nothing_back():
    q, k, v = (torch.randn(2, 3, n, 4, device=META, requires_grad=True) for n in (5, 7, 7))
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool, device=META)
    bias = torch.randn(2, 3, 5, 7, device=META, requires_grad=True)
    for added in (None, bias):
        sight = AttentionContext.of(mask, None, torch.float32)
        assert sight.has_visible_key is not None, "the host did not look"
        sdpa.attend(q, k, v, sight, added, dropout=0.1).sum().backward()
    assert bias.grad is not None and bias.grad.shape == bias.shape


def test_fp32_products_stay_fp32_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(devices, "onednn_keeps_fp32", lambda: True)
    for present, setting in ((True, "highest"), (False, "medium")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda present=present: present)
        devices.tune_process()
        assert torch.get_float32_matmul_precision() == setting
