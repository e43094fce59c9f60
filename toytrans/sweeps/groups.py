"""The numbers of runs: their table, and groups by what differs between their configs.

A table has one row = run x length (or part of the lengths) x metric.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any

from pydantic import ValidationError

from toytrans.config.load import flatten
from toytrans.config.names import Metric
from toytrans.config.schema import Config
from toytrans.evaluation import Span, wilson_interval
from toytrans.sweeps.intervals import Summary, difference_of, summarise
from toytrans.sweeps.measure import OF_RUN, TEST, Eval, Numbers, Place, Result, is_share, shown

Seeds = tuple[int, int | None]
"""seed and data.seed"""


@dataclass(frozen=True)
class Member:
    """A run and its numbers. problem: why it is not averaged; empty where it is. measure: its name
    in eval.json."""

    path: Path
    config: Config
    eval: Eval | None = None
    problem: str = ""
    measure: str = TEST

    @property
    def seeds(self) -> Seeds:
        return self.config.seed, self.config.data.seed

    @property
    def result(self) -> Result | None:
        """What the measure gave."""
        return self.eval.measures.get(self.measure) if self.eval and not self.problem else None

    @cached_property
    def numbers(self) -> dict[tuple[Place | None, str], tuple[float | None, int | None]]:
        """The rows of its table: place and metric, value and the pairs that it rests on. The place
        of what is of the whole run is None."""
        if self.eval is None or self.result is None:
            return {}
        rows: dict[tuple[Place | None, str], tuple[float | None, int | None]] = {}
        rows |= {(None, metric): (getattr(self.eval, metric), None) for metric in OF_RUN}
        places: dict[Place, Numbers] = dict(self.result.parts.items())
        places |= {Span(of.shortest, of.longest, of.part): of for of in self.result.spans}
        for place, of in places.items():
            if of.decoded:
                rows[place, "exact_match_free_running"] = of.exact_match, of.decoded
                rows[place, "token_accuracy_free_running"] = of.free_token_accuracy, of.decoded
            rows[place, "exact_match_teacher_forced"] = of.forced_exact_match, of.examples
            rows[place, "token_accuracy_teacher_forced"] = of.token_accuracy, of.examples
            rows[place, "loss"] = of.loss, of.examples
        return rows

    def value(self, metric: Metric, place: Place = "all") -> float | None:
        """None where it is not known."""
        value, _ = self._row(metric, place)
        if metric == "perplexity" and value is not None:
            return math.exp(min(value, 700.0))
        return value

    def pairs(self, metric: Metric, place: Place) -> tuple[int | None, int]:
        """The seed that its pairs are drawn from, None where files have them; and how many pairs
        of a place its value rests on."""
        given = self.config.data.task is None or (self.result and self.result.of_files)
        return None if given else self.config.data_seed, self._row(metric, place)[1] or 0

    def _row(self, metric: Metric, place: Place) -> tuple[float | None, int | None]:
        column = self.result.measure.column(metric) if self.result else metric
        where = None if metric in OF_RUN and place == "all" else place
        return self.numbers.get((where, column), (None, None))


# The table -----------------------------------------------------------------------------------

COLUMNS = ("part", "shortest", "longest", "metric", "value", "low", "high", "pairs")
"""After those that name a run. low, high: the 95% interval of Wilson. Rows of a part have no
shortest and longest; rows of a whole run have no part."""

Table = list[list[Any]]
"""The names of the columns, and the rows."""


def table_of(entries: Iterable[tuple[Mapping[str, Any], Member]]) -> Table:
    """The table of runs that have numbers. entries: what sets a run apart, always by the same keys;
    the run. The numbers of the whole run come with its first measure."""
    keys, rows = list[str](), list[list[Any]]()
    for about, member in entries:
        keys = list(about)
        head = [str(member.path), *map(cell, about.values())]
        head += [member.config.seed, member.config.data_seed]
        is_first = member.eval is None or member.measure == next(iter(member.eval.measures), None)
        for (place, metric), (value, pairs) in member.numbers.items():
            if place or is_first:
                lengths = place if isinstance(place, Span) else (None, None, place or "")
                low = high = None
                if pairs and value is not None and metric.startswith("exact_match"):
                    ends = wilson_interval(round(value * pairs), pairs)
                    low, high = min(ends[0], value), max(ends[1], value)  # but for rounding
                rows.append([*head, lengths[2], *lengths[:2], metric, value, low, high, pairs])
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
        return {seeds: fmean(found[seeds]) for seeds in sorted(found, key=_order)}

    def pairs(self, place: Place, metric: Metric, seeds: Container[Seeds] | None = None) -> int:
        """The pairs that the values of all seeds rest on, or of some; 0 where a value is no share.
        Those that several seeds share are counted once."""
        counts: dict[int | None, int] = {}
        for member in self.counted if is_share(metric) else ():
            if seeds is None or member.seeds in seeds:
                draw, count = member.pairs(metric, place)
                counts[draw] = max(count, counts.get(draw, 0))
        return sum(counts.values())

    def summary(self, place: Place = "all", metric: Metric = "exact_match") -> Summary | None:
        """None where no run has the place."""
        values = list(self.by_seed(place, metric).values())
        return summarise(values, self.pairs(place, metric) or None) if values else None

    def curve(self, metric: Metric = "exact_match") -> dict[Span, Summary]:
        """The summary of each length, or span of lengths, over the runs that have such pairs."""
        places = {place for member in self.counted for place, _ in member.numbers}
        spans = sorted(place for place in places if isinstance(place, Span))
        return {span: found for span in spans if (found := self.summary(span, metric))}


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


def pairs(
    groups: Sequence[Group], place: Place = "all", metric: Metric = "exact_match"
) -> Iterator[tuple[Group, Group, Summary, dict[str, int]]]:
    """Every two groups that share seeds: the first less the second over these, and on how many of
    them the first is ahead, behind and level."""
    for first, second in combinations(groups, 2):
        ours, theirs = (each.by_seed(place, metric) for each in (first, second))
        if both := [seeds for seeds in ours if seeds in theirs]:
            counts = first.pairs(place, metric, both), second.pairs(place, metric, both)
            values = [(ours[seeds], theirs[seeds]) for seeds in both]
            signs = [(a > b) - (a < b) for a, b in values]
            names = {"ahead": 1, "behind": -1, "level": 0}
            counted = {name: signs.count(sign) for name, sign in names.items()}
            yield first, second, difference_of(values, counts), counted
