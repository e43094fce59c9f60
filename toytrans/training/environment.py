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
from toytrans.config.schema import Settings
from toytrans.data.files import sha256_of
from toytrans.training.devices import Precision, has_bf16_products
from toytrans.user_code import digests

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
