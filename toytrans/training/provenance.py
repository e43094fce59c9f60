"""Where the numbers of a run come from, written down so that nobody takes them for others.

environment.json says on which machine, device and versions a run was trained. Each checkpoint says
what its weights were trained with: the settings that they depend on, and a fingerprint of each file
of data and of the user's own code. resume.py compares the one, and `Run` the other.
"""

import contextlib
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from toytrans import __version__
from toytrans.config.load import flatten
from toytrans.config.schema import MAY_DIFFER, Settings
from toytrans.errors import UserError
from toytrans.references import digests
from toytrans.training.devices import Precision, has_bf16_products

SWITCHES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "CUBLAS_", "NVIDIA_TF32")
"""Prefixes of environment variables that can change how numbers are computed."""

FOLLOWS_FROM_LIMITS = ("train.warmup_steps", "train.eval_every")
"""Keys that may change with the limits of a training when it is resumed."""


class TrainedWith(BaseModel):
    """What weights were trained with.

    settings: values by key. code, data: SHA-256 of files by the key that names them.
    """

    settings: dict[str, Any]
    code: dict[str, str]
    data: dict[str, str]


def environment_of(
    device: torch.device, precision: Precision, processes: int, config: str
) -> dict[str, Any]:
    """Where and on what a run is trained, as plain values. config: the name of its config."""
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
        "config": config,
    }


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


def trained_with(settings: Settings) -> TrainedWith:
    """What a training with these settings trains with now. A file that cannot be read is left
    out: whoever needs it says so."""
    code, data = dict[str, str](), dict[str, str]()
    for key, reference in settings.references.items():
        with contextlib.suppress(UserError):
            (code[key],) = digests([reference])
    free = {*MAY_DIFFER, *FOLLOWS_FROM_LIMITS, *settings.references, "train.init"}
    if (files := settings.data.files) is not None:  # whose contents count, and not their names
        from toytrans.data.formats import sha256_of

        for split in ("train", "valid", "test"):
            paths = getattr(files, split)
            free.add(f"data.files.{split}")
            with contextlib.suppress(UserError):
                if paths is not None:
                    data[f"data.files.{split}"] = sha256_of(paths)
    values = {
        key: value
        for key, value in flatten(settings.model_dump(mode="json")).items()
        if key not in free
    }
    return TrainedWith(settings=values, code=code, data=data)
