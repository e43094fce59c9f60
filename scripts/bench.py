"""Measure toytrans and its peers on a CPU, in one run and in turns (A B A B); medians and ratios.

    python scripts/bench.py [--only training decoding] [--quick]

Needs the extra `bench`. The peers: PyTorch's tutorial trainer around nn.Transformer and Hugging
Face's BART in training, CTranslate2 and Hugging Face's Marian in decoding (`contenders.py` makes
all of them). Every contender is a process of its own, in decoding with as many threads and workers
as suit it best; rates of training are real target tokens a second over whole steps: data (made
beforehand for the same work), forward, backward, clip (the tutorial's trainer has none, and gets
one for the same work alone), optimiser. On a shared machine only ratios within one run mean much.
`gpu_check.py` measures the same contenders on a GPU.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from contenders import (
    PEERS,
    THREADS,
    Decoding,
    Row,
    Size,
    Training,
    contender,
    decoder,
    measure,
    random_sources,
)
from rich.console import Console
from rich.table import Table

from toytrans.doctor.machine import installed
from toytrans.tokens import EOS_ID
from toytrans.training.devices import tune_process
from toytrans.training.provenance import processor_name

SIZES = (Size(64, 2, 4, 25), Size(128, 2, 4, 20), Size(256, 3, 8, 40))
WIDTHS = [size.d_model for size in SIZES]
ROWS = (64, 512)
"""Sources that are decoded together."""

Options = argparse.Namespace
Spec = Training | Decoding


class Contender:
    """A process that does one thing; `ask` has it do that and waits.

    A process of its own keeps apart what holds for a whole process: ours sets how memory is given
    back and which library multiplies fp32, the peers run as torch comes unless they are `tuned`.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, spec), daemon=True)
        environment = {"OMP_NUM_THREADS": str(spec.threads)}  # read when torch is loaded
        if spec.who == "ours" or spec.tuned:
            environment["GOMP_SPINCOUNT"] = "2000"  # as the command line does
        with patch.dict(os.environ, environment):
            self._process.start()
        other.close()

    def ask(self, *question: Any) -> Any:
        """The answer to a question; its process ends with an error it cannot answer."""
        try:
            self._line.send(question)
            return self._line.recv()
        except (EOFError, OSError):
            raise SystemExit(f"{self._spec}: its process has ended, see above") from None

    def close(self) -> None:
        self._line.close()
        self._process.join(10)
        self._process.kill()


def _serve(line: Any, spec: Spec) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(spec.threads)
    if spec.who == "ours" or spec.tuned:
        tune_process()
    answer = _trainer(spec) if isinstance(spec, Training) else decoder(spec)
    with contextlib.suppress(EOFError):
        while True:
            line.send(answer(*line.recv()))


def _trainer(spec: Training) -> Callable[[float], Row]:
    """Answers a number of seconds with rates over about that time."""
    step, batches = contender(spec)
    met = Counter[Any]()
    return lambda seconds: measure(step, batches, seconds, met)


# Tables of training --------------------------------------------------------------------------

TABLES = {
    "as-run": "as people run them: peers 64 random rows, fp32, dropout 0.1; ours the defaults "
    "(buckets, no dropout, precision auto), anchored and sinusoidal",
    "same-work": "same work: the very same padded batches of 64 rows, fp32, dropout 0.1; peers as "
    "they come, and tuned: with our settings of the process",
    "no-dropout": "same work without dropout",
    "best": "each at its best: dropout 0.1, tuned if quicker; rows, precision and buckets of the "
    "sweep's best",
}


def training(options: Options, console: Console) -> None:
    """Tables of rates."""
    sizes = [size for size in SIZES if size.d_model in options.sizes]
    sizes = sizes[:1] if options.quick else sizes
    for name in options.tables:
        columns = ("size", "who", "tokens/s", "range", "ms a step", "ours to it")
        table = Table(*columns, title=TABLES[name])
        for size in sizes:
            if name == "best":
                specs = at_best(size, options, console)
            else:
                specs = as_run(size) if name == "as-run" else same_work(size, name)
            raced = race(specs, options)
            for spec, answers in zip(specs, raced, strict=True):
                rates, steps = ([a[key] for a in answers] for key in ("rate", "step_ms"))
                both = zip(raced[0], answers, strict=True)
                ratio = statistics.median(ours["rate"] / other["rate"] for ours, other in both)
                shown = f"{statistics.median(steps):.2f}", f"{ratio:.2f}"
                table.add_row(size.name, label(spec, name), *spread(rates), *shown)
        console.print(table)


