"""The grid of a sweep: every combination of the values of some config keys."""

import itertools
from collections.abc import Callable, Sequence

from toytrans.config.schema import Config
from toytrans.data.open import check_dataset, open_dataset
from toytrans.errors import UserError
from toytrans.sweeps.measure import ExactMatch
from toytrans.training.devices import choose_device
from toytrans.training.faults import check_fault

LoadConfig = Callable[[Sequence[str]], Config]
"""The config with some `section.key=value` laid over it. Raises UserError."""

Grid = dict[str, list[str]]
"""The values of each key that a sweep varies, as they were written."""

Choice = dict[str, str]
"""One value of each key."""


def read_grid(sets: Sequence[str]) -> Grid:
    """The grid of some `section.key=value,value`. Raises UserError."""
    grid: Grid = {}
    for text in sets:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise UserError(f"--set {text}: write it as section.key=value,value")
        if key == "seed":
            raise UserError(
                f"--set {text}: a sweep's seeds are given with --seeds, say 0:9 (in Python: seeds)"
            )
        if key in grid:
            raise UserError(f"--set {text}: {key} is given twice; name all its values in one --set")
        grid[key] = split_values(values)
        if "" in grid[key]:
            raise UserError(f"--set {text}: an empty value; leave out a comma, or write null")
    return grid


def split_values(text: str) -> list[str]:
    """Values separated by commas outside of brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not quote and depth <= 0:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def choices_of(grid: Grid) -> list[Choice]:
    """Every combination, the values of the last key changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def title_of(choice: Choice) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items())


def configs_of(choices: Sequence[Choice], load: LoadConfig) -> list[Config]:
    """The config of every choice. Raises UserError naming all choices that are not valid, or two
    that are the same."""
    configs: list[Config] = []
    refused = []
    for choice in choices:
        try:
            configs.append(load([f"{key}={value}" for key, value in choice.items()]))
        except UserError as error:
            refused.append((choice, error))
    _raise_refused(refused, len(choices))
    first: dict[Config, Choice] = {}
    for choice, config in zip(choices, configs, strict=True):
        if config in first:
            same = f"{title_of(first[config])} and {title_of(choice)}"
            raise UserError(f"{same} are the same config; give it once")
        first[config] = choice
    return configs


def check_choices(
    choices: Sequence[Choice], configs: Sequence[Config], measure: ExactMatch, *, here: bool
) -> None:
    """Whether every choice can be trained and measured. Raises UserError naming all that cannot.

    here: on this machine, whose devices are then looked at.
    """
    refused, seen = [], set()
    for choice, config in zip(choices, configs, strict=True):
        same = (config.data, config.model.max_length, config.device)
        try:
            check_fault(config.fault, config.model)
            if same not in seen:
                seen.add(same)
                if here:
                    choose_device(config.device)
                dataset = open_dataset(config)
                check_dataset(config, dataset)
                measure.pairs(config, dataset.facts)
        except UserError as error:
            refused.append((choice, error))
    _raise_refused(refused, len(configs))


def _raise_refused(refused: Sequence[tuple[Choice, UserError]], of: int) -> None:
    if not refused:
        return
    if len(refused) == of and len({str(error) for _, error in refused}) == 1:
        raise refused[0][1]  # of the config that all share
    listed = "; ".join(f"{title_of(choice)}: {error}" for choice, error in refused)
    raise UserError(f"{len(refused)} of {of} combinations are not valid: {listed}")
