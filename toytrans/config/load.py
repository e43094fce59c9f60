"""Read, override, check, save and compare configs.

A YAML file becomes a tree of plain values with the line of every key (`yaml`). `--set` overrides
are laid over it. Pydantic checks the whole (`Config`).
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from toytrans.config.schema import Config, Places, Settings, keys, nearest_key
from toytrans.config.yaml import IN_PYTHON, Tree, parse_value, read_yaml, write_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.user_code import SHIPPED, is_reference, trust

LIMITS = ("max_steps", "max_seconds", "stop_at_exact_match", "patience")
MAY_DIFFER = ("device", *(f"train.{key}" for key in (*LIMITS, "keep_checkpoints")))
"""What may change when a run is resumed: limits, and what changes no numbers."""

OWN_CODE = ("data.task", "model.class", "model.positions", "model.cross_positions")
"""Keys that may name code of the user's."""

Description = TypeVar("Description", Config, Settings)

KEY_OPTIONS = {"device": "--device", "fault": "--break", "seed": "--seed"}
"""Options of commands that give one key, by that key."""

FILES = ("data.files.train", "data.files.valid", "data.files.test")


def load_config(
    path: Path,
    overrides: Sequence[str] = (),
    by_option: Mapping[str, Any] | None = None,
    *,
    saved: bool = False,
) -> Config:
    """Read, override and check a config. Raises UserError.

    overrides: `section.key=value`, values in YAML
    by_option: values of options in `KEY_OPTIONS`, by key; None changes nothing
    saved: whether it is that of a run directory, whose code is not trusted; the user's own is
    """
    tree = read_yaml(path) if saved else read_tree(path)
    for override in overrides:
        lay_over(tree, override)
    for key, value in (by_option or {}).items():
        if value is not None:
            _set(tree, key, value, KEY_OPTIONS[key])
    return check_config(tree) if saved else config_of(tree)


def shipped() -> list[str]:
    """The names of the configs that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def read_tree(path: Path) -> Tree:
    """The values of a config file; where there is none of that path, of the shipped config of that
    name. Raises UserError where there is neither."""
    if not os.path.lexists(path):
        if str(path) not in (names := shipped()):
            hint = did_you_mean(path.stem, names)
            raise UserError(f"{path}: no such file and no shipped config; {hint}")
        path = SHIPPED / f"{path}.yaml"
    return beside(read_yaml(path), path.parent)


def beside(tree: Tree, folder: Path) -> Tree:
    """A tree whose code of the user's, FILE.py:NAME, is looked for from a folder."""
    for key in OWN_CODE:
        section, _, name = key.partition(".")
        values = tree.values.get(section)
        if isinstance(values, dict) and isinstance(values.get(name), str):
            named = values[name]
            values[name] = str(folder.absolute() / named) if is_reference(named) else named
    return tree


def config_of(tree: Tree, changes: Mapping[str, Any] | None = None) -> Config:
    """The config of a tree of values, with some keys changed. Raises UserError."""
    for key, value in (changes or {}).items():
        _set(tree, str(key), value, "changes")
    config = check_config(tree)
    trust(config.references.values())
    return config


def check_config(tree: Tree) -> Config:
    """The config of a tree of values. Raises UserError with file, line and key."""
    return _validated(Config, tree)


def _validated(kind: type[Description], tree: Tree) -> Description:
    places = Places({"": tree.name} | tree.places)
    try:
        return kind.model_validate(tree.values, context=places)
    except ValidationError as error:
        raise UserError(_reason_of(error, places)) from None


def as_yaml(config: Config) -> str:
    """What was stated in a config, as YAML text; of `Settings` every key."""
    is_complete = isinstance(config, Settings)
    return write_yaml(config.model_dump(mode="json", exclude_unset=not is_complete))


def load_settings(path: Path) -> Settings:
    """The complete settings that a training has saved. Raises UserError with file, line and key.

    No code is run, and nothing is derived afresh, so a model stays what it was when a later version
    has other defaults.
    """
    tree = read_yaml(path)
    return _validated(Settings, tree)


# Going on with a run -------------------------------------------------------------------------


