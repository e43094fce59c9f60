"""Why a config is refused: file, line, key, given value, allowed values."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from toytrans.config.foreign import FOREIGN, library_of
from toytrans.config.yaml import IN_PYTHON, MAX_DEPTH, Tree

MOST_LINES = 5
"""Keys of another library that are named at once."""


def explain(error: ValidationError, tree: Tree, config: type[BaseModel]) -> list[str]:
    """The first problem in one line; of keys of another library, a line for each."""
    fields, problems = fields_of(config), error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    if lines := _foreign([_path(problem) for problem in unknown], tree, fields):
        return lines
    return [_explained((unknown or problems)[0], tree, fields)]


def _path(problem: Any) -> list[str]:
    """The key of a problem, part by part."""
    path = [str(part) for part in problem["loc"] if _is_key(part)]
    last = problem["loc"][-1] if problem["loc"] else ""
    if problem["type"] == "extra_forbidden" and not _is_key(last):
        path.append(str(last))
    return path


def _foreign(unknown: list[list[str]], tree: Tree, fields: dict[str, str]) -> list[str]:
    """A line for each unknown key that another library has, in the order of the file."""
    paths = [leaf for path in unknown for leaf in _leaves(path, _value(path, tree.values))]
    if not any(_other_name(path) for path in paths):
        return []
    hints = {".".join(path): _other_name(path) or _moved(path, fields) for path in paths}
    lines = [f"{tree.place(key)}: {_shown_key(key)}: {hint}" for key, hint in hints.items() if hint]
    lines.sort(key=_line_number)
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:MOST_LINES], _rest(len(lines) - MOST_LINES, len(hints) - len(lines), paths)]


def _rest(renamed: int, unknown: int, paths: list[list[str]]) -> str:
    """What is left to say of a file of another library.

    renamed: keys with another name here, beyond those that were named. unknown: keys without one.
    """
    text = f"more keys with other names here: {renamed}"
    text += f", without one: {unknown}" if unknown else ""
    if library := library_of({part for path in paths for part in path}):
        text += f"; this looks like a file of {library[0]}: see {library[1]}"
    return text


def _leaves(path: list[str], value: Any) -> Iterator[list[str]]:
    """The paths of the values under a key."""
    if not isinstance(value, dict) or not value or len(path) > MAX_DEPTH:
        yield path
        return
    for name, inner in value.items():
        yield from _leaves([*path, str(name)], inner)


def _value(path: list[str], values: Any) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _other_name(path: list[str]) -> str | None:
    """What a key of another library is called here."""
    return FOREIGN.get(".".join(path[-2:])) or FOREIGN.get(path[-1])


def _moved(path: list[str], fields: dict[str, str]) -> str | None:
    """Where a key of our name belongs that stands in a section of another library."""
    own = [key for key in fields if key.rpartition(".")[2] == path[-1]]
    return f"here {own[0]}" if len(own) == 1 and ".".join(path[:-1]) not in fields else None


def _line_number(line: str) -> int:
    number = re.match(r".*?:(\d+): ", line)
    return int(number[1]) if number else 0


def _explained(problem: Any, tree: Tree, fields: dict[str, str]) -> str:
    """One problem in one line."""
    path = _path(problem)
    last = problem["loc"][-1] if problem["loc"] else ""
    if problem["type"] == "refusal":
        message = problem["ctx"]["reason"]
        path += [part for part in problem["ctx"]["key"].split(".") if part]
    elif problem["type"] == "extra_forbidden":
        message = f"unknown key{_nearest_key(path, fields)}"
    elif problem["type"] == "missing" and isinstance(last, int):
        path.pop()
        message = f"found {_shown(problem['input'])}, expected a list of two, say [1, 20]"
    elif problem["type"] == "missing":
        option = "" if tree.name == IN_PYTHON else f", or give --set {'.'.join(path)}=..."
        message = f"missing; add it{option}"
    else:
        message = f"found {_shown(problem['input'])}, expected {_expected(problem, path, fields)}"
    key = ".".join(path)
    return f"{tree.place(key)}: {_shown_key(key) + ': ' if key else ''}{message}"


def _shown_key(key: str) -> str:
    """A key on one line; it may hold line ends."""
    return key if key.isprintable() else repr(key)[1:-1]


def _is_key(part: int | str) -> bool:
    return isinstance(part, int) or bool(re.fullmatch(r"\w+", part)) and part not in ("str",)


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(problem: Any, path: Sequence[str], fields: dict[str, str]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if path[:2] == ["data", "files"] and path[2:] and path[2] != "format":
        return "text, or a list of two, say [a.src, a.tgt]"
    if kind.startswith("tuple") and path[-1] == "cross_anchors":
        return "a list, say [start, end]"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "") + _nearest_value(problem)
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for name, phrase in bounds.items():
        if name in context:
            return f"{phrase} {context[name]}"
    if kind == "string_pattern_mismatch":
        return fields.get(".".join(path)) or f"text like {context['pattern']}"
    names = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "string": "text",
        "tuple": "a list, say [1, 20]",
        "too": "a list of two, say [1, 20]",
        "none": "null",
        "model": "a section of keys",
        "dict": "a section of keys",
        "finite": "a finite number",
    }
    return names.get(kind.split("_")[0], str(problem["msg"]))


def _nearest_value(problem: Any) -> str:
    allowed = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
    near = difflib.get_close_matches(str(problem["input"]), allowed, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _nearest_key(path: Sequence[str], fields: dict[str, str]) -> str:
    """The known key most like this one, first in its own section, then anywhere."""
    *section, name = path
    prefix = "".join(f"{part}." for part in section)
    siblings = {key for key in fields if key.startswith(prefix)}
    own = {key[len(prefix) :]: key for key in siblings if "." not in key[len(prefix) :]}
    anywhere = {key.rpartition(".")[2]: key for key in fields}
    for names in (own, anywhere):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        near = near or [known for known in names if name.startswith(known) and len(known) > 1]
        if near:
            return f"; did you mean {names[near[0]]}?"
    return f"; {prefix[:-1] or 'a config'} has {', '.join(sorted(own))}"


def fields_of(config: type[BaseModel]) -> dict[str, str]:
    """Every key of a config as a path, with its description."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
        for name, field in model.model_fields.items():
            name = field.alias or name
            yield prefix + name, field.description or ""
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    yield from walk(kind, f"{prefix}{name}.")

    return dict(walk(config, ""))
