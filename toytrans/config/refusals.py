"""Why pydantic refuses a config, in one line: file, line, key, what was found, what is expected.

`toytrans.config.load` asks for that line where a config is refused, and for nothing else.
"""

import re
from typing import Any

from pydantic import ValidationError

from toytrans.config.keys import keys, nearest_key
from toytrans.config.other_names import what_it_is_here
from toytrans.config.yaml import IN_PYTHON, KeyOrigins, show_value
from toytrans.config.yaml_words import FULL_WIDTH
from toytrans.errors import did_you_mean

BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
"""Pydantic's names for the bounds of a number, in words."""

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


def reason_of(error: ValidationError, origins: KeyOrigins) -> str:
    """Why a tree of values is refused, in one line: file, line, key, what was found, what is
    expected. It is the first problem, unknown keys before all others."""
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    problem = (unknown or problems)[0]
    kind, path = problem["type"], [str(part) for part in problem["loc"]]
    if kind == "value_error":
        message = str(problem["ctx"]["error"])
    elif kind == "extra_forbidden":
        message = f"unknown key; {_instead_of('.'.join(path[:-1]), path[-1])}"
    elif kind == "missing" and not isinstance(problem["loc"][-1], int):
        option = "" if origins[""] == IN_PYTHON else f", or give --set {'.'.join(path)}=..."
        message = f"missing; add it{option}"
    else:
        if kind == "missing":  # a value of a list
            path.pop()
        expected = _expected(problem, ".".join(path))
        message = f"found {show_value(problem['input'])}{expected}"
    key = ".".join(path)
    shown = key if key.isprintable() else repr(key)[1:-1]  # it may hold line ends
    return f"{origins.of(key)}: {shown + ': ' if key else ''}{message}"


def _instead_of(section: str, name: str) -> str:
    """What may be meant by an unknown key."""
    if hint := _colon_of(name):
        return hint
    if here := what_it_is_here(section, name):
        return here
    if near := nearest_key(section, name):
        return f"did you mean {near}?"
    names = sorted(key.name for key in keys() if key.section == section)
    return f"{section or 'a config'} has {', '.join(names)}"


def _colon_of(text: Any) -> str:
    """The remedy for text that holds the colon of a key; empty for other values."""
    found = (
        re.fullmatch(rf"(\w+)\s*[:{FULL_WIDTH}]\s*(.*)", text) if isinstance(text, str) else None
    )
    return f"write a colon and a blank: {found[1]}: {found[2]}".rstrip() if found else ""


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
    if kind == "model_type" and (hint := _colon_of(problem["input"])):
        return f"; {hint}"
    expected = EXPECTED.get(kind.partition("_")[0], str(problem["msg"]))
    return f", expected {expected}" + "; null is YAML's None" * (problem["input"] == "None")
