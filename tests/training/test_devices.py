"""Devices and precision; and what a GPU needs, shown without one: a step reads nothing back.

`meta` stands in for the GPU. Its tensors hold no numbers, so that to read one is an error, and so
is to mix one with a tensor of the host.
"""

import contextlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import EVERY_ANCHOR, id_of, trainer_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from toytrans.data.batches import training_batches
from toytrans.errors import UserError
from toytrans.training import devices
from toytrans.training.devices import choose_precision, onednn_keeps_fp32

META = torch.device("meta")


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


@pytest.mark.parametrize(
    "scheme",
    [*({"positions": name} for name in ("anchored", "rotary", "t5")), EVERY_ANCHOR],
    ids=id_of,
)
def test_a_step_reads_nothing_back_and_sends_nothing(tmp_path: Path, monkeypatch, scheme):
    """Forward, loss, backward, clipping and AdamW of two batches, all without numbers."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    trainer = trainer_of(
        tmp_path / "run",
        "addition",
        device="meta",
        data={"train_length": [3, 6], "batch_tokens": 256},
        model={**scheme, "dropout": 0.1},
        train={"accumulate": 2, "warmup_steps": 0, "label_smoothing": 0.1},
    )
    stream = training_batches(trainer.dataset, trainer.settings)
    parts = [each.batch for each in islice(stream, 2)]
    tokens = sum(part.target_tokens for part in parts)
    on_meta = [part.to(META) for part in parts]
    trainer.update(on_meta, tokens, 1e-3)  # makes the tables of positions, once
    with Sends() as sends, monkeypatch.context() as patch:
        patch.setattr(torch, "tensor", lambda *_, **__: sends.noted.append("torch.tensor"))
        loss, norm = trainer.update(on_meta, tokens, 1e-3)
    assert loss.is_meta and norm.is_meta and tokens
    assert not sends.noted


def test_precision_auto_follows_the_device_and_the_width(monkeypatch):
    for able, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(devices, "has_bf16_products", lambda _, able=able: able)
        assert choose_precision("auto", torch.device("cpu"), 128) == expected
        assert choose_precision("auto", torch.device("cuda"), 64) == expected
        assert choose_precision("auto", torch.device("cpu"), 64) == "fp32"
        assert choose_precision("bf16", torch.device("cpu"), 64) == "bf16"
    with pytest.raises(UserError, match="fp64 does not exist on mps"):
        choose_precision("fp64", torch.device("mps"), 64)


def test_products_are_onednns_only_where_they_stay_fp32(monkeypatch):
    before, measure = torch.get_float32_matmul_precision(), onednn_keeps_fp32.__wrapped__
    measure()
    assert torch.get_float32_matmul_precision() == before
    multiply = torch.Tensor.__matmul__

    def rounding(a, b):
        if torch.get_float32_matmul_precision() == "medium" and a.dtype == torch.float32:
            return multiply(a.bfloat16(), b.bfloat16()).float()
        return multiply(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not measure()
