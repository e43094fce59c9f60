"""What a CUDA machine is wanted for, in one run: equality, speed, memory, decoding, commands.

    python scripts/gpu_check.py --minutes 8 --out found.jsonl

The sections come in the order of their weight. Each may take its share of the minutes, and what an
earlier one leaves over; what there was no time for is said. A row is printed and added to the file
as soon as it is known, so that nothing is lost if the machine goes; the tables come last. A row
that fails is written down with its error, and the rest goes on. Exit code 1: something differs or
fails.

Needs what toytrans needs, and this source tree; no network. Rows of a library that is missing are
skipped and say so. Without CUDA, `--device cpu --quick` runs every line on tiny sizes; a stand-in
that runs a step again takes the place of what a CUDA graph replays.
"""

import argparse
import contextlib
import gc
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from contenders import (
    Decoding,
    Row,
    Size,
    Training,
    contender,
    decoder,
    measure,
    random_sources,
    wait,
)
from rich.console import Console
from rich.table import Table

import toytrans
from toytrans.cli import main as main_of_toytrans
from toytrans.doctor.machine import installed
from toytrans.model.positions import scheme_names
from toytrans.training import session
from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.graphs import EAGER, WIDEST, CudaSteps, Work, cuda_capture

ROOT = Path(__file__).parent.parent


@dataclass
class Machine:
    """Where a check runs, and how long it may.

    device: cuda | cpu. quick: the smallest sizes. folder: for runs. deadline: when the present
    section must end, by time.monotonic(). captured: the shapes that were captured so far.
    """

    device: str
    quick: bool
    folder: Path
    deadline: float = 0.0
    captured: int = 0

    def new_run(self) -> Path:
        return self.folder / f"run-{len(list(self.folder.iterdir()))}"


Rows = Iterator[tuple[Row, Callable[[], Row]]]
"""What a row is about, and what measures it."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all sections together")
    parser.add_argument("--quick", action="store_true", help="smallest sizes: is the script whole?")
    parser.add_argument("--out", type=Path, help="a file of JSON lines, one a row")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(
            2, "gpu_check.py: no CUDA device here; --device cpu --quick tries the program\n"
        )
    names = options.sections or list(SECTIONS)
    found: dict[str, list[Row]] = {"machine": [versions(options.device)]}
    write(options.out, "machine", found["machine"][0], new=True)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(options.device, options.quick, Path(folder))
        machine.deadline = time.monotonic()
        whole = sum(SECTIONS[name][0] for name in names)
        for name in names:
            share, rows = SECTIONS[name]
            machine.deadline += 60 * options.minutes * share / whole
            found[name] = []
            for row in section(rows(machine), machine):
                found[name].append(row)
                write(options.out, name, row)
    for name, rows_found in found.items():
        show(name, rows_found)
    failed = sum(row["verdict"] in FAILED for rows in found.values() for row in rows)
    print(f"{failed} rows differ or failed" if failed else "nothing differs, nothing failed")
    return 1 if failed else 0


FAILED = ("DIFFERS", "ERROR")


def section(rows: Rows, machine: Machine) -> Iterator[Row]:
    """The rows of a section; those for which no time is left, in one that names them."""
    left_out = []
    for about, make in rows:
        if time.monotonic() > machine.deadline:
            left_out.append(", ".join(map(str, about.values())))
        else:
            yield about | attempted(make)
    if left_out:
        yield {"left_out": left_out, "verdict": "NO TIME"}


def attempted(make: Callable[[], Row]) -> Row:
    """A row with its verdict; an error becomes one too, and the rest goes on."""
    began = time.monotonic()
    try:
        row = {"verdict": "ok"} | make()
    except ModuleNotFoundError as error:
        row = {"verdict": "SKIPPED", "error": f"{error.name} is not installed"}
    except Exception as error:
        traceback.print_exc()
        row = {"verdict": "ERROR", "error": f"{type(error).__name__}: {error}"[:300]}
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return row | {"seconds": round(time.monotonic() - began, 2)}


def write(out: Path | None, name: str, row: Row, new: bool = False) -> None:
    """Print a row, and add it to the file."""
    print(
        f"{name}: " + ", ".join(f"{key} {short(value)}" for key, value in row.items()), flush=True
    )
    if out:
        with out.open("w" if new else "a") as file:
            file.write(json.dumps({"section": name} | row) + "\n")


def show(name: str, rows: list[Row]) -> None:
    """The table of a section."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=name)
    for row in rows:
        table.add_row(*(short(row.get(column, "")) for column in columns))
    Console(width=140).print(table)


def short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return str(value)


def versions(device: str) -> Row:
    libraries = {name: installed(name) for name in ("torch", "transformers", "numpy")}
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none, with a stand-in"
    when = time.strftime("%Y-%m-%d")
    return {"gpu": gpu, "cuda": torch.version.cuda, **libraries, "date": when, "verdict": "ok"}


