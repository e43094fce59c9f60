"""Runs side by side: those of a sweep, or any that are named."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from toytrans.config.schema import Config
from toytrans.errors import UserError
from toytrans.files import read_json
from toytrans.html import html_table
from toytrans.sweeps.groups import Group, Member, Summary, pairs, parts_of
from toytrans.sweeps.measure import PARTS, TEST, Measure, evaluate, of_lengths, read_eval
from toytrans.sweeps.table import Table, table_of
from toytrans.sweeps.trial import FAILED, read_failure
from toytrans.training.run import CONFIG, METRICS, NOT_MEASURED, RUNS, RunFolder, is_run

SWEEPS = RUNS / "sweeps"
SWEEP = "sweep.json"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs, grouped by what differs.

    name: of the sweep, or empty. measure: what is compared. groups: one for each config, with every
    run. unread: runs whose config cannot be read, and why. files: the tables and plots of a sweep.
    """

    name: str
    measure: Measure
    groups: Sequence[Group]
    unread: Mapping[Path, str] = field(default_factory=dict)
    files: Sequence[Path] = ()

    @property
    def members(self) -> list[Member]:
        """All runs, group by group."""
        return [member for each in self.groups for member in each.members]

    @property
    def problems(self) -> dict[Path, str]:
        """Why runs have no numbers. They are never averaged in."""
        return {m.path: m.problem for m in self.members if m.problem} | dict(self.unread)

    def table(self) -> Table:
        """One row for each run, length and metric."""
        return table_of((each.differs, m, TEST) for each in self.groups for m in each.counted)

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals of each group, its runs, and the pairs of groups, as plain values."""
        metric = self.measure.metric
        parts = parts_of(self.groups, metric)
        return {
            "measure": self.measure.model_dump(mode="json"),
            "groups": [
                {
                    "differs": dict(group.differs),
                    "config": group.members[0].config.without_seeds().model_dump(mode="json"),
                    "summaries": {part: _plain(group.summary(part, metric)) for part in parts},
                    "curve": [
                        {"lengths": [span.low, span.high], "part": span.part} | summary._asdict()
                        for span, summary in group.curve(metric).items()
                    ],
                    "runs": [
                        {
                            "run": str(member.path),
                            "seed": member.config.seed,
                            "data_seed": member.config.data_seed,
                            "problem": member.problem or None,
                            "values": {part: member.value(metric, part) for part in parts},
                        }
                        for member in group.members
                    ],
                }
                for group in self.groups
            ],
            "pairs": [
                {"first": self.groups.index(a), "second": self.groups.index(b), "part": part}
                | {"ahead": compared.ahead, "behind": compared.behind, "level": compared.level}
                | compared.difference._asdict()
                for part in parts
                for a, b, compared in pairs(self.groups, part, metric)
            ],
            "unread": [{"run": str(path), "problem": why} for path, why in self.unread.items()],
        }

    def __repr__(self) -> str:
        metric = self.measure.metric
        lines = [f"{self.name or 'runs'}: {self.measure.label}, mean of the seeds, 95% interval"]
        for part in parts_of(self.groups, metric):
            for each in self.groups:
                cells = " ".join(filter(None, _cells(each.summary(part, metric))))
                lines.append(f"  {PARTS[part]}, {each.values or 'all runs'}: {cells}")
        lines += [f"  not counted: {path}: {reason}" for path, reason in self.problems.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        metric = self.measure.metric
        tables = (
            html_table(
                f"{self.name}: {self.measure.label}, {PARTS[part]}",
                ("mean", "95%", "runs"),
                [
                    (each.values or "all runs", _cells(each.summary(part, metric)))
                    for each in self.groups
                ],
            )
            for part in parts_of(self.groups, metric)
        )
        problems = [(str(path), [reason]) for path, reason in self.problems.items()]
        return "".join([*tables, html_table("not counted", [""], problems) if problems else ""])


def _plain(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else summary._asdict()


def _cells(summary: Summary | None) -> list[str]:
    """Mean, interval and number of runs."""
    if summary is None:
        return ["-", "", "0 runs"]
    known = summary.low is not None and summary.high is not None
    interval = f"{summary.low:.3f}..{summary.high:.3f}" if known else ""
    return [f"{summary.mean:.3f}", interval, f"{summary.runs} runs"]


# Which runs ----------------------------------------------------------------------------------


class Saved(BaseModel):
    """sweep.json, as far as it is read again. runs: names, in the order of the grid."""

    model_config = ConfigDict(strict=True)

    made: dict[str, Any]
    measure: Measure | None = None
    runs: list[str] = []


def read_sweep(folder: Path) -> Saved | None:
    """What the sweep of a folder was asked for; None where there is none. Raises UserError."""
    otherwise = "not what a sweep writes; move it away, or name another folder"
    return read_json(folder / SWEEP, Saved, otherwise) if os.path.isdir(folder) else None


class Found(NamedTuple):
    """Runs with their configs, runs that cannot be read with the reason, and what their sweep has
    measured of them."""

    runs: dict[Path, Config]
    unread: dict[Path, str]
    measure: Measure


def find_runs(names: Sequence[str]) -> Found:
    """The runs of some run directories, folders of runs, and sweeps. Raises UserError."""
    found = Found({}, {}, of_lengths(None, None))
    measures = set()
    for name in names:
        folder = Path(name) if os.path.exists(name) else SWEEPS / name
        saved = read_sweep(folder)
        measures.add(saved.measure if saved and saved.measure else found.measure)
        paths = [folder] if is_run(folder) else _runs_in(folder, saved.runs if saved else [])
        if not paths:
            raise UserError(f"{name}: not a run, a folder of runs or the name of a sweep")
        for path in paths:
            try:
                found.runs[path] = RunFolder.open(path).config
            except UserError as error:
                failure = read_failure(path)
                found.unread[path] = failure.reason if failure else str(error)
    return found._replace(measure=measures.pop()) if len(measures) == 1 else found


def _runs_in(folder: Path, first: Sequence[str]) -> list[Path]:
    """The folders in a folder that a training has begun to write. first: names that come first."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    paths = [folder / name for name in dict.fromkeys([*(n for n in first if n in names), *names])]
    return [p for p in paths if any((p / name).exists() for name in (CONFIG, METRICS, FAILED))]