def spread(rates: list[float]) -> tuple[str, str]:
    """Median and range."""
    return f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}..{max(rates):,.0f}"


def as_run(size: Size) -> list[Training]:
    ours = [
        Training("ours", size, None, "auto", 0.0, positions=positions)
        for positions in ("anchored", "sinusoidal")
    ]
    return [*ours, *(Training(who, size) for who in PEERS)]


def same_work(size: Size, table: str) -> list[Training]:
    dropout = 0.0 if table == "no-dropout" else 0.1
    come = [Training(who, size, dropout=dropout, same=True) for who in ("ours", *PEERS)]
    return [*come, *(replace(spec, tuned=True) for spec in come[1:])]


def at_best(size: Size, options: Options, console: Console) -> list[Training]:
    """The quickest of every combination for each side, tried once; of a peer tuned, and its
    quickest as it comes."""
    best = []
    rows = (64,) if options.quick else (64, 256, 1024)
    short = argparse.Namespace(seconds=options.seconds / 2, repeats=1)
    for who in ("ours", *PEERS):
        ways = itertools.product(rows, ("fp32", "bf16"), (False, True))
        specs = [
            Training(who, size, n, precision, bucketed=bucketed, tuned=who != "ours")
            for n, precision, bucketed in ways
        ]
        tried = {spec: race([spec], short)[0][0]["rate"] for spec in specs}
        if who != "ours":
            as_it_comes = replace(max(tried, key=tried.__getitem__), tuned=False)
            tried[as_it_comes] = race([as_it_comes], short)[0][0]["rate"]
        listing = ", ".join(f"{label(spec, 'best')} {rate:,.0f}" for spec, rate in tried.items())
        console.print(f"{size.name}, sweep: {listing}", style="dim")
        best.append(max(tried, key=tried.__getitem__))
    return best


def race(specs: list[Training], options: Options) -> list[list[Row]]:
    """Answers of every repetition for each contender, in turn after a warm-up."""
    contenders = [Contender(spec) for spec in specs]
    answers: list[list[Row]] = [[] for _ in specs]
    for repeat in range(options.repeats + 1):
        for process, so_far in zip(contenders, answers, strict=True):
            answer = process.ask(options.seconds)
            if repeat:
                so_far.append(answer)
    for process in contenders:
        process.close()
    return answers


def label(spec: Training, table: str) -> str:
    words = [f"{spec.who} {spec.positions}" if spec.who == "ours" else spec.who]
    if table == "best":
        words += [f"{spec.rows} rows", spec.precision, "buckets" if spec.bucketed else "random"]
    return " ".join(words + ["tuned"] * spec.tuned)


# Tables of decoding --------------------------------------------------------------------------

DECODERS = ("ours", "CTranslate2 float32", "CTranslate2 int8", "HF generate")
DECODING_CONFIG = """
data: {task: reverse, symbols: 100, train_length: [1, 20], batch_tokens: 2048}
model: {d_model: 128, positions: sinusoidal, norm: post}
train: {max_steps: STEPS, lr: 1e-3, warmup_steps: 300}
"""


