"""Tables of a comparison of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from toytrans.cli.common import broken, columns, plain, print_table, printable, share

if TYPE_CHECKING:
    from toytrans.sweeps.groups import Group, Summary
    from toytrans.sweeps.measure import ExactMatch

MOST_PAIRS = 10
"""Rows of a table of pairs; where there are more, only those of the first group that has any."""

STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}

LEARNED = 0.5
"""Exact match within the training lengths, below which a model has not learned the task."""

SMALL = 0.005
"""A difference between free-running and teacher-forced that is shown."""


def print_groups(console: Console, groups: "Sequence[Group]", measured: str) -> None:
    """Mean, deviation, interval and every seed of each group; the pairs; what is not counted."""
    from toytrans.sweeps.groups import PARTS, parts_of

    parts = parts_of(groups)
    if groups and len(groups[0].differs) > 1:
        for group in groups:
            console.print(plain(f"{group.letter}: {group.values}"))
        console.print()
    for part in parts:
        where = f", {PARTS[part]}" if len(parts) > 1 else ""
        _print_title(console, f"exact match{where}: {measured}")
        print_table(console, _table(groups, part))
    for part in [part for part in parts if part != "value"] or parts:
        _print_pairs(console, groups, part)
    _print_remarks(console, groups)
    for group in groups:
        for member in group.members:
            where = f"{member.path} ({group.name}, seed {member.config.seed})"
            if member.trouble:
                console.print(plain(f"not counted: {where}: {member.trouble}"), soft_wrap=True)
            elif abs(member.difference) > SMALL:
                text = f"free-running differs by {member.difference:+.3f} from teacher-forced"
                console.print(plain(f"{text}: {where}"), soft_wrap=True)


def _print_remarks(console: Console, groups: "Sequence[Group]") -> None:
    """Notes: sound groups that have learned little, and that deviations need two seeds."""
    sound = [group for group in groups if group.members[0].config.fault is None]
    summaries = [(group, group.summary("in_range")) for group in sound]
    little = [f"{_name(each)} {share(s.mean)}" for each, s in summaries if s and s.mean < LEARNED]
    if little:
        text = f"learned little, exact match in range: {', '.join(little)}; train longer"
        console.print(plain(text), soft_wrap=True)
    if any((s := group.summary("value")) and s.runs < 2 for group in groups):
        text = "sd, 95% and differences are over seeds: they need two or more of a config"
        console.print(text, soft_wrap=True)


def print_unread(console: Console, unread: "Sequence[tuple[Path, str]]") -> None:
    """Runs whose config cannot be read, and why."""
    for path, reason in unread:
        console.print(plain(f"not counted: {path}: {reason}"), soft_wrap=True)


def measured(measure: "ExactMatch", groups: "Sequence[Group]") -> str:
    """What was measured, in words."""
    from toytrans.sweeps.measure import split_of

    configs = [group.members[0].config for group in groups]
    pairs = f"{' or '.join(sorted(set(map(split_of, configs))))} pairs"
    faults = {config.fault for config in configs}
    fault = broken(faults.pop()) if len(faults) == 1 else ""
    of = f" of lengths {measure.lengths[0]} to {measure.lengths[1]}" if measure.lengths else ""
    return f"{pairs}{of}, {measure.decoding}{fault}"


def _print_title(console: Console, title: str) -> None:
    """On a line of its own: a title of a narrow table would be folded."""
    console.print(plain(title), style="bold")


def _name(group: "Group") -> str:
    """The value of the one key that sets groups apart, or else a letter."""
    return group.letter if len(group.differs) > 1 else group.name


def _table(groups: "Sequence[Group]", part: str) -> Table:
    keys = list(groups[0].differs)
    headings = ["group"] if len(keys) > 1 else map(printable, keys)
    summaries = [group.summary(part) for group in groups]
    several = any(summary and summary.runs > 1 for summary in summaries)
    numbers = ("mean", "sd", "95%") if several else ("exact match",)
    table = columns([*headings], ("runs", *numbers), **STYLE)
    table.add_column(_seeds_heading(groups, part) if several else "seed", overflow="fold")
    for group, summary in zip(groups, summaries, strict=True):
        counted, every = len(group.counted), len(group.members)
        table.add_row(
            *([plain(_name(group))] if keys else []),
            str(every) if counted == every else f"{counted} of {every}",
            *_cells(summary)[: len(numbers)],
            _seeds(group, groups, part) if several else " ".join(map(_seed, group.by_seed(part))),
        )
    return table


def _cells(summary: "Summary | None", signed: bool = False) -> tuple[str, str, str]:
    """Mean, deviation and interval."""
    if summary is None:
        return "-", "-", "-"
    number = (lambda x: f"{x:+.3f}") if signed else share
    interval = "-" if summary.low is None else f"{summary.low:.3f}..{summary.high:.3f}"
    return number(summary.mean), _deviation(summary), interval


def _deviation(summary: "Summary") -> str:
    return "-" if summary.deviation is None else f"{summary.deviation:.3f}"


def _seeds_heading(groups: "Sequence[Group]", part: str) -> str:
    seeds = [list(group.by_seed(part)) for group in groups]
    same = all(each == seeds[0] for each in seeds)
    return f"seeds {' '.join(map(_seed, seeds[0]))}" if same and seeds[0] else "seed: value"


def _seeds(group: "Group", groups: "Sequence[Group]", part: str) -> str:
    """The value of each seed; with its seed where the groups have different ones."""
    values = group.by_seed(part)
    same = all(each.by_seed(part).keys() == values.keys() for each in groups)
    if same:
        return " ".join(share(value) for value in values.values())
    return " ".join(f"{_seed(seeds)}: {share(value)}" for seeds, value in values.items())


def _seed(seeds: tuple[int, int | None]) -> str:
    """seed, or seed/data.seed where the data has its own."""
    return str(seeds[0]) if seeds[1] is None else f"{seeds[0]}/{seeds[1]}"


def _print_pairs(console: Console, groups: "Sequence[Group]", part: str) -> None:
    """Differences of two groups over equal seeds."""
    from toytrans.sweeps.groups import PARTS, pairs

    every = [each for each in pairs(groups, part) if each[2].difference.runs > 1]
    if not every:
        return
    one, *_ = every[0]
    paired = every if len(every) <= MOST_PAIRS else [each for each in every if each[0] is one]
    where = "" if part == "value" else f", {PARTS[part]}"
    _print_title(console, f"difference over equal seeds{where}: first less second")
    table = columns(
        ("first", "second"),
        ("seeds", "mean", "sd", "95%", "ahead", "behind"),
        **STYLE,
    )
    for first, second, each in paired:
        table.add_row(
            plain(_name(first)),
            plain(_name(second)),
            str(each.difference.runs),
            *_cells(each.difference, signed=True),
            str(each.ahead),
            str(each.behind),
        )
    print_table(console, table)
    if len(paired) < len(every):
        shown = f"{len(paired)} of {len(every)} pairs, those of {_name(one)}"
        console.print(plain(f"{shown}; `toytrans compare RUN ... --json` has all\n"))
