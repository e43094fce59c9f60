"""Runs side by side: those of a sweep, or any that are named.

runs -> members: their numbers, or why there are none -> groups -> tables, picture, plain values
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from toytrans.config.names import Metric, fault_remark
from toytrans.errors import UserError
from toytrans.evaluation import PARTS, Span
from toytrans.figures import Point, draw_lengths, drawn
from toytrans.files import read_json
from toytrans.html import html_table
from toytrans.sweeps.groups import Group, Member, Table, group, order, pairs_of, table_of
from toytrans.sweeps.intervals import Summary
from toytrans.sweeps.measure import (
    OF_RUN,
    TEST,
    Measure,
    Result,
    is_share,
    number,
    of_lengths,
    read_results,
    split_of,
)
from toytrans.sweeps.trial import FAILED, read_failure
from toytrans.training.run import CONFIG, METRICS, NOT_MEASURED, RunFolder, is_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP = "sweep.json"

MOST_PAIRS, MOST_LENGTHS, MOST_INTERVALS, MOST_SEEDS = 10, 25, 3, 1000
"""Rows of a table of pairs, where more are those of the first group alone; rows of a table of
lengths; groups whose intervals are in it too; seeds that a difference may need, to be counted."""

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
    def parts(self) -> list[str]:
        """The parts of the lengths that are shown: those that some run has; then all of them, if
        there are several."""
        there = {place for member in self.members for place, _ in member.rows}
        apart: list[str] = [part for part in PARTS if part in there]
        if self.metric in OF_RUN or not apart:
            return ["all"]
        return apart if len(apart) == 1 else [*apart, "all"]

    def table(self) -> Table:
        """One row for each run, length and metric."""
        return table_of((each.differs, member) for each in self.groups for member in each.counted)

    # For people ------------------------------------------------------------------------------

    @property
    def _key(self) -> str:
        """What names the groups: the one key that differs, or "group"."""
        keys = list(self.groups[0].differs) if self.groups else []
        return keys[0].rpartition(".")[2] if len(keys) == 1 else "group"

    def tables(self) -> Iterator[Shown]:
        """What letters of groups stand for; the parts; the differences of groups over equal seeds;
        the lengths; what no number says."""
        yield from map(Shown, self._legend)
        parts = {part: self.part(part) for part in self.parts}
        yield from parts.values()
        some = [part for part, shown in parts.items() if shown.rows]
        for part in some:
            if part != "all" or self.parts == ["all"]:
                yield from self._pairs(part)
        if some:
            yield from self._lengths()
        yield from map(Shown, self._remarks())

    @property
    def _legend(self) -> list[str]:
        """What the letters of groups stand for."""
        return [f"{each.letter}: {each.values}" for each in self.groups if len(each.differs) > 1]

    def _title(self, part: str) -> str:
        """The metric, a part of the lengths and its pairs, in words."""
        label = self.measure.label(self.metric)
        if self.metric in OF_RUN:
            return label
        where = f", {PARTS.get(part, part)}" if part != "all" or len(self.parts) > 1 else ""
        return f"{label}{where}: {self._measured(part)}"

    def _measured(self, part: str) -> str:
        """Which pairs of a part were measured, in words."""
        text = self.about
        spans = {place for member in self.members for place, _ in member.rows}
        some = sorted(s for s in spans if isinstance(s, Span) and part in ("all", s.part))
        if some:
            low, high = some[0].low, max(span.high for span in some)
            text += f" of lengths {low} to {high}" if low < high else f" of length {low}"
        faults = {each.config.fault for each in self.members}
        fault = faults.pop() if len(faults) == 1 else None
        return f"{text}; {fault_remark(fault)}" if fault else text

    def part(self, part: str) -> Shown:
        """Every seed of each group; of several seeds the mean, deviation and interval. Where all
        are 0, the title alone."""
        title, values = self._title(part), [g.by_seed(part, self.metric) for g in self.groups]
        if not any(value for of_seeds in values for value in of_seeds.values()):
            return Shown(f"{title}: 0 in every run")
        several = any(len(of_seeds) > 1 for of_seeds in values)
        seeds = sorted({seeds for of_seeds in values for seeds in of_seeds}, key=order)
        rows = []
        for each, of_seeds in zip(self.groups, values, strict=True):
            counted, every = len(each.counted), len(each.members)
            runs = str(every) if counted == every else f"{counted} of {every}"
            cells = self._cells(each.summary(part, self.metric)) if several else []
            found = [number(of_seeds[s], self.metric) if s in of_seeds else "-" for s in seeds]
            rows.append([each.name, runs, *cells, " ".join(found)])
        # seed, or seed/data.seed where the data has its own
        texts = [str(seed) if data is None else f"{seed}/{data}" for seed, data in seeds]
        last = f"seed{'s' * several} {' '.join(texts)}"
        numbers = ("runs", "mean", "sd", "95%") if several else ("runs",)
        return Shown(title, [self._key], numbers, last, rows)

    def _pairs(self, part: str) -> Iterator[Shown]:
        """Differences of two groups over equal seeds, where they share several."""
        every = [p for p in pairs_of(self.groups, part, self.metric) if p.difference.runs > 1]
        some = every
        where = "" if part == "all" else f", {PARTS[part]}"
        title = f"difference over equal seeds{where}: first less second"
        if len(every) > MOST_PAIRS:
            some = [pair for pair in every if pair.first is every[0].first]
            title += f" ({len(some)} of {len(every)} pairs; --json has all)"
        rows, needed = [], []
        for pair in some:
            names, difference = [pair.first.name, pair.second.name], pair.difference
            if seeds := pair.seeds_needed:
                count = str(seeds) if seeds <= MOST_SEEDS else f"more than {MOST_SEEDS:,}"
                needed.append(f"{' - '.join(names)} {count}")
            cells = [str(difference.runs), *self._cells(difference, signed=True)]
            rows.append([*names, *cells, str(pair.ahead), str(pair.behind)])
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
            title = f"{self.measure.label(self.metric)} by {side} length"
            names = [each.name if each.differs else "mean" for each in self.groups]
            yield Shown(title + some * (len(shown) < len(spans)), ("length",), names, "", rows)

    def _cells(self, summary: Summary | None, *, signed: bool = False) -> list[str]:
        """Mean, deviation and interval."""
        if summary is None:
            return ["-", "-", "-"]
        mean = number(summary.mean, self.metric, signed=signed)
        if summary.deviation is None or summary.low is None or summary.high is None:
            return [mean, "-", "-"]
        ends = (number(end, self.metric, signed=signed) for end in (summary.low, summary.high))
        return [mean, number(summary.deviation, self.metric), "..".join(ends)]

    def _remarks(self) -> Iterator[str]:
        """What the numbers cannot say: runs that are not counted, and those that decode otherwise
        than they predict."""
        for each in self.groups:
            for member in each.members:
                where = f"{member.path} ({each.name}, seed {member.config.seed})"
                if member.result is None:
                    yield f"not counted: {where}: {member.problem}"
                elif abs(difference := member.result.difference) > SMALL:
                    yield f"free-running differs by {difference:+.3f} from teacher-forced: {where}"
        for path, reason in self.unread.items():
            yield f"not counted: {path}: {reason}"

    def __repr__(self) -> str:
        lines = []
        for each in self.tables():
            rows = [each.headings, *each.rows] if each.rows else []
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines.append(each.title)
            lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = []
        for each in self.tables():
            rows = [(row[0], row[1:]) for row in each.rows]
            html = html_table(each.title, each.headings[1:], rows)
            parts.append(html if rows else f"<p>{escape(each.title)}</p>")
        return "".join(parts)

    def picture(self, title: str, format: str = "png") -> bytes:
        """Mean and 95% interval of each group against length; of exact match where the metric is
        one of whole runs. Groups with letters are written out below. Raises UserError without
        matplotlib."""
        if self.metric in OF_RUN:
            return replace(self, metric="exact_match").picture(title, format)
        curves = {each.name: each.curve(self.metric) for each in self.groups}
        lines = {name: list(map(_point, curve.items())) for name, curve in curves.items()}
        meanings = [line for text in self._legend for line in wrap(text, 100)]
        trained = {member.result.train_length for member in self.members if member.result}
        side = "source" if self.measure.side == "src" else "target"

        def fill(figure: "Figure") -> None:
            if meanings:
                figure.supxlabel("\n".join(meanings), x=0.01, ha="left", fontsize=8)
            axes = figure.subplots()
            axes.set_title(title.encode(errors="backslashreplace").decode(), fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            draw_lengths(axes, lines, trained)
            if any(lines.values()):
                axes.legend(frameon=False, title=self._key)
            axes.set_xlabel(f"{side} length (dotted: the ends of training; bands: 95% intervals)")
            axes.set_ylabel(self.measure.label(self.metric))
            if is_share(self.metric):
                axes.set_ylim(-0.02, 1.02)

        return drawn((7, 4 + 0.15 * len(meanings)), fill, format)

    # For programs ----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals of each group, its runs, and the pairs of groups, as plain values.
        seeds_needed: None also where that is more than `MOST_SEEDS`."""
        metric, parts = self.metric, list(dict.fromkeys([*self.parts, "all"]))
        groups, pairs = list[dict[str, Any]](), list[dict[str, Any]]()
        for each in self.groups:
            summaries = {part: each.summary(part, metric) for part in parts}
            groups.append(
                {
                    "differs": dict(each.differs),
                    "config": each.members[0].config.without_seeds().model_dump(mode="json"),
                    "summaries": {part: s and s._asdict() for part, s in summaries.items()},
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
            )
        for part in parts:
            for pair in pairs_of(self.groups, part, metric):
                first, second = map(self.groups.index, (pair.first, pair.second))
                needed = pair.seeds_needed
                pairs.append(
                    {"first": first, "second": second, "part": part}
                    | {"ahead": pair.ahead, "behind": pair.behind, "level": pair.level}
                    | {"seeds_needed": needed if needed and needed <= MOST_SEEDS else None}
                    | pair.difference._asdict()
                )
        return {
            "measure": self.measure.model_dump(mode="json"),
            "metric": metric,
            "about": self._measured("all"),
            "groups": groups,
            "pairs": pairs,
            "unread": [{"run": str(path), "problem": why} for path, why in self.unread.items()],
        }


def _point(of: tuple[Span, Summary]) -> Point:
    """The middle of some lengths, their mean and its interval."""
    span, (_, mean, _, low, high, _) = of
    middle = (span.low + span.high) / 2
    return middle, mean, mean if low is None else low, mean if high is None else high


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


Take = Callable[[Path, Measure], Result]
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
        saved = read_sweep(path.parent if is_run(path) else path)
        measures.add(saved.measure if saved else None)
        for each in runs_of(path):
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


def runs_of(path: Path) -> list[Path]:
    """A run directory, or those in a folder, first in the order of its sweep: what a training has
    begun to write. Raises UserError if there is none."""
    if _has_begun(path):
        return [path]
    saved = read_sweep(path)
    names = sorted(os.listdir(path)) if path.is_dir() else []
    first = [name for name in (saved.runs if saved else []) if name in names]
    runs = [run for name in dict.fromkeys([*first, *names]) if _has_begun(run := path / name)]
    if not runs:
        RunFolder.open(path)
    return runs


def _has_begun(path: Path) -> bool:
    return any(os.path.exists(path / name) for name in (CONFIG, METRICS, FAILED))


def _member(run: RunFolder, measure: Measure, take: Take | None, *, kept: bool) -> Member:
    """A run by its files: its numbers, if it has been measured so or is measured now."""
    path, config = run.path, run.config
    try:
        found = read_results(path).get(TEST) if kept else None
        if found and found.measure == measure:
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