def decoding(options: Options, console: Console) -> None:
    """The same trained weights in every runtime: equal tokens and scores, then speed, each with
    as many threads and workers as suit it best."""
    with tempfile.TemporaryDirectory() as folder:
        run = trained(Path(folder), options)
        questions = {
            (rows, how): (how, random_sources(rows, 20, 20), 50, 1.0)
            for rows, how in itertools.product(ROWS, ("greedy", "beam"))
        }
        specs = [Decoding(who, run, folder) for who in DECODERS]
        agreement(specs, console)
        best = {spec.who: quickest(spec, questions) for spec in specs}
        contenders = {
            spec: Contender(spec) for chosen in best.values() for spec in set(chosen.values())
        }
        table = Table("rows", "search", "who", "threads", "tokens/s", "range", "ours to it")
        table.title = "decoding rows of 20 tokens: the same weights, d 128, 2+2"
        for (rows, how), question in questions.items():
            rates: dict[str, list[float]] = {spec.who: [] for spec in specs}
            for repeat in range(options.repeats + 1):
                for who, so_far in rates.items():
                    rate = contenders[best[who][rows, how]].ask(*question)[2]
                    if repeat:  # after one to warm up
                        so_far.append(rate)
            for who, each in rates.items():
                ratios = [a / b for a, b in zip(rates["ours"], each, strict=True)]
                spec, ratio = best[who][rows, how], statistics.median(ratios)
                threads = f"{spec.workers} x {spec.threads}"
                table.add_row(str(rows), how, who, threads, *spread(each), f"{ratio:.2f}")
        console.print(table)
        for process in contenders.values():
            process.close()


def trained(folder: Path, options: Options) -> str:
    """The run that is decoded."""
    config, run = folder / "decoding.yaml", str(folder / "run")
    config.write_text(DECODING_CONFIG.replace("STEPS", "400" if options.quick else "4000"))
    command = [sys.executable, "-m", "toytrans", "train", str(config), "--out", run]
    command += ["--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return run


def quickest(spec: Decoding, questions: dict[Any, tuple[Any, ...]]) -> dict[Any, Decoding]:
    """With how many threads, of 1, 2, 4 and so on and one a core, and CTranslate2 in how many
    workers, a runtime decodes most tokens a second of each question: the better of two tries, after
    one to warm up."""
    numbers = sorted({THREADS, *(2**n for n in range(THREADS.bit_length()))})
    specs = [replace(spec, threads=threads) for threads in numbers]
    if spec.who.startswith("CTranslate2"):
        specs += [replace(spec, threads=THREADS // n, workers=n) for n in numbers[1:]]
    rates: dict[Any, dict[Decoding, float]] = {key: {} for key in questions}
    for tried in specs:
        contender = Contender(tried)
        for key, question in questions.items():
            contender.ask(*question)
            rates[key][tried] = max(contender.ask(*question)[2] for _ in range(2))
        contender.close()
    return {key: max(found, key=found.__getitem__) for key, found in rates.items()}


def agreement(specs: list[Decoding], console: Console) -> None:
    """How many of 512 sources give our tokens, and how far the beams' scores are from ours."""
    contenders = {spec.who: Contender(spec) for spec in specs}
    sources = random_sources(512, 1, 20)
    expected, _, _ = contenders["ours"].ask("greedy", sources, 50)
    pairs = zip(expected, sources, strict=True)
    right = sum(row == [*source[-2::-1], EOS_ID] for row, source in pairs)
    hypotheses, scores, _ = contenders["ours"].ask("scored beam", sources, 50)
    table = Table("who", "greedy tokens equal", "beam 5 tokens equal", "largest score difference")
    table.title = f"agreement on 512 sources of 1 to 20 symbols; {right} of ours are right"
    for who in list(contenders)[1:]:
        greedy, _, _ = contenders[who].ask("greedy", sources, 50)
        rows, theirs, _ = contenders[who].ask("scored beam", sources, 50)
        far = max(abs(a - b) for a, b in zip(scores, theirs, strict=True))
        equal = [sum(map(list.__eq__, *pair)) for pair in ((greedy, expected), (rows, hypotheses))]
        table.add_row(who, *(f"{n} of 512" for n in equal), f"{far:.1e}")
    for process in contenders.values():
        process.close()
    console.print(table)


# All of them ---------------------------------------------------------------------------------

PARTS = {"training": training, "decoding": decoding}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, help="default: all")
    parser.add_argument("--sizes", nargs="+", type=int, choices=WIDTHS, default=WIDTHS)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--quick", action="store_true", help="smallest size, one short repetition")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a stretch of training")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds = 1, 0.5
    console = Console(width=None if sys.stdout.isatty() else 110)
    versions = (f"{name} {installed(name)}" for name in ("torch", "transformers", "ctranslate2"))
    console.print(f"{processor_name()}, {THREADS} cores, {', '.join(versions)}")
    for name in options.only or PARTS:
        PARTS[name](options, console)


if __name__ == "__main__":
    main()
