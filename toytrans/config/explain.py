"""Every key of a config: meaning, type, default and range, as the schema has them."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from toytrans.config.schema import Config, fields_of
from toytrans.errors import UserError

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
WORDS = {int: "integer", float: "number", bool: "boolean", str: "string"}


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
    def parts(self) -> tuple[str, str]:
        """The meaning, and what null means; empty where no sentence of its own says that."""
        match = re.fullmatch(r"(.*?\.) null(?: means|:)? (.*)\.", self.meaning)
        return (match[1], match[2]) if match else (self.meaning, "")

    @property
    def card(self) -> dict[str, str]:
        """What there is to say of it, by heading."""
        meaning, null = self.parts
        card = {
            "meaning": meaning,
            "type": self.type,
            "default": f"null: {null}" if null and self.default == "null" else self.default,
            "null": "" if self.default == "null" else null,
            "range": self.range.replace("`", ""),
        }
        return {heading: text for heading, text in card.items() if text}


@cache
def keys() -> tuple[Key, ...]:
    """All sections and keys, each section before its keys."""
    every = []
    for path, field, section in fields_of(Config):
        kind, names, bounds = _kind_of(field.annotation, field)
        kind = "section" if section else kind
        default = "" if section else _shown(field.default)
        every.append(
            Key(
                path=path,
                meaning=field.description or "",
                type=kind,
                default="required" if field.is_required() else default,
                range=bounds or ", ".join(f"`{name}`" for name in names),
                names=names,
            )
        )
    return tuple(every)


def explain_key(path: str) -> list[Key]:
    """A key; or a section and its keys. Raises UserError."""
    every = keys()
    matching = [key for key in every if path in (key.path, key.section)]
    if not matching:
        raise UserError(f"no key {path!r}; {_hint(path, every)}")
    return matching


def _hint(path: str, every: Sequence[Key]) -> str:
    """What an unknown path may mean: a name in a section, or a similar one."""
    name = path.rpartition(".")[2]
    near = [key.path for key in every if key.name == name]
    near += get_close_matches(path, [key.path for key in every], n=1)
    return f"did you mean {near[0]}?" if near else "`toytrans explain` lists all keys"


def value_of(key: Key, config: Config) -> Any:
    """The value of a key in a config; None in a section that is null."""
    value: Any = config
    for name in key.path.split("."):
        value = getattr(value, name, None)
    return value


def _kind_of(kind: Any, field: FieldInfo | None) -> tuple[str, tuple[str, ...], str]:
    """Type of a value in words, names that it chooses among, and bounds; of a list, those of its
    values. field: what is said of the type beside it."""
    if get_origin(kind) is Annotated:
        kind, *said = get_args(kind)
        inner = [each for each in said if isinstance(each, FieldInfo)]
        return _kind_of(kind, inner[0] if inner else None)
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
    limits = [] if field is None else field.metadata
    found = [
        f"{sign} {getattr(limit, name):,}"
        for name, sign in BOUNDS.items()
        for limit in limits
        if hasattr(limit, name)
    ]
    return title or WORDS.get(kind, ""), (), ", ".join(found)


def _shown(value: object) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
