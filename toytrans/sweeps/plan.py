"""From a config and what varies in it to the trainings of a sweep, checked as a whole.

    base config, grid, seeds -> one `Choice` for each combination -> `Trial`s in a folder

Nothing is written here.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

from toytrans.config.schema import Config, Settings
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.selection import check_selection
from toytrans.errors import UserError
from toytrans.files import drafts_in, json_text
from toytrans.measure import Measure
from toytrans.measurement import selection_of, split_of
from toytrans.model.build import check_fault
from toytrans.resolve import resolve
from toytrans.sweeps.choices import (
    Choice,
    check_key,
    choices_of,
    config_of,
    naming_the_choice,
    value_as_text,
)
from toytrans.sweeps.comparison import read_sweep
from toytrans.sweeps.sweep import Sweep
from toytrans.sweeps.sweep_file import Plan, SweepMeasure
from toytrans.sweeps.trial import Trial, by_names, is_free_for
from toytrans.training.devices import choose_device
from toytrans.training.provenance import TrainedWith, trained_with
from toytrans.training.run import Run

MOST_TRIALS, LONGEST_NAME = 10_000, 150


def plan(folder: Path, asked: Plan) -> Sweep:
    """The sweep, each combination checked. Raises UserError."""
    for key in asked.grid:
        check_key(key, f"{asked.origin} {key}")
    choices = list(choices_of(asked.grid))
    if (number := len(choices) * len(asked.seeds or [0])) > MOST_TRIALS:
        most = f"{MOST_TRIALS:,}; give fewer seeds or values"
        raise UserError(f"{number:,} runs are more than {most}")
    checked = [naming_the_choice(_settings_of, choice, asked) for choice in choices]
    now = [trained_with(settings) for _, settings in checked]
    seeds = [checked[0][0].seed] if asked.seeds is None else asked.seeds
    measures = dict(asked.measures)
    if not measures:
        split = split_of(checked[0][1])
        measures = {split: SweepMeasure(split=split)}
    measures = {
        name: each
        for name, each in measures.items()
        if any(each.is_of(choice.labels) for choice in choices)
    }
    check_folder(folder)
    trials: dict[str, Trial] = {}
    short = _short_names([*asked.grid, "seed"])
    taken, there = set[Path](), _runs_in(folder)
    for seed, (choice, both, known) in product(seeds, zip(choices, checked, now, strict=True)):
        config = both[0].model_copy(update={"seed": seed})
        settings = both[1].model_copy(update={"seed": seed})
        key = json_text(by_names(settings))
        named = [each.measure for each in measures.values() if each.is_of(choice.labels)]
        if key in trials or not named:
            continue
        told = {short[name]: value for name, value in choice.labels.items()} | {"seed": seed}
        path = there.get(key, folder / folder_name(told))
        path = _free_path(path, settings, known, taken)
        taken.add(path)
        title = f"{choice} seed {seed}".strip()
        labels = {**choice.labels, "seed": seed}
        trials[key] = Trial(path, config, settings, list(dict.fromkeys(named)), title, labels)
    return Sweep(
        folder, list(trials.values()), measures, asked.grid, list(seeds), about=asked.about
    )


def _settings_of(choice: Choice, asked: Plan) -> tuple[Config, Settings]:
    """The config of a choice and its settings, which can be trained and measured. Raises UserError,
    of a file that is missing with the remedy."""
    try:
        config = config_of(choice, asked)
        settings = resolve(config)
        check_fault(settings.fault, settings.model)
        if asked.checks_device:
            choose_device(settings.device)
        _check_data(settings, [m for m in asked.measures.values() if m.is_of(choice.labels)])
    except UserError as error:
        if asked.remedy and str(error).endswith("no such file"):
            raise UserError(f"{error}; {asked.remedy}") from None
        raise
    return config, settings


def _check_data(settings: Settings, measures: Sequence[Measure]) -> None:
    """Raise UserError where there are no such pairs to train on or to measure."""
    dataset = open_dataset(settings)
    check_dataset(settings, dataset)
    for measure in measures or [Measure(split=split_of(settings))]:
        if measure.files is None:
            check_selection(settings, dataset, measure.split, selection_of(measure))


def check_folder(folder: Path) -> None:
    """Raise UserError unless a folder is free for a sweep, or holds one."""
    if folder.exists() and read_sweep(folder) is None:
        inside = set(folder.iterdir()) if folder.is_dir() else {folder}
        if inside - set(drafts_in(folder)):  # of a sweep that was killed as it began
            raise UserError(f"{folder}: not a sweep, so it is left alone; name another folder")


# Names of folders ------------------------------------------------------------------------------


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """The last part of each key where no other one ends alike: lr for train.lr."""
    ends = [name.rpartition(".")[2] for name in names]
    pairs = zip(names, ends, strict=True)
    return {name: end if ends.count(end) == 1 else name for name, end in pairs}


def folder_name(told: Mapping[str, Any]) -> str:
    """What varies as the name of a folder, say lr=0.003,seed=0. Characters that a file system or a
    shell might not like are replaced; sweep.json has the values."""
    parts = []
    for name, value in told.items():
        text = os.path.basename(value) if isinstance(value, str) else value_as_text(value)
        parts.append(re.sub(r"[^\w.+=-]+", "_", f"{name}={text}").strip("_"))
    return ",".join(parts)[-LONGEST_NAME:].lstrip("._-,")


def _runs_in(folder: Path) -> dict[str, Path]:
    """The runs of a folder by their configs: one that was made by other words is found there."""
    found = dict[str, Path]()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(UserError):  # it is none, or damaged
            found.setdefault(json_text(by_names(Run.open(path).settings)), path)
    return found


def _free_path(path: Path, settings: Settings, now: TrainedWith, taken: set[Path]) -> Path:
    """A folder of this name for a run with these settings: one that holds this run already, or that
    holds none. Another run of the same name, of another sweep say, is left alone."""
    for number in count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        if candidate not in taken and is_free_for(candidate, settings, now):
            return candidate
    raise AssertionError("the numbers do not end")
