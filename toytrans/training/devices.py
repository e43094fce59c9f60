"""Device and precision of a training, and the settings of the process that computes it."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Literal

import torch

from toytrans.errors import UserError
from toytrans.model.matrix_products import leave_products_to_onednn, products_as_they_are

Precision = Literal["fp32", "bf16", "fp64"]

NARROW = 64
"""Up to this d_model, bf16 does not speed up a CPU with batches of the default size. Casts cost
what faster products save, and each new shape needs a newly generated kernel."""


def choose_device(name: str) -> torch.device:
    """The device of a config; `auto` takes a CUDA device, else the CPU.

    Raises UserError with the devices that exist.
    """
    present = devices()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise UserError(
            f"device {name} is not on this machine, which has {', '.join(present)}; "
            "name one of them, or auto"
        )
    return torch.device(wanted)


def devices() -> list[str]:
    """The devices of this machine."""
    names = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def choose_precision(
    name: Precision | Literal["auto"], device: torch.device, d_model: int
) -> Precision:
    """The precision of a config.

    name: `auto` takes bf16 if the device has bf16 products, else fp32. A CPU takes fp32 for models
    up to d_model NARROW, too.
    Raises UserError for fp64 on mps.
    """
    if name == "fp64" and device.type == "mps":
        raise UserError("train.precision: fp64 does not exist on mps; take fp32, or device: cpu")
    if name == "auto":
        narrow = device.type == "cpu" and d_model <= NARROW
        return "bf16" if has_bf16_products(device) and not narrow else "fp32"
    return name


def has_bf16_products(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bf16 matrices."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


# This process ------------------------------------------------------------------------------------


def tune_process() -> None:
    """Settings of the whole process with which a CPU trains faster; a program calls it once.

    Numbers too small for a normal exponent, with which a CPU computes many times slower, become
    zero. And products of fp32 matrices are oneDNN's, up to twice as fast as MKL's, where that
    rounds nothing to bf16 on the way; not where there is a GPU, for which the same setting would
    mean TF32. Memory that is freed stays with the process (glibc only): to get it back costs a page
    fault for every 4 KiB, a fifth of a small model's step.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
        # an older glibc refuses more than 32 MiB; a threshold left alone would stay low for good
        if libc.mallopt(mmap_threshold, 2**30) or libc.mallopt(mmap_threshold, 2**25):
            libc.mallopt(trim_threshold, 2**31 - 1)
    torch.set_flush_denormal(True)
    if multiplies_with_onednn():
        leave_products_to_onednn(True)


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Compute as a command does, with gradients. After the block, the random states and arithmetic
    of before are back."""
    put_products_back, dtype = products_as_they_are(), torch.get_default_dtype()
    flushed = sys.float_info.min / 2 == 0
    leave_products_to_onednn(False)
    tune_process()
    torch.set_default_dtype(torch.float32)
    try:
        with random_states_kept(), torch.inference_mode(False):  # gradients are on, too
            yield
    finally:
        torch.set_default_dtype(dtype)
        put_products_back()
        torch.set_flush_denormal(flushed)


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the states of torch's generators back at the end of the block."""
    states = [(each, each.get_state()) for each in generators().values()]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def generators() -> dict[str, torch.Generator]:
    """What torch draws from in this process, by device."""
    found = {"cpu": torch.default_generator}
    found |= {f"cuda:{n}": each for n, each in enumerate(torch.cuda.default_generators)}
    if torch.backends.mps.is_available():
        found["mps"] = torch.mps._get_default_mps_generator()
    return found


def multiplies_with_onednn() -> bool:
    """Whether `tune_process` leaves products of fp32 matrices to oneDNN."""
    return not torch.cuda.is_available() and onednn_keeps_fp32()


@cache
def onednn_keeps_fp32() -> bool:
    """Whether fp32 products stay exact if torch may choose how to compute them.

    Only errors are measured, not times, so a machine always gives the same answer. The setting
    itself is restored.
    """
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 256, 256), (1, 1024, 16), (64, 24, 16))  # square, narrow, many small ones
    kept = True
    for rows, length, width in shapes:
        a, b = (torch.randn(rows, length, width, generator=generator) for _ in range(2))
        exact, errors = a.double() @ b.double().mT, []
        for setting in ("highest", "medium"):
            torch.set_float32_matmul_precision(setting)
            errors.append(float((a @ b.mT - exact).abs().max()))
        kept = kept and errors[1] <= 4 * errors[0]
    torch.set_float32_matmul_precision(before)
    return kept


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
