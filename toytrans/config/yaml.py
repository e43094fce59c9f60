"""YAML as a tree of plain values with the line of every key.

PyYAML's SafeLoader reads the text. Numbers, booleans and null follow the core schema of YAML 1.2:
`1e-3` is a number, `1:30` and `no` are text, `010` is 10. Refused is what a config never needs and
an attacker might use: aliases, tags, duplicate keys, deep nesting, thousands of values, and files
over 1 MB.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toytrans.errors import UserError
from toytrans.files import read_named

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_NODES = 10_000
"""Keys, values and sections. PyYAML would need half a minute for a megabyte of them."""

_CORE: dict[str, tuple[str, Sequence[str], Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    # Python may be told to refuse 641 digits; longer numbers are floats
    "int": (r"[-+]?[0-9]{1,600}", "-+0123456789", int),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}
"""What a plain scalar may be besides text: its pattern, how it may begin, and its value."""

IN_PYTHON = "config"
"""Name of a tree that is of no file."""


@dataclass
class Tree:
    """The values of a file, and where each key was written.

    name: of the file, for errors; or IN_PYTHON.
    places: by key, "file:line" or the name of the override.
    """

    name: str
    values: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Where a key was written, or else the nearest section around it."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return self.places.get(key, self.name)


class _Loader(yaml.SafeLoader):
    """SafeLoader of the core schema, which refuses aliases, tags and deep nesting."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node; PyYAML calls this for each. Raises MarkedYAMLError if it is refused."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refused(event, "aliases and anchors are not supported; write the value out")
        if getattr(event, "tag", None):
            raise _refused(event, f"tags such as {event.tag} are not supported; leave it out")
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.nodes > MAX_NODES:
            raise _refused(event, f"more than {MAX_NODES:,} keys and values")
        if self.depth > MAX_DEPTH:
            raise _refused(event, f"nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml(path: Path) -> Tree:
    """The tree of a YAML file whose top level is a mapping. Raises UserError."""
    raw = read_named(path, MAX_BYTES, kind="YAML file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start})") from None
    places: dict[str, str] = {}
    values = _parse(text, str(path), places)
    if values is None:
        raise UserError(f"{path}: empty; a config needs at least data.task")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise UserError(f"{path}: {kind} at the top; expected keys such as data:, model:, train:")
    return Tree(str(path), values, places)


def parse_value(text: str, name: str) -> Any:
    """A value written in YAML, as in `--set key=value`. Raises UserError.

    name: of the override, for errors.
    """
    return _parse(text, name)


def write_yaml(values: dict[str, Any]) -> str:
    """Values as YAML text that `read_yaml` reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """SafeDumper of the core schema, which writes lists on one line."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if text.isprintable() else '"'  # else a reader takes \x85 for a line end
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    return dumper.represent_sequence(f"{_TAG}seq", values, flow_style=True)


_TAG = "tag:yaml.org,2002:"
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
for _name, (_pattern, _first, _) in _CORE.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"({_pattern})\Z"), _first)


def _parse(text: str, name: str, places: dict[str, str] | None = None) -> Any:
    """The values of a file, whose lines go into `places`, or of an override, which has none."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark and places is not None else ""
        raise UserError(f"{name}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = "" if places is None else f":{text.count(chr(10), 0, error.position) + 1}"
        raise UserError(f"{name}{line}: not YAML: a control character") from None
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not YAML: {str(error).splitlines()[0]}") from None
    return None if node is None else _value(node, "", name, {} if places is None else places)


def _value(node: yaml.Node, key: str, name: str, places: dict[str, str]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        kind = node.tag.removeprefix(_TAG)
        return _CORE[kind][2](node.value) if kind in _CORE else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{key}.{i}", name, places) for i, item in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{name}:{key_node.start_mark.line + 1}: a key must be a single word")
        last = key_node.value
        path = f"{key}.{last}" if key else last
        place = f"{name}:{key_node.start_mark.line + 1}"
        if last in values:
            raise UserError(f"{place}: {path}: written twice (first at {places[path]}); keep one")
        places[path] = place
        values[last] = _value(value_node, path, name, places)
    return values


def _refused(event: Any, reason: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=reason, problem_mark=event.start_mark)
