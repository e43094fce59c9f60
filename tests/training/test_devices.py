"""Devices, precision, and the settings that make a CPU quick."""

import pytest
import torch

from toytrans.errors import UserError
from toytrans.training import devices
from toytrans.training.devices import choose_precision, onednn_keeps_fp32


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
