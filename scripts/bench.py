"""Measure toytrans and its peers in one run, interleaved (A B A B); medians and ratios.

    python scripts/bench.py [--only training decoding solve precision] [--quick] [--json]
    python scripts/bench.py --growth [PICTURE]
    python scripts/bench.py --device cuda [--only training decoding] [--sizes 64] [--tokens 4096]

Needs the extra `bench`. The peers: PyTorch's tutorial trainer around nn.Transformer and Hugging
Face's BART in training, CTranslate2 and Hugging Face's Marian in decoding. Every contender is a
process of its own (contenders.py), in decoding with as many threads and workers as suit it best;
rates of training are real target tokens a second over whole steps: data (made beforehand for the
same work), forward, backward, clip (the tutorial's trainer has none, and gets one for the same work
alone), optimiser.
On a shared machine only ratios within one run mean much.
"""

import argparse
import itertools
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import on_gpu
from contenders import SIZES, THREADS, Contender, Decoding, Size, Training
from rich.console import Console
from rich.table import Table
from verify_configs import CONFIGS, TOYTRANS, output_of
from verify_configs import run as run_config

from toytrans.tokens import EOS_ID, FIRST_SYMBOL_ID

PEERS = ("nn.Transformer", "BART")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    names = ("training", "decoding", "solve", "precision")
    parser.add_argument(
        "--only", nargs="+", choices=names, help="default: all, or with --growth none"
    )
    widths = sorted({size.d_model for size in (*SIZES, *on_gpu.SIZES)})
    parser.add_argument("--sizes", nargs="+", type=int, choices=widths, default=widths)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--growth", nargs="?", type=Path, const=Path("growth.png"))
    parser.add_argument("--quick", action="store_true", help="smallest size, one short repetition")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of a stretch of training; 4, a GPU: 1")
    parser.add_argument("--tokens", nargs="+", type=int, default=on_gpu.TOKENS, help="on a GPU")
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    options = parser.parse_args()
    if options.growth and not options.growth.absolute().parent.is_dir():
        parser.error(f"--growth {options.growth}: there is no such folder")
    if options.device == "cuda":
        names = on_gpu.parts_of(parser, options.only)
    options.seconds = options.seconds or (1.0 if options.device == "cuda" else 4.0)
    if options.quick:
        options.repeats, options.seconds = 1, 0.5
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 110)
    found: dict[str, Any] = {"machine": machine()}
    if options.growth:
        from growth import draw_growth, exponents, measure_growth

        rows = measure_growth(options.quick)
        draw_growth(rows, options.growth)
        found["growth"] = {"rows": rows, "exponents": exponents(rows)}
        console.print(growth_table(found["growth"]["exponents"]))
    parts = {"training": training, "decoding": decoding, "solve": solve, "precision": precision}
    if options.device == "cuda":
        parts |= {"training": on_gpu.training, "decoding": on_gpu.decoding}
    for name in options.only or (() if options.growth else names):
        found[name] = parts[name](options, console)
    if options.json:
        print(json.dumps(found))


def machine() -> dict[str, Any]:
    from toytrans.training.environment import installed, processor_name

    about = {"processor": processor_name(), "cpus": THREADS, "platform": platform.platform()}
    return about | {name: installed(name) for name in ("torch", "transformers", "ctranslate2")}


# Training ------------------------------------------------------------------------------------

TABLES = {
    "as-run": "as people run them: peers 64 random rows, fp32, dropout 0.1; ours the defaults "
    "(buckets, no dropout, precision auto), anchored and sinusoidal",
    "same-work": "same work: the very same padded batches of 64 rows, fp32, dropout 0.1; peers as "
    "they come, and tuned: with our settings of the process",
    "no-dropout": "same work without dropout",
    "best": "each at its best: dropout 0.1, tuned if quicker; rows, precision and buckets of the "
    "sweep's best",
    "profile": "what a step's time goes into (ours, defaults); shares of the step, and of the peak",
}