# Equality ------------------------------------------------------------------------------------

SCHEMES: dict[str, Row] = {name: {"positions": name} for name in scheme_names()}
SCHEMES["random sinusoidal"] = {"positions": "sinusoidal", "random_positions": True}
PRECISIONS = ("fp32", "bf16")


def equality(machine: Machine) -> Rows:
    """Each scheme of positions in each precision, with dropout and a rate that no fp32 holds."""
    schemes = list(SCHEMES.items())[:1] if machine.quick else SCHEMES.items()
    for (name, model), precision in itertools.product(schemes, PRECISIONS):
        about = {"scheme": name, "precision": precision}
        yield about, partial(compared, machine, model, precision)


def compared(machine: Machine, model: Row, precision: str) -> Row:
    """Losses and final weights of two eager trainings, a captured one, and a captured one that was
    interrupted and resumed: the largest difference of each from the first.

    A GPU may add up in another order each time. So a captured training may differ ten times as much
    as two eager ones do; where these are equal to the bit, it must be, too. Eager trainings that
    have hardly anything in common are an error as well: nothing could differ from them.
    """
    steps = 12 if machine.quick else 40
    config = equality_config(machine, model, precision, steps)
    first = trained(machine, config, captured=False)
    again = trained(machine, config, captured=False)
    before = machine.captured
    captured = trained(machine, config, captured=True)
    shapes = machine.captured - before
    resumed = trained(machine, config, captured=True, stop_at=steps // 3)
    noise, apart, torn = (difference(first, other) for other in (again, captured, resumed))
    equal = noise < 0.01 and max(apart, torn) <= 10 * noise and shapes > 0
    found = {"eager_twice": noise, "captured": apart, "resumed": torn, "shapes": shapes}
    return found | {"verdict": "ok" if equal else "DIFFERS"}


def equality_config(machine: Machine, model: Row, precision: str, steps: int) -> Row:
    data: Row = {"task": "reverse", "symbols": 20, "train_length": [1, 12], "batch_tokens": 1024}
    sizes: Row = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 1}
    if machine.quick:
        data |= {"train_length": [1, 5], "batch_tokens": 128}
        sizes |= {"d_model": 16, "n_heads": 2}
    return {
        "device": machine.device,
        "data": data | {"valid_examples": 5},
        "model": sizes | model | {"dropout": 0.1},
        "train": {"max_steps": steps, "lr": 1e-3, "warmup_steps": 5, "precision": precision}
        | {"eval_every": steps, "log_every": 1},
    }


Numbers = tuple[list[float], torch.Tensor]
"""The loss of each step, and the final weights in one vector."""


def trained(machine: Machine, config: Row, captured: bool, stop_at: int | None = None) -> Numbers:
    """Train a config through `toytrans.train`. stop_at: a step after which it stops, and another
    call goes on."""
    run = machine.new_run()

    def goes_on(record: Row) -> bool:
        return record["step"] != stop_at

    with capturing(machine, captured):
        toytrans.train(config, run, on_record=goes_on)
        if stop_at is not None:
            toytrans.train(config, run, resume=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    _, tensors = load_checkpoint(run, saved_steps(run)[-1])
    names = sorted(name for name in tensors if name.startswith("weights/"))
    weights = torch.cat([tensors[name].flatten().cpu() for name in names])
    return [record["loss"] for record in records], weights


@contextlib.contextmanager
def capturing(machine: Machine, captured: bool) -> Iterator[None]:
    """Let trainings in this block be captured, or not, and count the shapes that are."""

    def open_counting(*given: Any) -> CudaSteps:
        device, report = given[1], given[-1]
        capture = cuda_capture(device) if device.type == "cuda" else run_again

        def counted(work: Work) -> Work:
            machine.captured += 1
            return capture(work)

        return CudaSteps(device, counted if captured else None, report)

    with patch.object(session, "open_cuda_steps", open_counting):
        yield


def run_again(work: Work) -> Work:
    """In the place of a CUDA graph: a replay does the work again."""
    return work


def difference(one: Numbers, two: Numbers) -> float:
    """The larger relative difference, of losses or of weights; infinite if a step is missing."""
    if len(one[0]) != len(two[0]):
        return float("inf")
    losses = torch.tensor(one[0]) - torch.tensor(two[0])
    apart = losses.norm() / torch.tensor(one[0]).norm(), (one[1] - two[1]).norm() / one[1].norm()
    return float(max(apart))


# Time to solve -------------------------------------------------------------------------------


def solving(machine: Machine) -> Rows:
    """The commands of shipped configs, without an option; and one with eager steps, whose losses
    must be the same."""
    losses: dict[str, list[float]] = {}
    for name in ("textbook",) if machine.quick else ("textbook", "joeynmt_reverse"):
        yield {"config": name, "mode": "as it is"}, partial(solved, machine, name, losses)
    about = {"config": "textbook", "mode": f"{EAGER}=1"}
    yield about, partial(solved, machine, "textbook", losses, {EAGER: "1"})


def solved(
    machine: Machine,
    name: str,
    losses: dict[str, list[float]],
    switch: dict[str, str] | None = None,
) -> Row:
    """Seconds from the command to its end, and those of training; exact match at the end.

    losses: of each config, by the first command that trained it. switch: environment variables.
    """
    run = machine.new_run()
    command = [sys.executable, "-m", "toytrans", "train", "--config", f"configs/{name}.yaml"]
    command += ["--out", str(run), "--device", machine.device]
    if machine.quick:
        for change in ("train.max_steps=2", "data.valid_examples=5", "data.test_examples=5"):
            command += ["--set", change]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (switch or {})
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    wall = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-200:]}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last, found = records[-1], [record["loss"] for record in records]
    equal = losses.setdefault(name, found) == found
    return {
        "wall_s": wall,
        "training_s": last["elapsed_s"],
        "evaluation_s": last["evaluation_s"],
        "steps": last["step"],
        "exact": last.get("valid_exact_match"),
        "verdict": "ok" if equal else "DIFFERS",
    }


