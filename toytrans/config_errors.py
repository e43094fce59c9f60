"""Why a config is refused, in one line: file, line, key, given value, allowed values."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from toytrans.yaml_tree import Tree


def explain(error: ValidationError, tree: Tree, config: type[BaseModel]) -> str:
    """The first problem in one line: file, line, key, given value, allowed values."""
    fields = _fields(config)
    problems = error.errors()
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = [str(part) for part in problem["loc"] if _is_key(part)]
    last = problem["loc"][-1] if problem["loc"] else ""
    if problem["type"] == "extra_forbidden" and not _is_key(last):
        path.append(str(last))
    if problem["type"] == "refusal":
        message = problem["ctx"]["reason"]
        path += [part for part in problem["ctx"]["key"].split(".") if part]
    elif problem["type"] == "extra_forbidden":
        message = f"unknown key{_nearest_key(path, fields)}"
    elif problem["type"] == "missing" and isinstance(last, int):
        path.pop()
        message = f"found {_shown(problem['input'])}, expected a list of two, say [1, 20]"
    elif problem["type"] == "missing":
        message = f"missing; add it, or give --set {'.'.join(path)}=..."
    else:
        message = f"found {_shown(problem['input'])}, expected {_expected(problem, path, fields)}"
    key = ".".join(path)
    shown = key if key.isprintable() else repr(key)[1:-1]  # a key may hold line ends
    return f"{tree.place(key)}: {shown + ': ' if shown else ''}{message}"


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
        return str(context["expected"]).replace("'", "") + _nearest_value(problem, path)
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


def _nearest_value(problem: Any, path: Sequence[str]) -> str:
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
        if near:
            return f"; did you mean {names[near[0]]}?"
    return f"; {prefix[:-1] or 'a config'} has {', '.join(sorted(own))}"


def _fields(config: type[BaseModel]) -> dict[str, str]:
    """Every key of a config as a path, with its description."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
        for name, field in model.model_fields.items():
            name = field.alias or name
            yield prefix + name, field.description or ""
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    yield from walk(kind, f"{prefix}{name}.")

    return dict(walk(config, ""))