def training(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Four tables of rates, and what a step's time goes into."""
    found: list[dict[str, Any]] = []
    chosen = [size for size in SIZES if size.d_model in options.sizes]
    sizes = chosen[:1] if options.quick else chosen
    specs_of = {
        "as-run": as_run,
        "same-work": same_work,
        "no-dropout": lambda size: same_work(size, 0.0),
    }
    for name in options.tables:
        if name == "profile":
            found += profile(sizes, console)
            continue
        table = Table("size", "who", "tokens/s", "range", "ours to it", title=TABLES[name])
        for size in sizes:
            if name == "best":
                specs, swept = at_best(size, options, console)
                found += swept
            else:
                specs = specs_of[name](size)
            rates = race(specs, options)
            for spec, answers in zip(specs, rates, strict=True):
                each = [answer["rate"] for answer in answers]
                ratios = [a["rate"] / b["rate"] for a, b in zip(rates[0], answers, strict=True)]
                table.add_row(
                    size.name,
                    label(spec, name == "best"),
                    *spread(each),
                    f"{statistics.median(ratios):.2f}",
                )
                medians = {"rate": statistics.median(each), "ratio": statistics.median(ratios)}
                found.append(asdict(spec) | {"table": name} | medians | {"answers": answers})
        console.print(table)
    return found


def spread(rates: list[float]) -> tuple[str, str]:
    """Median and range."""
    return f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}..{max(rates):,.0f}"


def as_run(size: Size) -> list[Training]:
    ours = [
        Training("ours", size, None, "auto", 0.0, positions=positions)
        for positions in ("anchored", "sinusoidal")
    ]
    return [*ours, *(Training(who, size) for who in PEERS)]


def same_work(size: Size, dropout: float = 0.1) -> list[Training]:
    come = [Training(who, size, dropout=dropout, same=True) for who in ("ours", *PEERS)]
    return [*come, *(replace(spec, tuned=True) for spec in come[1:])]


def at_best(
    size: Size, options: argparse.Namespace, console: Console
) -> tuple[list[Training], list[dict[str, Any]]]:
    """The quickest of every combination for each side, tried once; of a peer tuned, and its
    quickest as it comes. Then what was tried, with its rates."""
    best, swept = [], []
    rows = (64,) if options.quick else (64, 256, 1024)
    for who in ("ours", *PEERS):
        tried = []
        for spec in (
            Training(who, size, n, precision, bucketed=bucketed, tuned=who != "ours")
            for n, precision, bucketed in itertools.product(rows, ("fp32", "bf16"), (False, True))
        ):
            tried.append((once(spec, options.seconds / 2), spec))
        tried.sort(key=lambda pair: -pair[0])
        if who != "ours":
            as_it_comes = replace(tried[0][1], tuned=False)
            tried.append((once(as_it_comes, options.seconds / 2), as_it_comes))
            tried.sort(key=lambda pair: -pair[0])
        listing = ", ".join(f"{label(spec, True)} {rate:,.0f}" for rate, spec in tried)
        console.print(f"{size.name}, sweep: {listing}", style="dim")
        swept += [asdict(spec) | {"table": "sweep", "rate": rate} for rate, spec in tried]
        best.append(tried[0][1])
    return best, swept


def once(spec: Training, seconds: float) -> float:
    """Tokens a second of one stretch after another to warm up."""
    contender = Contender(spec)
    contender.ask("steps", seconds)
    rate: float = contender.ask("steps", seconds)["rate"]
    contender.close()
    return rate


def race(specs: list[Training], options: argparse.Namespace) -> list[list[dict[str, float]]]:
    """Answers of every repetition for each contender, in turn after a warm-up."""
    contenders = [Contender(spec) for spec in specs]
    for contender in contenders:
        contender.ask("steps", options.seconds)
    answers: list[list[dict[str, float]]] = [[] for _ in specs]
    for _ in range(options.repeats):
        for contender, so_far in zip(contenders, answers, strict=True):
            so_far.append(contender.ask("steps", options.seconds))
    for contender in contenders:
        contender.close()
    return answers


