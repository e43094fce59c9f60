"""Read, override, save and compare configs.

A YAML file becomes a tree of plain values with the line of every key (`yaml`). `--set` overrides
are laid over it. Pydantic checks the whole (`Config`).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toytrans.config.errors import reason_of
from toytrans.config.schema import OWN_CODE, Config, fields_of
from toytrans.config.yaml import Tree, parse_value, read_yaml, write_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.user_code import SHIPPED, is_reference, trust

MAY_RISE_ON_RESUME = (
    "train.max_steps",
    "train.max_seconds",
    "train.stop_at_exact_match",
    "train.patience",
)
"""Limits of a training."""

MAY_DIFFER = (*MAY_RISE_ON_RESUME, "device", "train.cuda_graphs", "train.keep_checkpoints")
"""What may change when a run is resumed."""

NULL_IS_A_VALUE = ("data.task", "data.files", "model.class", *MAY_RISE_ON_RESUME)
"""Keys whose null does not follow from other keys."""

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
    file = _named(path)
    return beside(read_yaml(file), file.parent)


def _named(path: Path) -> Path:
    try:
        path.lstat()
    except FileNotFoundError:
        if str(path) in (names := shipped()):
            return SHIPPED / f"{path}.yaml"
        hint = did_you_mean(path.stem, names)
        raise UserError(f"{path}: no such file and no shipped config; {hint}") from None
    except OSError:
        pass  # whoever reads it says why it cannot be read
    return path


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
    try:
        return Config.model_validate(tree.values)
    except ValidationError as error:
        raise UserError(reason_of(error, tree)) from None


def save_config(config: Config) -> str:
    """The config as YAML text. A key of the model that is null does not apply, and is left out."""
    values = config.model_dump(mode="json")
    values["model"] = {key: value for key, value in values["model"].items() if value is not None}
    return write_yaml(values)


def config_for_resume(saved: Config, given: Config, run: Path) -> Config:
    """The config of a saved run with the limits, the device and the paths of a given one.

    What the given config leaves to follow from other keys stays as it was saved. A file may have
    moved: what counts is what it holds, which the run compares. Raises UserError with the settings
    that differ otherwise: `key (was -> is)`.
    """
    before, after = (flatten(config.model_dump(mode="json")) for config in (saved, given))
    derived = _derived(given)
    moved = [key for key in FILES if before.get(key) and after.get(key)]
    moved += [
        key
        for key, reference in saved.references.items()
        if is_reference(after[key]) and _name_of(after[key]) == _name_of(reference)
    ]
    changed = [
        f"{key} ({before.get(key)} -> {after.get(key)})"
        for key in sorted((before.keys() | after.keys()) - derived)
        if before.get(key) != after.get(key) and key not in (*MAY_DIFFER, *moved)
    ]
    if changed:
        raise UserError(
            f"{run}: cannot resume with other settings: {', '.join(changed)}; "
            "set them back, or start another run with --out"
        )
    tree = Tree(str(run), saved.model_dump(mode="json"))
    for key in (*MAY_DIFFER, *moved):
        _set(tree, key, after[key], "the config")
    return check_config(tree)


def _derived(config: Config) -> set[str]:
    """The keys of a config that were left to follow from others."""
    derived = set()
    for key, field, _ in fields_of(Config):
        section, _, name = key.partition(".")
        if name and "." not in name and field.default is None and key not in NULL_IS_A_VALUE:
            stated = getattr(config, section).model_fields_set
            if name not in stated:
                derived.add(key)
    return derived


def _name_of(reference: str) -> str:
    return reference.rpartition(":")[2]


def compared_with_defaults(config: Config) -> list[tuple[str, Any, Any]]:
    """Every key with its value and its default: that of a config which names the data alone."""
    data = config.data.model_dump(mode="json", include={"task", "files"})
    defaults = flatten(Config.model_validate({"data": data}).model_dump(mode="json"))
    return [
        (key, value, defaults.get(key))
        for key, value in flatten(config.model_dump(mode="json")).items()
    ]


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
