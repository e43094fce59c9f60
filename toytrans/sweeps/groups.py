"""Runs grouped by config: means over seeds with their intervals, and pairs of equal seeds.

A run without numbers belongs to its group, with the reason, and is never averaged in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pydantic import ValidationError

from toytrans import user_code
from toytrans.config.load import flatten
from toytrans.config.names import Metric
from toytrans.config.schema import Config
from toytrans.evaluation import Span
from toytrans.sweeps.measure import OF_RUN, SHARES, TEST, Eval, Part, Result

Seeds = tuple[int, int | None]
"""seed and data.seed"""

T_975 = [12.706205, 4.302653, 3.182446, 2.776445, 2.570582]
T_975 += [2.446912, 2.364624, 2.306004, 2.262157, 2.228139]
"""97.5% points of Student's t, for 1 to 10 degrees of freedom."""


@dataclass(frozen=True)
class Member:
    """A run in a comparison. problem: why it is not averaged; empty where it is."""

    path: Path
    config: Config
    eval: Eval | None = None
    problem: str = ""

    @property
    def seeds(self) -> Seeds:
        return self.config.seed, self.config.data.seed

    @property
    def result(self) -> Result | None:
        """What the measure of its sweep gave."""
        return self.eval.measures.get(TEST) if self.eval and not self.problem else None

    def value(self, metric: Metric, part: Part = "all") -> float | None:
        """None where it is not known."""
        if self.result is None:
            return None
        if metric in OF_RUN:
            return getattr(self.eval, metric) if part == "all" else None
        numbers = self.result.parts.get(part)
        return self.result.value(metric, numbers) if numbers else None


class Summary(NamedTuple):
    """Mean, standard deviation and 95% interval of the mean; None where one value has none."""

    runs: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None


class Paired(NamedTuple):
    """The difference of two groups over the seeds that both have, and on how many of them the
    first is ahead, behind and level."""

    difference: Summary
    ahead: int
    behind: int
    level: int


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
        values: dict[Seeds, list[float]] = {}
        for member in self.counted:
            if (value := member.value(metric, part)) is not None:
                values.setdefault(member.seeds, []).append(value)
        return {seeds: fmean(values[seeds]) for seeds in sorted(values, key=_seed_order)}

    def summary(self, part: Part = "all", metric: Metric = "exact_match") -> Summary | None:
        """None where no run has the part."""
        values = list(self.by_seed(part, metric).values())
        return summarise(values, bounded=metric in SHARES) if values else None

    def curve(self, metric: Metric = "exact_match") -> dict[Span, Summary]:
        """The summary of each length, or span of lengths, over the runs that have such pairs."""
        columns: dict[Span, list[float]] = {}
        for result in [member.result for member in self.counted if member.result]:
            for span in result.spans if metric not in OF_RUN else ():
                if (value := result.value(metric, span)) is not None:
                    key = Span(span.shortest, span.longest, span.part)
                    columns.setdefault(key, []).append(value)
        bounded = metric in SHARES
        return {span: summarise(columns[span], bounded=bounded) for span in sorted(columns)}


def group(members: Iterable[Member]) -> list[Group]:
    """The members by their configs, in the order in which these occur first."""
    groups: dict[Config, list[Member]] = {}
    for member in members:
        groups.setdefault(member.config.without_seeds(), []).append(member)
    keys = differing_keys(list(groups))
    flat = [flatten(config.model_dump(mode="json")) for config in groups]
    return [
        Group({key: values.get(key) for key in keys}, sorted(some, key=_order), _letter(number))
        for number, (values, some) in enumerate(zip(flat, groups.values(), strict=True))
    ]


def _letter(number: int) -> str:
    """A to Z, then A1, B1 and so on."""
    return f"{chr(ord('A') + number % 26)}{number // 26 or ''}"


def _order(member: Member) -> tuple[Any, str]:
    return _seed_order(member.seeds), str(member.path)


def _seed_order(seeds: Seeds) -> tuple[int, int]:
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


def shown(value: Any) -> str:
    """A value of a config as YAML has it, and none for null. Paths below the working directory are
    relative."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return user_code.shown(str(value))


def summarise(values: Sequence[float], *, bounded: bool = False) -> Summary:
    """bounded: the values are proportions, and so are the ends of their interval."""
    mean = fmean(values)
    if len(values) < 2:
        return Summary(len(values), mean, None, None, None)
    deviation = stdev(values)
    half = t_975(len(values) - 1) * deviation / math.sqrt(len(values))
    low, high = mean - half, mean + half
    if bounded:
        low, high = max(0.0, low), min(1.0, high)
    return Summary(len(values), mean, deviation, low, high)


def t_975(freedom: int) -> float:
    """The 97.5% point of Student's t, to 1e-5; beyond 10 degrees of freedom by its expansion in
    1 / freedom (Abramowitz and Stegun 1964, 26.7.5)."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    x = 1.959963984540054
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / freedom**power for power, term in enumerate(terms, 1))


def pairs(
    groups: Sequence[Group], part: Part = "all", metric: Metric = "exact_match"
) -> list[tuple[Group, Group, Paired]]:
    """Every two groups that share seeds."""
    compared = ((a, b, paired(a, b, part, metric)) for a, b in combinations(groups, 2))
    return [(a, b, both) for a, b, both in compared if both is not None]


def paired(
    first: Group, second: Group, part: Part = "all", metric: Metric = "exact_match"
) -> Paired | None:
    """The first group less the second over equal seeds; None where they share none."""
    ours, theirs = first.by_seed(part, metric), second.by_seed(part, metric)
    differences = [ours[seeds] - theirs[seeds] for seeds in ours if seeds in theirs]
    if not differences:
        return None
    ahead, behind = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Paired(summarise(differences), ahead, behind, len(differences) - ahead - behind)


def parts_of(groups: Sequence[Group], metric: Metric = "exact_match") -> list[Part]:
    """The parts that some run has; then all of them, if there are several."""
    if metric in OF_RUN:
        return ["all"]
    results = [m.result for each in groups for m in each.counted if m.result]
    there = {part for result in results for part in result.parts}
    apart: list[Part] = [part for part in ("below", "in_range", "beyond") if part in there]
    return apart if len(apart) == 1 or not there else [*apart, "all"]
