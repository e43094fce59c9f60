"""Runs side by side: those of a sweep, or any that are named.

runs -> members: their numbers, or why there are none -> groups by config
-> one tidy table; tables for people, a picture, plain values
"""

import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from toytrans.config.faults import fault_remark
from toytrans.config.load import flatten
from toytrans.config.schema import Settings
from toytrans.data.selection import SIDE_NAMES
from toytrans.documents import read_json
from toytrans.errors import UserError
from toytrans.figures import Point, draw_lengths, drawn
from toytrans.html import Shown
from toytrans.score_tables import LengthGroup
from toytrans.scores import PARTS, wilson_interval
from toytrans.sweeps.intervals import Summary, difference_of, seeds_needed, summarise
from toytrans.sweeps.measure import (
    OF_RUN,
    Measure,
    Metric,
    Place,
    Result,
    is_share,
    of_lengths,
    read_results,
    shown,
    split_of,
    written,
)
from toytrans.sweeps.trial import FAILED, read_failure
from toytrans.training.folder import CONFIG, METRICS, is_run
from toytrans.training.run import NOT_MEASURED, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP = "sweep.json"

MOST_PAIRS, MOST_LENGTHS, MOST_INTERVALS = 10, 25, 3
"""Rows of a table of pairs, where more are those of the first group alone; rows of a table of
lengths; groups whose intervals are in it too."""

SMALL = 0.005
"""A difference between free-running and teacher-forced that is said."""

# The table ---------------------------------------------------------------------------------------

Seeds = tuple[int, int]
"""seed, and that of the data"""


class Member(NamedTuple):
    """A run and its numbers, or the problem why it has none.

    stated: the keys that its config gives. Other keys follow from these, or have their defaults.
    """

    path: Path
    config: Settings
    result: Result | None = None
    problem: str = ""
    stated: Collection[str] = ()

    @property
    def seeds(self) -> Seeds:
        return self.config.seed, self.config.data_seed


COLUMNS = ("part", "shortest", "longest", "metric", "value", "low", "high", "pairs")
"""After those that name a run. low, high: the 95% interval of Wilson. Rows of a part have no
shortest and longest; rows of a whole run have no part."""

Table = list[list[Any]]
"""The names of the columns, and the rows."""


def table_of(entries: Iterable[tuple[Mapping[str, Any], Member, Result]]) -> Table:
    """The table of runs that have numbers: one row = run x lengths x metric. entries: what sets a
    run apart, always by the same keys; the run; its numbers."""
    keys, rows = list[str](), list[list[Any]]()
    for about, member, result in entries:
        keys = list(about)
        head = [str(member.path), *map(cell, about.values()), *member.seeds]
        for *where, metric, value, pairs in result.rows:
            low = high = None
            if pairs and value is not None and metric.startswith("exact_match"):
                ends = wilson_interval(round(value * pairs), pairs)
                low, high = min(ends[0], value), max(ends[1], value)  # but for rounding
            rows.append([*head, *where, metric, value, low, high, pairs])
    return [["run", *keys, "seed", "data_seed", *COLUMNS], *rows]


def cell(value: Any) -> Any:
    """Numbers as they are; other values as YAML has them. Null is "none": pandas groups by it."""
    return value if isinstance(value, int | float) else shown(value)


