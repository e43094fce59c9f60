"""Runs with their numbers, grouped by what differs between their configs."""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

from pydantic import ValidationError

from toytrans.config.load import flatten
from toytrans.config.names import Metric
from toytrans.config.schema import Config
from toytrans.evaluation import Span, wilson_interval
from toytrans.sweeps.intervals import Summary, difference_of, seeds_needed, summarise
from toytrans.sweeps.measure import METRICS, OF_RUN, Place, Result, Row, is_share, shown

Seeds = tuple[int, int | None]
"""seed and data.seed"""


@dataclass(frozen=True)
class Member:
    """A run and its numbers, or the problem why it has none."""

    path: Path
    config: Config
    result: Result | None = None
    problem: str = ""

    @property
    def seeds(self) -> Seeds:
        return self.config.seed, self.config.data.seed

    @cached_property
    def rows(self) -> dict[tuple[Place, str], Row]:
        """By place and metric."""
        rows = self.result.rows if self.result else ()
        return {(row.place, row.metric): row for row in rows}

    def row(self, metric: Metric, place: Place = "all") -> Row | None:
        """The row that a metric is taken from; None where it is not known."""
        how = self.result.measure.decoding.replace("-", "_") if self.result else ""
        return self.rows.get((place, METRICS[metric][1].format(how=how)))

    def value(self, metric: Metric, place: Place = "all") -> float | None:
        """None where it is not known."""
        row = self.row(metric, "" if metric in OF_RUN and place == "all" else place)
        if row is None or row.value is None or metric != "perplexity":
            return row and row.value
        return math.exp(min(row.value, 700.0))


# The table -----------------------------------------------------------------------------------

COLUMNS = ("part", "shortest", "longest", "metric", "value", "low", "high", "pairs")
"""After those that name a run. low, high: the 95% interval of Wilson. Rows of a part have no
shortest and longest; rows of a whole run have no part."""

Table = list[list[Any]]
"""The names of the columns, and the rows."""


def table_of(entries: Iterable[tuple[Mapping[str, Any], Member]]) -> Table:
    """The table of runs that have numbers: one row = run x lengths x metric. entries: what sets a
    run apart, always by the same keys; the run."""
    keys, rows = list[str](), list[list[Any]]()
    for about, member in entries:
        keys = list(about)
        head = [str(member.path), *map(cell, about.values())]
        head += [member.config.seed, member.config.data_seed]
        for *where, metric, value, pairs in member.result.rows if member.result else ():
            low = high = None
            if pairs and value is not None and metric.startswith("exact_match"):
                ends = wilson_interval(round(value * pairs), pairs)
                low, high = min(ends[0], value), max(ends[1], value)  # but for rounding
            rows.append([*head, *where, metric, value, low, high, pairs])
    return [["run", *keys, "seed", "data_seed", *COLUMNS], *rows]


def cell(value: Any) -> Any:
    """Numbers as they are; other values as YAML has them. Null is "none": pandas groups by it."""
    return value if isinstance(value, int | float) else shown(value)


