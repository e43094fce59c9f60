"""The harm that every fault does: broken trainings beside sound ones, five seeds each.

    python scripts/fault_harm.py [--seeds 5] [--jobs 1] [--out runs/fault_harm] [--only GROUP ...]

Each fault is trained where it does visible harm: on configs/textbook.yaml with the changes of its
group. A group is a sweep, so the same command goes on where it was stopped. Some faults do harm
only to weights that were trained without them: `planted` plants them into the sound runs of the
group `textbook`. Prints the table of docs/teaching.md: exact match on test pairs in range, seed by
seed; the range of the last training and validation losses. Runs that have failed are left out.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import toytrans
from toytrans.config.names import FaultName
from toytrans.training.faults import plant
from toytrans.training.run import RunFolder

TEXTBOOK = Path(__file__).parent.parent / "configs" / "textbook.yaml"
HEADINGS = ("group", "fault", "exact match, seed by seed", "training loss", "validation loss")


class Group(NamedTuple):
    """Faults that are trained on one config. changes: of keys of configs/textbook.yaml."""

    faults: Sequence[FaultName]
    changes: dict[str, str]


GROUPS = {
    "textbook": Group(
        (
            "no_causal",
            "triangle_off_by_one",
            "pad_visible",
            "mask_flipped",
            "labels_not_shifted",
            "pad_is_eos",
            "wrong_start",
            "no_position",
            "no_residual",
        ),
        {},
    ),
    "one_head": Group(("no_scale",), {"model.n_heads": "1"}),
    "mixed": Group(
        ("loss_on_pads", "batch_mean_of_means"),
        {
            "data.symbols": "4",
            "data.train_examples": "512",
            "data.train_length": "[1, 8]",
            "data.batch_tokens": "10240",
            "train.max_steps": "60",
        },
    ),
}


PLANTED: Sequence[FaultName] = ("wrong_scale", "no_scale", "no_norm", "no_feed_forward")
"""Planted into models that were trained without a fault."""


def measure(name: str, group: Group, seeds: int, jobs: int, out: Path) -> toytrans.Comparison:
    """The sound model and every fault of a group, trained and measured."""
    grid = {"fault": ["null", *group.faults]} | {key: [v] for key, v in group.changes.items()}
    return toytrans.sweep(TEXTBOOK, out / name, seeds=range(seeds), grid=grid, jobs=jobs)


def rows(name: str, found: toytrans.Comparison) -> list[tuple[str, ...]]:
    """A row for each fault, the sound model first."""
    table: list[tuple[str, ...]] = []
    for group in found.groups:
        exact = [member.values["in_range"] for member in group.counted]
        losses, validation = [], []
        for member in group.counted:
            records = RunFolder.open(member.path).records
            losses.append(records[-1]["loss"])
            validation.append(records[-1]["valid_loss"])
        if exact:
            fault = group.members[0].config.fault or "none"
            shares = " ".join(f"{value:.3f}" for value in exact)
            table.append((name, fault, shares, span(losses), span(validation)))
    return table


def planted(sound: Sequence[Path]) -> list[tuple[str, ...]]:
    """A row for each fault that is planted after training: exact match seed by seed, and the range
    of the test losses in range."""
    table: list[tuple[str, ...]] = []
    for fault in PLANTED:
        parts = []
        for path in sound:
            run = toytrans.load(path)
            plant(fault, run.model)
            parts.append(run.evaluate().to_dict()["in_range"])
        shares = " ".join(f"{part['exact_match']:.3f}" for part in parts)
        table.append(("planted", fault, shares, "-", span([part["loss"] for part in parts])))
    return table


def span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*GROUPS, "planted"]
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/fault_harm"))
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    shown = [HEADINGS, ("---",) * len(HEADINGS)]
    for name in given.only:
        if name == "planted":
            found = measure("textbook", Group((), {}), given.seeds, given.jobs, given.out)
            shown += planted([member.path for member in found.groups[0].counted])
        else:
            shown += rows(name, measure(name, GROUPS[name], given.seeds, given.jobs, given.out))
    print("\n".join(f"| {' | '.join(row)} |" for row in shown))


if __name__ == "__main__":
    main()