def label(spec: Training, swept: bool) -> str:
    words = [f"{spec.who} {spec.positions}" if spec.who == "ours" else spec.who]
    if swept:
        words += [f"{spec.rows} rows", spec.precision, "buckets" if spec.bucketed else "random"]
    return " ".join(words + ["tuned"] * spec.tuned)


def profile(sizes: list[Size], console: Console) -> list[dict[str, Any]]:
    """Shares of the step of the shipped defaults."""
    columns = ("size", "positions", "padded / real", "data", "products", "of the bf16 peak")
    table = Table(*columns, title=TABLES["profile"])
    found = []
    for size in sizes:
        for spec in as_run(size)[:2]:
            contender = Contender(spec)
            contender.ask("steps", 2.0)
            answer = contender.ask("steps", 3.0)
            data = 1e3 * contender.ask("data", 400) / answer["step_ms"]  # over whole pools of them
            shares = contender.ask("shares", 0)
            contender.close()
            given = (data, shares["products"], shares["peak"])
            cells = (f"{share:.1%}" for share in given)
            table.add_row(size.name, spec.positions, f"{answer['padding']:.3f}", *cells)
            about = {"table": "profile", "data": data, "padding": answer["padding"]}
            found.append(asdict(spec) | about | shares)
    console.print(table)
    return found


# Decoding ------------------------------------------------------------------------------------

DECODERS = ("ours", "CTranslate2 float32", "CTranslate2 int8", "HF generate")

DECODING_CONFIG = """
data: {task: reverse, symbols: 100, train_length: [1, 20], batch_tokens: 2048}
model: {d_model: 128, positions: sinusoidal, norm: post}
train: {max_steps: STEPS, lr: 1e-3, warmup_steps: 300}
"""


