"""A sweep: one training for every choice of values and every seed.

    runs/sweeps/NAME/sweep.json            what was asked for, and the trials of it
    runs/sweeps/NAME/CHOICE-sSEED-HASH/    a trial: a run directory with result.json

The same command goes on where it was stopped. A larger grid under the same name adds trials. A grid
that leaves out a trial with a result is refused, as the results files would lose its numbers.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toytrans.config.load import flatten
from toytrans.config.schema import Config, Paths
from toytrans.errors import UserError
from toytrans.files import disk_errors, drafts_in, json_text, write_json
from toytrans.sweeps.failures import Failure
from toytrans.sweeps.grid import (
    Choice,
    Grid,
    LoadConfig,
    check_choices,
    choices_of,
    configs_of,
    read_grid,
    title_of,
)
from toytrans.sweeps.groups import Member, differing_keys, shown
from toytrans.sweeps.measure import ExactMatch
from toytrans.sweeps.outcomes import TEST, is_done, outcome
from toytrans.sweeps.saved import FILE, SavedSweep, read_sweep
from toytrans.sweeps.trial import RESULT, Trial, files_of, names_of
from toytrans.training.checkpoint import saved_steps
from toytrans.training.lock import locked

MOST_TRIALS = 10_000
MOST_NAMES = 10
"""Of a sentence."""

LOCK = ".toytrans-lock"

ANOTHER = "another --name (in Python: out)"
"""What to give where a folder or a name is taken."""


@dataclass(frozen=True)
class Sweep:
    """What was asked for, and its trials, seed by seed. titles: of the trials, for a person."""

    name: str
    folder: Path
    grid: Grid
    seeds: Sequence[int]
    measure: ExactMatch
    trials: Sequence[Trial]
    titles: Sequence[str]

    def title(self, trial: Trial) -> str:
        return self.titles[self.trials.index(trial)]

    def waiting(self) -> list[Trial]:
        """The trials that are not done."""
        return [trial for trial in self.trials if not is_done(trial)]

    def members(self, failures: Mapping[Path, Failure] | None = None) -> list[Member]:
        """The trials as they are now, for a comparison. failures: those of this process."""
        failed = {path: failure.reason for path, failure in (failures or {}).items()}
        return [
            Member(trial.path, trial.config, trouble=failed[trial.path])
            if trial.path in failed
            else outcome(trial.path, trial.config, self.measure)
            for trial in self.trials
        ]

    def beginning(self) -> list[str]:
        """What will be run, one sentence each: which runs are finished, go on or start."""
        seeds = listed([str(seed) for seed in self.seeds])
        sentences = [f"{len(self.trials)} runs: seed{'s' * (len(self.seeds) > 1)} {seeds}"]
        finished, going, starting = [], [], []
        for trial, title in zip(self.trials, self.titles, strict=True):
            if is_done(trial):
                finished.append(title)
            elif steps := saved_steps(trial.path):
                going.append(f"{title} from step {steps[-1]}")
            else:
                starting.append(title)
        if going or (finished and starting):
            named = {"finished": finished, "goes on": going, "starts": starting}
            sentences += [f"{what}: {listed(runs)}" for what, runs in named.items() if runs]
        return sentences

    @contextlib.contextmanager
    def held(self) -> Iterator[list[str]]:
        """Hold the sweep's folder, and write what was asked for. Yields sentences for the user.

        Raises UserError where another sweep runs in the folder.
        """
        with contextlib.ExitStack() as lock:
            refusal = f"{self.folder}: another sweep runs here; wait for its end, or give {ANOTHER}"
            with disk_errors(self.folder, LOCK):
                self.folder.mkdir(parents=True, exist_ok=True)
                lock.enter_context(locked(self.folder / LOCK, refusal))
            changes = self.changes()
            with disk_errors(self.folder, FILE):
                write_json(self.folder / FILE, self.to_dict())
            yield [*changes, *self.beginning()]

    def changes(self) -> list[str]:
        """How the sweep differs from that of before, as at most one sentence.

        Raises UserError where the folder is of another config or of something else, or where
        results would be lost.
        """
        before = read_sweep(self.folder)
        if before is not None:
            self._require_equal(before)
            self._require_kept(before)
            return self._differences(before)
        mine = {LOCK, *(draft.name for draft in drafts_in(self.folder))}
        there = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if there - mine or self.folder.is_file():
            raise UserError(f"{self.folder}: not a sweep, so it is left alone; give {ANOTHER}")
        return []

    def _require_equal(self, before: SavedSweep) -> None:
        """Raise UserError where the configs differ in more than the grid."""
        configs = [before.configs_in(self.folder)[0], self.trials[0].config]
        old, new = (config.without_seeds() for config in configs)
        values = [_by_names(config) for config in (old, new)]
        varied = {*before.grid, *self.grid}
        fixed = [
            f"{key} ({' -> '.join(shown(each.get(key)) for each in values)})"
            for key in (differing_keys([old, new]) if old != new else ())
            if key not in varied and values[0].get(key) != values[1].get(key)
        ]
        if fixed:
            raise UserError(
                f"{self.folder}: its config differs: {', '.join(fixed)}; set it back, or give "
                f"{ANOTHER}"
            )

    def _require_kept(self, before: SavedSweep) -> None:
        """Raise UserError where a trial of before has a result and is not in the grid."""
        mine = {trial.path for trial in self.trials}
        of_before = before.runs(self.folder).items()
        lost = {path: c for path, c in of_before if path not in mine and (path / RESULT).exists()}
        if not lost:
            return
        configs = {json_text(_by_names(trial.config)) for trial in self.trials}
        other_contents = any(json_text(_by_names(config)) in configs for config in lost.values())
        why, remedy = (
            ("are of other code or data files than now", "give")
            if other_contents
            else ("are not in this grid", f"add to {_asked(before.grid, before.seeds)}, or give")
        )
        raise UserError(
            f"{self.folder}: {len(lost)} of its runs have results and {why}, say "
            f"{next(iter(lost)).name}; {remedy} {ANOTHER}"
        )

    def _differences(self, before: SavedSweep) -> list[str]:
        changes = [
            f"{key}: {' -> '.join(', '.join(grid.get(key, '-')) for grid in grids)}"
            for grids in [(before.grid, self.grid)]
            for key in {**before.grid, **self.grid}
            if grids[0].get(key) != grids[1].get(key)
        ]
        if before.seeds != list(self.seeds):
            changes.append(f"seeds: {_spans(before.seeds)} -> {_spans(self.seeds)}")
        then, now = before.measure.to_dict(), self.measure.to_dict()
        measures = [
            f"{name}: {_option(then[name])} -> {_option(now[name])}"
            for name in now
            if then[name] != now[name]
        ]
        if measures:
            changes.append(f"{', '.join(measures)}, so every run is measured anew")
        return [f"{self.folder}: {'; '.join(changes)}"] if changes else []

    def to_dict(self) -> dict[str, Any]:
        """What was asked for, as SavedSweep reads it."""
        choices = len(self.trials) // len(self.seeds)
        return {
            "configs": [t.config.model_dump(mode="json") for t in self.trials[:choices]],
            "grid": self.grid,
            "seeds": list(self.seeds),
            **self.measure.to_dict(),
            "trials": [
                {"run": trial.path.name, "seed": trial.config.seed, "config": number % choices}
                for number, trial in enumerate(self.trials)
            ],
        }


def plan(
    name: str,
    folder: Path,
    load: LoadConfig,
    sets: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    measure: ExactMatch | None = None,
    *,
    here: bool = True,
) -> Sweep:
    """The sweep of a config, checked as a whole. Raises UserError.

    load: gives the config with some values laid over it. sets: `section.key=value,value`.
    seeds: None = that of the config. here: it will run on this machine.
    """
    measure = measure or ExactMatch()
    choices = choices_of(grid := read_grid(sets))
    if len(choices) * len(seeds or [0]) > MOST_TRIALS:
        raise UserError(
            f"{len(choices) * len(seeds or [0]):,} runs are more than {MOST_TRIALS:,}; "
            "give fewer seeds or values"
        )
    configs = configs_of(choices, load)
    check_choices(choices, configs, measure, here=here)
    seeds = [configs[0].seed] if seeds is None else seeds
    there = _there(folder)
    trials, titles, hashed = [], [], dict[Paths, str]()
    for seed in seeds:
        for choice, config in zip(choices, configs, strict=True):
            seeded = config.model_copy(update={"seed": seed})
            label, measures = _label(choice, seed), {TEST: measure}
            trial = Trial(
                label=label, config=seeded, measures=measures, folder=folder, hashed=hashed
            )
            other = there.get((seed, trial.digest), label)
            trials.append(trial if other == label else replace(trial, label=other))
            titles.append(f"{title_of(choice)} seed {seed}".strip())
    sweep = Sweep(name, folder, grid, seeds, measure, trials, titles)
    sweep.changes()
    return sweep


def listed(names: Sequence[str]) -> str:
    """Names with commas, the first ones of many."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _by_names(config: Config) -> dict[str, Any]:
    """The values of a config, with code and data files by their names: the folder may have moved,
    and what is in them is in the hashes of trials."""
    files = {f"data.files.{part}": paths for part, paths in files_of(config).items()}
    paths = config.references | files
    values = flatten(config.model_dump(mode="json"))
    return values | {key: names_of(each) for key, each in paths.items()}