def settings_for_resume(saved: Config, settings: Settings, given: Config, run: Path) -> Settings:
    """The settings with which a run goes on: its own, within the limits of a given config.

    saved: the config that the run was started with. settings: what followed from it, which stays.
    given: a config that may differ in limits, in the device, and in where files lie. What these
    hold counts, and the run compares that.
    Raises UserError with the keys that differ otherwise: `key (was -> is)`.
    """
    before, resolved, after = (
        flatten(each.model_dump(mode="json")) for each in (saved, settings, given)
    )
    moved = _moved(before, after)
    changed = [
        f"{key} ({_shown(before.get(key))} -> {_shown(after.get(key))})"
        for key in sorted((before.keys() | after.keys()) - {*MAY_DIFFER, *moved})
        if after.get(key) not in (before.get(key), resolved.get(key))
    ]
    if changed:
        raise UserError(
            f"{run}: cannot resume with other settings: {', '.join(changed)}; "
            "set them back, or start another run with --out"
        )
    tree = Tree(str(run), settings.model_dump(mode="json"))
    for key in (*MAY_DIFFER, *moved):
        _set(tree, key, after[key], "the config")
    if given.train.warmup_steps is None:  # it followed from max_steps, which may be lower now
        warmup = min(settings.train.warmup_steps, given.train.max_steps)
        _set(tree, "train.warmup_steps", warmup, "the config")
    return _validated(Settings, tree)


def _moved(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys of files, and of own code by the same name, which may lie in another place now."""
    files = [key for key in FILES if before.get(key) and after.get(key)]
    named = [key for key in OWN_CODE if is_reference(before[key]) and is_reference(after[key])]
    return files + [key for key in named if _name_of(before[key]) == _name_of(after[key])]


def _name_of(reference: str) -> str:
    return reference.rpartition(":")[2]


# Changing ------------------------------------------------------------------------------------


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as one level, with keys such as train.lr."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def lay_over(tree: Tree, override: str, given_as: str = "--set") -> None:
    """Lay one `section.key=value` over a tree of values. Raises UserError.

    given_as: the option or argument that it was given with, for errors
    """
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+){0,9}", key):  # no key is even as deep
        raise UserError(f"{given_as} {override}: write it as section.key=value, say train.lr=1e-3")
    _set(tree, key, parse_value(text, f"{given_as} {key}"), given_as)


def _set(tree: Tree, key: str, value: Any, place: str) -> None:
    *sections, name = key.split(".")
    values = tree.values
    for depth, section in enumerate(sections, 1):
        if not isinstance(values.get(section), dict):
            values[section] = {}
            tree.places[".".join(sections[:depth])] = place
        values = values[section]
    values[name] = value
    tree.places[key] = place


# Refusals ------------------------------------------------------------------------------------

BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}

EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list, say [1, 20]",
    "too": "a list of two, say [1, 20]",
    "missing": "a list of two, say [1, 20]",
    "none": "null",
    "model": "a section of keys",
    "finite": "a finite number",
}
"""What a key takes, by the first word of pydantic's name for the problem."""


def _reason_of(error: ValidationError, places: Places) -> str:
    """Why a tree of values is refused, in one line: file, line, key, what was found, what is
    expected. It is the first problem, unknown keys before all others."""
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    problem = (unknown or problems)[0]
    kind, path = problem["type"], [str(part) for part in problem["loc"]]
    if kind == "refusal":
        path += filter(None, problem["ctx"]["key"].split("."))
        message = problem["ctx"]["reason"]
    elif kind == "extra_forbidden":
        message = f"unknown key; {_instead_of('.'.join(path[:-1]), path[-1])}"
    elif kind == "missing" and not isinstance(problem["loc"][-1], int):
        option = "" if places[""] == IN_PYTHON else f", or give --set {'.'.join(path)}=..."
        message = f"missing; add it{option}"
    else:
        if kind == "missing":  # a value of a list
            path.pop()
        expected = _expected(problem, ".".join(path))
        message = f"found {_shown(problem['input'])}{expected}"
    key = ".".join(path)
    shown = key if key.isprintable() else repr(key)[1:-1]  # it may hold line ends
    return f"{places.of(key)}: {shown + ': ' if key else ''}{message}"


def _instead_of(section: str, name: str) -> str:
    """What may be meant by an unknown key."""
    if near := nearest_key(section, name):
        return f"did you mean {near}?"
    names = sorted(key.name for key in keys() if key.section == section)
    return f"{section or 'a config'} has {', '.join(names)}"


def _expected(problem: Any, path: str) -> str:
    """What a key takes instead of what was found."""
    context, kind = problem.get("ctx", {}), problem["type"]
    key = next((key for key in keys() if key.path == path), None)
    if key is not None and kind == "literal_error":
        return f"; {did_you_mean(str(problem['input']), key.names)}"
    if key is not None and kind == "string_pattern_mismatch":
        return f", expected {key.meaning}"
    for name, phrase in BOUNDS.items():
        if name in context:
            return f", expected {phrase} {context[name]}"
    return f", expected {EXPECTED.get(kind.partition('_')[0], str(problem['msg']))}"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."
