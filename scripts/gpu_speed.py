"""Parts of `gpu_check.py` that measure: start, kernels of attention, steps, searches, solving."""

import contextlib
import itertools
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpu_rows import PRECISIONS, Machine, Row, sources
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from verify_configs import CONFIGS
from verify_configs import run as run_config

from toytrans.data.batches import training_batches
from toytrans.model.decoding import search
from toytrans.model.decoding.recorded import RecordedSearch
from toytrans.training.devices import Precision

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


def start(machine: Machine) -> Iterator[Row]:
    """Seconds until the device answers, with CUDA started aside while torch is imported, or not."""
    yield machine.row("start", partial(_start, machine))


def _start(machine: Machine) -> Row:
    """Medians of five processes each way, in turns."""
    seconds: dict[str, list[float]] = {"aside": [], "alone": []}
    for _ in range(1 if machine.options.quick else 5):
        for way, found in seconds.items():
            command = [sys.executable, "-c", START, machine.device.type, way]
            root = Path(__file__).parent.parent
            found.append(float(subprocess.check_output(command, cwd=root, text=True)))
    return {way: statistics.median(found) for way, found in seconds.items()}


# Attention -------------------------------------------------------------------------------------


def attention(machine: Machine) -> Iterator[Row]:
    """Forward and backward of one attention by each of torch's kernels, with a mask or without."""
    shapes = [(2048, 4, 26, 16), (1024, 8, 40, 32), (128, 16, 200, 64)]
    kernels = ("EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "FLASH_ATTENTION", "MATH")
    for shape in shapes if not machine.options.quick else [(2, 2, 5, 8)]:
        for dtype, masked in itertools.product((torch.float32, torch.bfloat16), (True, False)):
            for kernel in kernels:
                make = partial(_attention, machine, shape, dtype, masked, kernel)
                about = {"shape": shape, "dtype": str(dtype)[6:], "masked": masked}
                yield machine.row("attention", make, **about, kernel=kernel)


def _attention(
    machine: Machine, shape: tuple[int, ...], dtype: torch.dtype, masked: bool, kernel: str
) -> Row:
    """Milliseconds: of the first call, which may plan, and the median of more."""
    q, k, v = (
        torch.randn(shape, device=machine.device, dtype=dtype, requires_grad=True) for _ in range(3)
    )
    rows, _, length, _ = shape
    mask = torch.zeros(rows, 1, 1, length, device=machine.device, dtype=dtype) if masked else None

    def work() -> None:
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            F.scaled_dot_product_attention(q, k, v, mask).sum().backward()

    try:
        with warnings.catch_warnings(action="ignore"):  # torch tells why a kernel does not fit
            first, *times = _times(machine, work, 4 if machine.options.quick else 30)
    except RuntimeError as error:
        return {"fits": False, "reason": str(error).splitlines()[0][:100]}
    return {"fits": True, "first_ms": 1e3 * first, "ms": 1e3 * statistics.median(times[2:])}


def _times(machine: Machine, work: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each of so many calls."""
    taken = []
    for _ in range(count):
        machine.wait()
        began = time.perf_counter()
        work()
        machine.wait()
        taken.append(time.perf_counter() - began)
    return taken


# Steps and searches ----------------------------------------------------------------------------


def speed(machine: Machine) -> Iterator[Row]:
    """Tokens a second of steps and searches, eager and recorded; seconds that recording takes."""
    yield machine.row("speed", lambda: {"bf16_product_flops": _peak(machine)})
    sizes, tokens = [(64, 2, 4), (256, 3, 8), (512, 6, 8)], [4096, 16_384, 65_536]
    if machine.options.quick:
        sizes, tokens = [(16, 1, 2)], [256]
    ways = [("bf16", False), *((precision, True) for precision in PRECISIONS)]
    for size, budget, positions in itertools.product(sizes, tokens, ("sinusoidal", "anchored")):
        if positions == "anchored" and size[0] == 512:
            continue
        for precision, recorded in ways:
            yield _rate_row(machine, "speed", size, budget, positions, precision, recorded)
    rows = (4, 8) if machine.options.quick else (64, 512, 4096)
    for count, beam, recorded in itertools.product(rows, (1, 5), (False, True)):
        make = partial(_search_rate, machine, count, beam, recorded)
        yield machine.row("searches", make, rows=count, beam=beam, recorded=recorded)


def deterministic(machine: Machine) -> Iterator[Row]:
    """Recorded steps with torch's deterministic kernels, and without."""
    sizes, budget = [(64, 2, 4), (256, 3, 8)], 16_384
    if machine.options.quick:
        sizes, budget = [(16, 1, 2)], 256
    for size, positions in itertools.product(sizes, ("sinusoidal", "anchored")):
        for wanted in (False, True):
            with _deterministic(wanted):
                row = _rate_row(
                    machine, f"deterministic {wanted}", size, budget, positions, "bf16", True
                )
            yield row | {"deterministic": wanted}


@contextlib.contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _rate_row(
    machine: Machine,
    table: str,
    size: tuple[int, int, int],
    budget: int,
    positions: str,
    precision: Precision,
    recorded: bool,
) -> Row:
    width, layers, heads = size
    model = {"d_model": width, "d_ff": 4 * width, "n_heads": heads, "dropout": 0.1}
    model |= {"n_encoder_layers": layers, "n_decoder_layers": layers, "positions": positions}
    sections = {"model": model, "data": {"batch_tokens": budget, "symbols": 100}}
    about = {"d_model": width, "layers": layers, "batch_tokens": budget, "positions": positions}
    make = partial(_rate, machine, precision, recorded, sections)
    return machine.row(table, make, **about, precision=precision, recorded=recorded)


def _rate(machine: Machine, precision: Precision, recorded: bool, sections: dict[str, Any]) -> Row:
    """Median of three stretches after one in which all shapes occur."""
    trainer = machine.trainer(precision, recorded, **sections)
    batches = training_batches(trainer.source, trainer.config, 0, machine.device)
    began = time.perf_counter()
    for dealt in islice(batches, 40 if not machine.options.quick else 4):
        trainer._step([dealt])
    machine.wait()
    first, rates, times = time.perf_counter() - began, [], []
    at_once = 10 if not machine.options.quick else 2
    for _ in range(3):
        before, steps, began = trainer.progress.target_tokens, 0, time.perf_counter()
        while time.perf_counter() - began < machine.options.seconds:
            for dealt in islice(batches, at_once):
                trainer._step([dealt])
            steps += at_once
            machine.wait()
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


def _search_rate(machine: Machine, count: int, beam: int, recorded: bool) -> Row:
    width, length = (128, 20) if not machine.options.quick else (16, 6)
    size = {"d_model": width, "d_ff": 4 * width, "n_heads": 4, "positions": "sinusoidal"}
    model = machine.trainer("fp32", False, model=size).model.eval()
    src = sources(model, count, length)
    find = RecordedSearch(machine.recorder(), model) if recorded else search
    began = time.perf_counter()
    tokens = int((find(model, src, beam=beam).tokens != 0).sum())
    machine.wait()
    first, rates = time.perf_counter() - began, []
    for _ in range(3):
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < machine.options.seconds / 2:
            find(model, src, beam=beam)
            done += tokens
        rates.append(done / (time.perf_counter() - began))
    return {
        "tokens_per_s": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "first_s": first,
    }


def _peak(machine: Machine) -> float:
    """FLOP a second of a large bf16 product; the best of five."""
    n = 8192 if machine.is_gpu else 256
    a, b = (torch.randn(n, n, device=machine.device).bfloat16() for _ in range(2))
    return float(2 * n**3 / min(_times(machine, lambda: a @ b, 5)))


# Solving ---------------------------------------------------------------------------------------


def solve(machine: Machine) -> Iterator[Row]:
    """configs/joeynmt_reverse.yaml from Enter to solved; then an evaluation of 1,000 pairs."""
    few = ("train.max_steps=3", "data.valid_examples=20", "data.test_examples=20")
    overrides = (f"device={machine.device.type}", *(few if machine.options.quick else ()))
    graphs = ("auto", "on") if machine.is_gpu else ("auto",)
    for seed, way in itertools.product(range(1 if machine.options.quick else 3), graphs):
        given = (*overrides, f"train.cuda_graphs={way}")
        yield machine.row("solve", partial(_solve, seed, given), seed=seed, cuda_graphs=way)
    for recorded in (False, True):
        yield machine.row("solve", partial(_evaluate, machine, recorded), recorded=recorded)


def _solve(seed: int, overrides: tuple[str, ...]) -> Row:
    seconds, report = run_config(CONFIGS / "joeynmt_reverse.yaml", seed, None, overrides)
    return {"command_s": seconds, "exact_match": report["exact_match"]}


def _evaluate(machine: Machine, recorded: bool) -> Row:
    """Seconds of the first evaluation, and the median of three more."""
    data = {"symbols": 50, "train_length": [1, 25]} if not machine.options.quick else {}
    data["valid_examples"] = 1000 if not machine.options.quick else 5
    trainer = machine.trainer("fp32", recorded, data=data)
    first, *others = _times(machine, trainer._evaluate, 4)
    return {"pairs": data["valid_examples"], "first_s": first, "s": statistics.median(others)}