def _label(choice: Choice, seed: int) -> str:
    """How the name of a trial's directory begins."""
    parts = [re.sub(r"[^\w.]+", "_", value).strip("_.")[:24] for value in choice.values()]
    return "-".join([*filter(None, parts[:4]), f"s{seed}"])


def _there(folder: Path) -> dict[tuple[int, str], str]:
    """The labels of trials in a folder, by seed and hash: a grid with another key names the same
    trial by another label."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    known = (re.fullmatch(r"((?:.*-)?s(\d+))-([0-9a-f]{8})", name) for name in names)
    return {(int(match[2]), match[3]): match[1] for match in known if match}


def _asked(grid: Grid, seeds: Sequence[int]) -> str:
    """The options that gave a grid. Seeds with gaps, which Python alone takes, are no option."""
    texts = [f"{key}={','.join(values)}" for key, values in grid.items()]
    sets = [f"--set {shlex.quote(text)}" for text in texts]
    spans = _spans(seeds)
    return " ".join([f"seeds {spans}" if "," in spans else f"--seeds {spans}", *sets])


def _option(value: Any) -> str:
    """The value of an option, as it is written."""
    return (
        "-" if value is None else ":".join(map(str, value if isinstance(value, tuple) else [value]))
    )


def _spans(seeds: Sequence[int]) -> str:
    """0:9 for the seeds 0 to 9."""
    low, high = min(seeds), max(seeds)
    if list(seeds) == list(range(low, high + 1)):
        return f"{low}:{high}" if low < high else str(low)
    return ", ".join(map(str, seeds))
