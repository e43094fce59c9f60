"""A sweep: one training for every combination of values and every seed.

    FOLDER/lr=0.003,seed=0/     an ordinary run, with eval.json
    FOLDER/sweep.json           what was asked for, and what sets each run apart
    FOLDER/table.csv            the numbers of all runs in the folder, and of their groups
    FOLDER/table.json           the same rows below their columns, with configs and environment
    FOLDER/plot.png             the same as a picture

The same command goes on where it was stopped. Another grid or another config in the same folder
adds runs: their numbers are further groups of the table.
"""

import contextlib
import platform
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from toytrans import __version__
from toytrans.documents import csv_bytes
from toytrans.errors import UserError
from toytrans.files import disk_errors, json_text, write_file, write_json
from toytrans.sweeps.comparison import (
    COLUMNS,
    FIRST,
    SWEEP,
    Comparison,
    cell,
    compare,
    read_sweep,
)
from toytrans.sweeps.groups import without_seeds
from toytrans.sweeps.here import run_here
from toytrans.sweeps.on_ray import check_ray, run_on_ray
from toytrans.sweeps.sweep_file import Dimension, SweepMeasure
from toytrans.sweeps.trial import Ended, Trial, by_names
from toytrans.table import Table
from toytrans.training.checkpoint import saved_steps
from toytrans.training.devices import usable_cores
from toytrans.training.folder import RUNS
from toytrans.training.provenance import settings_of_numbers

SWEEPS = RUNS / "sweeps"

Where = Literal["local", "ray"]


@dataclass(frozen=True)
class Sweep:
    """Some trials in a folder, and what was asked for: what is measured, what varies, the seeds.
    about: what a person should know of it."""

    folder: Path
    trials: Sequence[Trial]
    measures: Mapping[str, SweepMeasure]
    grid: Mapping[str, Dimension]
    seeds: Sequence[int]
    about: Sequence[str] = ()

    def waiting(self) -> list[Trial]:
        """The trials that are not done: each is looked at."""
        return [trial for trial in self.trials if not trial.is_done()]

    def beginning(self, waiting: Sequence[Trial]) -> str:
        """What will be run: how many runs are done, are only measured, go on or start."""
        begun = [trial for trial in waiting if saved_steps(trial.path)]
        only_measured = sum(trial.is_trained() for trial in begun)
        count = len(self.trials)
        counts = {
            "done": count - len(waiting),
            "only to be measured": only_measured,
            "going on": len(begun) - only_measured,
            "new": len(waiting) - len(begun),
        }
        parts = [f"{number} {what}" for what, number in counts.items() if number]
        return f"{self.folder}: {count} run{'s' * (count > 1)} ({', '.join(parts)})"

    def train(
        self, waiting: Sequence[Trial], jobs: int | None = None, on: Where = "local"
    ) -> Generator[list[Ended]]:
        """Train what is missing; yields the trials that have ended, about once a second. Closed
        early, it lets every training save. Raises UserError. jobs: trials at once on this machine;
        None = one a core."""
        if on == "ray":
            check_ray()
        self._describe()
        run = run_on_ray(waiting) if on == "ray" else run_here(waiting, jobs)
        with contextlib.closing(run) as rounds:
            yield from rounds

    def _describe(self) -> None:
        """Write sweep.json. Runs of before stay in it."""
        with disk_errors(self.folder, SWEEP):
            self.folder.mkdir(parents=True, exist_ok=True)
        saved = read_sweep(self.folder)
        runs = {trial.path.name: dict(trial.labels) for trial in self.trials}
        measures = dict(self.measures)
        if saved:
            runs = saved.runs | runs  # in their order of before, by which groups get their letters
            if measures.items() <= saved.measures.items():  # these runs are some of that sweep
                measures = saved.measures
        about = {
            "made": made(),
            "measures": {name: m.model_dump(mode="json") for name, m in measures.items()},
            "grid": dict(self.grid),
            "seeds": list(self.seeds),
            "runs": runs,
        }
        with disk_errors(self.folder, SWEEP):
            write_json(self.folder / SWEEP, about)


def write(sweep: Sweep, metric: str | None = None) -> dict[str, Comparison]:
    """Compare all runs in the folder of a sweep, by each of its measures, and write tables and
    plot. Raises UserError. metric: None = that of each measure."""
    compared = {
        name: compare([sweep.folder], metric or each.metric, each)
        for name, each in sweep.measures.items()
    }
    first = next(iter(compared.values()))
    configs = [
        {
            "differs": {key: cell(value) for key, value in each.differs.items()},
            "config": by_names(without_seeds(each.members[0].settings)),
        }
        for each in first.groups
    ]
    about = {
        "measures": {name: each.model_dump(mode="json") for name, each in sweep.measures.items()},
        "configs": configs,
        "not_counted": {str(path): why for path, why in first.problems.items()},
    }
    picture = None
    with contextlib.suppress(UserError):  # no matplotlib
        picture = first.picture(sweep.folder.name)
    files = _write_files(sweep.folder, table_of(compared), about, picture)
    return {name: replace(each, files=files) for name, each in compared.items()}


def table_of(compared: Mapping[str, Comparison]) -> Table:
    """The tidy tables of several measures as one, each row with the name of its measure. A key that
    sets groups apart in some of them has a column in all."""
    tables = {name: each.table() for name, each in compared.items()}
    keys = dict.fromkeys(key for each in compared.values() for key in each.keys)
    columns = [*FIRST, *keys, *COLUMNS]
    rows = [
        [name, *(row.get(column, "") for column in columns)]
        for name, table in tables.items()
        for row in table.records()
    ]
    return Table("", ["measure", *columns], rows)


def _write_files(
    folder: Path, table: Table, about: Mapping[str, Any], picture: bytes | None
) -> list[Path]:
    """Write the files of a sweep, rows of JSON one a line. Raises UserError."""
    head = json_text({"made": made(), **about, "columns": table.headings}, 1).removesuffix("\n}")
    lines = ",\n".join(f"  {json_text(row)}" for row in table.rows)
    files = {
        "table.json": f'{head},\n "rows": [\n{lines}\n ]\n}}\n'.encode(),
        "table.csv": csv_bytes([table.headings, *table.rows]),
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
