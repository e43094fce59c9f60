"""Decode 1,000 sequences in every runtime of `toytrans export`, and compare the tokens.

    python scripts/export_check.py [--positions NAME ...] [--formats NAME ...] [--rows 1000]

Trains a small model for each position scheme with pre- and post-norm, exports it in every format
that expresses it, and decodes in batches of 100. A cell holds the rows with equal tokens, and the
tokens a second of that runtime with one thread. Below the table: each row that differs, with the
gap in nats between the two likeliest tokens where it first does. Ends with exit code 1 if a row
differs whose gap is not a near-tie. Needs the extra `export`.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from toytrans import export
from toytrans.config.names import ExportFormat, PositionName
from toytrans.errors import UserError
from toytrans.export.shared import Decoder, Rows
from toytrans.tokens import BOS_ID, EOS_ID
from toytrans.training.run import Run, RunFolder

CONFIG = """\
data: {task: reverse, symbols: 20, train_length: [1, 20], valid_examples: 100, test_examples: 100}
model: {d_model: 32, n_heads: 4, d_ff: 64}
train: {max_steps: 200, lr: 3.0e-3, precision: fp32}
"""
SCHEMES = {name: {"positions": name} for name in get_args(PositionName)}
SCHEMES["random sinusoidal"] = {"positions": "sinusoidal", "random_positions": "true"}
NEAR_TIE = 1e-4
"""Nats; fp32 rounds logits of a few nats by less."""


class Timed:
    """A decoder that counts its tokens and seconds."""

    def __init__(self, decode: Decoder) -> None:
        self.decode, self.tokens, self.seconds = decode, 0, 0.0

    def __call__(self, src: Rows, most: int) -> Rows:
        began = time.perf_counter()
        rows = self.decode(src, most)
        self.seconds += time.perf_counter() - began
        self.tokens += sum(map(len, rows))
        return rows


def trained(folder: Path, scheme: str, norm: str) -> Run:
    """A small run."""
    config, out = folder / "c.yaml", folder / f"{scheme}-{norm}".replace(" ", "-")
    config.write_text(CONFIG)
    options = SCHEMES[scheme] | {"norm": norm}
    sets = [word for key, value in options.items() for word in ("--set", f"model.{key}={value}")]
    command = [sys.executable, "-m", "toytrans", "train", str(config), "--out", str(out), *sets]
    subprocess.run(command, check=True, capture_output=True)
    return RunFolder.open(out).load("last", "cpu")


def gap(run: Run, src: list[int], ours: list[int], theirs: list[int]) -> float:
    """Nats between the two likeliest tokens where two answers part."""
    both = itertools.zip_longest(ours, theirs)
    same = next(place for place, (our, their) in enumerate(both) if our != their)
    with torch.no_grad():
        logits = run.model(torch.tensor([src]), torch.tensor([[BOS_ID, *ours[:same]]]))[0, -1]
    best, second = logits[EOS_ID:].topk(2).values.tolist()
    return float(best - second)


def cell(run: Run, name: ExportFormat, folder: Path, src: Rows) -> tuple[str, list[float]]:
    """What the table says of a run in a format, and the gaps of the rows that differ."""
    path = folder / f"{run.path.name}-{name}"
    try:
        export.export(run, name, path)
    except UserError:
        return "refused", []
    decode = Timed(export.decoder_of(name, path))
    pairs = export.compare(run, decode, src)
    answers = zip(src, pairs, strict=True)
    gaps = [gap(run, row, *pair) for row, pair in answers if pair[0] != pair[1]]
    equal = len(pairs) - len(gaps)
    return f"{equal:,} ({decode.tokens / decode.seconds:,.0f}/s)", gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", nargs="*", default=list(SCHEMES), choices=list(SCHEMES))
    names: Any = list(get_args(ExportFormat))
    parser.add_argument("--formats", nargs="*", default=names, choices=names)
    parser.add_argument("--rows", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| positions, norm | toytrans | {' | '.join(given.formats)} |")
    print("|---" * (2 + len(given.formats)) + "|")
    differing: list[str] = []
    worst = 0.0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for scheme, norm in itertools.product(given.positions, ("pre", "post")):
            run = trained(folder, scheme, norm)
            src = export.random_sources(run, given.rows, 20)
            own = Timed(lambda rows, most, run=run: export.greedy(run, rows, most))
            export.compare(run, own, src)
            cells = [f"{own.tokens / own.seconds:,.0f}/s"]
            for name in given.formats:
                shown, gaps = cell(run, name, folder, src)
                cells.append(shown)
                differing += [f"{scheme}, {norm}, {name}: gap {value:.1e} nats" for value in gaps]
                worst = max([worst, *gaps])
            print(f"| {scheme}, {norm} | {' | '.join(cells)} |", flush=True)
    print("\n".join(["", *differing]) if differing else "\nno row differs")
    sys.exit(worst > NEAR_TIE)


if __name__ == "__main__":
    main()
