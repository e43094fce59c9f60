"""Runs side by side: those of a sweep, or any that are named.

runs -> members: their numbers, or why there are none -> groups -> tables, remarks, plain values
"""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from toytrans.config.load import flatten
from toytrans.config.names import Metric
from toytrans.config.schema import Config
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.evaluation import Span
from toytrans.files import read_json
from toytrans.html import html_table
from toytrans.rounding import share
from toytrans.sweeps.intervals import Summary, difference_of, seeds_needed, summarise
from toytrans.sweeps.measure import (
    OF_RUN,
    PARTS,
    SHARES,
    TEST,
    Eval,
    Measure,
    Member,
    Numbers,
    Part,
    Seeds,
    number,
    of_lengths,
    read_eval,
    shown,
    split_of,
)
from toytrans.sweeps.table import Table, table_of
from toytrans.sweeps.trials import FAILED, read_failure
from toytrans.training.run import CONFIG, METRICS, NOT_MEASURED, RunFolder, is_run

SWEEP = "sweep.json"

MOST_PAIRS, MOST_LENGTHS, MOST_INTERVALS = 10, 25, 3
"""Rows of a table of pairs, where more are those of the first group alone; rows of a table of
lengths; groups whose intervals are in it too."""

MOST_SEEDS = 1000
"""More seeds than these are not counted for people."""

LEARNED = 0.5
"""Exact match within the training lengths, below which a model has not learned the task."""

SMALL = 0.005
"""A difference between free-running and teacher-forced that is said."""


@dataclass(frozen=True)
class Group:
    """Runs whose configs differ in seeds and device at most. differs: what sets the group apart
    from others, by key. letter: a name for it where that is much."""

    differs: Mapping[str, Any]
    members: Sequence[Member]
    letter: str = "A"

    @property
    def name(self) -> str:
        """The value of the one key that sets it apart, or else its letter."""
        if not self.differs:
            return "all"
        return self.letter if len(self.differs) > 1 else shown(next(iter(self.differs.values())))

    @property
    def values(self) -> str:
        """What sets it apart, in full."""
        names = ((key.rpartition(".")[2], shown(value)) for key, value in self.differs.items())
        return ", ".join(f"{key} {value}" for key, value in names)

    @property
    def counted(self) -> list[Member]:
        """The runs that are averaged."""
        return [member for member in self.members if not member.problem]

    def by_seed(self, part: Part = "all", metric: Metric = "exact_match") -> dict[Seeds, float]:
        """The value of each seed; of several runs of one seed the mean."""
        return _by_seed((member, member.value(metric, part)) for member in self.counted)

    def pairs(
        self,
        part: Part = "all",
        metric: Metric = "exact_match",
        seeds: Container[Seeds] | None = None,
    ) -> int | None:
        """The pairs that the values of all seeds rest on, or of some; None where a value is no
        proportion. Those that several seeds share are counted once."""
        some = [member for member in self.counted if seeds is None or member.seeds in seeds]
        parts = [(member, member.result.parts.get(part)) for member in some if member.result]
        return _pairs(parts, metric)

    def summary(self, part: Part = "all", metric: Metric = "exact_match") -> Summary | None:
        """None where no run has the part."""
        values = list(self.by_seed(part, metric).values())
        return summarise(values, self.pairs(part, metric)) if values else None

    def curve(self, metric: Metric = "exact_match") -> dict[Span, Summary]:
        """The summary of each length, or span of lengths, over the runs that have such pairs."""
        columns: dict[Span, list[tuple[Member, Numbers]]] = {}
        for member in self.counted if metric not in OF_RUN else ():
            for of in member.result.spans if member.result else ():
                key = Span(of.shortest, of.longest, of.part)
                columns.setdefault(key, []).append((member, of))
        found = {}
        for span in sorted(columns):
            some = columns[span]
            if values := _by_seed((m, m.result.value(metric, of)) for m, of in some if m.result):
                found[span] = summarise(list(values.values()), _pairs(some, metric))
        return found


