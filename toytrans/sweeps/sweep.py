"""A sweep: one training for every combination of values and every seed.

    FOLDER/LABEL-sSEED-HASH/       an ordinary run, with eval.json
    FOLDER/sweep.json              what was asked for last
    FOLDER/table.json, table.csv   the numbers of all runs in the folder
    FOLDER/plot.png                the same as a picture

The same command goes on where it was stopped. Another grid or another config in the same folder
adds runs: their numbers are further groups of the table.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toytrans.config.schema import Config, Paths
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.selection import pairs_of_split
from toytrans.errors import UserError
from toytrans.files import disk_errors, drafts_in, write_file, write_json
from toytrans.sweeps.comparison import SWEEP, Comparison, find_runs, outcome, read_sweep
from toytrans.sweeps.groups import group
from toytrans.sweeps.measure import TEST, Measure, split_of
from toytrans.sweeps.picture import draw
from toytrans.sweeps.pool import Ended, processes_for, run_here, run_on_ray
from toytrans.sweeps.table import cell, made, write_tables
from toytrans.sweeps.trial import Trial, by_names, path_of
from toytrans.training.devices import choose_device
from toytrans.training.faults import check_fault

MOST_TRIALS = 10_000
MOST_NAMES = 10
"""Of a sentence."""

PLOT = "plot.png"

LoadConfig = Callable[[Sequence[str]], Config]
"""The config with some `section.key=value` laid over it. Raises UserError."""

Grid = dict[str, list[str]]
"""The values of each key that a sweep varies, as they were written."""

Choice = dict[str, str]
"""One value of each key."""


@dataclass(frozen=True)
class Sweep:
    """Some trials in a folder. about: what was asked for, as sweep.json keeps it."""

    folder: Path
    trials: Sequence[Trial]
    about: Mapping[str, Any]

    def waiting(self) -> list[Trial]:
        """The trials that are not done. Raises UserError."""
        return [trial for trial in self.trials if not trial.is_done()]

    def beginning(self) -> list[str]:
        """What will be run, one sentence each: which runs are finished, go on or start."""
        runs = {"finished": list[str](), "goes on": list[str](), "starts": list[str]()}
        for trial in self.trials:
            if trial.is_done():
                runs["finished"].append(trial.title)
            elif step := trial.saved_step():
                runs["goes on"].append(f"{trial.title} from step {step}")
            else:
                runs["starts"].append(trial.title)
        sentences = [f"{self.folder}: {len(self.trials)} run{'s' * (len(self.trials) > 1)}"]
        if runs["goes on"] or (runs["finished"] and runs["starts"]):
            sentences += [f"{what}: {listed(some)}" for what, some in runs.items() if some]
        elif runs["finished"]:
            sentences += ["all are finished"]
        return sentences

    def train(
        self,
        jobs: int | None = None,
        on: Literal["local", "ray"] = "local",
        gpu_share: float | None = None,
    ) -> Generator[list[Ended]]:
        """Train what is missing; yields the trials that have ended, about once a second. Closed
        early, it lets every training save. Raises UserError. Arguments: as in `toytrans.sweep`."""
        with disk_errors(self.folder, SWEEP):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / SWEEP, {"made": made(), **self.about})
        waiting = self.waiting()
        with contextlib.closing(
            run_on_ray(waiting, jobs, gpu_share)
            if on == "ray"
            else run_here(waiting, processes_for(waiting, jobs))
        ) as rounds:
            yield from rounds


def compare(sweep: Sweep) -> Comparison:
    """All runs in the folder of a planned sweep, those asked for first. Raises UserError."""
    measure = sweep.trials[0].measures[TEST]
    configs = {trial.path: trial.config for trial in sweep.trials}
    found = find_runs([str(sweep.folder)])
    configs |= {path: config for path, config in found.runs.items() if path not in configs}
    members = [outcome(path, config, measure) for path, config in configs.items()]
    return Comparison(sweep.folder.name, measure, group(members))


def write(sweep: Sweep) -> Comparison:
    """Write the tables and the plot of `compare`. Raises UserError where the disk refuses."""
    compared = compare(sweep)
    about = {
        "measure": compared.measure.model_dump(mode="json"),
        "configs": [
            {
                "differs": {key: cell(value) for key, value in each.differs.items()},
                "config": by_names(each.members[0].config.without_seeds()),
            }
            for each in compared.groups
        ],
        "not_counted": {str(path): why for path, why in compared.problems.items()},
    }
    files = write_tables(sweep.folder, compared.table(), about)
    picture = b""
    with contextlib.suppress(UserError):  # no matplotlib
        picture = draw(compared, sweep.folder.name)
    if picture:
        with disk_errors(sweep.folder, PLOT):
            write_file(sweep.folder / PLOT, picture)
        files.append(sweep.folder / PLOT)
    return replace(compared, files=files)


def plan(
    folder: Path,
    load: LoadConfig,
    sets: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    measure: Measure | None = None,
    *,
    here: bool = True,
) -> Sweep:
    """The sweep of a config, checked as a whole; nothing is written. Raises UserError.

    load: gives the config with some values laid over it. sets: `section.key=value,value`.
    seeds: None = that of the config. here: it will run on this machine, and needs its devices.
    """
    measure = measure or Measure(decode=None)
    grid = read_grid(sets)
    choices = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if (count := len(choices) * len(seeds or [0])) > MOST_TRIALS:
        raise UserError(f"{count:,} runs are more than {MOST_TRIALS:,}; give fewer seeds or values")
    configs = _configs_of(choices, load)
    _check(choices, configs, measure, here=here)
    seeds = [configs[0].seed] if seeds is None else seeds
    check_folder(folder)
    there = {path.name[-8:]: path for path in folder.glob("*-????????")}
    trials, hashed = [], dict[Paths, str]()
    for seed in seeds:
        for choice, config in zip(choices, configs, strict=True):
            seeded = config.model_copy(update={"seed": seed})
            path = path_of(folder, _label(choice, seed), seeded, hashed)
            path = there.get(path.name[-8:], path)  # the same by other keys of a grid
            title = f"{_title(choice)} seed {seed}".strip()
            trials.append(Trial(path, seeded, {TEST: measure}, title))
    about = {
        "measure": measure.model_dump(mode="json"),
        "grid": grid,
        "seeds": list(seeds),
        "runs": [trial.path.name for trial in trials],
    }
    return Sweep(folder, trials, about)


def check_folder(folder: Path) -> None:
    """Raise UserError unless a folder is free for a sweep, or holds one."""
    if read_sweep(folder) is not None:
        return
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"{folder}: no folder for a sweep ({error.strerror}); name another"
        ) from None
    if names - {draft.name for draft in drafts_in(folder)}:
        raise UserError(f"{folder}: not a sweep, so it is left alone; name another folder")


def read_grid(sets: Sequence[str]) -> Grid:
    """The grid of some `section.key=value,value`. Raises UserError."""
    grid: Grid = {}
    for text in sets:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise UserError(f"--set {text}: write it as section.key=value,value")
        if key == "seed":
            raise UserError(
                f"--set {text}: a sweep's seeds are given with --seeds, say 0:9 (in Python: seeds)"
            )
        if key in grid:
            raise UserError(f"--set {text}: {key} is given twice; name all its values in one --set")
        grid[key] = split_values(values)
        if "" in grid[key]:
            raise UserError(f"--set {text}: an empty value; leave out a comma, or write null")
    return grid


def split_values(text: str) -> list[str]:
    """Values separated by commas outside of brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not quote and depth <= 0:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def _configs_of(choices: Sequence[Choice], load: LoadConfig) -> list[Config]:
    """The config of every choice. Raises UserError naming all choices that are not valid, or two
    that are the same."""
    configs, refused = list[Config](), list[tuple[Choice, UserError]]()
    for choice in choices:
        try:
            configs.append(load([f"{key}={value}" for key, value in choice.items()]))
        except UserError as error:
            refused.append((choice, error))
    if len(refused) == len(choices):
        load([])  # a mistake in the file itself is told once
    _raise_refused(refused, len(choices))
    first: dict[Config, Choice] = {}
    for choice, config in zip(choices, configs, strict=True):
        if config in first:
            same = f"{_title(first[config])} and {_title(choice)}"
            raise UserError(f"{same} are the same config; give it once")
        first[config] = choice
    return configs


