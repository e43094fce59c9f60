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


def read_yaml(path: Path) -> Tree:
    """The tree of a YAML file whose top level is a mapping. Raises UserError."""
    raw = read_named(path, MAX_BYTES, kind="YAML file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start})") from None
    places: dict[str, str] = {}
    values = parse_value(text, str(path), places)
    if values is None:
        raise UserError(f"{path}: empty; a config needs at least data.task")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise UserError(f"{path}: {kind} at the top; expected keys such as data:, model:, train:")
    return Tree(str(path), values, places)


def parse_value(text: str, name: str, places: dict[str, str] | None = None) -> Any:
    """A value written in YAML. Raises UserError.

    name: of the file or the override, for errors. places: gets the lines of a file's keys; an
    override, as in `--set key=value`, has no lines.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, problem = mark.line if mark else 0, error.problem or error.context
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position), "a control character"
    else:
        return None if node is None else _value(node, "", name, {} if places is None else places)
    place = name if places is None else f"{name}:{line + 1}"
    raise UserError(f"{place}: not YAML: {problem}")


def write_yaml(values: dict[str, Any]) -> str:
    """Values as YAML text that `read_yaml` reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _value(node: yaml.Node, key: str, name: str, places: dict[str, str]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        kind = node.tag.removeprefix(_TAG)
        return _CORE[kind][2](node.value) if kind in _CORE else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{key}.{i}", name, places) for i, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        place = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{place}: a key must be a single word")
        last = key_node.value
        path = f"{key}.{last}" if key else last
        if last in values:
            raise UserError(f"{place}: {path}: written twice (first at {places[path]}); keep one")
        places[path] = place
        values[last] = _value(value_node, path, name, places)
    return values


class _Loader(yaml.SafeLoader):
    """SafeLoader of the core schema, which refuses aliases, tags and deep nesting."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node; PyYAML calls this for each. Raises MarkedYAMLError if it is refused."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        refused = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            refused = "aliases and anchors are not supported; write the value out"
        elif tag:
            refused = f"tags such as {tag} are not supported; leave it out"
        elif self.nodes > MAX_NODES:
            refused = f"more than {MAX_NODES:,} keys and values"
        elif self.depth > MAX_DEPTH:
            refused = f"nested deeper than {MAX_DEPTH} levels"
        if refused:
            raise yaml.MarkedYAMLError(problem=refused, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


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

_TAG = "tag:yaml.org,2002:"
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
for _name, (_pattern, _first, _) in _CORE.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"({_pattern})\Z"), _first)
