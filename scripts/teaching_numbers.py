"""Measures what docs/teaching.md says of faults, docs/lessons/3-why.md of parts that are left out,
and docs/results.md of rivals:

    python scripts/teaching_numbers.py faults|parts|rivals [--seeds 5] [--folder runs/teaching]

Each training is an ordinary run below the folder, so the same command goes on where it was stopped.
At its end a section prints its table as the page has it, and `parts` draws docs/lessons.png. On one
core `faults` takes about half an hour, `parts` an hour, and `rivals` ten minutes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import toytrans
from toytrans.data.batches import Batch
from toytrans.data.open import open_dataset
from toytrans.figures import drawn
from toytrans.model.build import plant
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID
from toytrans.training.session import new_model
from toytrans.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
Changes = dict[str, Any]

SOLVED = 0.99


def trained(config: Any, folder: Path, seed: int, changes: Changes) -> toytrans.Run:
    """A run of a config with some keys changed, which is trained unless it is there already."""
    print(f"{folder.name}, seed {seed}", flush=True)
    out = folder / f"seed-{seed}"
    return toytrans.train(config, out, seed=seed, changes=changes, resume=out.exists())


def span(values: list[float]) -> str:
    """The smallest and the largest of some losses."""
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low}..{high}"


# Faults: docs/teaching.md, "What each mistake does" --------------------------------------------

TEXTBOOK_FAULTS = (
    *("no_causal", "triangle_off_by_one", "pad_visible", "mask_flipped", "labels_not_shifted"),
    *("pad_is_eos", "wrong_start", "no_position", "no_residual"),
)
ONE_BATCH = {
    "data.symbols": 4,
    "data.train_examples": 512,
    "data.train_length": [1, 8],
    "data.batch_tokens": 10240,
    "train.max_steps": 60,
}
GROUPS: dict[str, tuple[tuple[str, ...], Changes]] = {
    "textbook": (TEXTBOOK_FAULTS, {}),
    "one_head": (("no_scale",), {"model.n_heads": 1}),
    "mixed": (("loss_on_pads", "batch_mean_of_means"), ONE_BATCH),
}
"""The faults that are trained, and what is changed in configs/textbook.yaml, so that they do harm
that can be seen."""

PLANTED = ("wrong_scale", "no_scale", "no_norm", "no_feed_forward")
"""Faults that do harm only to weights that were trained without them."""


def faults(folder: Path, seeds: range) -> Iterator[str]:
    """Each fault beside the sound model: exact match of the best checkpoint on test pairs in range,
    and the last losses of training."""
    yield "| group | fault | exact match, seed by seed | training loss | validation loss |"
    yield "|---|---|---|---|---|"
    for group, (names, changes) in GROUPS.items():
        for fault in (None, *names):
            runs = [
                trained("textbook", folder / f"{group}-{fault}", seed, changes | {"fault": fault})
                for seed in seeds
            ]
            exact = " ".join(f"{in_range(run)['free_exact_match']:.3f}" for run in runs)
            losses = [
                span([run.records[-1][key] for run in runs]) for key in ("loss", "valid_loss")
            ]
            yield f"| {group} | {fault or 'none'} | {exact} | {' | '.join(losses)} |"
    for fault in PLANTED:
        parts = []
        for seed in seeds:
            sound = GROUPS["textbook"][1] | {"fault": None}
            run = trained("textbook", folder / "textbook-None", seed, sound)
            plant(fault, run.model)
            parts.append(in_range(run))
        exact = " ".join(f"{part['free_exact_match']:.3f}" for part in parts)
        yield f"| planted | {fault} | {exact} | - | {span([part['loss'] for part in parts])} |"


def in_range(run: toytrans.Run) -> dict[str, Any]:
    return run.evaluate().parts["in_range"]


# Parts: docs/lessons/3-why.md, section 5 --------------------------------------------------------

DEEP: dict[str, Changes] = {
    "data": {
        "task": "reverse",
        "symbols": 20,
        "train_length": [1, 10],
        "test_length": [1, 10],
        "batch_tokens": 1024,
        "valid_examples": 500,
        "test_examples": 10,
    },
    "model": {"norm": "pre", "n_encoder_layers": 6, "n_decoder_layers": 6},
    "train": {
        "max_steps": 1500,
        "lr": 2e-3,
        "eval_every": 50,
        "stop_at_exact_match": SOLVED,
        "precision": "fp32",
    },
}
PARTS: dict[str, Changes] = {
    "nothing": {},
    "positions": {"fault": "no_position"},
    "the scale": {"fault": "no_scale"},
    "residual connections": {"fault": "no_residual"},
    "layer norms": {"fault": "no_norm"},
    "feed-forward layers": {"fault": "no_feed_forward"},
    "all heads but one": {"model.n_heads": 1},
    "pre-norm (post-norm with warm-up)": {"model.norm": "post"},
    "pre-norm and warm-up": {"model.norm": "post", "train.warmup_steps": 0},
}
"""What is left out of a deep and narrow model, and how."""


def parts(folder: Path, seeds: range) -> Iterator[str]:
    """The best exact match on validation pairs, and the steps and seconds that it took."""
    yield "| left out | best exact match, seed by seed | steps to 0.99 | seconds |"
    yield "|---|---|---|---|"
    curves = {}
    for number, (part, changes) in enumerate(PARTS.items()):
        runs = [trained(DEEP, folder / str(number), seed, changes) for seed in seeds]
        curves[part] = [measured(run) for run in runs]
        best = [max(shares) for _, shares in curves[part]]
        solved = [steps[-1] for steps, shares in curves[part] if max(shares) >= SOLVED]
        steps = f"{statistics.median(solved):,.0f}" if len(solved) == len(runs) else "-"
        seconds = statistics.median(run.records[-1]["elapsed_s"] for run in runs)
        yield f"| {part} | {' '.join(f'{x:.2f}' for x in best)} | {steps} | {seconds:.0f} |"
    draw = partial(draw_parts, curves)
    picture = drawn((9, 7), draw, "png")
    (folder / "lessons.png").write_bytes(picture)
    yield f"{folder / 'lessons.png'} is the picture for docs/lessons.png"


def measured(run: toytrans.Run) -> tuple[list[int], list[float]]:
    """The steps at which a run was evaluated, and its exact match there."""
    found = [record for record in run.records if "valid_exact_match" in record]
    return [x["step"] for x in found], [x["valid_exact_match"] for x in found]


def draw_parts(curves: dict[str, list[tuple[list[int], list[float]]]], figure: Any) -> None:
    """Exact match over steps: a panel for each part, a line for each seed."""
    panels = figure.subplots(3, 3, sharex=True, sharey=True)
    for panel, (part, lines) in zip(panels.flat, curves.items(), strict=True):
        for steps, shares in lines:
            panel.plot(steps, shares, linewidth=1.2)
        panel.set_title(f"without {part}" if part != "nothing" else "whole", fontsize=9)
        panel.set_ylim(-0.03, 1.03)
        panel.grid(alpha=0.3)
    figure.supxlabel("steps")
    figure.supylabel("exact match on validation pairs, free-running")


# Rivals: docs/results.md, "Rivals" -------------------------------------------------------------

SMALL: dict[str, Changes] = {
    "data": {
        "task": "reverse",
        "symbols": 20,
        "train_length": [1, 10],
        "test_length": [1, 20],
        "batch_tokens": 512,
        "valid_examples": 300,
    },
    "train": {"max_steps": 1000, "lr": 2e-3, "eval_every": 100, "precision": "fp32"},
}
EXAMPLES = ROOT / "configs/examples"
RIVALS: dict[str, Changes] = {
    "transformer": {"model.norm": "pre"},
    "rnn": {"model.class": f"{EXAMPLES}/rnn.py:Recurrent", "model.d_model": 88},
    "conv": {"model.class": f"{EXAMPLES}/conv.py:Sinusoidal", "model.d_model": 72},
}
"""Two layers on either side, and within 3% as many parameters as the first."""

LENGTHS, STEP_TOKENS, ROUNDS = (8, 128), 1024, 7
"""Lengths at which training is timed, the target tokens of a timed step, and how often."""


def rivals(folder: Path, seeds: range) -> Iterator[str]:
    """Exact match in range and beyond as means over lengths, the step of 0.99, and the speed."""
    last = f"first step with {SOLVED} on validation pairs"
    yield f"| model | lengths 1 to 10 | lengths 11 to 20 | {last} |"
    yield "|---|---|---|---|"
    trainers = {}
    for name, changes in RIVALS.items():
        runs = [trained(SMALL, folder / name, seed, changes) for seed in seeds]
        cells = []
        for lengths in (range(1, 11), range(11, 21)):
            means = (mean_over(run, lengths) for run in runs)
            cells.append(" ".join(f"{mean:.3f}" for mean in means))
        reached = [first_solved(run) for run in runs]
        yield f"| {name} | {' | '.join(cells)} | {', '.join(reached)} |"
        settings = runs[0].settings
        dataset = open_dataset(settings)
        model = new_model(settings, dataset, "fp32", torch.device("cpu")).train()
        trainers[name] = Trainer(settings, dataset, model, "fp32")
    rates = speeds(trainers)
    for name, rate in rates.items():
        ratios = (rate[n] / rates["transformer"][n] for n in LENGTHS)
        yield f"{name}: {' and '.join(f'{x:.2f}' for x in ratios)} times the tokens a second"


def first_solved(run: toytrans.Run) -> str:
    """The first step at which a run was right on so many validation pairs, or "never"."""
    steps = (step for step, share in zip(*measured(run), strict=True) if share >= SOLVED)
    return next((f"{step:,}" for step in steps), "never")


def mean_over(run: toytrans.Run, lengths: range) -> float:
    """The mean over lengths of exact match, on 100 pairs of each."""
    rows = run.evaluate((1, 20), examples=2000).by_length
    return statistics.fmean(
        row.numbers["free_exact_match"] for row in rows if row.shortest in lengths
    )


def speeds(trainers: dict[str, Trainer]) -> dict[str, dict[int, float]]:
    """Target tokens a second of whole steps by length, as medians. The models take turns, so that
    whatever else the machine does meets all of them."""
    taken: dict[str, dict[int, list[float]]] = {
        name: {length: [] for length in LENGTHS} for name in trainers
    }
    for number in range(ROUNDS + 1):
        for length in LENGTHS:
            batch = full_batch(length)
            for name, trainer in trainers.items():
                began = time.process_time()
                trainer.update([batch], batch.target_tokens, 1e-3)
                if number:  # the first round warms up
                    seconds = time.process_time() - began
                    taken[name][length].append(batch.target_tokens / seconds)
    return {
        name: {length: statistics.median(rates) for length, rates in by_length.items()}
        for name, by_length in taken.items()
    }


def full_batch(length: int) -> Batch:
    """Sequences without pads, of `length` places each."""
    rows = max(1, STEP_TOKENS // length)
    ids = torch.randint(FIRST_SYMBOL_ID, FIRST_SYMBOL_ID + 20, (rows, length - 1))
    start, end = torch.full((rows, 1), BOS_ID), torch.full((rows, 1), EOS_ID)
    ended = torch.cat((ids, end), 1)
    return Batch(ended, torch.cat((start, ids), 1), ended)


SECTIONS: dict[str, Callable[[Path, range], Iterator[str]]] = {
    "faults": faults,
    "parts": parts,
    "rivals": rivals,
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/teaching"))
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    section = SECTIONS[given.section]
    print("\n".join(list(section(given.folder / given.section, range(given.seeds)))))


if __name__ == "__main__":
    main()
