"""Tables of a comparison of runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from toytrans.cli.common import broken, columns, plain, print_table, printable, share

if TYPE_CHECKING:
    from toytrans.config.names import Metric
    from toytrans.sweeps.comparison import Comparison
    from toytrans.sweeps.groups import Group, Seeds, Summary
    from toytrans.sweeps.measure import Part

MOST_PAIRS = 10
"""Rows of a table of pairs; where there are more, only those of the first group that has any."""

STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}

LEARNED = 0.5
"""Exact match within the training lengths, below which a model has not learned the task."""

SMALL = 0.005
"""A difference between free-running and teacher-forced that is shown."""

FORMATS = {"loss": ".4f", "perplexity": ".4f", "steps": ",.0f", "seconds": ",.1f"}
FORMATS |= {"parameters": ",.0f"}
"""Of metrics that are no shares."""


def print_comparison(console: Console, compared: "Comparison") -> None:
    """Mean, deviation, interval and every seed of each group; the pairs; what is not counted."""
    from toytrans.sweeps.groups import parts_of
    from toytrans.sweeps.measure import PARTS

    groups, metric = compared.groups, compared.measure.metric
    parts = parts_of(groups, metric)
    if groups and len(groups[0].differs) > 1:
        for group in groups:
            console.print(plain(f"{group.letter}: {group.values}"))
        console.print()
    zero = []
    for part in parts:
        where = f", {PARTS[part]}" if len(parts) > 1 else ""
        title = f"{compared.measure.label}{where}: {measured(compared)}"
        if any(value for group in groups for value in group.by_seed(part, metric).values()):
            _print_title(console, title)
            print_table(console, _table(groups, part, metric))
        else:
            console.print(plain(f"{title}: 0 in every run"), style="bold", soft_wrap=True)
            zero.append(part)
    for part in [part for part in parts if part != "all"] or parts:
        if part not in zero:
            _print_pairs(console, groups, part, metric)
    _print_remarks(console, compared)


def _print_remarks(console: Console, compared: "Comparison") -> None:
    """What the numbers cannot say: groups that have learned little, seeds that are too few, runs
    that are not counted, and those that decode otherwise than they predict."""

    def say(text: str) -> None:
        console.print(plain(text), soft_wrap=True)

    sound = [group for group in compared.groups if group.members[0].config.fault is None]
    summaries = [(group, group.summary("in_range")) for group in sound]
    little = [f"{_name(each)} {share(s.mean)}" for each, s in summaries if s and s.mean < LEARNED]
    if little:
        what = f"{compared.measure.decoding} exact match in range"
        say(f"learned little, {what}: {', '.join(little)}; train longer")
    if any((s := group.summary()) and s.runs < 2 for group in compared.groups):
        say("sd, 95% and differences are over seeds: they need two or more of a config")
    for group in compared.groups:
        for member in group.members:
            where = f"{member.path} ({group.name}, seed {member.config.seed})"
            if member.problem:
                say(f"not counted: {where}: {member.problem}")
            elif member.result:
                difference = member.result.parts["all"].exact_match_difference
                if abs(difference) > SMALL:
                    say(f"free-running differs by {difference:+.3f} from teacher-forced: {where}")
    for path, reason in compared.unread.items():
        say(f"not counted: {path}: {reason}")


def measured(compared: "Comparison") -> str:
    """What was measured, in words."""
    from toytrans.sweeps.measure import split_of

    configs = [group.members[0].config for group in compared.groups]
    pairs = f"{' or '.join(sorted(set(map(split_of, configs))))} pairs"
    faults = {config.fault for config in configs}
    fault = broken(faults.pop()) if len(faults) == 1 else ""
    lengths = compared.measure.lengths
    of = f" of lengths {lengths[0]} to {lengths[1]}" if lengths else ""
    return f"{pairs}{of}{fault}"


def number(value: float, metric: "Metric", *, signed: bool = False) -> str:
    """A value as its metric is shown."""
    sign = "+" if signed else ""
    if metric in FORMATS:
        return f"{value:{sign}{FORMATS[metric]}}"
    return f"{value:+.3f}" if signed else share(value)


def _print_title(console: Console, title: str) -> None:
    """On a line of its own: a title of a narrow table would be folded."""
    console.print(plain(title), style="bold")


def _name(group: "Group") -> str:
    """The value of the one key that sets groups apart, or else a letter."""
    return group.letter if len(group.differs) > 1 else group.name


def _table(groups: "Sequence[Group]", part: "Part", metric: "Metric") -> Table:
    keys = list(groups[0].differs)
    headings = ["group"] if len(keys) > 1 else map(printable, keys)
    summaries = [group.summary(part, metric) for group in groups]
    values = [group.by_seed(part, metric) for group in groups]
    several = any(summary and summary.runs > 1 for summary in summaries)
    same = all(each.keys() == values[0].keys() for each in values)
    seeds = f"seeds {' '.join(map(_seed, values[0]))}" if same and values[0] else "seed: value"
    table = columns([*headings], ("runs", *(("mean", "sd", "95%") if several else ("value",))))
    table.box, table.padding = STYLE["box"], STYLE["padding"]
    table.add_column(seeds if several else "seed", overflow="fold")
    for group, summary, of_seeds in zip(groups, summaries, values, strict=True):
        counted, every = len(group.counted), len(group.members)
        cells = _cells(summary, metric)
        table.add_row(
            *([plain(_name(group))] if keys else []),
            str(every) if counted == every else f"{counted} of {every}",
            *(cells if several else cells[:1]),
            _values(of_seeds, metric, same) if several else " ".join(map(_seed, of_seeds)),
        )
    return table


def _cells(
    summary: "Summary | None", metric: "Metric", *, signed: bool = False
) -> tuple[str, str, str]:
    """Mean, deviation and interval."""
    if summary is None:
        return "-", "-", "-"
    deviation = "-" if summary.deviation is None else number(summary.deviation, metric)
    ends = [
        number(end, metric, signed=signed) for end in (summary.low, summary.high) if end is not None
    ]
    return number(summary.mean, metric, signed=signed), deviation, "..".join(ends) or "-"


def _values(values: "Mapping[Seeds, float]", metric: "Metric", same: bool) -> str:
    """The value of each seed; with its seed where the groups have different ones."""
    texts = {seeds: number(value, metric) for seeds, value in values.items()}
    return " ".join(text if same else f"{_seed(seeds)}: {text}" for seeds, text in texts.items())


def _seed(seeds: "Seeds") -> str:
    """seed, or seed/data.seed where the data has its own."""
    return str(seeds[0]) if seeds[1] is None else f"{seeds[0]}/{seeds[1]}"


def _print_pairs(
    console: Console, groups: "Sequence[Group]", part: "Part", metric: "Metric"
) -> None:
    """Differences of two groups over equal seeds."""
    from toytrans.sweeps.groups import pairs
    from toytrans.sweeps.measure import PARTS

    every = [each for each in pairs(groups, part, metric) if each[2].difference.runs > 1]
    if not every:
        return
    one, *_ = every[0]
    paired = every if len(every) <= MOST_PAIRS else [each for each in every if each[0] is one]
    where = "" if part == "all" else f", {PARTS[part]}"
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
            *_cells(each.difference, metric, signed=True),
            str(each.ahead),
            str(each.behind),
        )
    print_table(console, table)
    if len(paired) < len(every):
        shown = f"{len(paired)} of {len(every)} pairs, those of {_name(one)}"
        console.print(plain(f"{shown}; `toytrans compare RUN ... --json` has all\n"))
