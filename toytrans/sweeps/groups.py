"""Runs in groups: those whose configs differ in seeds and device at most, with means over seeds.

runs -> members: their results, or why there are none -> groups -> means, differences of two
"""

import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

from toytrans.config.load import flatten
from toytrans.config.schema import Settings
from toytrans.files import json_text
from toytrans.measurement import Place, Result
from toytrans.metrics import METRICS
from toytrans.scores import Span
from toytrans.sweeps.choices import value_as_text
from toytrans.sweeps.intervals import Summary, difference_of, summarise

Seeds = tuple[int, int]
"""seed, and that of the data"""

OF_SEEDS = ("seed", "data.seed", "device")
"""Keys in which the runs of one group may differ."""


class Member(NamedTuple):
    """A run and its result, or the problem why it has none.

    state: what the problem is, in a word or two; of a run with a result "measured now" where its
    sweep has not kept that.
    stated: the keys that its config gives. Other keys follow from these, or have their defaults.
    labels: what its sweep has varied, and what that is in this run. contents: of the files of data
    and code that it names, by key, the SHA-256. environment: what environment.json says.
    """

    path: Path
    settings: Settings
    result: Result | None = None
    problem: str = ""
    state: str = ""
    stated: Collection[str] = ()
    labels: Mapping[str, Any] = {}
    contents: Mapping[str, str] = {}
    environment: Mapping[str, Any] = {}

    @property
    def values(self) -> dict[str, Any]:
        """What sets it apart from runs of other groups, by key. A file is its content, wherever it
        lies; so its name has the beginning of its SHA-256."""
        values = flatten(without_seeds(self.settings).model_dump(mode="json"))
        for key, digest in self.contents.items():
            named = values.get(key)
            names = [named] if isinstance(named, str) else named or []
            values[key] = f"{' '.join(os.path.basename(name) for name in names)} ({digest[:8]})"
        return values

    @property
    def group(self) -> str:
        """What the runs of one group have in common, as text."""
        return json_text(self.values | {key: of for key, of in self.contents.items()})

    @property
    def varied(self) -> str:
        """What its sweep has varied but seeds, as text; empty where it is of none."""
        return varied(self.labels)

    @property
    def seeds(self) -> Seeds:
        return self.settings.seed, self.settings.data_seed


@dataclass(frozen=True)
class Group:
    """Runs whose configs differ in seeds and device at most, by seeds. differs: what sets the group
    apart from others, by key. name: the value of the one key that does, or else a letter."""

    differs: Mapping[str, Any]
    members: Sequence[Member]
    name: str = "all"

    def __repr__(self) -> str:
        return f"Group({self.name}: {len(self.members)} runs)"

    @property
    def counted(self) -> list[tuple[Member, Result]]:
        """The runs that are averaged, with their results."""
        return [(member, member.result) for member in self.members if member.result]

    def by_seed(self, metric: str, place: Place = "all") -> dict[Seeds, float]:
        """The value of each seed; of several runs of one seed the mean."""
        found: dict[Seeds, list[float]] = {}
        for member, result in self.counted:
            if (value := result.number(metric, place)) is not None:
                found.setdefault(member.seeds, []).append(value)
        return {seeds: fmean(values) for seeds, values in found.items()}

    def pairs(self, metric: str, place: Place, seeds: Container[Seeds]) -> int:
        """The pairs that the values of some seeds rest on; 0 where a value is no share. Those that
        several seeds share, of files or of one data.seed, are counted once."""
        counts: dict[int | None, int] = {}
        for member, result in self.counted if METRICS[metric].is_share else ():
            if member.seeds in seeds:
                draw = None if result.of_files else member.settings.data_seed
                counts[draw] = max(result.rests_on(metric, place), counts.get(draw, 0))
        return sum(counts.values())

    def summary(self, metric: str, place: Place = "all") -> Summary | None:
        """Mean and interval over the seeds; None where no run has the place."""
        values = self.by_seed(metric, place)
        if not values:
            return None
        found = summarise(list(values.values()), self.pairs(metric, place, values) or None)
        least = METRICS[metric].least
        return found if found.low is None else found._replace(low=max(found.low, least))

    def curve(self, metric: str) -> dict[Span, Summary]:
        """The summary of each length, or span of lengths, over the runs that have such pairs."""
        spans = {each.span for _, result in self.counted for each in result.by_length}
        return {span: found for span in sorted(spans) if (found := self.summary(metric, span))}