# Groups ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs whose configs differ in seeds and device at most, by seeds. differs: what sets the group
    apart from others, by key. name: the value of the one key that does, or else a letter."""

    differs: Mapping[str, Any]
    members: Sequence[Member]
    name: str = "all"

    @property
    def counted(self) -> list[tuple[Member, Result]]:
        """The runs that are averaged, with their numbers."""
        return [(member, member.result) for member in self.members if member.result]

    def by_seed(self, place: Place = "all", metric: Metric = "exact_match") -> dict[Seeds, float]:
        """The value of each seed; of several runs of one seed the mean."""
        found: dict[Seeds, list[float]] = {}
        for member, result in self.counted:
            if (value := result.number(metric, place)[0]) is not None:
                found.setdefault(member.seeds, []).append(value)
        return {seeds: fmean(values) for seeds, values in found.items()}

    def pairs(self, place: Place, metric: Metric, seeds: Container[Seeds]) -> int:
        """The pairs that the values of some seeds rest on; 0 where a value is no share. Those that
        several seeds share, of files or of one data.seed, are counted once."""
        counts: dict[int | None, int] = {}
        for member, result in self.counted if is_share(metric) else ():
            if member.seeds in seeds:
                given = member.config.data.task is None or result.of_files
                draw = None if given else member.config.data_seed
                counts[draw] = max(result.number(metric, place)[1], counts.get(draw, 0))
        return sum(counts.values())

    def summary(self, place: Place = "all", metric: Metric = "exact_match") -> Summary | None:
        """None where no run has the place."""
        values = self.by_seed(place, metric)
        if not values:
            return None
        found = summarise(list(values.values()), self.pairs(place, metric, values) or None)
        least = 1.0 if metric == "perplexity" else 0.0
        return found if found.low is None else found._replace(low=max(found.low, least))

    def curve(self, metric: Metric = "exact_match") -> dict[LengthGroup, Summary]:
        """The summary of each length, or span of lengths, over the runs that have such pairs."""
        spans = sorted(place for place in places_of([self]) if isinstance(place, LengthGroup))
        return {span: found for span in spans if (found := self.summary(span, metric))}


def places_of(groups: Iterable[Group]) -> set[Place]:
    """What some run has numbers of."""
    return {at for each in groups for _, result in each.counted for at, _ in result.numbers}


def without_seeds(settings: Settings) -> Settings:
    """What the runs of one group have in common: all but both seeds and the device."""
    data = settings.data.model_copy(update={"seed": None})
    return settings.model_copy(update={"seed": 0, "device": "auto", "data": data})


def group(members: Iterable[Member]) -> list[Group]:
    """The members by their configs, in the order in which these occur first."""
    groups: dict[Settings, list[Member]] = {}
    stated = set[str]()
    for member in members:
        stated.update(member.stated)
        groups.setdefault(without_seeds(member.config), []).append(member)
    flat = [flatten(config.model_dump(mode="json")) for config in groups]
    differing = [
        key
        for key in dict.fromkeys(key for values in flat for key in values)
        if any(values.get(key) != flat[0].get(key) for values in flat)
    ]
    causes = [key for key in differing if key in stated]  # what differs besides follows from them
    told = {tuple(shown(values.get(key)) for key in causes) for values in flat}
    keys = causes if len(told) == len(groups) else differing
    found = []
    for number, (values, some) in enumerate(zip(flat, groups.values(), strict=True)):
        differs = {key: values.get(key) for key in keys}
        name = shown(differs[keys[0]]) if len(keys) == 1 else "all"
        if len(keys) > 1:
            name = f"{ascii_uppercase[number % 26]}{number // 26 or ''}"  # A to Z, then A1, B1
        by_seeds = sorted(some, key=lambda member: (member.seeds, str(member.path)))
        found.append(Group(differs, by_seeds, name))
    return found


def pairs_of(
    groups: Sequence[Group], place: Place = "all", metric: Metric = "exact_match"
) -> Iterator[tuple[Group, Group, Summary, dict[str, int | None]]]:
    """Every two groups over the seeds that both have: the first less the second, on how many seeds
    the first is ahead, behind and level, and how many a difference of this size would need."""
    for first, second in combinations(groups, 2):
        ours, theirs = (each.by_seed(place, metric) for each in (first, second))
        if both := [seeds for seeds in ours if seeds in theirs]:
            rest_on = first.pairs(place, metric, both), second.pairs(place, metric, both)
            values = [(ours[seeds], theirs[seeds]) for seeds in both]
            difference = difference_of(values, rest_on)
            counts = {
                "ahead": sum(a > b for a, b in values),
                "behind": sum(a < b for a, b in values),
                "level": sum(a == b for a, b in values),
                "seeds_needed": seeds_needed(difference),
            }
            yield first, second, difference, counts


# The comparison ----------------------------------------------------------------------------------


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
        there = places_of(self.groups)
        apart: list[str] = [part for part in PARTS if part in there]
        if self.metric in OF_RUN or not apart:
            return ["all"]
        return apart if len(apart) == 1 else [*apart, "all"]

    def table(self) -> Table:
        """One row for each run, length and metric."""
        return table_of((each.differs, *run) for each in self.groups for run in each.counted)

    # For people ----------------------------------------------------------------------------------

    def tables(self) -> Iterator[Shown]:
        """What letters of groups stand for; the parts; the differences of groups over equal seeds;
        the lengths; what no number says."""
        yield from map(Shown, self._legend)
        parts = {part: self.part(part) for part in self.parts}
        yield from parts.values()
        some = [part for part, shown in parts.items() if shown.rows]
        for part in some:
            if part != "all" or self.parts == ["all"]:
                yield from self._differences(part)
        if some:
            yield from self._lengths()
        yield from map(Shown, self._remarks())

    @property
    def _key(self) -> str:
        """What names the groups: the one key that differs, or "group"."""
        keys = [key for each in self.groups[:1] for key in each.differs]
        return keys[0].rpartition(".")[2] if len(keys) == 1 else "group"

    @property
    def _legend(self) -> list[str]:
        """What the letters of groups stand for."""
        return [
            f"{each.name}: "
            + ", ".join(f"{key.rpartition('.')[2]} {shown(v)}" for key, v in each.differs.items())
            for each in self.groups
            if len(each.differs) > 1
        ]

    def _measured(self, part: str) -> str:
        """Which pairs of a part were measured, in words."""
        text = self.about
        spans = [place for place in places_of(self.groups) if isinstance(place, LengthGroup)]
        if ends := [end for of in spans if part in ("all", of.part) for end in of[:2]]:
            low, high = min(ends), max(ends)
            text += f" of lengths {low} to {high}" if low < high else f" of length {low}"
        faults = {each.config.fault for each in self.members}
        fault = faults.pop() if len(faults) == 1 else None
        return f"{text}; {fault_remark(fault)}" if fault else text

    def part(self, part: str) -> Shown:
        """Every seed of each group; of several seeds the mean, deviation and interval. Where all
        are 0 or none is known, the title alone."""
        title = self.measure.label(self.metric)
        if self.metric not in OF_RUN:
            title += f", {PARTS.get(part, part)}" * (part != "all" or len(self.parts) > 1)
            title += f": {self._measured(part)}"
        values = [each.by_seed(part, self.metric) for each in self.groups]
        if not any(value for of_seeds in values for value in of_seeds.values()):
            return Shown(f"{title}: {'0 in every run' if any(values) else NOT_MEASURED}")
        several = any(len(of_seeds) > 1 for of_seeds in values)
        seeds = sorted({seeds for of_seeds in values for seeds in of_seeds})
        rows = []
        for each, of_seeds in zip(self.groups, values, strict=True):
            counted, every = len(each.counted), len(each.members)
            runs = str(every) if counted == every else f"{counted} of {every}"
            cells = self._cells(each.summary(part, self.metric)) if several else []
            found = [written(of_seeds[s], self.metric) if s in of_seeds else "-" for s in seeds]
            rows.append([each.name, runs, *cells, " ".join(found)])
        # seed, or seed/data.seed where the data has its own
        texts = [str(seed) if seed == data else f"{seed}/{data}" for seed, data in seeds]
        numbers = ("runs", "mean", "sd", "95%") if several else ("runs",)
        return Shown(title, [self._key], numbers, f"seed{'s' * several} {' '.join(texts)}", rows)

    def _differences(self, part: str) -> Iterator[Shown]:
        """Differences of two groups over equal seeds, where they share several."""
        every = [pair for pair in pairs_of(self.groups, part, self.metric) if pair[2].runs > 1]
        some = every
        where = "" if part == "all" else f", {PARTS[part]}"
        title = f"difference over equal seeds{where}: first less second"
        if len(every) > MOST_PAIRS:
            some = [pair for pair in every if pair[0] is every[0][0]]
            title += f" ({len(some)} of {len(every)} pairs; --json has all)"
        rows, needed = [], []
        for first, second, difference, counts in some:
            names = [first.name, second.name]
            if seeds := counts["seeds_needed"]:
                needed.append(f"{' - '.join(names)} {seeds}")
            cells = [str(difference.runs), *self._cells(difference, signed=True)]
            rows.append([*names, *cells, str(counts["ahead"]), str(counts["behind"])])
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
        some = spans[:: -(-len(spans) // MOST_LENGTHS) or 1]
        rows = []
        for span in some:
            row = [str(span.low) if span.low == span.high else f"{span.low}-{span.high}"]
            for curve in curves:
                mean, _, interval = self._cells(curve.get(span))
                more = interval != "-" and len(curves) <= MOST_INTERVALS
                row.append(f"{mean} {interval}" if more else mean)
            rows.append(row)
        if len(rows) > 1:
            title = f"{self.measure.label(self.metric)} by {SIDE_NAMES[self.measure.side]} length"
            if len(some) < len(spans):
                title += f" ({len(some)} of {len(spans)} rows; the CSV has all)"
            names = [each.name if each.differs else "mean" for each in self.groups]
            yield Shown(title, ("length",), names, "", rows)

    def _cells(self, summary: Summary | None, *, signed: bool = False) -> list[str]:
        """Mean, deviation and interval."""
        if summary is None:
            return ["-", "-", "-"]
        mean, low, high = (
            "-" if value is None else written(value, self.metric, signed=signed)
            for value in (summary.mean, summary.low, summary.high)
        )
        if summary.deviation is None:
            return [mean, "-", "-"]
        return [mean, written(summary.deviation, self.metric), f"{low}..{high}"]

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
        return "\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def picture(self, title: str, format: str = "png") -> bytes:
        """Mean and 95% interval of each group against length; of exact match where the metric is
        one of whole runs. Groups with letters are written out below. Raises UserError without
        matplotlib."""
        if self.metric in OF_RUN:
            return replace(self, metric="exact_match").picture(title, format)
        curves = {each.name: each.curve(self.metric).items() for each in self.groups}
        lines = {name: [_point(*of) for of in curve] for name, curve in curves.items()}
        meanings = [line for text in self._legend for line in wrap(text, 100)]
        trained = {member.result.train_length for member in self.members if member.result}

        def fill(figure: "Figure") -> None:
            if meanings:
                figure.supxlabel("\n".join(meanings), x=0.01, ha="left", fontsize=8)
            axes = figure.subplots()
            axes.set_title(title.encode(errors="backslashreplace").decode(), fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            draw_lengths(axes, lines, trained)
            if len(lines) > 1 and any(lines.values()):
                axes.legend(frameon=False, title=self._key)
            says = "dotted: the ends of training; bands: 95% intervals"
            axes.set_xlabel(f"{SIDE_NAMES[self.measure.side]} length ({says})")
            axes.set_ylabel(self.measure.label(self.metric))
            if is_share(self.metric):
                axes.set_ylim(-0.02, 1.02)

        return drawn((7, 4 + 0.15 * len(meanings)), fill, format)

    # For programs --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals of each group, its runs, and the pairs of groups, as plain values."""
        metric, parts = self.metric, list(dict.fromkeys([*self.parts, "all"]))
        groups, pairs = list[dict[str, Any]](), list[dict[str, Any]]()
        for each in self.groups:
            summaries = {part: each.summary(part, metric) for part in parts}
            curve = each.curve(metric).items()
            runs = [
                {
                    "run": str(m.path),
                    "seed": m.config.seed,
                    "data_seed": m.config.data_seed,
                    "problem": m.problem or None,
                    "values": {p: m.result and m.result.number(metric, p)[0] for p in parts},
                }
                for m in each.members
            ]
            groups.append(
                {
                    "differs": dict(each.differs),
                    "config": without_seeds(each.members[0].config).model_dump(mode="json"),
                    "summaries": {part: s and s._asdict() for part, s in summaries.items()},
                    "curve": [{"lengths": s[:2], "part": s.part} | of._asdict() for s, of in curve],
                    "runs": runs,
                }
            )
        for part in parts:
            for first, second, difference, counts in pairs_of(self.groups, part, metric):
                both = {"first": self.groups.index(first), "second": self.groups.index(second)}
                pairs.append({**both, "part": part, **counts, **difference._asdict()})
        return {
            "measure": self.measure.model_dump(mode="json"),
            "metric": metric,
            "about": self._measured("all"),
            "groups": groups,
            "pairs": pairs,
            "unread": [{"run": str(path), "problem": why} for path, why in self.unread.items()],
        }


