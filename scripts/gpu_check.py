"""Prove on a CUDA machine that recorded steps and searches equal eager ones, and time both.

    python scripts/gpu_check.py steps --out steps.json
    python scripts/gpu_check.py decoding resume --out decoding.json
    python scripts/gpu_check.py start speed --out speed.json

Each line is a call of its own, meant to take less than ten minutes; without names, all parts run.
The file is written after every row. Exit code 1: something differs or fails.

start     seconds until the device answers, with CUDA started aside while torch is imported, or not
steps     200 updates of every position scheme in every precision, with dropout: losses, weights
decoding  greedy and beam search by every scheme: tokens, in fp32 and under bf16 autocast
resume    a run that is interrupted and resumed beside one in one piece: weights, bit for bit
speed     tokens a second of steps and searches, eager and recorded; seconds that recording takes

A GPU may add up in another order each time. So eager is compared with itself too. Losses differ if
they are more than TOLERANCE apart, and more than ten times what eager ones are; weights, if they
are a hundred times TOLERANCE apart, and ten times what eager ones are.

Needs torch, numpy, pydantic, pyyaml, safetensors and this source tree; no network. On a machine
without CUDA, `--device cpu` runs the same code with a stand-in that records nothing.
"""

import argparse
import gc
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from toytrans.choices import AnchorName, PositionName
from toytrans.config import Config
from toytrans.data import open_source
from toytrans.data.batches import training_batches
from toytrans.model.decoding import search
from toytrans.model.decoding.recorded import RecordedSearch
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
START = """
import sys, time
began = time.perf_counter()
from toytrans.training.cuda_start import start_cuda
if sys.argv[2] == "aside":
    start_cuda(sys.argv[1])
import torch
float(torch.ones(2, 2, device=sys.argv[1]).sum())
print(time.perf_counter() - began)
"""
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "bf16_weights")
TOLERANCE = {"fp32": 1e-6, "bf16": 2e-3, "bf16_weights": 2e-3}

Row = dict[str, Any]