def without_seeds(settings: Settings) -> Settings:
    """What the runs of one group have in common: all but both seeds and the device."""
    data = settings.data.model_copy(update={"seed": None})
    return settings.model_copy(update={"seed": 0, "device": "auto", "data": data})


def varied(labels: Mapping[str, Any]) -> str:
    """What a sweep has varied in a run, without seeds, as text."""
    told = (f"{name}={value_as_text(of)}" for name, of in labels.items() if name not in OF_SEEDS)
    return " ".join(told)


def group(members: Iterable[Member], every: Iterable[str] = ()) -> list[Group]:
    """The members by their configs, in the order in which these occur first.

    every: what their sweeps have varied in each run, also in those that are not here. A group that
    needs a letter has the same one whichever runs are here.
    """
    groups: dict[str, list[Member]] = {}
    stated = set[str]()
    for member in members:
        stated.update(member.stated)
        groups.setdefault(member.group, []).append(member)
    told = _told_apart([some[0] for some in groups.values()], stated)
    found = []
    places = {text: place for place, text in enumerate(dict.fromkeys(every))}
    others = count(len(places))
    for differs, some in zip(told, groups.values(), strict=True):
        keys = list(differs)
        name = value_as_text(differs[keys[0]]) if len(keys) == 1 else "all"
        if len(keys) > 1:
            place = places.pop(some[0].varied, None)
            number = next(others) if place is None else place
            name = f"{ascii_uppercase[number % 26]}{number // 26 or ''}"  # A to Z, then A1, B1
        by_seeds = sorted(some, key=lambda member: (member.seeds, str(member.path)))
        found.append(Group(differs, by_seeds, name))
    return found


def _told_apart(members: Sequence[Member], stated: Collection[str]) -> list[dict[str, Any]]:
    """What sets each group apart, by key: what their sweeps have varied, if that is enough, or else
    the keys of their configs. members: one of each group."""
    flat = [member.values for member in members]
    firsts = [member.labels for member in members]
    if all(firsts):
        keys = dict.fromkeys(key for labels in firsts for key in labels if key not in OF_SEEDS)
        told = [
            {key: labels.get(key, values.get(key)) for key in keys}
            for labels, values in zip(firsts, flat, strict=True)
        ]
        varied = [key for key in keys if len({value_as_text(each[key]) for each in told}) > 1]
        if len({tuple(value_as_text(each[key]) for key in varied) for each in told}) == len(told):
            return [{key: each[key] for key in varied} for each in told]
    keys_of_configs = _telling_keys(flat, stated)
    return [{key: values.get(key) for key in keys_of_configs} for values in flat]


def _telling_keys(configs: Sequence[Mapping[str, Any]], stated: Collection[str]) -> list[str]:
    """The keys that tell configs apart: those that some config states, if these are enough, because
    what differs besides follows from them."""
    differing = [
        key
        for key in dict.fromkeys(key for values in configs for key in values)
        if any(values.get(key) != configs[0].get(key) for values in configs)
    ]
    causes = [key for key in differing if key in stated]
    told = {tuple(value_as_text(values.get(key)) for key in causes) for values in configs}
    return causes if len(told) == len(configs) else differing


class Difference(NamedTuple):
    """Two groups over the seeds that both have: the first less the second.

    ahead, behind, level: on how many seeds the first is better, worse, equal.
    """

    first: Group
    second: Group
    summary: Summary
    ahead: int
    behind: int
    level: int


def differences(groups: Sequence[Group], metric: str, place: Place = "all") -> Iterator[Difference]:
    """Every two groups that share a seed."""
    sign = 1 if METRICS[metric].better == "higher" else -1
    for first, second in combinations(groups, 2):
        ours, theirs = (each.by_seed(metric, place) for each in (first, second))
        if both := [seeds for seeds in ours if seeds in theirs]:
            rest_on = first.pairs(metric, place, both), second.pairs(metric, place, both)
            values = [(ours[seeds], theirs[seeds]) for seeds in both]
            leads = [sign * (a - b) for a, b in values]
            yield Difference(
                first,
                second,
                difference_of(values, rest_on),
                ahead=sum(lead > 0 for lead in leads),
                behind=sum(lead < 0 for lead in leads),
                level=sum(lead == 0 for lead in leads),
            )
