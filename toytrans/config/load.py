"""Read, override, check and save configs.

    path -> read_tree -> override -> check_and_trust, which validates -> Config

A YAML file becomes a tree of plain values with the origin of every key (`yaml`). `--set` overrides
are laid over it. Pydantic checks the whole and makes a `Config` of it; or of the complete file that
a training has saved, `Settings`.

Code that a config of the user's names may run from then on. Code that a run directory names may
not, because somebody may have sent the run; whoever opens the run is asked for that.
"""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from toytrans.config.schema import OWN_CODE, Config, Settings
from toytrans.config.yaml import (
    Tree,
    naming_origins,
    parse_yaml,
    read_yaml,
    write_yaml,
)
from toytrans.errors import UserError, did_you_mean
from toytrans.references import SHIPPED, path_of, shipped_names, trust

FILES = ("train", "valid", "test")
"""Keys below data.files that name files."""

KEY_OPTIONS = {
    "device": "--device",
    "fault": "--break",
    "seed": "--seed",
    "train.init": "--init",
}
"""Options of commands that give one key, by that key."""

OF_A_RUN, BESIDE = ("config.yaml", "resolved.yaml"), ("resolved.yaml", "model.safetensors")
"""The configs in a run directory, and the files by which one is known."""

Description = TypeVar("Description", Config, Settings)


# From a file ---------------------------------------------------------------------------------


def load_config(
    path: Path,
    overrides: Sequence[str] = (),
    by_option: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> Config:
    """Read, override and check a config of the user's, whose code may run. Raises UserError.

    path: of a file, or the name of a shipped config
    overrides: `section.key=value`, values in YAML
    by_option: values of options in `KEY_OPTIONS`, by key; None changes nothing
    trust_code: whether code may run that the config of a run directory names
    """
    tree = read_tree(path)
    _override(tree, overrides, by_option)
    return check_and_trust(tree, trust_code)


def load_saved_config(
    path: Path, overrides: Sequence[str] = (), by_option: Mapping[str, Any] | None = None
) -> Config:
    """Read, override and check the config that a run directory keeps as it was given. Raises
    UserError."""
    tree = read_yaml(path)
    tree.is_of_a_run = True
    make_code_paths_absolute(tree, path.parent)
    make_file_paths_absolute(tree, path.parent)
    _override(tree, overrides, by_option)
    return check_and_trust(tree)


def load_settings(path: Path) -> Settings:
    """The complete settings that a training has saved. Raises UserError with file, line and key.

    No code is run, and nothing is derived afresh, so a model stays what it was when a later version
    has other defaults.
    """
    tree = read_yaml(path)
    make_code_paths_absolute(tree, path.parent)
    make_file_paths_absolute(tree, path.parent)
    return validate(Settings, tree)


# Values, before they are checked -------------------------------------------------------------


def read_tree(path: Path) -> Tree:
    """The values of a config file; where there is none of that path, of the shipped config of that
    name. Raises UserError where there is neither."""
    if not os.path.lexists(path):
        if str(path) not in shipped_names():
            raise UserError(f"{path}: no such file and no shipped config; {_instead_of(path)}")
        path = SHIPPED / f"{path}.yaml"
    tree = read_yaml(path)
    tree.is_of_a_run = path.name in OF_A_RUN and any(
        os.path.lexists(path.parent / beside) for beside in BESIDE
    )
    shipped = path.parent.resolve() == SHIPPED.resolve()
    make_code_paths_absolute(tree, path.parent)
    make_file_paths_absolute(tree, Path() if shipped else path.parent)
    return tree


def _instead_of(path: Path) -> str:
    """What may be meant by the path of a config that does not exist: a file of that name one folder
    deeper, or a shipped config."""
    deeper = sorted(path.parent.glob(f"*/{glob.escape(path.name)}"))
    if not deeper:
        return did_you_mean(path.stem, shipped_names())
    several = f" or another of {len(deeper)} folders" if len(deeper) > 1 else ""
    return f"there is one in {deeper[0].parent}{several}; change to it, or name {deeper[0]}"


def make_code_paths_absolute(tree: Tree, folder: Path) -> None:
    """Write the code that a tree names, FILE.py:NAME, as a path from a folder: that of the config,
    wherever the command runs."""
    for key in OWN_CODE:
        section, _, name = key.partition(".")
        values = tree.values.get(section)
        if isinstance(values, dict):  # else it is refused later
            code = values.get(name)
            # what names no file is refused in the words in which it was written
            if isinstance(code, str) and path_of(code).endswith(".py"):
                values[name] = os.path.abspath(folder / code)


def make_file_paths_absolute(tree: Tree, folder: Path) -> None:
    """Write the data files that a tree names, and the run that it starts from, as paths from a
    folder: that of the config, wherever the command runs; of a config that came with the package
    the working directory, because nobody's data lie in the package."""
    train = tree.values.get("train")
    if isinstance(train, dict) and isinstance(train.get("init"), str):
        train["init"] = os.path.abspath(folder / train["init"])
    data = tree.values.get("data")
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, dict):  # there are none, or they are refused later
        return
    for part in FILES:
        match files.get(part):
            case str(path):
                files[part] = os.path.abspath(folder / path)
            case [str(src), str(tgt)]:
                files[part] = [os.path.abspath(folder / path) for path in (src, tgt)]


