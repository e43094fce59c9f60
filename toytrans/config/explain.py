"""The keys of a config in words: what each means and takes, and why a value is refused."""

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from toytrans.config.schema import Config, Section
from toytrans.config.yaml import IN_PYTHON, Tree
from toytrans.errors import UserError, did_you_mean

BOUNDS = {"ge": ("≥", "at least"), "gt": (">", "more than")}
BOUNDS |= {"le": ("≤", "at most"), "lt": ("<", "less than")}

WORDS = {int: "integer", float: "number", bool: "boolean", str: "string"}

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


class Key(NamedTuple):
    """A key of a config, or a section, whose type is "section".

    default, range: as YAML. names: that it chooses among.
    """

    path: str
    meaning: str
    type: str
    default: str
    range: str
    names: tuple[str, ...]

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def card(self) -> dict[str, str]:
        """What there is to say of it, by heading."""
        card = {"meaning": self.meaning, "type": self.type, "default": self.default}
        card["range"] = self.range.replace("`", "")
        return {heading: text for heading, text in card.items() if text}


@cache
def keys() -> tuple[Key, ...]:
    """All sections and keys, each section before its keys."""
    return tuple(_keys_of(Config, ""))


def _keys_of(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path, meaning = prefix + (field.alias or name), " ".join((field.description or "").split())
        kinds = (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        if inner:
            yield Key(path, meaning, "section", "required" * field.is_required(), "", ())
            yield from _keys_of(inner[0], f"{path}.")
            continue
        kind, names, bounds = _kind_of(field.annotation, field)
        default = str(field.default)  # true, false and null are written otherwise in YAML
        if field.default is None or isinstance(field.default, bool):
            default = "null" if field.default is None else default.lower()
        yield Key(
            path,
            meaning,
            kind,
            "required" if field.is_required() else default,
            bounds or ", ".join(f"`{name}`" for name in names),
            names,
        )


def _kind_of(kind: Any, field: FieldInfo | None) -> tuple[str, tuple[str, ...], str]:
    """Type of a value in words, names that it chooses among, and bounds; of a list, those of its
    values. field: what is said of the type beside it."""
    if get_origin(kind) is Annotated:
        kind, *said = get_args(kind)
        field = next((each for each in said if isinstance(each, FieldInfo)), None)
        return _kind_of(kind, field)
    title = field.title if field is not None and field.title else ""
    if get_origin(kind) in (Union, UnionType):
        parts = [_kind_of(part, None) for part in get_args(kind) if part is not NoneType]
        kinds, names, ranges = zip(*parts, strict=True)
        return " or ".join(kinds), tuple(chain(*names)), "; ".join(filter(None, ranges))
    if get_origin(kind) is Literal:
        return f"name {title}".strip(), get_args(kind), ""
    if get_origin(kind) is tuple:
        first, *others = get_args(kind)
        inside, names, bounds = _kind_of(first, None)
        return "list of 2" if others != [...] else f"list of {inside}", names, bounds
    found = [
        f"{sign} {getattr(limit, name):,}"
        for name, (sign, _) in BOUNDS.items()
        for limit in (field.metadata if field is not None else ())
        if hasattr(limit, name)
    ]
    return title or WORDS.get(kind, ""), (), ", ".join(found)


def explain_key(path: str) -> list[Key]:
    """A key; or a section and its keys. Raises UserError."""
    matching = [key for key in keys() if path in (key.path, key.section)]
    if not matching:
        section, _, name = path.rpartition(".")
        near = _nearest(section, name)
        hint = f"did you mean {near}?" if near else "`toytrans explain` lists all keys"
        raise UserError(f"no key {path!r}; {hint}")
    return matching


def _nearest(section: str, name: str) -> str:
    """The key most like this one, first of its own section, then anywhere; empty without one."""
    for candidates in ([key for key in keys() if key.section == section], keys()):
        names = {key.name: key.path for key in candidates}
        near = get_close_matches(name, names, n=1)
        near += [known for known in names if name.startswith(known) and len(known) > 1]
        if near:
            return names[near[0]]
    return ""


# Refusals ------------------------------------------------------------------------------------


def reason_of(error: ValidationError, tree: Tree) -> str:
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
        option = "" if tree.name == IN_PYTHON else f", or give --set {'.'.join(path)}=..."
        message = f"missing; add it{option}"
    else:
        if kind == "missing":  # a value of a list
            path.pop()
        expected = _expected(problem, ".".join(path))
        message = f"found {_shown(problem['input'])}{expected}"
    key = ".".join(path)
    shown = key if key.isprintable() else repr(key)[1:-1]  # it may hold line ends
    return f"{tree.place(key)}: {shown + ': ' if key else ''}{message}"


def _instead_of(section: str, name: str) -> str:
    """What may be meant by an unknown key."""
    if near := _nearest(section, name):
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
    for name, (_, phrase) in BOUNDS.items():
        if name in context:
            return f", expected {phrase} {context[name]}"
    return f", expected {EXPECTED.get(kind.partition('_')[0], str(problem['msg']))}"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."
