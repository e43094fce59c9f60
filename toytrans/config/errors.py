"""Why a config is refused, in one line: file, line, key, given value, allowed values."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from toytrans.config.explain import Key, keys
from toytrans.config.yaml import IN_PYTHON, Tree
from toytrans.errors import did_you_mean

EXPECTED = {
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
"""What a key takes, by the first word of pydantic's name for the problem."""

BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def reason_of(error: ValidationError, tree: Tree) -> str:
    """The first problem of a tree of values, unknown keys before all others."""
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    problem = (unknown or problems)[0]
    path, known = [str(part) for part in problem["loc"]], {key.path: key for key in keys()}
    if problem["type"] == "refusal":
        message = problem["ctx"]["reason"]
        path += [part for part in problem["ctx"]["key"].split(".") if part]
    elif problem["type"] == "extra_forbidden":
        message = f"unknown key{_nearest_key(path, known)}"
    elif problem["type"] == "missing" and isinstance(problem["loc"][-1], int):
        path.pop()
        message = f"found {_shown(problem['input'])}, expected a list of two, say [1, 20]"
    elif problem["type"] == "missing":
        option = "" if tree.name == IN_PYTHON else f", or give --set {'.'.join(path)}=..."
        message = f"missing; add it{option}"
    elif problem["type"] == "literal_error" and (chosen := known.get(".".join(path))):
        hint = did_you_mean(str(problem["input"]), chosen.names)
        message = f"found {_shown(problem['input'])}; {hint}"
    else:
        expected = _expected(problem, known.get(".".join(path)))
        message = f"found {_shown(problem['input'])}, expected {expected}"
    key = ".".join(path)
    shown = key if key.isprintable() else repr(key)[1:-1]  # it may hold line ends
    return f"{tree.place(key)}: {shown + ': ' if key else ''}{message}"


def _expected(problem: Any, key: Key | None) -> str:
    """What a key would take."""
    context = problem.get("ctx", {})
    if key is not None and problem["type"] == "string_pattern_mismatch":
        return key.meaning
    for name, phrase in BOUNDS.items():
        if name in context:
            return f"{phrase} {context[name]}"
    return EXPECTED.get(problem["type"].split("_")[0], str(problem["msg"]))


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest_key(path: list[str], known: Iterable[str]) -> str:
    """The known key most like this one, first in its own section, then anywhere."""
    *section, name = path
    prefix = "".join(f"{part}." for part in section)
    siblings = {key.removeprefix(prefix): key for key in known if key.startswith(prefix)}
    own = {last: key for last, key in siblings.items() if "." not in last}
    anywhere = {key.rpartition(".")[2]: key for key in known}
    for names in (own, anywhere):
        near = get_close_matches(name, names, n=1, cutoff=0.6)
        near = near or [known for known in names if name.startswith(known) and len(known) > 1]
        if near:
            return f"; did you mean {names[near[0]]}?"
    return f"; {prefix[:-1] or 'a config'} has {', '.join(sorted(own))}"