def _override(
    tree: Tree, overrides: Sequence[str], by_option: Mapping[str, Any] | None = None
) -> None:
    """Lay over a tree what `--set` and the options of single keys give."""
    for override in overrides:
        lay_over(tree, override)
    for key, value in (by_option or {}).items():
        if value is not None:
            set_key(tree, key, value, KEY_OPTIONS[key])


def lay_over(tree: Tree, override: str, given_as: str = "--set") -> None:
    """Lay one `section.key=value` over a tree of values. Raises UserError.

    given_as: the option or argument that it was given with, for errors
    """
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+){0,9}", key):  # no key is even as deep
        raise UserError(f"{given_as} {override}: write it as section.key=value, say train.lr=1e-3")
    value, _ = parse_yaml(text, f"{given_as} {key}", numbered=False)
    set_key(tree, key, value, given_as)


def set_key(tree: Tree, key: str, value: Any, origin: str) -> None:
    """Set one key of a tree of values. origin: where the value is from, for errors."""
    *sections, name = key.split(".")
    values = tree.values
    for depth, section in enumerate(sections, 1):
        if not isinstance(values.get(section), dict):
            values[section] = {}
            tree.origins[".".join(sections[:depth])] = origin
        values = values[section]
    values[name] = value
    for inner in [each for each in tree.origins if each.startswith(f"{key}.")]:
        del tree.origins[inner]  # of what the value replaces
    tree.origins[key] = origin


# Checking ------------------------------------------------------------------------------------


def check_and_trust(tree: Tree, trust_code: bool = False) -> Config:
    """The config of values that the user has given, whose code may run from now on. Raises
    UserError with file, line and key.

    Somebody may have sent a run directory, so of code that its config names only what an override
    names may run; trust_code: all of it.
    """
    config = validate(Config, tree).with_origins(tree.origins)
    is_trusted = trust_code or not tree.is_of_a_run
    trust(
        code
        for key, code in config.references.items()
        if is_trusted or config.origins.of(key) == "--set"
    )
    return config


def validate(kind: type[Description], tree: Tree) -> Description:
    """The config or the settings of a tree of values, in which nothing is trusted. A section with
    nothing below it is empty. Raises UserError with file, line and key."""
    tree.values |= {s: {} for s in ("data", "model", "train") if tree.values.get(s, 0) is None}
    try:
        with naming_origins(tree.origins):
            return kind.model_validate(tree.values)
    except ValidationError as error:
        from toytrans.config.refusals import reason_of

        raise UserError(reason_of(error, tree.origins)) from None


# Saving and comparing ------------------------------------------------------------------------


def as_yaml(config: Config, folder: Path | None = None) -> str:
    """What was stated in a config, as YAML text; of `Settings` every key.

    folder: that of the file. Data and code that lie below the working directory, as the folder
    does, are then written as paths from it, so that all of them can be moved together.
    """
    is_complete = isinstance(config, Settings)
    values = config.model_dump(mode="json", exclude_unset=not is_complete)
    if folder is not None:
        files = (values["data"].get("files") or {}) if "data" in values else {}
        for part in FILES:
            match files.get(part):
                case str(path):
                    files[part] = _from(path, folder)
                case [*paths]:
                    files[part] = [_from(path, folder) for path in paths]
        if config.train.init is not None and "train" in values:
            values["train"]["init"] = _from(config.train.init, folder)
        for key, reference in config.references.items():
            section, _, name = key.partition(".")
            if name in values.get(section, {}):
                place, _, what = reference.rpartition(":")
                values[section][name] = f"{_from(place, folder)}:{what}"
    return write_yaml(values)


def _from(path: str, folder: Path) -> str:
    """A path from a folder, if both lie below the working directory."""
    here = Path.cwd()
    if Path(path).is_relative_to(here) and folder.absolute().is_relative_to(here):
        return os.path.relpath(path, folder)
    return path


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as one level, with keys such as train.lr."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
