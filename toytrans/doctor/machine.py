"""What `doctor` says of this machine: versions, devices, disk, and what would stop a training."""

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
from toytrans.training.environment import settings_of_numbers, usable_cores
from toytrans.training.run import RUNS

PACKAGES = ("torch", "numpy", "pydantic", "pyyaml", "safetensors", "rich", "tqdm", "typer")

ROOM = 100 * 2**20
"""Bytes that should be free for a run: four checkpoints of two million weights, 12 bytes each."""


def describe(folder: Path = RUNS) -> dict[str, Any]:
    """This machine, this process and the folder of runs, as plain values.

    The value of "problems" lists what would stop a training, one sentence each.
    """
    device, storage = choose_device("auto"), _storage(folder)
    products = "oneDNN's" if multiplies_with_onednn() else "torch's own"
    return {
        "toytrans": installed("toytrans"),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "devices": [_named(name) for name in devices()],
        "device": str(device),
        "precision": choose_precision("auto", device, NARROW + 1),
        "precision_because": _why(device),
        **settings_of_numbers(),
        "fp32_products": products,
        **storage,
        "problems": _problems(storage),
    }


def installed(package: str) -> str:
    """The version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _named(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device


def _why(device: torch.device) -> str:
    """The reason for the choice of `precision: auto` on a device."""
    if not has_bf16_products(device):
        return f"{device} lacks instructions for bf16 products"
    narrow = f"; models up to d_model {NARROW} take fp32" if device.type == "cpu" else ""
    return f"{device} multiplies bf16 matrices{narrow}"


def _storage(folder: Path) -> dict[str, Any]:
    """Whether a run can be written to a folder, or to the nearest folder above that exists."""
    runs = folder.absolute()
    there = next(path for path in (runs, *runs.parents) if os.path.exists(path))
    storage: dict[str, Any] = {"runs": str(runs), "free_bytes": None, "not_writable_because": None}
    try:
        storage["free_bytes"] = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            file.write(b"toytrans")
    except OSError as error:
        storage["not_writable_because"] = error.strerror or str(error)
    return storage


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
