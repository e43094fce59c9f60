"""Kill training 200 times, half of them in the middle of writing, and look for what is lost.

    python scripts/soak.py [--kills N] [--seed S]

Two configs in turn, both with dropout: endless pairs of a task, and pairs of a file. Each round
trains one of them in up to ten pieces (`toytrans.insight.proofs.resume`): every other kill is aimed
at the next of the places of writing in `toytrans.training.failpoint`, the others come at random
moments. It ends with exit code 1 unless nothing was

    lost        a checkpoint that was there is gone after a kill
    unreadable  a checkpoint cannot be loaded, or the killed run does not go on
    differing   weights, optimiser, random states, records or counters at the end of a round are not
                bit for bit those of the run that was never killed
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

from toytrans.config.load import load_config
from toytrans.insight.proofs.resume import Refused, compare, train_in_pieces, train_straight
from toytrans.training.failpoint import PLACES

KILLS_OF_A_ROUND, STEPS = 10, 120
MODEL = """
model: {d_model: 32, n_heads: 2, d_ff: 64, dropout: 0.2}
train: {precision: fp32}
"""
TASK = "data: {task: reverse, symbols: 20, train_length: [1, 12], batch_tokens: 1024}"
FILES = "data: {files: {train: FILE}, batch_tokens: 1024}"


def configs(folder: Path) -> list[Path]:
    """A config of endless pairs, and one of the pairs of a file."""
    rng = random.Random(0)
    sources = [[rng.choice("abcdefgh") for _ in range(rng.randint(1, 9))] for _ in range(3000)]
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"{' '.join(s)}\t{' '.join(s[::-1])}\n" for s in sources))
    paths = [folder / "endless.yaml", folder / "files.yaml"]
    for path, data in zip(paths, (TASK, FILES.replace("FILE", str(pairs))), strict=True):
        path.write_text(data + MODEL)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    places = deque(rng.sample(PLACES, len(PLACES)))
    kills, tally, began = [], Counter(lost=0, unreadable=0, differing=0), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="toytrans-soak-") as name:
        trials = []
        for config in configs(Path(name)):
            folder = config.with_suffix("")
            folder.mkdir()
            trials.append(train_straight(load_config(config), folder, STEPS))
        rounds = 0
        while len(kills) < options.kills:
            trial, rounds = trials[rounds % len(trials)], rounds + 1
            run = trial.straight.with_name(f"round-{rounds}")
            most = min(KILLS_OF_A_ROUND, options.kills - len(kills))
            try:
                for kill in train_in_pieces(trial, run, most, rng, places):
                    kills.append(kill)
                    tally.update(lost=bool(kill.lost), unreadable=bool(kill.unreadable))
                    harm = f"{kill.lost} {kill.unreadable}".strip()
                    print(f"{len(kills):4} {kill.place or 'at random':<28} {kill.moment} {harm}")
                failed = [found for found in compare(trial, run) if found.verdict == "FAIL"]
                tally.update(differing=bool(failed))
            except Refused as refusal:
                tally.update(unreadable=1)
                failed = [refusal]
            print(f"     round {rounds}, {trial.config.parent.name}:", *failed or ["equal"])
            sys.stdout.flush()
    aimed = Counter(kill.place for kill in kills if kill.place)
    moments = Counter(kill.moment for kill in kills)
    print(f"{len(kills)} kills in {rounds} rounds, {time.monotonic() - began:.0f} s")
    print("moments:", ", ".join(f"{number} {moment}" for moment, number in moments.items()))
    print("after a resume past step 0:", sum(kill.resumed > 0 for kill in kills))
    print(f"aimed: {aimed.total()}, at each place {min(aimed[place] for place in PLACES)} or more")
    print(", ".join(f"{number} {kind}" for kind, number in tally.items()))
    sys.exit(1 if tally.total() else 0)


if __name__ == "__main__":
    main()