class Checks:
    """Runs the parts on a device and keeps their rows."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
        self.failed = 0
        self.runs = 0

    def recorder(self) -> Recorder:
        return CudaRecorder(self.device) if self.device.type == "cuda" else RunAgain()

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
        began = time.perf_counter()
        try:
            found = about | make()
        except Exception as error:
            traceback.print_exc()
            found = about | {"verdict": "ERROR", "error": f"{type(error).__name__}: {error}"[:300]}
        found["seconds"] = round(time.perf_counter() - began, 2)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.failed += found.get("verdict", "ok") != "ok"
        print(f"{part}: " + ", ".join(f"{key} {_short(value)}" for key, value in found.items()))
        sys.stdout.flush()
        return found

    # Parts -----------------------------------------------------------------------------------

    def start(self) -> Iterator[Row]:
        yield self.row("start", self._start)

    def _start(self) -> Row:
        """Medians of five processes each way, in turns."""
        seconds: dict[str, list[float]] = {"aside": [], "alone": []}
        for _ in range(1 if self.options.quick else 5):
            for way, found in seconds.items():
                command = [sys.executable, "-c", START, self.device.type, way]
                root = Path(__file__).parent.parent
                found.append(float(subprocess.check_output(command, cwd=root, text=True)))
        return {way: statistics.median(found) for way, found in seconds.items()}

    def steps(self) -> Iterator[Row]:
        for name, scheme in SCHEMES.items():
            for precision in PRECISIONS:
                about = {"scheme": name, "precision": precision}
                yield self.row("steps", partial(self._steps, scheme, precision), **about)

    def _steps(self, scheme: dict[str, Any], precision: Precision) -> Row:
        runs = []
        for recorded in (False, False, True):
            trainer = self.trainer(precision, recorded, model={**scheme, "dropout": 0.1})
            runs.append(numbers_of(trainer, self.options.steps))
            if recorded:
                shapes = len(getattr(trainer._update, "recorded", ()))
        noise, found = apart(runs[0], runs[1]), apart(runs[0], runs[2])
        tolerance = (TOLERANCE[precision], 100 * TOLERANCE[precision])
        allowed = [max(least, 10 * each) for least, each in zip(tolerance, noise, strict=True)]
        equal = all(one <= most for one, most in zip(found, allowed, strict=True))
        return {
            "shapes": shapes,
            "first_loss": runs[0][0][0],
            "last_loss": runs[0][0][-1],
            "eager_twice_losses": noise[0],
            "eager_twice_weights": noise[1],
            "recorded_losses": found[0],
            "recorded_weights": found[1],
            "verdict": "ok" if equal else "DIFFERS",
        }

    def decoding(self) -> Iterator[Row]:
        for name, scheme in SCHEMES.items():
            for beam in (1, 5):
                for bf16 in (False, True):
                    about = {"scheme": name, "beam": beam, "bf16": bf16}
                    make = partial(self._decoding, scheme, beam, bf16)
                    yield self.row("decoding", make, **about)

    def _decoding(self, scheme: dict[str, Any], beam: int, bf16: bool) -> Row:
        """Sources of some shapes, one of them twice, by weights that train in between.

        Of 260 rows, ended ones leave.
        """
        trainer = self.trainer("fp32", recorded=False, model=scheme)
        model, equal, rows = trainer.model, 0, 0
        recorded = RecordedSearch(self.recorder(), model)
        batches = training_batches(trainer.source, trainer.config, 0, self.device)
        shapes = [(64, 12), (37, 20), (260, 20), (64, 12), (260, 20)]
        shapes = shapes if not self.options.quick else [(5, 6), (5, 6)]
        for count, length in shapes:
            for dealt in islice(batches, min(self.options.steps, 10)):
                trainer._step([dealt])
            src = sources(model, count, length)
            model.eval()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                ours, theirs = recorded(model, src, beam=beam), search(model, src, beam=beam)
            model.train()
            width = max(ours.tokens.shape[1], theirs.tokens.shape[1])
            padded = [
                torch.nn.functional.pad(found.tokens, (0, width - found.tokens.shape[1]))
                for found in (ours, theirs)
            ]
            equal += int((padded[0] == padded[1]).all(1).sum())
            rows += count
        enough = rows if not bf16 else 0.98 * rows  # a tie may fall otherwise
        return {"equal": equal, "rows": rows, "verdict": "ok" if equal >= enough else "DIFFERS"}

    def resume(self) -> Iterator[Row]:
        for name, scheme in SCHEMES.items():
            yield self.row("resume", partial(self._resume, scheme), scheme=name)

    def _resume(self, scheme: dict[str, Any]) -> Row:
        steps = min(self.options.steps, 60)
        train = {"max_steps": steps, "eval_every": max(1, steps // 2), "log_every": 1}
        sections = {"train": train, "model": {**scheme, "dropout": 0.1}}
        weights = []
        for _ in range(2):
            trainer = self.trainer("fp32", True, **sections)
            list(trainer.train())
            weights.append(flat(trainer.model))
        first = self.trainer("fp32", True, **sections)
        for record in first.train():
            first.interrupted = record["step"] == steps // 3
        second = self.trainer_in(first.run, "fp32", True, **sections)
        notes = second.resume()
        list(second.train())
        noise, difference = apart_of(*weights), apart_of(weights[0], flat(second.model))
        ok = difference == 0 or difference <= 10 * noise
        return {
            "notes": "; ".join(notes),
            "same_run_twice": noise,
            "resumed": difference,
            "bit_for_bit": difference == 0,
            "verdict": "ok" if ok and second.progress.step == steps else "DIFFERS",
        }

    def speed(self) -> Iterator[Row]:
        peak = self._peak()
        yield {"bf16_product_flops": peak}
        print(f"a large bf16 product: {peak / 1e12:.3g} TFLOP/s")
        sizes = [(64, 2, 4), (256, 3, 8), (512, 6, 8)]
        tokens = (4096, 16_384, 65_536)
        if self.options.quick:
            sizes, tokens = [(16, 1, 2)], (256,)  # type: ignore[assignment]
        every = itertools.product(sizes, tokens, PRECISIONS, (False, True))
        for (width, layers, heads), budget, precision, recorded in every:
            size = {"d_model": width, "d_ff": 4 * width, "n_heads": heads, "dropout": 0.1}
            size |= {"n_encoder_layers": layers, "n_decoder_layers": layers}
            size |= {"positions": "sinusoidal"}
            sections = {"model": size, "data": {"batch_tokens": budget, "symbols": 100}}
            make = partial(self._rate, precision, recorded, sections)
            about = {"d_model": width, "layers": layers, "batch_tokens": budget}
            yield self.row("speed", make, **about, precision=precision, recorded=recorded)
        rows = (4, 8) if self.options.quick else (64, 512, 4096)
        for count, beam, recorded in itertools.product(rows, (1, 5), (False, True)):
            make = partial(self._search_rate, count, beam, recorded)
            yield self.row("speed", make, rows=count, beam=beam, recorded=recorded)

    def _rate(self, precision: Precision, recorded: bool, sections: dict[str, Any]) -> Row:
        """Median of three stretches after one in which all shapes occur."""
        trainer = self.trainer(precision, recorded, **sections)
        batches = training_batches(trainer.source, trainer.config, 0, self.device)
        began = time.perf_counter()
        for dealt in islice(batches, 40 if not self.options.quick else 4):
            trainer._step([dealt])
        self._wait()
        first, rates, times = time.perf_counter() - began, [], []
        for _ in range(3):
            before, steps, began = trainer.progress.target_tokens, 0, time.perf_counter()
            while time.perf_counter() - began < self.options.seconds:
                for dealt in islice(batches, 10):
                    trainer._step([dealt])
                steps += 10
                self._wait()
            seconds = time.perf_counter() - began
            rates.append((trainer.progress.target_tokens - before) / seconds)
            times.append(1e3 * seconds / steps)
        return {
            "tokens_per_s": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "step_ms": statistics.median(times),
            "first_40_steps_s": first,
            "shapes": len(getattr(trainer._update, "recorded", ())),
            "finite": bool(torch.isfinite(trainer._loss_sum)),
        }

    def _search_rate(self, count: int, beam: int, recorded: bool) -> Row:
        width, length = (128, 20) if not self.options.quick else (16, 6)
        size = {"d_model": width, "d_ff": 4 * width, "n_heads": 4, "positions": "sinusoidal"}
        model = self.trainer("fp32", False, model=size).model.eval()
        src = sources(model, count, length)
        find = RecordedSearch(self.recorder(), model) if recorded else search
        began = time.perf_counter()
        tokens = int((find(model, src, beam=beam).tokens != 0).sum())
        self._wait()
        first, rates = time.perf_counter() - began, []
        for _ in range(3):
            done, began = 0, time.perf_counter()
            while time.perf_counter() - began < self.options.seconds / 2:
                find(model, src, beam=beam)
                done += tokens
            rates.append(done / (time.perf_counter() - began))
        return {
            "tokens_per_s": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "first_s": first,
        }

    def _peak(self) -> float:
        """FLOP a second of a large bf16 product; the best of five."""
        n = 8192 if self.device.type == "cuda" else 256
        a, b = (torch.randn(n, n, device=self.device).bfloat16() for _ in range(2))
        times = []
        for _ in range(5):
            self._wait()
            began = time.perf_counter()
            a @ b
            self._wait()
            times.append(time.perf_counter() - began)
        return float(2 * n**3 / min(times))

    def _wait(self) -> None:
        if self.device.type == "cuda":
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


def numbers_of(trainer: Trainer, steps: int) -> tuple[list[float], torch.Tensor]:
    """The loss of each step, nats per token, read at the end; and the weights."""
    batches = training_batches(trainer.source, trainer.config, 0, trainer.device)
    losses, tokens = [], [0]
    for dealt in islice(batches, steps):
        trainer._step([dealt])
        losses.append(trainer._loss_sum)
        tokens.append(trainer.progress.target_tokens)
    sums = [0.0, *torch.stack(losses).double().cpu().tolist()]
    each = [(sums[i + 1] - sums[i]) / (tokens[i + 1] - tokens[i]) for i in range(len(losses))]
    return each, flat(trainer.model)


def flat(model: Transformer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def apart(
    one: tuple[list[float], torch.Tensor], two: tuple[list[float], torch.Tensor]
) -> tuple[float, float]:
    """The largest relative difference of two losses, and that of the weights as vectors."""
    losses = [abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one[0], two[0], strict=True)]
    return max(losses), apart_of(one[1], two[1])


def apart_of(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / one.norm())


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("start", "steps", "decoding", "resume", "speed")
    parser.add_argument("parts", nargs="*", metavar=f"{{{','.join(names)}}}", help="default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=200, help="updates that are compared")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a stretch that is timed")
    parser.add_argument("--quick", action="store_true", help="smallest sizes")
    parser.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(names):
        known = f"no part {', '.join(sorted(unknown))}; there are {', '.join(names)}"
        parser.exit(2, f"gpu_check.py: {known}\n")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu_check.py: no CUDA device here; --device cpu tries the program\n")
    for name in set(SCHEMES) - set(options.schemes):
        del SCHEMES[name]
    cuda = options.device == "cuda"
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if cuda else "cpu, with a stand-in",
        "steps": options.steps,
    }
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(options, Path(folder))
        for part in options.parts or names:
            found[part] = []
            for row in getattr(checks, part)():
                found[part].append(row)
                if options.out:  # after every row, in case the time is up
                    options.out.write_text(json.dumps(found, indent=1))
    print("all equal" if not checks.failed else f"{checks.failed} rows differ or failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
