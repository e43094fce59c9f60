"""What a run remembers of where it was trained: environment.json, and what has changed since."""

import contextlib
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

from toytrans import __version__
from toytrans.training.devices import Precision, has_bf16_products

SWITCHES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "CUBLAS_", "NVIDIA_TF32")
"""Prefixes of environment variables that can change how numbers are computed."""

MAY_CHANGE = ("config", "started", "command", "python", "platform")
"""Parts of a run's environment that change no number of the training."""


def environment_of(device: torch.device, precision: Precision, processes: int) -> dict[str, Any]:
    """Where and on what a run is trained, as plain values."""
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
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """A sentence if the environment is not that of the saved run; else empty."""
    both = [key for key in now if key in before and key not in MAY_CHANGE]
    changed = [f"{key} {before[key]} -> {now[key]}" for key in both if before[key] != now[key]]
    if not changed:
        return ""
    listed = ", ".join(changed)
    return f"the run was saved under other conditions, so its numbers may differ: {listed}"


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