def decoding(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The same trained weights in every runtime: equal tokens and scores, then speed, each with
    as many threads and workers as suit it best."""
    with tempfile.TemporaryDirectory() as folder:
        config, run = Path(folder) / "decoding.yaml", Path(folder) / "run"
        config.write_text(DECODING_CONFIG.replace("STEPS", "400" if options.quick else "4000"))
        output_of([*TOYTRANS, "train", "--config", str(config), "--out", str(run)])
        questions = {
            (rows, how): (how, random_sources(rows, 20, 20), 50, 1.0)
            for rows, how in itertools.product((64, 512), ("greedy", "beam"))
        }
        on_all_cores = [Decoding(who, str(run), folder, THREADS) for who in DECODERS]
        found: dict[str, Any] = {"agreement": agreement(on_all_cores, console), "speed": []}
        best = {spec.who: quickest(spec, questions) for spec in on_all_cores}
        contenders = {
            spec: Contender(spec) for chosen in best.values() for spec in set(chosen.values())
        }
        table = Table("rows", "search", "who", "threads", "tokens/s", "range", "ours to it")
        table.title = "decoding rows of 20 tokens: the same weights, d 128, 2+2"
        for (rows, how), question in questions.items():
            rates: dict[str, list[float]] = {who: [] for who in DECODERS}
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
                about = {"rows": rows, "search": how} | asdict(spec)
                medians = {"rate": statistics.median(each), "ratio": ratio}
                found["speed"].append(about | medians | {"rates": each})
        console.print(table)
        for contender in contenders.values():
            contender.close()
    return found


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


def random_sources(rows: int, low: int, high: int) -> list[list[int]]:
    draw = random.Random(rows)
    lengths = [draw.randint(low, high) for _ in range(rows)]
    last = FIRST_SYMBOL_ID + 99
    return [
        [draw.randint(FIRST_SYMBOL_ID, last) for _ in range(length)] + [EOS_ID]
        for length in lengths
    ]


def agreement(specs: list[Decoding], console: Console) -> dict[str, Any]:
    """How many of 512 sources give our tokens, and how far the beams' scores are from ours."""
    contenders = {spec.who: Contender(spec) for spec in specs}
    sources = random_sources(512, 1, 20)
    expected, _, _ = contenders["ours"].ask("greedy", sources, 50)
    right = sum(
        row == [*source[-2::-1], EOS_ID] for row, source in zip(expected, sources, strict=True)
    )
    hypotheses, scores, _ = contenders["ours"].ask("scored beam", sources, 50)
    table = Table("who", "greedy tokens equal", "beam 5 tokens equal", "largest score difference")
    table.title = f"agreement on 512 sources of 1 to 20 symbols; {right} of ours are right"
    found: dict[str, Any] = {"right": right}
    for who in DECODERS[1:]:
        greedy, _, _ = contenders[who].ask("greedy", sources, 50)
        rows, theirs, _ = contenders[who].ask("scored beam", sources, 50)
        far = max(abs(a - b) for a, b in zip(scores, theirs, strict=True))
        equal = [sum(map(list.__eq__, *pair)) for pair in ((greedy, expected), (rows, hypotheses))]
        table.add_row(who, *(f"{n} of 512" for n in equal), f"{far:.1e}")
        found[who] = {"greedy_equal": equal[0], "beam_equal": equal[1], "score_difference": far}
    for contender in contenders.values():
        contender.close()
    console.print(table)
    return found


# Time to solve -------------------------------------------------------------------------------


def solved(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Configs and seeds."""
    seeds = range(1) if options.quick else range(5)
    return itertools.product(("joeynmt_reverse", "reverse_sinusoidal"), seeds)


def solve(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Whole commands, start-up included, and their exact match on fresh pairs; and a help page."""
    table = Table("config", "seed", "seconds", "wrong", "in range", title="time to solve")
    found = []
    for name, seed in solved(options):
        seconds, report = run_config(CONFIGS / f"{name}.yaml", seed, None)
        pairs, share = report["examples"], report["exact_match"]
        wrong, in_range = round(pairs * (1 - share)), report["in_range"]["exact_match"]
        row = {"config": name, "seed": seed, "seconds": seconds, "wrong": wrong, "pairs": pairs}
        table.add_row(name, str(seed), f"{seconds:.1f}", f"{wrong} of {pairs}", f"{in_range:.4f}")
        found.append(row | {"in_range": in_range})
    console.print(table)
    each = []
    for _ in range(9):
        began = time.perf_counter()
        output_of([*TOYTRANS, "--help"])
        each.append(time.perf_counter() - began)
    middle = statistics.median(each)
    console.print(f"toytrans --help: {min(each):.2f} to {max(each):.2f} s, median {middle:.2f}")
    return {"configs": found, "help_s": each}


def precision(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """The same config and steps in fp32 and bf16: exact match of each seed."""
    title = "exact match after the same steps (test pairs, in range)"
    table = Table("config", "seed", "fp32", "bf16", title=title)
    found = []
    for name, seed in solved(options):
        matches = {}
        for kind in ("fp32", "bf16"):
            _, report = run_config(
                CONFIGS / f"{name}.yaml", seed, None, (f"train.precision={kind}",)
            )
            matches[kind] = report["in_range"]["exact_match"]
        table.add_row(name, str(seed), *(f"{match:.4f}" for match in matches.values()))
        found.append({"config": name, "seed": seed} | matches)
    console.print(table)
    return found


def growth_table(slopes: dict[str, tuple[float, float]]) -> Table:
    table = Table("axis", "step time", "memory", title="growth: exponents of the upper half")
    for axis, (step, memory) in slopes.items():
        table.add_row(axis, f"{step:.2f}", f"{memory:.2f}")
    return table


if __name__ == "__main__":
    main()
