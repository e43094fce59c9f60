"""Describe the machine: its devices and disk, and all settings that can change results."""

import contextlib
import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from toytrans.training.devices import (
    NARROW,
    choose_device,
    choose_precision,
    devices,
    has_bf16_products,
    multiplies_with_onednn,
)
from toytrans.training.run import RUNS

PACKAGES = ("torch", "numpy", "pydantic", "pyyaml", "safetensors", "rich", "tqdm", "typer")

ROOM = 100 * 2**20
"""Bytes that should be free for a run: four checkpoints of two million weights, 12 bytes each."""

SWITCHES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "CUBLAS_", "NVIDIA_TF32")
"""Prefixes of environment variables that can change how numbers are computed."""


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
        "switches": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(SWITCHES)
        },
    }


def processor_name() -> str:
    """The model name of the processor, or its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def describe(folder: Path = RUNS) -> dict[str, Any]:
    """This machine, this process and the folder of runs, as plain values.

    The value of "problems" lists what would stop a training, one sentence each.
    """
    place = choose_device("auto")
    storage, onednn = _storage(folder), multiplies_with_onednn()
    return {
        "toytrans": installed("toytrans"),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "devices": [_named(name) for name in devices()],
        "device": str(place),
        "precision": choose_precision("auto", place, NARROW + 1),
        "precision_because": _why(place),
        **settings_of_numbers(),
        "matmul_precision": "medium" if onednn else "highest",
        "matmul_because": _why_products(onednn),
        **storage,
        "problems": _problems(storage),
    }


def installed(package: str) -> str:
    """The version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _named(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device


def _why(device: torch.device) -> str:
    """The reason for the choice of `precision: auto` on a device."""
    if has_bf16_products(device):
        narrow = f"; models up to d_model {NARROW} take fp32" if device.type == "cpu" else ""
        return f"{device} multiplies bf16 matrices{narrow}"
    if device.type == "cpu":
        return "cpu lacks instructions for bf16 products (avx512_bf16, amx_bf16)"
    return f"{device} lacks bf16 products"


def _why_products(onednn: bool) -> str:
    """The reason for the way in which fp32 products are computed."""
    if onednn:
        return "oneDNN computes fp32 products, as exact as MKL's here"
    if torch.cuda.is_available():
        return "fp32 products are torch's own: with a GPU the same setting would mean TF32"
    return "fp32 products are torch's own: oneDNN's are less exact here"


def _storage(folder: Path) -> dict[str, Any]:
    """Whether a run can be written to a folder, or to the nearest folder above that exists.

    The value of "lockable" is None if it was not tried.
    """
    runs = folder.absolute()
    there = runs
    while not there.exists() and there != there.parent:
        there = there.parent
    storage: dict[str, Any] = {"runs": str(runs), "free_bytes": None, "not_writable_because": None}
    try:
        storage["free_bytes"] = shutil.disk_usage(there).free
        with tempfile.TemporaryDirectory(prefix=".toytrans-doctor-", dir=there) as made:
            draft = Path(made) / "draft"
            draft.write_bytes(b"toytrans")
            draft.replace(Path(made) / "file")
            storage["lockable"] = _lockable(Path(made) / "file")
    except OSError as error:
        storage["not_writable_because"] = error.strerror or str(error)
        storage["lockable"] = None
    return storage


def _lockable(file: Path) -> bool:
    """Whether flock works on a file: not on Windows, nor on some network file systems."""
    try:
        import fcntl
    except ImportError:
        return False
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _problems(storage: dict[str, Any]) -> list[str]:
    """What would stop a training, one sentence each."""
    problems = []
    if reason := storage["not_writable_because"]:
        problems.append(f"{storage['runs']}: no run can be written there ({reason}); name --out")
    free = storage["free_bytes"]
    if free is not None and free < ROOM:
        problems.append(
            f"{storage['runs']}: {free / 2**20:,.0f} MiB are free, and a run should find "
            f"{ROOM / 2**20:,.0f}; make room, or name --out elsewhere"
        )
    return problems