def _point(span: LengthGroup, of: Summary) -> Point:
    """The middle of some lengths, their mean and its interval: of one run that of its pairs."""
    low, high = of.low, of.high
    if of.pairs and of.runs == 1:
        low, high = wilson_interval(of.mean * of.pairs, of.pairs)
    ends = [of.mean if end is None else end for end in (low, high)]
    return (span.low + span.high) / 2, of.mean, ends[0], ends[1]


# Which runs --------------------------------------------------------------------------------------


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
        Run.open(path)
    return runs


def _has_begun(path: Path) -> bool:
    return any(os.path.exists(path / name) for name in (CONFIG, METRICS, FAILED))


Take = Callable[[Path, Measure], Result]


def compare(
    paths: Sequence[Path],
    metric: Metric = "exact_match",
    measure: Measure | None = None,
    *,
    about: str = "",
    take: Take | None = None,
) -> Comparison:
    """The runs of some run directories, folders of runs and sweeps. Raises UserError.

    measure: None = that of all the sweeps, or else every test pair. about: which pairs it takes,
    in words; empty = those that a sweep measures, and numbers that one has kept will do. take:
    measures a run that has no such numbers; nothing is written.
    """
    sweeps = [read_sweep(path.parent if is_run(path) else path) for path in paths]
    asked = {each and each.measure for each in sweeps}
    measure = measure or (asked.pop() if len(asked) == 1 else None) or of_lengths()
    members, unread = list[Member](), dict[Path, str]()
    for path in dict.fromkeys(run for given in paths for run in runs_of(given)):
        try:
            run = Run.open(path)
        except UserError as error:
            failure = read_failure(path)
            unread[path] = failure.reason if failure else str(error)
            continue
        try:
            found = None if about else read_results(path).get(measure)
            result, problem = found or _taken(run, measure, take), ""
        except UserError as error:
            result, problem = None, str(error)
        stated = flatten(run.given.model_dump(exclude_unset=True))
        members.append(Member(path, run.config, result, problem, stated))
    splits = {split_of(member.config) for member in members}
    about = about or f"{' or '.join(sorted(splits))} pairs"
    return Comparison(measure, metric, about, group(members), unread)


def of_one(run: Run, result: Result, metric: Metric = "exact_match") -> Comparison:
    """One run, as a comparison has it."""
    return Comparison(result.measure, metric, "", group([Member(run.path, run.config, result)]))


def _taken(run: Run, measure: Measure, take: Take | None) -> Result:
    """The numbers that a run is given now. Raises UserError: why it has none."""
    if failure := read_failure(run.path):
        raise UserError(failure.reason)
    if run.diverged:
        raise UserError(f"diverged: {run.diverged}")
    if unfinished := run.unfinished:
        raise UserError(f"unfinished: {unfinished}")
    if take is None:
        raise UserError(NOT_MEASURED)
    return take(run.path, measure)
