"""What became of a run: its numbers, or the reason why it has none."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toytrans.config.schema import Config
from toytrans.errors import UserError
from toytrans.sweeps.failures import read_failure
from toytrans.sweeps.groups import PARTS, Member
from toytrans.sweeps.measure import ExactMatch
from toytrans.sweeps.saved import read_sweep
from toytrans.sweeps.trial import Taken, Trial, read_result
from toytrans.training.run import CONFIG, METRICS, NOT_MEASURED, RUNS, RunFolder, is_run

TEST = "test"

SWEEPS = RUNS / "sweeps"


def is_done(trial: Trial) -> bool:
    """Whether nothing is left to do: a trial has its result, or would fail again."""
    if trial.result() is not None:
        return True
    failure = read_failure(trial.path)
    return failure is not None and failure.final


def outcome(run: Path, config: Config, measure: ExactMatch) -> Member:
    """A run by its files: its numbers, if it has been measured so."""
    try:
        result = read_result(run)
    except UserError as error:
        return Member(run, config, trouble=str(error))
    taken = (result or {"measures": {}})["measures"].get(TEST)
    if taken is not None and taken["asked"] == measure.asked():
        return with_numbers(run, config, taken)
    if failure := read_failure(run):
        return Member(run, config, trouble=failure.reason)
    if not is_run(run):
        return Member(run, config, trouble="not begun")
    return Member(run, config, trouble=_diverged(run) or _unfinished(run) or NOT_MEASURED)


def _unfinished(run: Path) -> str:
    step = RunFolder.open(run).unfinished
    return f"unfinished: {step}" if step else ""


def _diverged(run: Path) -> str:
    """That the last record of a run holds a number that is not finite."""
    records = RunFolder.open(run).records
    last = records[-1] if records else {}
    return f"diverged by step {last['step']}" if None in last.values() else ""


def with_numbers(run: Path, config: Config, taken: Taken) -> Member:
    """A run with what a measure gave."""
    values = {part: taken[part] for part in PARTS if taken.get(part) is not None}
    curve = {int(length): value for length, value in taken["by_length"].items()}
    if taken["asked"]["lengths"] is None:
        curve = {}
    pairs = {int(length): n for length, n in taken.get("pairs_by_length", {}).items()}
    free = float(taken.get("exact_match_difference") or 0.0)
    return Member(run, config, values, curve, pairs, free, taken.get("train_length", (0, 0)))


class Found(NamedTuple):
    """Runs with their configs, runs that cannot be read with the reason, and what their sweep has
    measured of them."""

    runs: list[tuple[Path, Config]]
    unread: list[tuple[Path, str]]
    measure: ExactMatch


def find_runs(names: Sequence[str]) -> Found:
    """The runs of some run directories, folders of runs, and sweeps. Raises UserError."""
    runs: dict[Path, Config] = {}
    unread: dict[Path, str] = {}
    measures = set()
    for name in names:
        folder = Path(name) if os.path.exists(name) else SWEEPS / name
        saved = read_sweep(folder)
        if saved is not None:
            measures.add(saved.measure)
            runs |= saved.runs(folder)
            continue
        measures.add(ExactMatch())
        for path in _runs_in(folder, name):
            try:
                runs[path] = RunFolder.open(path).config
            except UserError as error:
                unread[path] = str(error)
    measure = measures.pop() if len(measures) == 1 else ExactMatch()
    return Found(list(runs.items()), list(unread.items()), measure)


def _runs_in(folder: Path, name: str) -> list[Path]:
    """The folder itself, if it is a run, or the runs in it. Raises UserError."""
    if is_run(folder):
        return [folder]
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    runs = [path for path in inside if (path / CONFIG).exists() or (path / METRICS).exists()]
    if not runs:
        raise UserError(f"{name}: not a run, a folder of runs or the name of a sweep")
    return runs


def measure_here(run: Path, config: Config, measure: ExactMatch, device: str) -> Member:
    """A run as it was measured, or else measured now; nothing is written."""
    member = outcome(run, config, measure)
    if member.trouble != NOT_MEASURED:
        return member
    try:
        loaded = RunFolder.open(run).load("best", device)
        return with_numbers(run, config, measure.take(loaded.model, config, loaded.facts))
    except UserError as error:
        return Member(run, config, trouble=str(error).partition("; ")[0])
