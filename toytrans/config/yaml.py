"""YAML as a tree of plain values that knows where each key was written.

PyYAML's SafeLoader reads the text, with the words of YAML 1.2 in place of those of 1.1: `1e-3` is a
number, and `no`, `1:30` and `010` are text, which a key refuses in a line that shows it. By the
rules of 1.1 they would silently be false, 90 and 8.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from toytrans.errors import BadKey, UserError
from toytrans.files import read_named

MOST_BYTES = 1_000_000
"""The largest YAML file that is read. Whoever names a file of data by mistake is told at once."""

IN_PYTHON = "config"
"""Name of a tree that is of no file."""


class KeyOrigins(dict[str, str]):
    """Where each key was written: "run.yaml:5", or the option that gave it. The whole is ""."""

    def of(self, key: str) -> str:
        """Where a key was written, or else the nearest section around it."""
        while key and key not in self:
            key = key.rpartition(".")[0]
        return self.get(key, "")


@contextlib.contextmanager
def naming_origins(origins: KeyOrigins) -> Iterator[None]:
    """Add to a key that is refused in the block where it was written: file and line, or option."""
    try:
        yield
    except BadKey as error:
        origin = origins.of(error.key)
        raise UserError(f"{origin}: {error}" if origin else str(error)) from None


class Tree:
    """The values of a config, as plain dicts, and where each key was written.

    name: of the file, for errors; or IN_PYTHON.
    is_of_a_run: whether a run directory holds the file, so that somebody may have sent it.
    """

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        self.values, self.is_of_a_run = values, False
        self.origins = KeyOrigins({"": name})


def read_yaml(path: Path) -> Tree:
    """The tree of a YAML file whose top level is a mapping. Raises UserError."""
    raw = read_named(path, MOST_BYTES, kind="YAML file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start})") from None
    values, lines = parse_yaml(text, str(path), numbered=True)
    if values is None:
        raise UserError(f"{path}: empty; a config needs at least data.task")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise UserError(f"{path}: {kind} at the top; expected keys such as data:, model:, train:")
    tree = Tree(str(path), values)
    tree.origins |= lines
    return tree


def parse_yaml(text: str, name: str, *, numbered: bool) -> tuple[Any, dict[str, str]]:
    """The value of a text, and where each key in it was written. Raises UserError.

    name: of the file, or of the option that gave the text.
    numbered: whether the text has lines that a user can look up, as a file has.
    """

    def place(line: int) -> str:
        return f"{name}:{line + 1}" if numbered else name

    origins = dict[str, str]()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, origins
        for key, mark in _keys_of(node, ""):
            origin = place(mark.line)
            if key in origins:
                first = origins[key]
                raise UserError(f"{origin}: {key}: written twice (first at {first}); keep one")
            origins[key] = origin
        return loader.construct_document(node), origins
    except yaml.MarkedYAMLError as error:
        from toytrans.config.yaml_words import explain

        line, problem = explain(error, text)
        origin = place(line)
    except yaml.reader.ReaderError as error:
        origin, problem = place(text.count("\n", 0, error.position)), "a control character"
    except RecursionError:
        origin, problem = name, "nested too deeply"
    except ValueError as error:  # of a number with more digits than Python reads
        origin, problem = name, str(error)
    raise UserError(f"{origin}: not YAML: {problem}")


def write_yaml(values: dict[str, Any]) -> str:
    """Values as YAML text that `read_yaml` reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def show_value(value: Any) -> str:
    """A value in an error, much as YAML writes it, and cut where it is long."""
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_of(node: yaml.Node, prefix: str) -> Iterator[tuple[str, yaml.Mark]]:
    """The keys below a node with their marks, as paths such as train.lr.

    Each becomes text on the way, whatever it looks like: `1` and `true` are words there.
    """
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _keys_of(item, f"{prefix}{number}.")
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            problem = "a key must be a single word"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        key.tag = f"{_TAG}str"
        yield f"{prefix}{key.value}", key.start_mark
        yield from _keys_of(value, f"{prefix}{key.value}.")


# The words of YAML 1.2 -----------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """SafeLoader with these words, and without aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node; PyYAML calls this for each. An alias is refused: it may hold itself,
        and a value that stands in two places has two lines."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            problem = "aliases are not supported; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes lists on one line and the same list twice without an alias."""

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

_WORDS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
"""What a word without quotes is, besides text, by its pattern."""

for _kind, _pattern in _WORDS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _kind, re.compile(rf"({_pattern})\Z"), None)
