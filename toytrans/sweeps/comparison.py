"""Runs side by side: those of a sweep, or any that are named.

runs -> members: their numbers, or why there are none -> groups -> tables, remarks, plain values
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from toytrans.config.names import Metric
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.evaluation import Span
from toytrans.files import read_json
from toytrans.html import html_table
from toytrans.rounding import share
from toytrans.sweeps.groups import Group, Member, Seeds, Table, group, pairs, table_of
from toytrans.sweeps.intervals import Summary, seeds_needed
from toytrans.sweeps.measure import (
    OF_RUN,
    PARTS,
    TEST,
    Eval,
    Measure,
    Part,
    number,
    of_lengths,
    read_eval,
    split_of,
)
from toytrans.sweeps.trials import FAILED, read_failure
from toytrans.training.run import CONFIG, METRICS, NOT_MEASURED, RunFolder, is_run

SWEEP = "sweep.json"

MOST_PAIRS, MOST_LENGTHS, MOST_INTERVALS = 10, 25, 3
"""Rows of a table of pairs, where more are those of the first group alone; rows of a table of
lengths; groups whose intervals are in it too."""

LEARNED = 0.5
"""Exact match within the training lengths, below which a model has not learned the task."""

SMALL = 0.005
"""A difference between free-running and teacher-forced that is said."""


class Shown(NamedTuple):
    """A table of text. names, numbers, last: the headings of its columns; one without rows is its
    title alone."""

    title: str
    names: Sequence[str] = ()
    numbers: Sequence[str] = ()
    last: str = ""
    rows: Sequence[Sequence[str]] = ()

    @property
    def headings(self) -> list[str]:
        return [*self.names, *self.numbers, *filter(None, [self.last])]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs, grouped by what differs.

    measure: what was measured. metric: the number that is compared. about: which pairs those are,
    in words. groups: one for each config, with every run. unread: runs whose config cannot be read,
    and why. files: the tables and plots of a sweep.
    """

    measure: Measure
    metric: Metric
    about: str
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

    @property
    def parts(self) -> list[Part]:
        """The parts of the lengths that are shown: those that some run has; then all of them, if
        there are several."""
        if self.metric in OF_RUN:
            return ["all"]
        there = {part for m in self.members if m.result for part in m.result.parts}
        apart: list[Part] = [part for part in PARTS if part in there and part != "all"]
        return apart if len(apart) == 1 or not there else [*apart, "all"]

    @property
    def key(self) -> str:
        """What names the groups: the one key that differs, or "group" for their letters."""
        keys = list(self.groups[0].differs) if self.groups else []
        return "group" if len(keys) > 1 else "".join(keys).rpartition(".")[2]

    @property
    def label(self) -> str:
        """What is compared, in words."""
        return self.measure.label(self.metric)

    def table(self) -> Table:
        """One row for each run, length and metric."""
        return table_of((each.differs, member) for each in self.groups for member in each.counted)

    # For people ------------------------------------------------------------------------------

    def legend(self) -> list[str]:
        """What the letters of groups stand for."""
        return [f"{each.letter}: {each.values}" for each in self.groups if len(each.differs) > 1]

    def tables(self) -> Iterator[Shown]:
        """Each part, the differences of groups over equal seeds, and the lengths. A part that is 0
        in every run has a title alone."""
        some = list[Part]()
        for part in self.parts:
            values = [each.by_seed(part, self.metric) for each in self.groups]
            if any(value for of_seeds in values for value in of_seeds.values()):
                some.append(part)
                yield self._part(part, values)
            else:
                yield Shown(f"{self._title(part)}: 0 in every run")
        for part in some:
            if part != "all" or self.parts == ["all"]:
                yield from self._pairs(part)
        if some:
            yield from self._lengths()

    def _title(self, part: Part) -> str:
        """The metric, a part of the lengths and its pairs, in words."""
        if self.metric in OF_RUN:
            return self.label
        where = f", {PARTS[part]}" if part != "all" or len(self.parts) > 1 else ""
        return f"{self.label}{where}: {self._measured(part)}"

    def _measured(self, part: Part) -> str:
        """Which pairs of a part were measured, in words."""
        text = self.about
        spans = {place for member in self.members for place, _ in member.numbers}
        some = sorted(s for s in spans if isinstance(s, Span) and part in ("all", s.part))
        if self.measure.lengths and some:
            low, high = some[0].low, max(span.high for span in some)
            text += f" of lengths {low} to {high}" if low < high else f" of length {low}"
        faults = {each.config.fault for each in self.members}
        fault = faults.pop() if len(faults) == 1 else None
        return f"{text}; {fault_remark(fault)}" if fault else text

    def _part(self, part: Part, values: Sequence[Mapping[Seeds, float]]) -> Shown:
        """Mean, deviation, interval and every seed of each group."""
        several = any(len(of_seeds) > 1 for of_seeds in values)
        same = all(of_seeds.keys() == values[0].keys() for of_seeds in values)
        rows = []
        for each, of_seeds in zip(self.groups, values, strict=True):
            counted, every = len(each.counted), len(each.members)
            seeds = list(map(_seed, of_seeds))
            if several:
                texts = [number(value, self.metric) for value in of_seeds.values()]
                seeds = texts if same else list(map("{}: {}".format, seeds, texts))
            runs = str(every) if counted == every else f"{counted} of {every}"
            cells = self._cells(each.summary(part, self.metric))[: None if several else 1]
            rows.append([*([each.name] if self.key else []), runs, *cells, " ".join(seeds)])
        last = f"seeds {' '.join(map(_seed, values[0]))}" if same else "seed: value"
        numbers = ("runs", *(("mean", "sd", "95%") if several else ("value",)))
        names = [self.key] if self.key else []
        return Shown(self._title(part), names, numbers, last if several else "seed", rows)

    def _pairs(self, part: Part) -> Iterator[Shown]:
        """Differences of two groups over equal seeds, where they share several."""
        every = [pair for pair in pairs(self.groups, part, self.metric) if pair[2].runs > 1]
        some = every
        where = "" if part == "all" else f", {PARTS[part]}"
        title = f"difference over equal seeds{where}: first less second"
        if len(every) > MOST_PAIRS:
            some = [pair for pair in every if pair[0] is every[0][0]]
            count = f"{len(some)} of {len(every)} pairs"
            title += f" ({count}, those of {some[0][0].name}; --json has all)"
        rows, needed = [], []
        for first, second, difference, counts in some:
            if seeds := seeds_needed(difference):
                count = str(seeds) if seeds <= 1000 else "more than 1,000"
                needed.append(f"{first.name} - {second.name} {count}")
            cells = [str(difference.runs), *self._cells(difference, signed=True)]
            ahead, behind, _ = map(str, counts.values())
            rows.append([first.name, second.name, *cells, ahead, behind])
        if rows:
            numbers = ("seeds", "mean", "sd", "95%", "ahead", "behind")
            yield Shown(title, ("first", "second"), numbers, "", rows)
        if needed:
            yield Shown(
                f"seeds that a difference of this size would need{where}: {', '.join(needed)} "
                "(80% power, paired t test at 5%)"
            )

    def _lengths(self) -> Iterator[Shown]:
        """The mean of each group at each length, with its interval where there is room."""
        curves = [each.curve(self.metric) for each in self.groups]
        spans = sorted({span for curve in curves for span in curve})
        shown = spans[:: -(-len(spans) // MOST_LENGTHS) or 1]
        rows = []
        for span in shown:
            row = [str(span.low) if span.low == span.high else f"{span.low}-{span.high}"]
            for curve in curves:
                mean, _, interval = self._cells(curve.get(span))
                more = interval != "-" and len(curves) <= MOST_INTERVALS
                row.append(f"{mean} {interval}" if more else mean)
            rows.append(row)
        if len(rows) > 1:
            side = "source" if self.measure.side == "src" else "target"
            some = f" ({len(shown)} of {len(spans)} rows; the CSV has all)"
            title = f"{self.label} by {side} length{some if len(shown) < len(spans) else ''}"
            names = [each.name if each.differs else "mean" for each in self.groups]
            yield Shown(title, ("length",), names, "", rows)

    def _cells(self, summary: Summary | None, *, signed: bool = False) -> list[str]:
        """Mean, deviation and interval."""
        if summary is None:
            return ["-", "-", "-"]
        mean = number(summary.mean, self.metric, signed=signed)
        if summary.deviation is None or summary.low is None or summary.high is None:
            return [mean, "-", "-"]
        ends = (number(end, self.metric, signed=signed) for end in (summary.low, summary.high))
        return [mean, number(summary.deviation, self.metric), "..".join(ends)]

    def remarks(self) -> Iterator[str]:
        """What the numbers cannot say: groups that have learned little, seeds that are too few,
        runs that are not counted, and those that decode otherwise than they predict."""
        sound = [each for each in self.groups if each.members[0].config.fault is None]
        means = {each.name: s.mean for each in sound if (s := each.summary("in_range"))}
        little = [f"{name} {share(mean)}" for name, mean in means.items() if mean < LEARNED]
        if little:
            what = f"{self.measure.decoding} exact match in range"
            yield f"learned little, {what}: {', '.join(little)}; train longer"
        if any(len(each.by_seed()) == 1 for each in self.groups):
            yield "sd, 95% and differences are over seeds: they need two or more of a config"
        for each in self.groups:
            for member in each.members:
                where = f"{member.path} ({each.name}, seed {member.config.seed})"
                if member.result is None:
                    yield f"not counted: {where}: {member.problem}"
                    continue
                difference = member.result.parts["all"].exact_match_difference
                if abs(difference) > SMALL:
                    yield f"free-running differs by {difference:+.3f} from teacher-forced: {where}"
        for path, reason in self.unread.items():
            yield f"not counted: {path}: {reason}"

    def __repr__(self) -> str:
        lines = self.legend()
        for each in self.tables():
            rows = [each.headings, *each.rows] if each.rows else []
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines.append(each.title)
            lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([*lines, *self.remarks()])

    def _repr_html_(self) -> str:
        parts = []
        for each in self.tables():
            rows = [(row[0], row[1:]) for row in each.rows]
            parts.append(html_table(each.title, each.headings[1:], rows))
        remarks = [(text, ()) for text in (*self.legend(), *self.remarks())]
        return "".join([*parts, html_table("", (), remarks) if remarks else ""])

    # For programs ----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals of each group, its runs, and the pairs of groups, as plain values."""
        metric, parts = self.metric, list(dict.fromkeys([*self.parts, "all"] if self.parts else []))

        def plain(each: Group) -> dict[str, Any]:
            summaries = {part: each.summary(part, metric) for part in parts}
            return {
                "differs": dict(each.differs),
                "config": each.members[0].config.without_seeds().model_dump(mode="json"),
                "summaries": {part: s._asdict() if s else None for part, s in summaries.items()},
                "curve": [
                    {"lengths": [span.low, span.high], "part": span.part} | summary._asdict()
                    for span, summary in each.curve(metric).items()
                ],
                "runs": [
                    {
                        "run": str(member.path),
                        "seed": member.config.seed,
                        "data_seed": member.config.data_seed,
                        "problem": member.problem or None,
                        "values": {part: member.value(metric, part) for part in parts},
                    }
                    for member in each.members
                ],
            }

        return {
            "measure": self.measure.model_dump(mode="json"),
            "metric": metric,
            "about": self._measured("all"),
            "groups": list(map(plain, self.groups)),
            "pairs": [
                {"first": self.groups.index(first), "second": self.groups.index(second)}
                | {"part": part, **counts, "seeds_needed": seeds_needed(difference)}
                | difference._asdict()
                for part in parts
                for first, second, difference, counts in pairs(self.groups, part, metric)
            ],
            "unread": [{"run": str(path), "problem": why} for path, why in self.unread.items()],
        }


def _seed(seeds: Seeds) -> str:
    """seed, or seed/data.seed where the data has its own."""
    return str(seeds[0]) if seeds[1] is None else f"{seeds[0]}/{seeds[1]}"


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


Take = Callable[[Path, Measure], Eval]
"""Measures a run now."""


def compare(
    paths: Sequence[Path],
    metric: Metric = "exact_match",
    measure: Measure | None = None,
    *,
    about: str = "",
    take: Take | None = None,
    kept: bool = True,
) -> Comparison:
    """The runs of some run directories, folders of runs and sweeps. Raises UserError.

    measure: None = that of all the sweeps, or else every test pair. about: which pairs it takes,
    in words; empty = those of each run's split. take: measures runs that have no such numbers;
    nothing is written. kept: whether numbers that a sweep has kept will do.
    """
    runs, unread, measures = dict[Path, RunFolder](), dict[Path, str](), set[Measure | None]()
    for path in paths:
        saved = read_sweep(path)
        measures.add(saved.measure if saved else None)
        for each in [path] if is_run(path) else _runs_in(path, saved.runs if saved else []):
            try:
                runs[each] = RunFolder.open(each)
            except UserError as error:
                failure = read_failure(each)
                unread[each] = failure.reason if failure else str(error)
    measure = measure or (measures.pop() if len(measures) == 1 else None)
    measure = measure or of_lengths(None, None)
    members = [_member(run, measure, take, kept=kept) for run in runs.values()]
    splits = {split_of(member.config) for member in members}
    about = about or f"{' or '.join(sorted(splits))} pairs"
    return Comparison(measure, metric, about, group(members), unread)


def _runs_in(folder: Path, first: Sequence[str]) -> list[Path]:
    """The folders in a folder that a training has begun to write. first: names that come first.
    Raises UserError if there is none."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    paths = [folder / name for name in dict.fromkeys([*(n for n in first if n in names), *names])]
    runs = [p for p in paths if any((p / name).exists() for name in (CONFIG, METRICS, FAILED))]
    if not runs:
        RunFolder.open(folder)
    return runs


def _member(run: RunFolder, measure: Measure, take: Take | None, *, kept: bool) -> Member:
    """A run by its files: its numbers, if it has been measured so or is measured now."""
    path, config = run.path, run.config
    try:
        found = read_eval(path) if kept else None
        if found and TEST in found.measures and found.measures[TEST].measure == measure:
            return Member(path, config, found)
        last = run.records[-1] if run.records else {}
        if failure := read_failure(path):
            problem = failure.reason
        elif None in last.values():  # a number that was not finite
            problem = f"diverged by step {last['step']}"
        elif run.unfinished:
            problem = f"unfinished: {run.unfinished}"
        elif take is None:
            problem = NOT_MEASURED
        else:
            return Member(path, config, take(path, measure))
    except UserError as error:
        problem = str(error)
    return Member(path, config, problem=problem)
