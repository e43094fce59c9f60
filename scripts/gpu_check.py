"""Prove on a CUDA machine that recorded steps equal eager ones; `bench.py` times both.

    python scripts/gpu_check.py [steps] [resume] [--out FILE]

A GPU may add up in another order each time, so eager is compared with itself too. Losses differ if
they are more than a tolerance apart, and more than ten times what two eager runs are; weights, if
they are a hundred times the tolerance apart, and ten times what eager ones are. The file is written
after every row. Exit code 1: something differs or fails.

Needs what toytrans needs, and this source tree; no network. Without CUDA, `--device cpu --quick`
runs the same code with a stand-in that records nothing.
"""

import argparse
import itertools
import json
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
from torch import Tensor

from toytrans.config.names import PositionName
from toytrans.config.schema import Config
from toytrans.data.batches import training_batches
from toytrans.data.open import open_dataset
from toytrans.training.devices import Precision
from toytrans.training.graphs import cuda_capture
from toytrans.training.run import create_run
from toytrans.training.trainer import Trainer

Row = dict[str, Any]
Options = argparse.Namespace

TOLERANCE: dict[Precision, float] = {"fp32": 1e-6, "bf16": 2e-3}
SCHEMES: dict[str, Row] = {name: {"positions": name} for name in get_args(PositionName)}
SCHEMES["random sinusoidal"] = {"positions": "sinusoidal", "random_positions": True}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=200, help="updates that are compared")
    parser.add_argument("--quick", action="store_true", help="smallest sizes")
    parser.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu_check.py: no CUDA device here; --device cpu tries the program\n")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu, with a stand-in"
    found: dict[str, Any] = {"torch": torch.__version__, "device": name}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        options.folders = (Path(folder) / str(number) for number in itertools.count())
        for part in options.parts or PARTS:
            rows = found.setdefault(part, [])
            for about, make in PARTS[part](options):
                rows.append(about | attempted(make))
                failed += rows[-1].get("verdict", "ok") != "ok"
                print(f"{part}: " + ", ".join(f"{k} {short(v)}" for k, v in rows[-1].items()))
                if options.out:
                    options.out.write_text(json.dumps(found, indent=1))
    print("all equal" if not failed else f"{failed} rows differ or failed")
    return 1 if failed else 0


def attempted(make: Callable[[], Row]) -> Row:
    """A row; an error becomes one too, and the rest goes on."""
    began = time.perf_counter()
    try:
        row = make()
    except Exception as error:
        traceback.print_exc()
        row = {"verdict": "ERROR", "error": f"{type(error).__name__}: {error}"[:300]}
    return row | {"seconds": round(time.perf_counter() - began, 2)}


def short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return str(value)


def trainer_of(
    options: Options, precision: Precision, recorded: bool, run: Path | None = None, **given: Any
) -> Trainer:
    """A trainer whose learning rate fp32 holds exactly, so that both ways of a step have it."""
    data: Row = {"task": "reverse", "symbols": 20, "train_length": [1, 20], "batch_tokens": 2048}
    data["valid_examples"] = 60
    model: Row = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 1}
    if options.quick:
        data |= {"train_length": [1, 5], "batch_tokens": 128, "valid_examples": 5}
        model |= {"d_model": 16, "n_heads": 2}
    train = {"lr": 2**-10, "schedule": "constant", "warmup_steps": 0, "precision": precision}
    sections = {"data": data, "model": model, "train": train}
    config = Config.model_validate({key: sections[key] | given.get(key, {}) for key in sections})
    source, run = open_dataset(config), run or next(options.folders)
    create_run(run, config, source.facts, {})
    device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
    capture = cuda_capture(device) if options.device == "cuda" else stand_in
    return Trainer(config, source, run, device, precision, capture=capture if recorded else None)


def stand_in(warm_up: Callable[[], object], work: Callable[[], object]) -> Callable[[], object]:
    with torch.random.fork_rng([]):
        warm_up()
    return work


def weights_of(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).clone()


def apart(one: Tensor, two: Tensor) -> float:
    """The relative difference of two vectors."""
    return float((one - two).norm() / one.norm())


# Parts: each yields what a row is about, and what makes it -------------------------------------

Rows = Iterator[tuple[Row, Callable[[], Row]]]


def steps(options: Options) -> Rows:
    """Updates of every position scheme in every precision, with dropout: losses and weights."""
    for name, precision in itertools.product(options.schemes, TOLERANCE):
        yield (
            {"scheme": name, "precision": precision},
            partial(compared, options, SCHEMES[name], precision),
        )


def compared(options: Options, scheme: Row, precision: Precision) -> Row:
    runs = []
    for recorded in (False, False, True):
        trainer = trainer_of(options, precision, recorded, model={**scheme, "dropout": 0.1})
        sums, batches = [], training_batches(trainer.dataset, trainer.config, 0, trainer.device)
        for dealt in islice(batches, options.steps):
            trainer._clear_window()
            trainer._step([dealt])
            sums.append(trainer._loss_sum / trainer.progress.window["tokens"])
        runs.append((torch.stack(sums).double().cpu(), weights_of(trainer)))
    (losses, weights), again, graphs = runs
    row, equal = {"last_loss": float(losses[-1])}, True
    for what, one, first, second, tolerance in (
        ("losses", losses, again[0], graphs[0], TOLERANCE[precision]),
        ("weights", weights, again[1], graphs[1], 100 * TOLERANCE[precision]),
    ):
        row[f"eager_twice_{what}"], row[f"recorded_{what}"] = apart(one, first), apart(one, second)
        equal &= row[f"recorded_{what}"] <= max(tolerance, 10 * row[f"eager_twice_{what}"])
    return row | {"verdict": "ok" if equal else "DIFFERS"}


def resume(options: Options) -> Rows:
    """A recorded run that is interrupted and resumed beside one in one piece: weights."""
    for name in options.schemes:
        yield {"scheme": name}, partial(resumed, options, SCHEMES[name])


def resumed(options: Options, scheme: Row) -> Row:
    count = min(options.steps, 60)
    train = {"max_steps": count, "eval_every": max(1, count // 2), "log_every": 1}
    given: Row = {"train": train, "model": {**scheme, "dropout": 0.1}}
    whole = []
    for _ in range(2):
        trainer = trainer_of(options, "fp32", True, **given)
        list(trainer.train())
        whole.append(weights_of(trainer))
    first = trainer_of(options, "fp32", True, **given)
    for record in first.train():
        first.interrupted = record["step"] == max(1, count // 3)
    second = trainer_of(options, "fp32", True, first.run, **given)
    second.resume()
    list(second.train())
    noise, difference = apart(*whole), apart(whole[0], weights_of(second))
    ok = difference <= 10 * noise and second.progress.step == count
    row = {"same_run_twice": noise, "resumed": difference}
    return row | {"verdict": "ok" if ok else "DIFFERS"}


PARTS: dict[str, Callable[[Options], Rows]] = {"steps": steps, "resume": resume}

if __name__ == "__main__":
    sys.exit(main())
