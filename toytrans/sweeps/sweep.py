"""A sweep: one training for every combination of values and every seed.

    FOLDER/LABEL-sSEED-HASH/       an ordinary run, with eval.json
    FOLDER/sweep.json              what was asked for last
    FOLDER/table.csv               the numbers of all runs in the folder
    FOLDER/table.json              the same rows below their columns, with configs and environment
    FOLDER/plot.png                the same as a picture

The same command goes on where it was stopped. Another grid or another config in the same folder
adds runs: their numbers are further groups of the table.
"""

import contextlib
import platform
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from toytrans import __version__
from toytrans.config.schema import Config, Settings
from toytrans.data.formats import sha256_of
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.selection import pairs_of_split
from toytrans.documents import csv_bytes
from toytrans.errors import UserError
from toytrans.files import (
    disk_errors,
    drafts_in,
    json_text,
    write_file,
    write_json,
)
from toytrans.measurement import Measure, split_of
from toytrans.model.build import check_fault
from toytrans.resolve import resolve
from toytrans.sweeps.comparison import SWEEP, Comparison, cell, compare, read_sweep
from toytrans.sweeps.groups import without_seeds
from toytrans.sweeps.trial import Ended, Trial, by_names, check_ray, path_of, run_here, run_on_ray
from toytrans.table import Table
from toytrans.training.checkpoint import saved_steps
from toytrans.training.devices import choose_device, usable_cores
from toytrans.training.folder import RUNS
from toytrans.training.provenance import settings_of_numbers

SWEEPS = RUNS / "sweeps"
MOST_TRIALS = 10_000

Where = Literal["local", "ray"]

LoadConfig = Callable[[Sequence[str]], Config]
"""The config with some `section.key=value` laid over it. Raises UserError."""


@dataclass(frozen=True)
class Sweep:
    """Some trials in a folder. asked: what was asked for, as sweep.json keeps it."""

    folder: Path
    trials: Sequence[Trial]
    asked: Mapping[str, Any]

    def waiting(self) -> list[Trial]:
        """The trials that are not done. Raises UserError."""
        return [trial for trial in self.trials if not trial.is_done()]

    def beginning(self) -> str:
        """What will be run: how many runs are finished, go on or start."""
        waiting = self.waiting()
        going_on = sum(bool(saved_steps(trial.path)) for trial in waiting)
        count = len(self.trials)
        counts = {
            "finished": count - len(waiting),
            "going on": going_on,
            "new": len(waiting) - going_on,
        }
        parts = [f"{number} {what}" for what, number in counts.items() if number]
        return f"{self.folder}: {count} run{'s' * (count > 1)} ({', '.join(parts)})"

    def train(self, jobs: int | None = None, on: Where = "local") -> Generator[list[Ended]]:
        """Train what is missing; yields the trials that have ended, about once a second. Closed
        early, it lets every training save. Raises UserError. Arguments: as in `toytrans.sweep`."""
        with disk_errors(self.folder, SWEEP):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / SWEEP, {"made": made(), **self.asked})
        run = run_on_ray if on == "ray" else run_here
        with contextlib.closing(run(self.waiting(), jobs)) as rounds:
            yield from rounds


def write(sweep: Sweep, metric: str | None = None) -> Comparison:
    """Compare all runs in the folder of a sweep, and write tables and plot. Raises UserError."""
    compared = compare([sweep.folder], metric, sweep.trials[0].measures[0])
    configs = [
        {
            "differs": {key: cell(value) for key, value in each.differs.items()},
            "config": by_names(without_seeds(each.members[0].config)),
        }
        for each in compared.groups
    ]
    about = {
        "measure": compared.measure.model_dump(mode="json"),
        "configs": configs,
        "not_counted": {str(path): why for path, why in compared.problems.items()},
    }
    picture = None
    with contextlib.suppress(UserError):  # no matplotlib
        picture = compared.picture(sweep.folder.name)
    return replace(compared, files=write_tables(sweep.folder, compared.table(), about, picture))


def write_tables(
    folder: Path, table: Table, about: Mapping[str, Any], picture: bytes | None = None
) -> list[Path]:
    """Write the files of a sweep. about: what the JSON says besides. Raises UserError."""
    columns, rows = table.headings, table.rows
    head = json_text({"made": made(), **about, "columns": columns}, 1).removesuffix("\n}")
    lines = ",\n".join(f"  {json_text(row)}" for row in rows)
    files = {
        "table.json": f'{head},\n "rows": [\n{lines}\n ]\n}}\n'.encode(),
        "table.csv": csv_bytes([columns, *rows]),
        **({"plot.png": picture} if picture else {}),
    }
    for name, raw in files.items():
        with disk_errors(folder, name):
            write_file(folder / name, raw)
    return [folder / name for name in files]


