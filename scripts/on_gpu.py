"""The tables of `bench.py --device cuda`: training and decoding on a GPU beside eager peers.

Peers get random rows, ours buckets, of the same number of padded tokens. Those of the peers are on
the device beforehand; ours are made in between. All have dropout 0.1 and sinusoidal positions; ours
has anchored ones too. The share of the peak is that of real tokens' arithmetic in a large bf16
product. Each row is printed when it is measured, in case the time is up.
"""

import argparse
import statistics
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contenders import THREADS, Contender, Decoding, Size, Training
from rich.console import Console
from rich.table import Table

SIZES = (Size(64, 2, 4, 25), Size(256, 3, 8, 40), Size(1024, 6, 16, 40))
TOKENS = (4096, 16_384, 65_536)
ROWS = (64, 512, 4096)

CONFIG = """
data: {task: reverse, symbols: 100, train_length: [1, 20], batch_tokens: 2048}
model: {d_model: 128, positions: sinusoidal, norm: post}
train: {max_steps: STEPS, lr: 1e-3, warmup_steps: WARMUP}
"""


def parts_of(parser: argparse.ArgumentParser, only: list[str] | None) -> tuple[str, ...]:
    """What is measured on a GPU; an error of the command line without one."""
    import torch

    if not torch.cuda.is_available():
        parser.exit(2, "bench.py: --device cuda: no CUDA device here\n")
    if unfit := {"solve", "precision"} & set(only or ()):
        parser.error(f"--device cuda has training and decoding, no {', '.join(sorted(unfit))}")
    return ("training", "decoding")


def training_specs(size: Size, tokens: int, device: str) -> list[Training]:
    """Ours, eager in bf16 and as CUDA graphs in each precision; then the peers."""
    rows = max(1, tokens // (size.longest + 3))  # S + T of a pair of mean length
    base = Training("ours", size, rows, bucketed=True, device=device)
    ours = [replace(base, precision=kind, recorded=True) for kind in ("bf16", "fp32")]
    peers = [("nn.Transformer", "fp32"), ("nn.Transformer", "bf16"), ("BART", "bf16")]
    return [
        replace(base, precision="bf16"),
        *ours,
        replace(ours[0], positions="anchored"),
        *(replace(base, who=who, precision=kind, bucketed=False) for who, kind in peers),
    ]


def training(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Rates one after the other: a GPU has no neighbours, and memory for one large model."""
    table = Table("size", "tokens", "who", "tokens/s", "range", "ms a step", "of the peak")
    table.title = "training on a GPU; real target tokens a second"
    found, sizes = [], [size for size in SIZES if size.d_model in options.sizes]
    for size in sizes[:1] if options.quick else sizes:
        for tokens in (256,) if options.quick else options.tokens:
            share = None  # of the peak, for each token a second
            for spec in training_specs(size, tokens, options.device):
                try:
                    row = _stretches(spec, options)
                except SystemExit as error:  # say no memory: the others go on
                    console.print(error)
                    continue
                share = row["peak"] / row["rate"] if "peak" in row else share
                if share is not None and spec.who == "ours" and spec.positions == "sinusoidal":
                    row["peak"] = share * row["rate"]
                found.append(asdict(spec) | {"table": "gpu", "tokens": tokens} | row)
                cells = (
                    size.name,
                    f"{tokens:,}",
                    label(spec),
                    f"{row['rate']:,.0f}",
                    f"{min(row['rates']):,.0f}..{max(row['rates']):,.0f}",
                    f"{row['step_ms']:.2f}",
                    f"{row['peak']:.1%}" if "peak" in row else "",
                )
                table.add_row(*cells)
                console.print("  ".join(cells), style="dim")
    console.print(table)
    return found


def _stretches(spec: Training, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of stretches after one to warm up; of the eager step, its share of the peak."""
    contender = Contender(spec)
    contender.ask("steps", max(options.seconds, 0.1))
    answers = [contender.ask("steps", options.seconds) for _ in range(options.repeats)]
    rates = [answer["rate"] for answer in answers]
    row = {"rate": statistics.median(rates), "rates": rates}
    row["step_ms"] = statistics.median(answer["step_ms"] for answer in answers)
    if spec.who == "ours" and not spec.recorded:  # a record shows no products
        row |= contender.ask("shares", 0)
    contender.close()
    return row


def label(spec: Training) -> str:
    words = [spec.who, spec.precision] + [spec.positions] * (spec.positions != "sinusoidal")
    return " ".join(words + ["recorded" if spec.recorded else "eager"] * (spec.who == "ours"))


def decoding(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """The same trained weights: ours and Hugging Face's generate."""
    from bench import random_sources
    from verify_configs import TOYTRANS, output_of

    table = Table("rows", "search", "who", "tokens/s", "range", "ours to it")
    table.title = "decoding rows of 20 tokens on a GPU: the same weights, d 128, 2+2"
    found = []
    with tempfile.TemporaryDirectory() as folder:
        config, run = Path(folder) / "decoding.yaml", Path(folder) / "run"
        steps, warmup = ("20", "5") if options.quick else ("4000", "300")
        config.write_text(CONFIG.replace("STEPS", steps).replace("WARMUP", warmup))
        device = ["--device", options.device]
        device += ["--set", "train.cuda_graphs=on"] if options.device == "cuda" else []
        output_of([*TOYTRANS, "train", "--config", str(config), "--out", str(run), *device])
        base = Decoding("ours", str(run), folder, THREADS, device=options.device)
        specs = [base, replace(base, who="HF generate")]
        contenders = [Contender(spec) for spec in specs]
        for rows in (8,) if options.quick else ROWS:
            for how in ("greedy", "beam"):
                question = (how, random_sources(rows, 20, 20), 50, options.seconds)
                rates: list[list[float]] = [[] for _ in specs]
                for repeat in range(options.repeats + 1):
                    for contender, so_far in zip(contenders, rates, strict=True):
                        rate = contender.ask(*question)[2]
                        if repeat:  # after one to warm up
                            so_far.append(rate)
                for spec, each in zip(specs, rates, strict=True):
                    ratio = statistics.median(a / b for a, b in zip(rates[0], each, strict=True))
                    middle = statistics.median(each)
                    cells = (f"{middle:,.0f}", f"{min(each):,.0f}..{max(each):,.0f}")
                    table.add_row(str(rows), how, spec.who, *cells, f"{ratio:.2f}")
                    console.print(f"{rows} {how} {spec.who}: {' '.join(cells)}", style="dim")
                    about = {"rows": rows, "search": how} | asdict(spec)
                    found.append(about | {"rate": middle, "rates": each, "ratio": ratio})
        for contender in contenders:
            contender.close()
    console.print(table)
    return found
