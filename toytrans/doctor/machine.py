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
    usable_cores,
)
from toytrans.training.folder import RUNS
from toytrans.training.provenance import settings_of_numbers

PACKAGES = ("torch", "numpy", "pydantic", "pyyaml", "safetensors", "rich", "tqdm", "typer")

ROOM = 100
"""MiB that should be free for a run: four checkpoints of two million weights, 12 bytes each."""


def describe(folder: Path = RUNS) -> dict[str, Any]:
    """This machine, this process and the folder of runs, as plain values.

    The value of "problems" lists what would stop a training, one sentence each.
    """
    device = choose_device("auto")
    cuda = {name for name in devices() if name.startswith("cuda")}
    titles = {name: f" ({torch.cuda.get_device_name(name)})" for name in cuda}
    because = f"{device} lacks instructions for bf16 products"
    if has_bf16_products(device):
        narrow = f"; models up to d_model {NARROW} take fp32" if device.type == "cpu" else ""
        because = f"{device} multiplies bf16 matrices{narrow}"
    return {
        "toytrans": installed("toytrans"),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "devices": [name + titles.get(name, "") for name in devices()],
        "device": str(device),
        "precision": choose_precision("auto", device, NARROW + 1),
        "precision_because": because,
        **settings_of_numbers(),
        "fp32_products": "oneDNN's" if multiplies_with_onednn() else "torch's own",
        **_storage(folder.absolute()),
    }


def installed(package: str) -> str:
    """The version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _storage(runs: Path) -> dict[str, Any]:
    """Whether a run can be written to a folder, or to the nearest folder above that exists."""
    there = next(path for path in (runs, *runs.parents) if os.path.exists(path))
    free, problems = None, []
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            file.write(b"toytrans")
    except OSError as error:
        why = error.strerror or str(error)
        problems.append(f"{runs}: no run can be written there ({why}); name --out")
    if free is not None and free < ROOM * 2**20:
        problems.append(
            f"{runs}: {free / 2**20:,.0f} MiB are free, and a run should find {ROOM}; make room, "
            "or name --out elsewhere"
        )
    return {"runs": str(runs), "free_bytes": free, "problems": problems}