def _by_seed(values: Iterable[tuple[Member, float | None]]) -> dict[Seeds, float]:
    """The mean of the known values of each seed, in the order of the seeds."""
    found: dict[Seeds, list[float]] = {}
    for member, value in values:
        if value is not None:
            found.setdefault(member.seeds, []).append(value)
    return {seeds: fmean(found[seeds]) for seeds in sorted(found, key=_order)}


def _pairs(numbers: Iterable[tuple[Member, Numbers | None]], metric: Metric) -> int | None:
    """The pairs behind the proportions of some runs; None where the metric is none."""
    found: dict[int | None, int] = {}
    for member, of in numbers if metric in SHARES else ():
        if member.result and of:
            count = member.result.pairs(metric, of)
            found[member.draw] = max(count, found.get(member.draw, 0))
    return sum(found.values()) or None


def group(members: Iterable[Member]) -> list[Group]:
    """The members by their configs, in the order in which these occur first."""
    groups: dict[Config, list[Member]] = {}
    for member in members:
        groups.setdefault(member.config.without_seeds(), []).append(member)
    keys = differing_keys(list(groups))
    flat = [flatten(config.model_dump(mode="json")) for config in groups]
    return [
        Group(
            {key: values.get(key) for key in keys},
            sorted(some, key=lambda member: (_order(member.seeds), str(member.path))),
            f"{ascii_uppercase[number % 26]}{number // 26 or ''}",  # A to Z, then A1, B1
        )
        for number, (values, some) in enumerate(zip(flat, groups.values(), strict=True))
    ]


def _order(seeds: Seeds) -> tuple[int, int]:
    return seeds[0], -1 if seeds[1] is None else seeds[1]


def differing_keys(configs: Sequence[Config]) -> list[str]:
    """The keys whose values differ, without those whose values follow from other keys."""
    flat = [flatten(config.model_dump(mode="json")) for config in configs]
    every = list(dict.fromkeys(key for values in flat for key in values))
    differing = [key for key in every if any(v.get(key) != flat[0].get(key) for v in flat)]
    causes = [key for key in differing if not all(_follows(c, key) for c in configs)]
    seen = [tuple(shown(values.get(key)) for key in causes) for values in flat]
    return causes if len(set(seen)) == len(configs) else differing


def _follows(config: Config, key: str) -> bool:
    """Whether a value is the one that it has where the file does not name it."""
    values = config.model_dump(mode="json")
    *sections, name = key.split(".")
    place: Any = values
    for section in sections:
        if not isinstance(place := place.get(section), dict):
            return False
    before = place.pop(name, None)
    try:
        now = Config.model_validate(values).model_dump(mode="json")
    except ValidationError:
        return False
    return bool(flatten(now).get(key) == before)


