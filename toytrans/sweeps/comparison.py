"""Runs side by side: those of a sweep, or any that are named, and what is shown of them.

paths -> members -> groups -> one tidy table; tables for people, a picture, plain values
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from toytrans.config.faults import fault_remark
from toytrans.config.load import flatten
from toytrans.data.selection import SIDE_NAMES
from toytrans.documents import read_json
from toytrans.errors import UserError
from toytrans.figures import Point, draw_lengths, drawn
from toytrans.measure import Measure
from toytrans.measurement import Place, Result
from toytrans.metrics import METRICS, OF_PAIRS, OF_RUN, Metric
from toytrans.scores import PARTS, Span, wilson_interval
from toytrans.sweeps.choices import value_as_text
from toytrans.sweeps.groups import (
    Difference,
    Group,
    Member,
    differences,
    group,
    varied,
    without_seeds,
)
from toytrans.sweeps.intervals import Summary
from toytrans.sweeps.sweep_file import SweepMeasure
from toytrans.sweeps.trial import FAILED, read_failure
from toytrans.table import Table, TextColumn
from toytrans.training.checkpoint import read_trained_with
from toytrans.training.folder import CONFIG, is_run
from toytrans.training.folder import METRICS as RECORDS
from toytrans.training.provenance import trained_with
from toytrans.training.run import NOT_MEASURED, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP = "sweep.json"

MOST_DIFFERENCES, MOST_INTERVALS = 10, 3
"""Rows of a table of differences, where more are those of the first group alone; groups whose
intervals are in the table of lengths too."""

SMALL = 0.005
"""A difference between free-running and teacher-forced that is said."""

RANGES = "[a, b]: the range of the seeds, where so few allow no interval"

ERRORS = "free_symbol_error_rate"
"""The metric that stands beside exact match."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs, grouped by what differs.

    measure: what was measured. metric: the number that is compared. groups: one for each config,
    with every run. unread: runs whose config cannot be read, and why. missing: runs of a sweep that
    have not begun. files: the tables and plots of a sweep. by_measure: the same runs by each
    measure of a sweep, by its name.
    """

    measure: Measure
    metric: str
    groups: Sequence[Group]
    unread: Mapping[Path, str] = field(default_factory=dict)
    missing: Sequence[Path] = ()
    files: Sequence[Path] = ()
    by_measure: "Mapping[str, Comparison]" = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """The runs that have numbers, group by group. Raises UserError."""
        return [Run.open(member.path) for each in self.groups for member, _ in each.counted]

    @property
    def members(self) -> list[Member]:
        """All runs, group by group."""
        return [member for each in self.groups for member in each.members]

    @property
    def _results(self) -> list[Result]:
        """Those of all runs that are averaged."""
        return [result for each in self.groups for _, result in each.counted]

    @property
    def problems(self) -> dict[Path, str]:
        """Why runs have no numbers. They are never averaged in."""
        return {m.path: m.problem for m in self.members if m.problem} | dict(self.unread)

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are counted, how many of these were measured now, and how many are not
        counted, by what is wrong with them."""
        found = Counter("counted" for _ in self._results)
        found.update(member.state for member in self.members if member.state)
        found.update("failed" if read_failure(path) else "cannot be read" for path in self.unread)
        found["missing"] = len(self.missing)
        return {name: number for name, number in found.items() if number}

    @property
    def parts(self) -> list[str]:
        """The parts of the lengths that are shown: those that some run has; then all of them, if
        there are several."""
        there = {part for result in self._results for part in result.parts}
        apart = [part for part in PARTS if part in there]
        if self.metric in OF_RUN or not apart:
            return ["all"]
        return apart if len(apart) == 1 else [*apart, "all"]

    # Tables for people ---------------------------------------------------------------------------

    def tables(self) -> Iterator[Table]:
        """What letters of groups stand for; the parts, with symbol errors beside exact match; the
        differences of groups over equal seeds; the lengths; what no number says."""
        yield from map(Table, self._legend)
        shown = [part for part in self.parts if self._values(self.metric, part)]
        for part in self.parts:
            yield self.part(part)
        for part in shown:
            if part != "all" or self.parts == ["all"]:
                yield from self._differences(part)
        if shown:
            yield from self._lengths()
        yield from map(Table, self._remarks())

    @property
    def _metric(self) -> Metric:
        return METRICS[self.metric]

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
            + ", ".join(
                f"{key.rpartition('.')[2]} {value_as_text(v)}" for key, v in each.differs.items()
            )
            for each in self.groups
            if len(each.differs) > 1
        ]

    def _which_pairs(self, part: str) -> str:
        """Which pairs of a part were measured, in words."""
        lengths = ""
        spans = [each.span for result in self._results for each in result.by_length]
        if ends := [end for span in spans if part in ("all", span.part) for end in span[:2]]:
            low, high = min(ends), max(ends)
            lengths = f"of lengths {low} to {high}" if low < high else f"of length {low}"
        text = self.measure.in_words(lengths)
        faults = {each.settings.fault for each in self.members}
        fault = faults.pop() if len(faults) == 1 else None
        return f"{text}; {fault_remark(fault)}" if fault else text

    def _values(self, metric: str, part: str) -> bool:
        """Whether some run has another value than 0."""
        return any(value for each in self.groups for value in each.by_seed(metric, part).values())

    def part(self, part: str) -> Table:
        """Every seed of each group; of several seeds the mean, deviation and interval; and where
        exact match is shown, the mean of symbol errors. Where all are 0 or none is known, the title
        alone."""
        title = self._metric.label
        if self.metric not in OF_RUN:
            title += f", {PARTS.get(part, part)}" * (part != "all" or len(self.parts) > 1)
            title += f": {self._which_pairs(part)}"
        values = [each.by_seed(self.metric, part) for each in self.groups]
        if not self._values(self.metric, part):
            return Table(f"{title}: {self._nothing(part)}")
        several = any(len(of_seeds) > 1 for of_seeds in values)
        with_errors = self.metric == "free_exact_match"
        seeds = sorted({seeds for of_seeds in values for seeds in of_seeds})
        rows = []
        for each, of_seeds in zip(self.groups, values, strict=True):
            counted, every = len(each.counted), len(each.members)
            runs = str(every) if counted == every else f"{counted} of {every}"
            cells = self._cells(each.summary(self.metric, part)) if several else []
            if with_errors:
                errors = each.summary(ERRORS, part)
                cells = [*cells, METRICS[ERRORS].written(errors and errors.mean)]
            found = [self._metric.written(of_seeds.get(s)) for s in seeds]
            rows.append([each.name, runs, *cells, " ".join(found)])
        # seed, or seed/data.seed where the data has its own
        texts = [str(seed) if seed == data else f"{seed}/{data}" for seed, data in seeds]
        numbers = ["runs", *["mean", "sd", "95%"] * several, *[METRICS[ERRORS].short] * with_errors]
        last = TextColumn(f"seed{'s' * several} {' '.join(texts)}")
        notes = [RANGES] if any("[" in cell for row in rows for cell in row[1:-1]) else []
        return Table(title, [TextColumn(self._key), *numbers, last], rows, notes)

    def _nothing(self, part: str) -> str:
        """What is said of a part where all values are 0, or none is known."""
        counted = [member for each in self.groups for member, _ in each.counted]
        if not any(each.by_seed(self.metric, part) for each in self.groups):
            return NOT_MEASURED
        every = len(self.members)
        runs = "every run" if len(counted) == every else f"{len(counted)} of {every} runs"
        text = f"{self._metric.written(0.0) if self._metric.is_share else '0'} in {runs}"
        if self.metric != "free_exact_match":
            return text
        means = [(each.name, each.summary(ERRORS, part)) for each in self.groups]
        errors = [(name, METRICS[ERRORS].written(of.mean)) for name, of in means if of]
        alone = len(self.groups) == 1
        told = ", ".join(value if alone else f"{name} {value}" for name, value in errors)
        return f"{text}; symbol errors: {told}"

    def _differences(self, part: str) -> Iterator[Table]:
        """Differences of two groups over equal seeds, where they share several."""
        found = differences(self.groups, self.metric, part)
        every = some = [each for each in found if each.summary.runs > 1]
        where = "" if part == "all" else f", {PARTS[part]}"
        title = f"difference over equal seeds{where}: first less second"
        if len(every) > MOST_DIFFERENCES:
            some = [each for each in every if each.first is every[0].first]
            title += f" ({len(some)} of {len(every)} pairs of groups; JSON has all)"
        rows = [
            [
                each.first.name,
                each.second.name,
                str(each.summary.runs),
                *self._cells(each.summary, signed=True),
                str(each.ahead),
                str(each.behind),
            ]
            for each in some
        ]
        if rows:
            numbers = ("seeds", "mean", "sd", "95%", "ahead", "behind")
            notes = [RANGES] if any("[" in cell for row in rows for cell in row[2:]) else []
            columns: list[str | TextColumn] = [TextColumn("first"), TextColumn("second"), *numbers]
            yield Table(title, columns, rows, notes)

    def _lengths(self) -> Iterator[Table]:
        """The mean of each group at each length, with its interval where there is room."""
        curves = [each.curve(self.metric) for each in self.groups]
        spans = sorted({span for curve in curves for span in curve})
        rows = []
        for span in spans:
            row = [str(span)]
            for curve in curves:
                mean, _, interval = self._cells(curve.get(span))
                more = ".." in interval and len(curves) <= MOST_INTERVALS
                row.append(f"{mean} {interval}" if more else mean)
            rows.append(row)
        if len(rows) > 1:
            title = f"{self._metric.label} by {SIDE_NAMES[self.measure.length_of]} length"
            names = [each.name if each.differs else "mean" for each in self.groups]
            yield Table(title, [TextColumn("length"), *names], rows)

    def _cells(self, summary: Summary | None, *, signed: bool = False) -> list[str]:
        """Mean, deviation and interval; a range of seeds stands in brackets."""
        if summary is None:
            return ["-", "-", "-"]
        mean, low, high = (
            self._metric.written(value, signed=signed)
            for value in (summary.mean, summary.low, summary.high)
        )
        if summary.deviation is None:
            return [mean, "-", "-"]
        ends = f"[{low}, {high}]" if summary.spread == "range" else f"{low}..{high}"
        return [mean, self._metric.written(summary.deviation), ends]

    def _remarks(self) -> Iterator[str]:
        """What the numbers cannot say: runs that are not counted, sources that are trained on too,
        and runs that decode otherwise than they predict."""
        if how_many := self._how_many():
            yield how_many
        for each in self.groups:
            for member in each.members:
                where = f"{member.path} ({each.name}, seed {member.settings.seed})"
                if member.result is None:
                    yield f"not counted: {where}: {member.problem}"
                    continue
                difference = member.result["free_less_forced_exact_match"]
                if difference is not None and abs(difference) > SMALL:
                    yield f"free-running differs by {difference:+.3f} from teacher-forced: {where}"
            yield from _unlike(each)
        yield from self._trained_on()
        for path, reason in self.unread.items():
            yield f"not counted: {path}: {reason}"

    def _how_many(self) -> str:
        """How many runs are counted, and what is the matter with the others; empty where all are
        counted and none had to be measured."""
        counts = self.counts
        counted, now = counts.pop("counted", 0), counts.pop("measured now", 0)
        every = counted + sum(counts.values())
        measured = f", {now} of them measured now" if now else ""
        others = ", ".join(f"{number} {state}" for state, number in counts.items())
        text = f"{counted} of {every} runs are counted{measured}{others and f'; {others}'}"
        return text if now or others else ""

    def _trained_on(self) -> Iterator[str]:
        """A sentence for each group whose test sources are trained on too."""
        for each in self.groups:
            remarks = {text: None for _, result in each.counted for text in result.remarks()}
            of = f"{each.name}: " if len(self.groups) > 1 else ""
            yield from (f"{of}{text}" for text in remarks)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())

    # A picture -----------------------------------------------------------------------------------

    @property
    def curve_metric(self) -> str:
        """What a picture shows: the metric, or exact match where that is one of whole runs."""
        return self.measure.main_metric if self.metric in OF_RUN else self.metric

    @property
    def curves(self) -> dict[str, list[Point]]:
        """By the name of each group: lengths, means, and the ends of their intervals."""
        return {
            each.name: [_point(*of) for of in each.curve(self.curve_metric).items()]
            for each in self.groups
        }

    @property
    def train_lengths(self) -> set[tuple[int, int]]:
        """The lengths that runs were trained on."""
        return {member.result.train_length for member in self.members if member.result}

    def picture(self, title: str, format: str = "png") -> bytes:
        """Mean and 95% interval of each group against length; of exact match where the metric is
        one of whole runs. Groups with letters are written out below. Raises UserError without
        matplotlib."""
        metric, lines = METRICS[self.curve_metric], self.curves
        meanings = [line for text in self._legend for line in wrap(text, 100)]

        def fill(figure: "Figure") -> None:
            """Draw the curves into an empty figure."""
            if meanings:
                figure.supxlabel("\n".join(meanings), x=0.01, ha="left", fontsize=8)
            axes = figure.subplots()
            axes.set_title(title.encode(errors="backslashreplace").decode(), fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            draw_lengths(axes, lines, self.train_lengths)
            if len(lines) > 1 and any(lines.values()):
                axes.legend(frameon=False, title=self._key)
            says = "dotted: the ends of training; bands: 95% intervals, or ranges of seeds"
            axes.set_xlabel(f"{SIDE_NAMES[self.measure.length_of]} length ({says})")
            axes.set_ylabel(metric.label)
            if metric.is_share:
                axes.set_ylim(-0.02, 1.02)

        return drawn((7, 4 + 0.15 * len(meanings)), fill, format)

    # For programs --------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """What sets the groups apart."""
        return [key for each in self.groups[:1] for key in each.differs]

    def best(self) -> Group:
        """The group whose mean is the best of all, whichever way of its metric is better. Chosen by
        test pairs, its number is too good; measure `split="valid"` to choose. Raises UserError
        where no run has a number."""
        means = [(each, each.summary(self.metric)) for each in self.groups]
        known = [(summary.mean, each) for each, summary in means if summary]
        if not known:
            raise UserError(f"no run has a number of {self.metric}")
        pick = max if self._metric.better == "higher" else min
        return pick(known, key=lambda pair: pair[0])[1]

    def table(self) -> Table:
        """One row for each run or group, place and metric, with values as they are."""
        rows = []
        for each in self.groups:
            values = [*map(cell, each.differs.values())]
            for member, result in each.counted:
                head = ["run", str(member.path), *member.seeds, *values]
                rows += [[*head, *row, 1, None, None] for row in rows_of(result)]
            head = ["group", each.name, None, None, *values]
            rows += [[*head, *row] for row in rows_of_group(each)]
        return Table("", [*FIRST, *self.keys, *COLUMNS], rows)

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals of each group, its runs, and the differences of groups, as plain
        values."""
        metric, parts = self.metric, list(dict.fromkeys([*self.parts, "all"]))
        found = [(part, each) for part in parts for each in differences(self.groups, metric, part)]
        return {
            "measure": self.measure.model_dump(mode="json"),
            "metric": metric,
            "groups": [self._group_as_dict(each, parts) for each in self.groups],
            "differences": [{"part": part} | self._difference_as_dict(d) for part, d in found],
            "counts": self.counts,
            "unread": [{"run": str(path), "problem": why} for path, why in self.unread.items()],
        }

    def _group_as_dict(self, of: Group, parts: Sequence[str]) -> dict[str, Any]:
        summaries = {
            name: {part: s and s._asdict() for part in parts for s in [of.summary(name, part)]}
            for name in dict.fromkeys([self.metric, ERRORS])
        }
        curve = [
            {"shortest": span.low, "longest": span.high, "part": span.part} | summary._asdict()
            for span, summary in of.curve(self.metric).items()
        ]
        runs = [
            {
                "run": str(member.path),
                "seed": member.settings.seed,
                "data_seed": member.settings.data_seed,
                "problem": member.problem or None,
                "trained_on": member.result and member.result.trained_on,
                "parts": member.result and member.result.parts,
            }
            for member in of.members
        ]
        return {
            "differs": dict(of.differs),
            "config": without_seeds(of.members[0].settings).model_dump(mode="json"),
            "summaries": summaries,
            "by_length": curve,
            "runs": runs,
        }

    def _difference_as_dict(self, of: Difference) -> dict[str, Any]:
        first, second = (self.groups.index(each) for each in (of.first, of.second))
        counts = {"ahead": of.ahead, "behind": of.behind, "level": of.level}
        return {"first": first, "second": second, **counts, **of.summary._asdict()}


FIRST = ("of", "run", "seed", "data_seed")


def _unlike(group: Group) -> Iterator[str]:
    """A sentence for what is not the same of all runs of a group, though no config says so."""
    for name in ("torch", "toytrans", "precision"):
        found = {str(m.environment[name]) for m in group.members if name in m.environment}
        if len(found) > 1:
            what = f"runs of different {name} stand together"
            yield f"{group.name}: {what}: {', '.join(sorted(found))}"


COLUMNS = (
    *("part", "shortest", "longest", "metric", "value", "low", "high"),
    *("pairs", "runs", "sd", "spread"),
)
"""The columns before those of what sets groups apart, and after them. of: run or group. low, high:
of a run the 95% interval of Wilson; of a group what spread says, the 95% interval of the mean or
the range of the seeds. Rows of a part have no shortest and longest; rows of a whole run have no
part. sd: over the seeds of a group."""


def rows_of(result: Result) -> Iterator[list[Any]]:
    """The rows of a run, as `COLUMNS` says, up to its pairs."""
    for name in OF_RUN:
        yield ["", None, None, name, result.number(name), None, None, None]
    places: list[Place] = [*result.parts, *(each.span for each in result.by_length)]
    for place in places:
        where, intervals = _where(place), result.at(place)["intervals"]
        for name in OF_PAIRS:
            if pairs := result.rests_on(name, place):
                low, high = intervals.get(name, (None, None))
                yield [*where, name, result.number(name, place), low, high, pairs]


def rows_of_group(group: Group) -> Iterator[list[Any]]:
    """The rows of a group, as `COLUMNS` says: means over its seeds."""
    for name in METRICS:
        found: dict[Place, Summary] = {}
        parts = dict.fromkeys(part for _, result in group.counted for part in result.parts)
        for part in ["all"] if name in OF_RUN else parts:
            if summary := group.summary(name, part):
                found[part] = summary
        for place, summary in (found | group.curve(name)).items():
            where = ["", None, None] if name in OF_RUN else _where(place)
            mean, low, high = summary.mean, summary.low, summary.high
            more = summary.pairs, summary.runs, summary.deviation, summary.spread
            yield [*where, name, mean, low, high, *more]


def _where(place: Place) -> list[Any]:
    """Part, shortest and longest."""
    return [place, None, None] if isinstance(place, str) else [place.part, place.low, place.high]


def cell(value: Any) -> Any:
    """Numbers as they are; other values as YAML has them. Null is "none": pandas groups by it."""
    return value if isinstance(value, int | float) else value_as_text(value)


def _point(span: Span, of: Summary) -> Point:
    """The middle of some lengths, their mean and its interval: of one run that of its pairs."""
    low, high = of.low, of.high
    if of.pairs and of.runs == 1:
        low, high = wilson_interval(of.mean * of.pairs, of.pairs)
    ends = [of.mean if end is None else end for end in (low, high)]
    return (span.low + span.high) / 2, of.mean, ends[0], ends[1]


# Which runs --------------------------------------------------------------------------------------


class Saved(BaseModel):
    """sweep.json, as far as it is read again. measures: by name. runs: what was varied in each, by
    the name of its folder, in the order of the grid."""

    model_config = ConfigDict(strict=True)

    made: dict[str, Any]
    measures: dict[str, SweepMeasure] = {}
    runs: dict[str, dict[str, Any]] = {}

    @property
    def as_measured(self) -> list[Measure]:
        """What its runs have results of."""
        return [each.measure for each in self.measures.values()]


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
    return any(os.path.exists(path / name) for name in (CONFIG, RECORDS, FAILED))


def measures_of(paths: Sequence[Path]) -> dict[str, SweepMeasure]:
    """What is measured of runs where nothing is asked for, by name: what the sweep of all of them
    measures, or else every test pair. Raises UserError."""
    sweeps = [read_sweep(path.parent if is_run(path) else path) for path in paths]
    first, *others = (each.measures if each else {} for each in sweeps)
    same = first and all(measures == first for measures in others)
    return first if same else {"test": SweepMeasure()}


def labels_of(run: Path) -> dict[str, Any]:
    """What its sweep has varied in a run; empty where it is of none. Raises UserError."""
    saved = read_sweep(run.parent)
    return saved.runs.get(run.name, {}) if saved else {}


Take = Callable[[Path, Measure], Result]


def compare(
    paths: Sequence[Path],
    metric: str | None = None,
    asked: SweepMeasure | None = None,
    take: Take | None = None,
) -> Comparison:
    """The runs of some run directories, folders of runs and sweeps. Raises UserError.

    metric: None = that of the measure. asked: None = the first of `measures_of`; runs that it is
    not meant for are left out. take: measures a run that has no such result, or one that is no
    longer its own; nothing is written.
    """
    asked = asked or next(iter(measures_of(paths).values()))
    measure = asked.measure
    members, unread = list[Member](), dict[Path, str]()
    folders = dict[Path, Saved | None]()
    for path in dict.fromkeys(run for given in paths for run in runs_of(given)):
        if path.parent not in folders:
            folders[path.parent] = read_sweep(path.parent)
        saved = folders[path.parent]
        labels = saved.runs.get(path.name, {}) if saved else {}
        if labels and not asked.is_of(labels):
            continue
        try:
            run = Run.open(path)
        except UserError as error:
            failure = read_failure(path)
            unread[path] = failure.reason if failure else str(error)
            continue
        result, state, problem = _result_of(run, measure, take)
        if state == "measured now" and not (saved and measure in saved.as_measured):
            state = ""  # nobody expects such a result to be there
        stated = flatten(run.config.model_dump(exclude_unset=True))
        members.append(
            Member(
                path,
                run.settings,
                result,
                problem,
                state,
                stated,
                labels,
                contents=_contents_of(run),
                environment=run.environment,
            )
        )
    shown = metric or asked.metric or measure.main_metric
    missing = [run for given in paths for run in _missing(given, asked)]
    every = [varied(of) for saved in folders.values() if saved for of in saved.runs.values()]
    return Comparison(measure, shown, group(members, every), unread, missing)


def _contents_of(run: Run) -> dict[str, str]:
    """The SHA-256 of the files of a run, by key: of what it was trained with as it was then, of
    test files as they are now, because that is what is measured."""
    now = trained_with(run.settings)
    contents = now.code | now.data
    with contextlib.suppress(UserError):  # no checkpoint says it
        if run.steps and (before := read_trained_with(run.path, run.steps[-1])):
            test = {key: of for key, of in contents.items() if key == "data.files.test"}
            contents |= before.code | before.data | test
    return contents


def of_one(run: Run, result: Result, metric: str | None = None) -> Comparison:
    """One run, as a comparison has it."""
    groups = group([Member(run.path, run.settings, result)])
    return Comparison(result.measure, metric or result.measure.main_metric, groups)


def _missing(path: Path, asked: SweepMeasure) -> list[Path]:
    """The runs of a sweep that a measure is meant for and that have not begun."""
    saved = None if _has_begun(path) else read_sweep(path)
    runs = saved.runs.items() if saved else ()
    return [path / name for name, of in runs if asked.is_of(of) and not _has_begun(path / name)]


def _result_of(run: Run, measure: Measure, take: Take | None) -> tuple[Result | None, str, str]:
    """The result of a run: the one that its sweep has kept, or one that is measured now; or else
    what state it is in, and what is said of that."""
    failure = read_failure(run.path)
    try:
        if run.diverged:
            return None, "diverged", f"diverged: {run.diverged}"
        if (unfinished := run.unfinished) or not run.steps:
            if failure:
                return None, "failed", failure.reason
            return None, "unfinished", f"unfinished: {unfinished or 'no checkpoint yet'}"
        if kept := run.kept_result(measure):
            return kept, "", ""
        if take is not None:
            return take(run.path, measure), "measured now", ""
    except UserError as error:
        return None, "failed", str(error)
    return None, "not measured", failure.reason if failure else NOT_MEASURED