def made() -> dict[str, Any]:
    """When and on what numbers were made: what may differ between two machines."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": usable_cores(),
    } | settings_of_numbers()


# Planning ----------------------------------------------------------------------------------------


def plan(
    folder: Path,
    load: LoadConfig,
    sets: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    measure: Measure | None = None,
    *,
    on: Where = "local",
) -> Sweep:
    """The sweep of a config, checked as a whole; nothing is written. Raises UserError.

    load: gives the config with some values laid over it. sets: `section.key=value,value`.
    seeds: None = that of the config. on: where it will run: with the devices of this machine, or on
    a Ray cluster.
    """
    if on == "ray":
        check_ray()
    grid = read_grid(sets)
    choices = [
        [f"{key}={value}" for key, value in zip(grid, values, strict=True)]
        for values in product(*grid.values())
    ]
    if (count := len(choices) * len(seeds or [0])) > MOST_TRIALS:
        raise UserError(f"{count:,} runs are more than {MOST_TRIALS:,}; give fewer seeds or values")
    checked = [_checked(choice, load, measure, on) for choice in choices]
    measure = measure or Measure(split=split_of(checked[0][1]))
    seeds = [checked[0][0].seed] if seeds is None else seeds
    check_folder(folder)
    there = {path.name[-8:]: path for path in folder.glob("*-????????")}
    trials, hash_of = dict[Path, Trial](), cache(sha256_of)
    for seed, (choice, both) in product(seeds, zip(choices, checked, strict=True)):
        config, settings = both
        config = config.model_copy(update={"seed": seed})
        settings = settings.model_copy(update={"seed": seed})
        path = path_of(folder, _label(choice, seed), settings, hash_of)
        path = there.setdefault(path.name[-8:], path)  # the same by other words
        title = " ".join([*choice, f"seed {seed}"])
        trials.setdefault(path, Trial(path, config, settings, [measure], title))
    asked = {
        "measure": measure.model_dump(mode="json"),
        "grid": grid,
        "seeds": list(seeds),
        "runs": [path.name for path in trials],
    }
    return Sweep(folder, list(trials.values()), asked)


def check_folder(folder: Path) -> None:
    """Raise UserError unless a folder is free for a sweep, or holds one."""
    if folder.exists() and read_sweep(folder) is None:
        inside = set(folder.iterdir()) if folder.is_dir() else {folder}
        if inside - set(drafts_in(folder)):  # of a sweep that was killed as it began
            raise UserError(f"{folder}: not a sweep, so it is left alone; name another folder")


def read_grid(sets: Sequence[str]) -> dict[str, list[str]]:
    """The values of each key, as written, of some `section.key=value,value`. Raises UserError."""
    grid: dict[str, list[str]] = {}
    for text in sets:
        key, _, values = text.partition("=")
        if key == "seed":
            raise UserError(
                f"--set {text}: a sweep's seeds are given with --seeds, say 0:9 (in Python: seeds)"
            )
        if key in grid:
            raise UserError(f"--set {text}: {key} is given twice; name all its values in one --set")
        if not (key and (found := _split(values))):
            raise UserError(
                f"--set {text}: write it as section.key=value,value, say train.lr=1e-3,1e-4; "
                "brackets have two ends, and none is null"
            )
        grid[key] = found
    return grid


def _split(text: str) -> list[str]:
    """Values as written, between the commas of a list in YAML; empty if it is none."""
    try:
        whole = yaml.compose(written := f"[{text}]", yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return []
    nodes = whole.value if isinstance(whole, yaml.SequenceNode) else []
    return [written[node.start_mark.index : node.end_mark.index].strip() for node in nodes]


def _checked(
    choice: Sequence[str], load: LoadConfig, measure: Measure | None, on: Where
) -> tuple[Config, Settings]:
    """The config of a choice and its settings, which can be trained and measured. Raises UserError
    naming the choice where the fault is not in the file itself."""
    try:
        config = load(choice)
        settings = resolve(config)
        check_fault(settings.fault, settings.model)
        if on == "local":
            choose_device(settings.device)
        dataset = open_dataset(settings)
        check_dataset(settings, dataset)
        measured = measure or Measure(split=split_of(settings))
        pairs_of_split(settings, dataset.facts, measured.split, measured.selection)
    except UserError as error:
        load([])
        raise UserError(": ".join(filter(None, (" ".join(choice), str(error))))) from None
    return config, settings


def _label(choice: Sequence[str], seed: int) -> str:
    """How the name of a run begins."""
    values = (text.partition("=")[2] for text in choice)
    parts = [re.sub(r"[^\w.]+", "_", value).strip("_.")[:24] for value in values]
    return "-".join([*filter(None, parts[:4]), f"s{seed}"])
