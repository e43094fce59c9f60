"""What breaks without it: one part of the transformer left out at a time, five seeds each.

    python scripts/lessons.py [--seeds 5] [--processes 1] [--results FILE] [--picture FILE]

Trains a deep and narrow model (6+6 layers, d_model 64, sinusoidal positions) to reverse up to ten
of twenty symbols until 99% of the validation pairs are right, at most 1,500 steps, each variant
with each seed in a process of its own. Prints exact match, steps and seconds, and draws exact match
over steps. What was measured is kept in --results and not measured again. The picture needs
matplotlib (extra `plot`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from toytrans.config.schema import ModelConfig
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary

CONFIG = """\
data: {task: reverse, symbols: 20, train_length: [1, 10], test_length: [1, 10]}
model: {norm: pre, n_encoder_layers: 6, n_decoder_layers: 6}
train: {max_steps: 1500, lr: 2e-3, eval_every: 50, stop_at_exact_match: 0.99, precision: fp32}
"""
SMALLER = ("data.batch_tokens=1024", "data.valid_examples=500", "data.test_examples=10")

VARIANTS = {
    "whole": (),
    "no positions": ("fault=no_position",),
    "no scale": ("fault=no_scale",),
    "no residual": ("fault=no_residual",),
    "no norm": ("fault=no_norm",),
    "no feed-forward": ("fault=no_feed_forward",),
    "one head": ("model.n_heads=1",),
    "post-norm": ("model.norm=post",),
    "post-norm, no warm-up": ("model.norm=post", "train.warmup_steps=0"),
}
"""What is changed in each; the last but one is there to tell what the last one lacks."""


def measure(variant: str, seed: int) -> dict:
    """One training: the steps of every evaluation, exact match at each, seconds."""
    sets = [
        word for text in (f"seed={seed}", *SMALLER, *VARIANTS[variant]) for word in ("--set", text)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config, run = Path(folder) / "lesson.yaml", Path(folder) / "run"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "toytrans", "train", "--config", str(config)]
        done = subprocess.run(
            [*command, "--out", str(run), *sets], capture_output=True, text=True, env=environment()
        )
        if done.returncode not in (0, 1):  # 1: training diverged, which is a result
            raise SystemExit(f"{variant}, seed {seed}: exit code {done.returncode}\n{done.stderr}")
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = [record for record in records if "valid_exact_match" in record]
    return {
        "variant": variant,
        "seed": seed,
        "steps": [record["step"] for record in measured],
        "exact_match": [record["valid_exact_match"] for record in measured],
        "seconds": records[-1]["elapsed_s"],
        "diverged": done.returncode == 1,
    }


def environment() -> dict[str, str]:
    """One thread a training: several run side by side."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def measure_all(seeds: int, processes: int, results: Path) -> list[dict]:
    """Every variant with every seed; those in the results file are taken from there."""
    known = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    settings = [CONFIG, SMALLER, VARIANTS]
    if any(row["settings"] != json.loads(json.dumps(settings)) for row in known):
        raise SystemExit(f"{results}: measured with other settings; remove it, or name another")
    have = {(row["variant"], row["seed"]) for row in known}
    wanted = [(variant, seed) for seed in range(seeds) for variant in VARIANTS]
    with ThreadPoolExecutor(processes) as pool, results.open("a") as file:
        for row in pool.map(
            lambda pair: measure(*pair), [pair for pair in wanted if pair not in have]
        ):
            file.write(json.dumps(row | {"settings": settings}) + "\n")
            file.flush()
            known.append(row)
            print(
                f"{row['variant']}, seed {row['seed']}: {max(row['exact_match'], default=0.0):.3f}",
                file=sys.stderr,
            )
    return [row for row in known if (row["variant"], row["seed"]) in wanted]


def table(rows: list[dict]) -> Table:
    """Exact match of every seed, the median of steps and seconds, parts in the order above."""
    shown = Table("variant", title="reverse, 20 symbols, 1 to 10, 6+6 layers, d_model 64")
    for heading in ("best exact match, seed by seed", "steps to 0.99", "seconds"):
        shown.add_column(heading, justify="right")
    for variant in VARIANTS:
        found = sorted((r for r in rows if r["variant"] == variant), key=lambda row: row["seed"])
        if not found:
            continue
        solved = [row["steps"][-1] for row in found if max(row["exact_match"], default=0.0) >= 0.99]
        steps = f"{statistics.median(solved):,.0f}" if len(solved) == len(found) else "-"
        if solved and len(solved) < len(found):
            steps = f"{len(solved)} of {len(found)} seeds"
        shown.add_row(
            variant,
            " ".join(f"{max(row['exact_match'], default=0.0):.2f}" for row in found),
            steps,
            f"{statistics.median(row['seconds'] for row in found):.0f}",
        )
    return shown


def order_blindness(seeds: int) -> float:
    """The largest difference, over seeds, between the encoding of a permuted source and the
    permuted encoding of the source: no positions, fp64."""
    vocabulary = Vocabulary(tuple(str(k) for k in range(20)))
    largest = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(positions="none"), vocabulary).double().eval()
        src = torch.randint(3, 23, (5, 11))
        order = torch.randperm(11)
        with torch.no_grad():
            apart = model.encode(src[:, order]) - model.encode(src)[:, order]
        largest = max(largest, float(apart.abs().max()))
    return largest


def draw(rows: list[dict], path: Path) -> None:
    """Exact match over steps, a small picture a variant, a line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        3, 3, figsize=(9, 7), sharex=True, sharey=True, layout="constrained"
    )
    for axis, variant in zip(axes.flat, VARIANTS, strict=True):
        for row in rows:
            if row["variant"] == variant:
                axis.plot(row["steps"], row["exact_match"], linewidth=1.2)
        axis.set_title(variant, fontsize=10)
        axis.set_ylim(-0.03, 1.03)
        axis.grid(alpha=0.3)
    figure.supxlabel("steps")
    figure.supylabel("exact match on validation pairs, free-running")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("lessons.jsonl"))
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    rows = measure_all(given.seeds, given.processes, given.results)
    Console(width=110).print(table(rows))
    apart = order_blindness(given.seeds)
    print(
        f"order: a position-free encoder of a permuted source is the permuted one, to {apart:.1e}"
    )
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