def outcome(run: Path, config: Config, measure: Measure) -> Member:
    """A run by its files: its numbers, if it has been measured so."""
    try:
        found = read_eval(run)
    except UserError as error:
        return Member(run, config, problem=str(error))
    if found and TEST in found.measures and measure.same_pairs(found.measures[TEST].measure):
        return Member(run, config, found)
    if failure := read_failure(run):
        return Member(run, config, problem=failure.reason)
    if not is_run(run):
        return Member(run, config, problem="not begun")
    return Member(run, config, problem=_problem(run))


def _problem(run: Path) -> str:
    """Why a run has no numbers that a training has begun."""
    try:
        folder = RunFolder.open(run)
        last = folder.records[-1] if folder.records else {}
        if None in last.values():  # a number that was not finite
            return f"diverged by step {last['step']}"
        return f"unfinished: {folder.unfinished}" if folder.unfinished else NOT_MEASURED
    except UserError as error:
        return str(error)


def measure_here(run: Path, config: Config, measure: Measure, device: str) -> Member:
    """A run as it was measured, or else measured now; nothing is written."""
    member = outcome(run, config, measure)
    if member.problem != NOT_MEASURED:
        return member
    try:
        loaded = RunFolder.open(run).load("best", device)
        return Member(run, config, next(evaluate(loaded, {TEST: measure})))
    except UserError as error:
        return Member(run, config, problem=str(error).partition("; ")[0])
