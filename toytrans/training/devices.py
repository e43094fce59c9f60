"""Which device computes, and in which precision."""

from typing import Literal

import torch
from torch.nn import functional as F

from toytrans.config import ModelConfig
from toytrans.data.batches import Batch
from toytrans.errors import UserError
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary

Precision = Literal["fp32", "bf16", "fp64"]


def choose_device(name: str) -> torch.device:
    """The device of a config. `auto`: a GPU, else mps if its numbers are right, else the CPU.

    Raises UserError naming the devices that exist.
    """
    present = devices()
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda:0")
        if "mps" in present and agrees_with_cpu(torch.device("mps")):
            return torch.device("mps")
        return torch.device("cpu")
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise UserError(
            f"device {name} is not on this machine, which has {', '.join(present)}; "
            "name one of them, or auto"
        )
    return torch.device(wanted)


def devices() -> list[str]:
    """The devices of this machine."""
    found = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def agrees_with_cpu(device: torch.device) -> bool:
    """Whether loss and gradients of a small padded batch are the CPU's, to 1e-3."""
    config = ModelConfig(d_model=16, n_heads=2, d_ff=32)
    vocabulary = Vocabulary(tuple("abcd"))
    batch = Batch(
        torch.tensor([[BOS_ID, 3, 4, 5, EOS_ID], [BOS_ID, 6, EOS_ID, PAD_ID, PAD_ID]]),
        torch.tensor([[BOS_ID, 5, 4, 3], [BOS_ID, 6, PAD_ID, PAD_ID]]),
        torch.tensor([[5, 4, 3, EOS_ID], [6, EOS_ID, PAD_ID, PAD_ID]]),
    )
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = Transformer(config, vocabulary)
    torch.set_rng_state(state)
    results = []
    try:
        for place in (torch.device("cpu"), device):
            model.to(place).zero_grad()
            src, tgt_in, tgt_out = batch.to(place)
            logits = model(src, tgt_in).flatten(0, 1)
            loss = F.cross_entropy(logits, tgt_out.flatten(), ignore_index=PAD_ID)
            loss.backward()
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            results.append(torch.cat((loss.detach()[None], *gradients)).cpu())
    except (RuntimeError, NotImplementedError):  # an operation that the device lacks
        return False
    ours, theirs = results
    return torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def choose_precision(name: Precision | Literal["auto"], device: torch.device) -> Precision:
    """The precision of a config. `auto`: bf16 where the device multiplies bf16, else fp32."""
    if name == "fp64" and device.type == "mps":
        raise UserError("train.precision: fp64 does not exist on mps; take fp32, or device: cpu")
    if name == "auto":
        return "bf16" if has_bf16_products(device) else "fp32"
    return name


def has_bf16_products(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bf16 matrices."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))