# Groups --------------------------------------------------------------------------------------


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
        return ", ".join(f"{key.rpartition('.')[2]} {shown(v)}" for key, v in self.differs.items())

    @property
    def counted(self) -> list[Member]:
        """The runs that are averaged."""
        return [member for member in self.members if not member.problem]

    def by_seed(self, place: Place = "all", metric: Metric = "exact_match") -> dict[Seeds, float]:
        """The value of each seed; of several runs of one seed the mean."""
        found: dict[Seeds, list[float]] = {}
        for member in self.counted:
            if (value := member.value(metric, place)) is not None:
                found.setdefault(member.seeds, []).append(value)
        return {seeds: fmean(found[seeds]) for seeds in sorted(found, key=order)}

    def pairs(self, place: Place, metric: Metric, seeds: Container[Seeds]) -> int:
        """The pairs that the values of some seeds rest on; 0 where a value is no share. Those that
        several seeds share, of files or of one data.seed, are counted once."""
        counts: dict[int | None, int] = {}
        for member in self.counted if is_share(metric) else ():
            row, config = member.row(metric, place), member.config
            if row and row.pairs and member.result and member.seeds in seeds:
                given = config.data.task is None or member.result.of_files
                draw = None if given else config.data_seed
                counts[draw] = max(row.pairs, counts.get(draw, 0))
        return sum(counts.values())

    def summary(self, place: Place = "all", metric: Metric = "exact_match") -> Summary | None:
        """None where no run has the place."""
        values = self.by_seed(place, metric)
        pairs = self.pairs(place, metric, values)
        return summarise(list(values.values()), pairs or None) if values else None

    def curve(self, metric: Metric = "exact_match") -> dict[Span, Summary]:
        """The summary of each length, or span of lengths, over the runs that have such pairs."""
        places = {place for member in self.counted for place, _ in member.rows}
        spans = sorted(place for place in places if isinstance(place, Span))
        return {span: found for span in spans if (found := self.summary(span, metric))}


def group(members: Iterable[Member]) -> list[Group]:
    """The members by their configs, in the order in which these occur first."""
    groups: dict[Config, list[Member]] = {}
    for member in members:
        groups.setdefault(member.config.without_seeds(), []).append(member)
    flat = [flatten(config.model_dump(mode="json")) for config in groups]
    differing = [
        key
        for key in dict.fromkeys(key for values in flat for key in values)
        if any(values.get(key) != flat[0].get(key) for values in flat)
    ]
    causes = [key for key in differing if not all(_follows(config, key) for config in groups)]
    told = {tuple(shown(values.get(key)) for key in causes) for values in flat}
    keys = causes if len(told) == len(groups) else differing
    return [
        Group(
            {key: values.get(key) for key in keys},
            sorted(some, key=lambda member: (order(member.seeds), str(member.path))),
            f"{ascii_uppercase[number % 26]}{number // 26 or ''}",  # A to Z, then A1, B1
        )
        for number, (values, some) in enumerate(zip(flat, groups.values(), strict=True))
    ]


def order(seeds: Seeds) -> tuple[int, int]:
    """Seeds in ascending order; first those without a data.seed."""
    return seeds[0], -1 if seeds[1] is None else seeds[1]


def _follows(config: Config, key: str) -> bool:
    """Whether a value is the one that it has where the file does not name it."""
    values = config.model_dump(mode="json")
    section, _, name = key.rpartition(".")
    place = values.get(section) if section else values
    if not isinstance(place, dict):
        return False
    before = place.pop(name, None)
    try:
        now = Config.model_validate(values).model_dump(mode="json")
    except ValidationError:
        return False
    return bool(flatten(now).get(key) == before)


class Pair(NamedTuple):
    """Two groups over the seeds that both have: the first less the second, and on how many seeds
    the first is ahead, behind and level."""

    first: Group
    second: Group
    difference: Summary
    ahead: int
    behind: int
    level: int

    @property
    def seeds_needed(self) -> int | None:
        """As `intervals.seeds_needed`."""
        return seeds_needed(self.difference)


def pairs_of(
    groups: Sequence[Group], place: Place = "all", metric: Metric = "exact_match"
) -> Iterator[Pair]:
    """Every two groups that share seeds."""
    for first, second in combinations(groups, 2):
        ours, theirs = (each.by_seed(place, metric) for each in (first, second))
        if both := [seeds for seeds in ours if seeds in theirs]:
            counts = first.pairs(place, metric, both), second.pairs(place, metric, both)
            values = [(ours[seeds], theirs[seeds]) for seeds in both]
            signs = [(a > b) - (a < b) for a, b in values]
            difference = difference_of(values, counts)
            yield Pair(first, second, difference, *(signs.count(sign) for sign in (1, -1, 0)))