def _check(
    choices: Sequence[Choice], configs: Sequence[Config], measure: Measure, *, here: bool
) -> None:
    """Whether every choice can be trained and measured. Raises UserError naming all that cannot."""
    refused, seen = list[tuple[Choice, UserError]](), set()
    for choice, config in zip(choices, configs, strict=True):
        same = (config.data, config.model.max_length, config.device)
        try:
            check_fault(config.fault, config.model)
            if same not in seen:
                seen.add(same)
                if here:
                    choose_device(config.device)
                dataset = open_dataset(config)
                check_dataset(config, dataset)
                pairs_of_split(config, dataset.facts, split_of(config), measure.selection())
        except UserError as error:
            refused.append((choice, error))
    _raise_refused(refused, len(configs))


def _raise_refused(refused: Sequence[tuple[Choice, UserError]], of: int) -> None:
    if not refused:
        return
    if len(refused) == of and len({str(error) for _, error in refused}) == 1:
        raise refused[0][1]  # of the config that all share
    told = "; ".join(f"{_title(choice)}: {error}" for choice, error in refused)
    raise UserError(f"{len(refused)} of {of} combinations are not valid: {told}")


def _title(choice: Choice) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items())


def _label(choice: Choice, seed: int) -> str:
    """How the name of a run begins."""
    parts = [re.sub(r"[^\w.]+", "_", value).strip("_.")[:24] for value in choice.values()]
    return "-".join([*filter(None, parts[:4]), f"s{seed}"])


def listed(names: Sequence[str]) -> str:
    """Names with commas, the first ones of many."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
