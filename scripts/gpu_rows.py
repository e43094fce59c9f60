"""What the parts of `gpu_check.py` share: a device, trainers on it, and rows of a table."""

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch

from toytrans.choices import AnchorName, PositionName
from toytrans.config import Config
from toytrans.data import open_source
from toytrans.model.recorder import CudaRecorder, Recorder, RunAgain
from toytrans.model.transformer import Transformer
from toytrans.tokens import EOS_ID, FIRST_SYMBOL_ID
from toytrans.training.devices import Precision
from toytrans.training.run import create_run
from toytrans.training.trainer import Trainer

SCHEMES: dict[str, dict[str, Any]] = {name: {"positions": name} for name in get_args(PositionName)}
SCHEMES["every anchor"] = {
    "n_heads": 11,
    "d_model": 88,
    "cross_anchors": list(get_args(AnchorName)),
}
SCHEMES["random sinusoidal"] = {"positions": "sinusoidal", "random_positions": True}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "bf16_weights")

Row = dict[str, Any]


class Machine:
    """A device, or its stand-in, and the folder of the runs that are made on it.

    failed: rows that differ or ended with an error
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.is_gpu = options.device == "cuda"
        self.device = torch.device("cuda:0" if self.is_gpu else "cpu")
        self.schemes = {name: SCHEMES[name] for name in options.schemes}
        self.failed = self.runs = 0

    def recorder(self) -> Recorder:
        return CudaRecorder(self.device) if self.is_gpu else RunAgain()

    def trainer(self, precision: Precision, recorded: bool, **sections: dict[str, Any]) -> Trainer:
        """A trainer in a folder of its own."""
        self.runs += 1
        return self.trainer_in(self.folder / str(self.runs), precision, recorded, **sections)

    def trainer_in(
        self, run: Path, precision: Precision, recorded: bool, **sections: dict[str, Any]
    ) -> Trainer:
        config = config_of(precision, self.options.quick, **sections)
        source = open_source(config)
        create_run(run, config, source.facts, {})
        recorder = self.recorder() if recorded else None
        return Trainer(config, source, run, self.device, precision, recorder=recorder)

    def row(self, part: str, make: Callable[[], Row], **about: Any) -> Row:
        """A row of a table, with a verdict; an error becomes one too, and the rest goes on."""
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        began = time.perf_counter()
        try:
            found = about | make()
        except Exception as error:
            traceback.print_exc()
            found = about | {"verdict": "ERROR", "error": f"{type(error).__name__}: {error}"[:300]}
        found["seconds"] = round(time.perf_counter() - began, 2)
        self.failed += found.get("verdict", "ok") != "ok"
        gc.collect()
        if self.is_gpu:
            found["GiB"] = round(torch.cuda.max_memory_reserved(self.device) / 2**30, 2)
        print(f"{part}: " + ", ".join(f"{key} {_short(value)}" for key, value in found.items()))
        sys.stdout.flush()
        if self.is_gpu:
            torch.cuda.empty_cache()
        return found

    def wait(self) -> None:
        """Until the device has done what it was asked for."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)


def config_of(precision: Precision, quick: bool, **sections: dict[str, Any]) -> Config:
    """A config whose learning rate fp32 holds exactly, so that both ways of a step have it."""
    data = {"task": "reverse", "symbols": 20, "train_length": [1, 20], "batch_tokens": 2048}
    data["valid_examples"] = 60
    model = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 1}
    if quick:
        data |= {"train_length": [1, 5], "batch_tokens": 128, "valid_examples": 5}
        model |= {"d_model": 16, "n_heads": 2}
    train = {"lr": 2**-10, "schedule": "constant", "warmup_steps": 0, "precision": precision}
    given = {"data": data, "model": model, "train": train}
    return Config.model_validate({key: given[key] | sections.get(key, {}) for key in given})


def sources(model: Transformer, count: int, length: int) -> torch.Tensor:
    """Random sources of 1 to so many symbols with EOS, on the model's device: (count, length)."""
    generator = torch.Generator().manual_seed(count)
    vocabulary = model.output.weight.shape[0]
    ids = torch.randint(FIRST_SYMBOL_ID, vocabulary, (count, length), generator=generator)
    ends = torch.randint(1, length, (count, 1), generator=generator)
    ends[0] = length - 1
    places = torch.arange(length)
    ids = torch.where(places < ends, ids, 0).scatter(1, ends, EOS_ID)
    return ids.to(model.output.weight.device)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return str(value)