class Pair(NamedTuple):
    """Two groups over the seeds that both have: the first less the second, and on how many of them
    the first is ahead, behind and level."""

    first: Group
    second: Group
    difference: Summary
    ahead: int
    behind: int
    level: int

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds would show a difference of this size; None = so many as there are."""
        return seeds_needed(self.difference)


def pairs(
    groups: Sequence[Group], part: Part = "all", metric: Metric = "exact_match"
) -> list[Pair]:
    """Every two groups that share seeds."""
    found = []
    values = [(each, each.by_seed(part, metric)) for each in groups]
    for (first, ours), (second, theirs) in combinations(values, 2):
        if both := [seeds for seeds in ours if seeds in theirs]:
            counts = [each.pairs(part, metric, both) for each in (first, second)]
            difference = difference_of(
                [ours[seeds] for seeds in both],
                [theirs[seeds] for seeds in both],
                (counts[0], counts[1]) if counts[0] and counts[1] else None,
            )
            signs = [(ours[s] > theirs[s]) - (ours[s] < theirs[s]) for s in both]
            found.append(Pair(first, second, difference, *map(signs.count, (1, -1, 0))))
    return found


def parts_of(groups: Sequence[Group], metric: Metric = "exact_match") -> list[Part]:
    """The parts that some run has; then all of them, if there are several."""
    if metric in OF_RUN:
        return ["all"]
    results = [member.result for each in groups for member in each.members]
    there = {part for result in results if result for part in result.parts}
    apart: list[Part] = [part for part in ("below", "in_range", "beyond") if part in there]
    return apart if len(apart) == 1 or not there else [*apart, "all"]


# Side by side -------------------------------------------------------------------------------------


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
        return [*self.names, *self.numbers, *([self.last] if self.last else [])]


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
        """The parts of the lengths that are shown."""
        return parts_of(self.groups, self.metric)

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
        return table_of((each.differs, m, TEST) for each in self.groups for m in each.counted)

    # For people ------------------------------------------------------------------------------

    def legend(self) -> list[str]:
        """What the letters of groups stand for."""
        return [f"{each.letter}: {each.values}" for each in self.groups if len(each.differs) > 1]

    def tables(self) -> Iterator[Shown]:
        """Each part, the differences of groups over equal seeds, and the lengths. A part that is 0
        in every run has a title alone."""
        zero = set[Part]()
        for part in self.parts:
            title = self._title(part)
            if any(v for each in self.groups for v in each.by_seed(part, self.metric).values()):
                yield self._part(part, title)
            else:
                zero.add(part)
                yield Shown(f"{title}: 0 in every run")
        for part in [part for part in self.parts if part != "all"] or self.parts:
            if part not in zero:
                yield from self._pairs(part)
        if zero < set(self.parts):
            yield from self._lengths()

    def _title(self, part: Part) -> str:
        """The metric, a part of the lengths and its pairs, in words."""
        if self.metric in OF_RUN:
            return self.label
        where = f", {PARTS[part]}" if part != "all" or len(self.parts) > 1 else ""
        return f"{self.label}{where}: {self._pairs_of(part)}"

    def _pairs_of(self, part: Part) -> str:
        """Which pairs of a part were measured, in words."""
        text = self.about
        trained = {each.result.train_length for each in self.members if each.result}
        if self.measure.lengths and (len(trained) == 1 or part == "all"):
            low, high = self.measure.lengths
            if part != "all":
                first, last = trained.pop()
                ends = {
                    "below": (0, first - 1),
                    "in_range": (first, last),
                    "beyond": (last + 1, high),
                }
                low, high = max(low, ends[part][0]), min(high, ends[part][1])
            text += f" of lengths {low} to {high}" if low < high else f" of length {low}"
        faults = {each.config.fault for each in self.members}
        fault = faults.pop() if len(faults) == 1 else None
        return f"{text}; {fault_remark(fault)}" if fault else text

    def _part(self, part: Part, title: str) -> Shown:
        """Mean, deviation, interval and every seed of each group."""
        summaries = [each.summary(part, self.metric) for each in self.groups]
        values = [each.by_seed(part, self.metric) for each in self.groups]
        several = any(summary and summary.runs > 1 for summary in summaries)
        same = all(each.keys() == values[0].keys() for each in values)
        rows = []
        for each, summary, of_seeds in zip(self.groups, summaries, values, strict=True):
            counted, every = len(each.counted), len(each.members)
            seeds = list(map(_seed, of_seeds))
            if several:
                texts = [number(value, self.metric) for value in of_seeds.values()]
                seeds = texts if same else list(map("{}: {}".format, seeds, texts))
            runs = str(every) if counted == every else f"{counted} of {every}"
            cells = self._cells(summary)[: None if several else 1]
            rows.append([*([each.name] if self.key else []), runs, *cells, " ".join(seeds)])
        last = "seed" if not several else "seed: value"
        if several and same and values[0]:
            last = f"seeds {' '.join(map(_seed, values[0]))}"
        numbers = ("runs", *(("mean", "sd", "95%") if several else ("value",)))
        return Shown(title, [self.key] if self.key else [], numbers, last, rows)

    def _pairs(self, part: Part) -> Iterator[Shown]:
        """Differences of two groups over equal seeds, where they share several."""
        every = [p for p in pairs(self.groups, part, self.metric) if p.difference.runs > 1]
        some = (
            every if len(every) <= MOST_PAIRS else [p for p in every if p.first is every[0].first]
        )
        where = "" if part == "all" else f", {PARTS[part]}"
        title = f"difference over equal seeds{where}: first less second"
        if len(some) < len(every):
            count = f"{len(some)} of {len(every)} pairs"
            title += f" ({count}, those of {some[0].first.name}; --json has all)"
        rows, needed = [], []
        for each in some:
            if seeds := each.seeds_needed:
                count = str(seeds) if seeds <= MOST_SEEDS else f"more than {MOST_SEEDS:,}"
                needed.append(f"{each.first.name} - {each.second.name} {count}")
            cells = [str(each.difference.runs), *self._cells(each.difference, signed=True)]
            names = [each.first.name, each.second.name]
            rows.append([*names, *cells, str(each.ahead), str(each.behind)])
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
        if any((s := each.summary()) and s.runs < 2 for each in self.groups):
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
            for row in rows:
                cells = (text.rjust(width) for text, width in zip(row, widths, strict=True))
                lines.append(f"  {'  '.join(cells)}")
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
        metric, parts = self.metric, self.parts
        if parts and "all" not in parts:
            parts = [*parts, "all"]
        return {
            "measure": self.measure.model_dump(mode="json"),
            "metric": metric,
            "about": self._pairs_of("all"),
            "groups": [
                {
                    "differs": dict(each.differs),
                    "config": each.members[0].config.without_seeds().model_dump(mode="json"),
                    "summaries": {part: _plain(each.summary(part, metric)) for part in parts},
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
                for each in self.groups
            ],
            "pairs": [
                {"first": self.groups.index(pair.first), "second": self.groups.index(pair.second)}
                | {"part": part, "ahead": pair.ahead, "behind": pair.behind, "level": pair.level}
                | {"seeds_needed": pair.seeds_needed}
                | pair.difference._asdict()
                for part in parts
                for pair in pairs(self.groups, part, metric)
            ],
            "unread": [{"run": str(path), "problem": why} for path, why in self.unread.items()],
        }


def _plain(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else summary._asdict()


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
    found, measures = dict[Path, RunFolder | str](), set[Measure | None]()
    for path in paths:
        saved = read_sweep(path)
        measures.add(saved.measure if saved else None)
        names = saved.runs if saved else []
        for each in [path] if is_run(path) else _runs_in(path, names):
            try:
                found[each] = RunFolder.open(each)
            except UserError as error:
                failure = read_failure(each)
                found[each] = failure.reason if failure else str(error)
    measure = measure or (measures.pop() if len(measures) == 1 else None)
    measure = measure or of_lengths(None, None)
    members = [
        _member(run, measure, take, kept=kept)
        for run in found.values()
        if isinstance(run, RunFolder)
    ]
    unread = {path: why for path, why in found.items() if isinstance(why, str)}
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
        if failure := read_failure(path):
            return Member(path, config, problem=failure.reason)
        last = run.records[-1] if run.records else {}
        if None in last.values():  # a number that was not finite
            return Member(path, config, problem=f"diverged by step {last['step']}")
        if run.unfinished:
            return Member(path, config, problem=f"unfinished: {run.unfinished}")
        if take is None:
            return Member(path, config, problem=NOT_MEASURED)
        return Member(path, config, take(path, measure))
    except UserError as error:
        return Member(path, config, problem=str(error))