# Rates ---------------------------------------------------------------------------------------

LARGE = Size(1024, 6, 16, 40)
SIZES = (
    (Size(64, 2, 4, 25), 4096),
    (Size(64, 2, 4, 25), 65_536),
    (Size(256, 3, 8, 40), 65_536),
    (LARGE, 65_536),
)
"""A model, and padded tokens of a batch."""

TINY = Size(16, 1, 2, 5)


def rates(machine: Machine) -> Rows:
    """Training of each size with dropout 0.1: ours, nn.Transformer and BART in each precision, then
    ours as eager steps. Ours has batches of like length, the peers have random rows, which are
    there already."""
    for size, tokens in [(TINY, 256)] if machine.quick else SIZES:
        rows = max(1, tokens // size.tokens_of_a_pair)
        ours: Row = {}
        for precision, who in itertools.product(("bf16", "fp32"), ("ours", *PEERS)):
            if size == LARGE and who == "ours" and precision == "fp32":
                continue  # a section of its own
            spec = Training(who, size, rows, precision, device=machine.device)
            if who == "ours":
                captures = size.d_model <= WIDEST and machine.device == "cuda"
                spec = replace(spec, bucketed=True, captured=captures)
            about = {"size": size.name, "tokens": tokens, "who": who, "precision": precision}
            yield about, partial(rate, machine, spec, ours)
        if size.d_model <= WIDEST:
            spec = Training("ours", size, rows, "bf16", bucketed=True, device=machine.device)
            about = {"size": size.name, "tokens": tokens, "who": "ours, eager", "precision": "bf16"}
            yield about, partial(rate, machine, spec, ours)


PEERS = ("nn.Transformer", "BART")


def rate(machine: Machine, spec: Training, ours: Row) -> Row:
    """Real target tokens per second. ours: our rates by precision, for the ratio to a peer."""
    torch.manual_seed(0)
    start_counting_memory()
    step, batches = contender(spec)
    seconds = 0.05 if machine.quick else 1.5
    most = max(20.0, machine.deadline - time.monotonic())
    found = measure(step, batches, seconds, Counter(), machine.device, most)
    if spec.who == "ours":
        ours.setdefault(spec.precision, found["rate"])
    elif spec.precision in ours:
        found["ours_to_it"] = ours[spec.precision] / found["rate"]
    return found | peak_memory()


def start_counting_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> Row:
    """The most memory that was reserved, in GiB; nothing where there is no GPU."""
    if not torch.cuda.is_available():
        return {}
    return {"peak_GiB": torch.cuda.max_memory_reserved() / 2**30}


def large(machine: Machine) -> Rows:
    """A large model in fp32 to the end of 200 steps, or of the time."""
    size, steps = (TINY, 4) if machine.quick else (LARGE, 200)
    tokens = 256 if machine.quick else 65_536
    rows = max(1, tokens // size.tokens_of_a_pair)
    spec = Training("ours", size, rows, "fp32", bucketed=True, device=machine.device)
    about = {"size": size.name, "tokens": tokens, "precision": "fp32"}
    yield about, partial(many_steps, machine, spec, steps)


def many_steps(machine: Machine, spec: Training, steps: int) -> Row:
    torch.manual_seed(0)
    start_counting_memory()
    step, batches = contender(spec)
    done = tokens = 0
    began = time.monotonic()
    while done < steps and time.monotonic() < machine.deadline:
        batch = next(batches)
        step(batch)
        done, tokens = done + 1, tokens + batch.target_tokens
        if done % 10 == 0:
            wait()
    wait()
    seconds = time.monotonic() - began
    return {"steps": done, "of": steps, "rate": tokens / seconds} | peak_memory()


# Decoding ------------------------------------------------------------------------------------

DECODING: dict[str, Row] = {
    "data": {"task": "reverse", "symbols": 100, "train_length": [1, 20], "batch_tokens": 2048},
    "model": {"d_model": 128, "positions": "sinusoidal", "norm": "post"},
    "train": {"max_steps": 4000, "lr": 1e-3, "warmup_steps": 300, "eval_every": 4000},
}


Answers = dict[tuple[str, int], tuple[list[list[int]], float]]
"""Tokens, and tokens per second, of a way to search in so many sources."""


def decoding(machine: Machine) -> Rows:
    """The same weights in ours and in Hugging Face's `generate`: tokens, then speed, for sources of
    20 symbols."""
    run, ours = machine.folder / "decoded", Answers()
    yield {"who": "ours", "how": "training"}, partial(train_for_decoding, machine, run)
    for who in ("ours", "HF generate"):
        spec = Decoding(who, str(run), str(machine.folder), device=machine.device)
        for how in ("greedy", "beam"):
            for rows in (8,) if machine.quick else (64, 512, 4096):
                about = {"who": who, "how": how, "rows": rows}
                yield about, partial(decoded, machine, spec, how, rows, ours)


def train_for_decoding(machine: Machine, run: Path) -> Row:
    config: Row = {**DECODING, "device": machine.device}
    if machine.quick:
        config["train"] = {"max_steps": 2}
        config["data"] = DECODING["data"] | {"valid_examples": 5, "train_length": [1, 5]}
        config["model"] = DECODING["model"] | {"d_model": 16}
    trained = toytrans.train(config, run)
    last = trained.records[-1]
    return {"seconds_of_training": last["elapsed_s"], "exact": last["valid_exact_match"]}


def decoded(machine: Machine, spec: Decoding, how: str, rows: int, ours: Answers) -> Row:
    """Tokens per second of one way to search. ours: our own answers, to compare them."""
    length = 5 if machine.quick else 20
    sources = random_sources(rows, length, length)
    answer = decoder(spec)
    answer(how, sources, 50)  # the first call is slower
    tokens, _, speed = answer(how, sources, 50, 0.05 if machine.quick else 1.0)
    found: Row = {"rate": speed}
    if spec.who == "ours":
        ours[how, rows] = tokens, speed
    elif (how, rows) in ours:
        our_tokens, our_speed = ours[how, rows]
        found["ours_to_it"] = our_speed / speed
        found["equal"] = f"{sum(map(list.__eq__, tokens, our_tokens))} of {rows}"
    return found


# Commands ------------------------------------------------------------------------------------

COMMANDS = {
    "eval": ("eval", "RUN", "--examples", "20"),
    "translate": ("translate", "RUN", "3 1 2"),
    "trace": ("trace", "RUN", "3 1 2"),
    "inspect-masks": ("inspect-masks", "RUN", "--src", "3 1 2"),
    "export": ("export", "RUN", "--format", "safetensors"),
    "check": ("check", "RUN", "--quick"),
}


def commands(machine: Machine) -> Rows:
    """Every command with `--device`, on a run that was hardly trained."""
    run = machine.folder / "commands"
    config = equality_config(machine, SCHEMES["anchored"], "fp32", 5)
    yield {"command": "train"}, partial(train_for_commands, config, run)
    for name, words in COMMANDS.items():
        given = [str(run) if word == "RUN" else word for word in words]
        yield {"command": name}, partial(commanded, machine, given)


def train_for_commands(config: Row, run: Path) -> Row:
    toytrans.train(config, run)
    return {}


def commanded(machine: Machine, words: list[str]) -> Row:
    """Whether a command prints on the device what it prints on the CPU; last digits may differ."""
    printed = []
    for device in (machine.device, "cpu"):
        out, folder = io.StringIO(), machine.new_run()
        folder.mkdir()
        given = patch.object(sys, "argv", ["toytrans", *words, "--device", device])
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), given:
            try:
                main_of_toytrans()
            except SystemExit as stop:
                if stop.code:
                    raise RuntimeError(f"exit code {stop.code}") from None
        printed.append(out.getvalue())
    return {"lines": printed[0].count("\n"), "same_as_on_cpu": printed[0] == printed[1]}


SECTIONS: dict[str, tuple[int, Callable[[Machine], Rows]]] = {
    "equality": (30, equality),
    "solving": (6, solving),
    "rates": (30, rates),
    "large": (24, large),
    "decoding": (10, decoding),
    "commands": (3, commands),
}
"""The sections in the order of their weight: the share of the time, and the rows."""

if __name__ == "__main__":
    sys.exit(main())
