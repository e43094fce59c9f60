"""Device, precision and settings of a training, and what a run remembers of them."""

import contextlib
import ctypes
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from toytrans import __version__
from toytrans.config.schema import Settings
from toytrans.data.files import sha256_of
from toytrans.errors import UserError
from toytrans.model.matrix_products import leave_products_to_onednn, products_as_they_are
from toytrans.user_code import digests

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


# What a run remembers: environment.json ----------------------------------------------------------

SWITCHES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "CUBLAS_", "NVIDIA_TF32")
"""Prefixes of environment variables that can change how numbers are computed."""

MAY_CHANGE = ("config", "started", "command", "python", "platform")
"""Parts of a run's environment that change no number of the training."""

EXPLAINED = {
    "valid_sha256": "the validation file is not the one of before: do not compare the scores",
    "code_sha256": "the code has changed since; the pairs and the weights fit it",
}
"""What is said where one of these has changed."""


def environment_of(
    config: Settings, device: torch.device, precision: Precision, processes: int
) -> dict[str, Any]:
    """Where and on what a run is trained, as plain values."""
    files, code = config.data.files, config.references
    return {
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "precision": precision,
        **settings_of_numbers(),
        "processes": processes,
        "cuda_graphs": config.train.cuda_graphs,
        "valid_sha256": sha256_of(files.valid) if files and files.valid else None,
        "code_sha256": dict(zip(code, digests(code.values()), strict=True)),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """How the environment differs from that of the saved run, one sentence each."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    sentences = [sentence for key, sentence in EXPLAINED.items() if key in changed]
    if names := [key for key in changed if key not in (*MAY_CHANGE, *EXPLAINED)]:
        listed = ", ".join(f"{key} {before[key]} -> {now[key]}" for key in names)
        sentences.append(
            f"the run was saved under other conditions, so its numbers may differ: {listed}"
        )
    return sentences


def settings_of_numbers() -> dict[str, Any]:
    """The settings of this process that can change numbers, as plain values.

    If they, the versions, the device and the precision are equal, two trainings give the same
    numbers, on a CPU bit for bit.
    """
    return {
        "threads": torch.get_num_threads(),
        "processor": processor_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bf16_products": has_bf16_products(torch.device("cpu")),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "mkl": torch.backends.mkl.is_available(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "switches": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SWITCHES)},
    }


def processor_name() -> str:
    """The model name of the processor, or its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
