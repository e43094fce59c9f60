"""The combinations of a sweep: what varies, as a file or a command line says it, and the config of
each.

    grid -> one `Choice` for each combination -> its config

Nothing here needs torch, so that a misspelt key is answered at once.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import yaml

from toytrans import references
from toytrans.config.load import check_and_trust, set_key
from toytrans.config.schema import Config
from toytrans.config.yaml import parse_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.sweeps.sweep_file import Dimension, Plan

Made = TypeVar("Made")


@dataclass(frozen=True)
class Choice:
    """One combination. labels: what each dimension is in it. values: of the config, by key."""

    labels: Mapping[str, Any]
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return " ".join(f"{name}={value_as_text(value)}" for name, value in self.labels.items())


def choices_of(grid: Mapping[str, Dimension]) -> Iterator[Choice]:
    """Every combination of the values of all dimensions."""
    for labels in product(*grid.values()):
        values: dict[str, Any] = {}
        for (name, dimension), label in zip(grid.items(), labels, strict=True):
            values |= dimension[label] if isinstance(dimension, Mapping) else {name: label}
        yield Choice(dict(zip(grid, labels, strict=True)), values)


def each_value_once(grid: Mapping[str, Dimension]) -> Iterator[Choice]:
    """Choices in which every value occurs: the first one, and those that differ from it in one
    dimension."""
    firsts = {name: _part(dimension, 0, 1) for name, dimension in grid.items()}
    yield from choices_of(firsts)
    for name, dimension in grid.items():
        yield from choices_of({**firsts, name: _part(dimension, 1, len(dimension))})


def _part(dimension: Dimension, start: int, end: int) -> Dimension:
    """Some of the values of a dimension."""
    if isinstance(dimension, Mapping):
        return dict(list(dimension.items())[start:end])
    return list(dimension)[start:end]


def config_of(choice: Choice, asked: Plan) -> Config:
    """The config of a choice, its keys and values checked. Raises UserError."""
    tree = copy.deepcopy(asked.base)
    for key, value in choice.values.items():
        set_key(tree, key, value, asked.origin)
    return check_and_trust(tree, asked.trust_code)


def naming_the_choice(make: Callable[[Choice, Plan], Made], choice: Choice, asked: Plan) -> Made:
    """What is made of a choice. Its UserError names the choice, unless the base alone is at
    fault."""
    try:
        return make(choice, asked)
    except UserError as error:
        if str(choice) and str(error) != _error_of_base(make, asked):
            raise UserError(f"{choice}: {error}") from None
        raise


def _error_of_base(make: Callable[[Choice, Plan], Any], asked: Plan) -> str:
    """What is wrong with the base alone; empty if nothing is."""
    try:
        make(Choice({}, {}), asked)
    except UserError as error:
        return str(error)
    return ""


def value_as_text(value: Any) -> str:
    """A value of a config as YAML has it, and none for null. Paths below the working directory are
    relative."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_as_text, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return references.shown(str(value))


# What the command line says --------------------------------------------------------------------


def read_grid(sets: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each key of some `section.key=value,value`. Raises UserError."""
    grid: dict[str, list[Any]] = {}
    for text in sets:
        key, _, values = text.partition("=")
        if values:
            check_key(key, f"--set {text}")
        if key in grid:
            raise UserError(f"--set {text}: {key} is given twice; name all its values in one --set")
        if not (key and (found := _split(values))):
            raise UserError(
                f"--set {text}: write it as section.key=value,value, say train.lr=1e-3,1e-4; "
                "brackets have two ends, and none is null"
            )
        grid[key] = [parse_yaml(each, f"--set {key}", numbered=False)[0] for each in found]
    return grid


def check_key(key: str, given_as: str) -> None:
    """Raise UserError for what is no key that a grid may have, nor the name of a dimension."""
    if key == "seed":
        how = "a sweep's seeds are given with --seeds, say 0:9 (in Python, and in a file: seeds)"
        raise UserError(f"{given_as}: {how}")
    if not re.fullmatch(r"\w[\w ]*(\.\w+){0,9}", key):  # no key is even as deep
        raise UserError(f"{given_as}: write it as section.key=value, say train.lr=1e-3")


def _split(text: str) -> list[str]:
    """Values as written, between the commas of a list in YAML; empty if it is none."""
    try:
        whole = yaml.compose(written := f"[{text}]", yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return []
    nodes = whole.value if isinstance(whole, yaml.SequenceNode) else []
    return [written[node.start_mark.index : node.end_mark.index].strip() for node in nodes]


def narrowed(
    grid: Mapping[str, Dimension], sets: Mapping[str, Sequence[Any]]
) -> dict[str, Dimension]:
    """A grid with some of its dimensions set anew: the values of a key, or some of the names of a
    dimension. Raises UserError for names that it does not have."""
    found = dict(grid)
    for key, values in sets.items():
        known = grid.get(key)
        if isinstance(known, Mapping):
            for name in values:
                if name not in known:
                    raise UserError(f"--set {key}={name}: {did_you_mean(str(name), known)}")
            found[key] = {name: known[name] for name in values}
        else:
            found[key] = values
    return found
