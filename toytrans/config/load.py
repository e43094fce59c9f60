"""Read, override, save, compare and begin configs.

A YAML file becomes a tree of plain values with the line of every key (`yaml`). `--set` overrides
are laid over it. Pydantic checks the whole (`Config`).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from pydantic import ValidationError

from toytrans.config.explain import Key, keys, reason_of
from toytrans.config.schema import OWN_CODE, Config
from toytrans.config.yaml import Tree, parse_value, read_yaml, write_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.user_code import SHIPPED, is_reference, trust

LIMITS = ("max_steps", "max_seconds", "stop_at_exact_match", "patience")
MAY_DIFFER = ("device", *(f"train.{key}" for key in (*LIMITS, "cuda_graphs", "keep_checkpoints")))
"""What may change when a run is resumed: limits, and what changes no numbers."""

IS_OTHERWISE = ("data.task", "data.files", "model.class")
"""Keys whose null means something else, and does not follow from other keys."""

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
    moved = [key for key in FILES if before.get(key) and after.get(key)]
    moved += [
        key
        for key, reference in saved.references.items()
        if is_reference(after[key]) and _name_of(after[key]) == _name_of(reference)
    ]
    free = {*MAY_DIFFER, *moved, *_left_out(given)}
    changed = [
        f"{key} ({before.get(key)} -> {after.get(key)})"
        for key in sorted((before.keys() | after.keys()) - free)
        if before.get(key) != after.get(key)
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


def _left_out(config: Config) -> list[str]:
    """The keys of a config that were left to follow from others."""
    sections = {"data": config.data, "model": config.model, "train": config.train}
    null = [key for key in keys() if key.default == "null" and key.section in sections]
    return [
        key.path
        for key in null
        if key.name not in sections[key.section].model_fields_set and key.path not in IS_OTHERWISE
    ]


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


# A new config --------------------------------------------------------------------------------

USUAL = {
    "": "seed",
    "data.": "task symbols train_length test_length batch_tokens",
    "model.": "d_model n_heads n_encoder_layers n_decoder_layers d_ff dropout positions",
    "train.": "max_steps lr schedule warmup_steps eval_every stop_at_exact_match",
}
"""Keys of a new config, by section."""

LEARNED = {"eval_every": 100, "stop_at_exact_match": 0.99}
"""Of `train`: measured often, and stopped when nearly all is right."""

FOLLOW = ("data.test_length", "train.warmup_steps")
"""Keys of a new config that follow from others until their # is removed."""

HEADER = """\
# Train with `toytrans train FILE`. `toytrans explain KEY` explains a key.
# Remove the # before a key to set it; otherwise it follows from other keys.
"""


def new_config(task: str) -> str:
    """A commented config of a task, as YAML. It stops when it has learned. Raises UserError."""
    config = check_config(Tree("a new config", {"data": {"task": task}, "train": LEARNED}))
    values = flatten(config.model_dump(mode="json"))
    known, lines = {key.path: key for key in keys()}, [HEADER]
    for section, names in USUAL.items():
        lines += [f"\n{section[:-1]}:\n"] if section else []
        lines += [_line(known[section + name], values[section + name]) for name in names.split()]
    return "".join(lines)


def _line(key: Key, value: Any) -> str:
    """The meaning of a key as comments, and its value."""
    indent = "  " if key.section else ""
    texts = [key.meaning, *[f"One of {key.range.replace('`', '')}."] * ("`" in key.range)]
    comments = [f"# {line}" for text in texts for line in wrap(text, 90)]
    setting = write_yaml({key.name: value}).rstrip()
    setting = f"# {setting}" if key.path in FOLLOW else setting
    return "".join(f"{indent}{line}\n" for line in [*comments, setting])
