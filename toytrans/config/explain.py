"""Every key of a config: meaning, type, default and range, from the JSON Schema; and a new config
with the usual keys."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from textwrap import wrap
from typing import Any, NamedTuple

from toytrans.config.foreign import FOREIGN
from toytrans.config.load import check_config
from toytrans.config.schema import Config
from toytrans.config.yaml import Tree, write_yaml
from toytrans.errors import UserError

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

USUAL = (
    "seed",
    "data.task",
    "data.symbols",
    "data.train_length",
    "data.test_length",
    "data.batch_tokens",
    "model.d_model",
    "model.n_heads",
    "model.n_encoder_layers",
    "model.n_decoder_layers",
    "model.d_ff",
    "model.dropout",
    "model.positions",
    "train.max_steps",
    "train.lr",
    "train.schedule",
    "train.warmup_steps",
    "train.stop_at_exact_match",
)
"""Keys of a new config."""

WRITTEN_OUT = ("data.symbols", "data.train_length", "train.stop_at_exact_match")
"""Keys of a new config that are written as values although they are null by default."""

HEADER = """\
# Train with `toytrans train FILE`. `toytrans config explain KEY` explains a key.
# Remove the # before a key to set it; otherwise it follows from other keys.
"""


class Key(NamedTuple):
    """A key of a config, or a section, whose type is "section". default, range: as YAML."""

    path: str
    meaning: str
    type: str
    default: str
    range: str

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


def keys() -> Iterator[Key]:
    """All sections and keys, each section before its keys."""
    schema = Config.model_json_schema()
    yield from _keys(schema, "", schema)


def explain_key(path: str) -> list[Key]:
    """A key; or a section and its keys. Raises UserError."""
    every = list(keys())
    matching = [key for key in every if path in (key.path, key.section)]
    if not matching:
        raise UserError(f"no key {path!r}; {_hint(path, every)}")
    return matching


def _hint(path: str, every: list[Key]) -> str:
    """What an unknown path may mean: a name in a section, another library's, a similar one."""
    name = path.rpartition(".")[2]
    near = [key.path for key in every if key.name == name]
    if not near and name in FOREIGN:
        return FOREIGN[name]
    near += get_close_matches(path, [key.path for key in every], n=1)
    return f"did you mean {near[0]}?" if near else "`toytrans config explain` lists all keys"


def is_derived(key: Key) -> bool:
    """Whether other keys give a key its value where it is null."""
    if key.default != "null" or key.path == "data.task":
        return False
    models = (
        {"positions": "anchored"},
        {"positions": "learned"},
        {"kind": "rnn"},
        {"kind": "conv"},
    )
    samples = ({"data": {"task": "copy"}, "model": model} for model in models)
    return any(_value(key, Config.model_validate(sample)) is not None for sample in samples)


def new_config(task: str) -> str:
    """A commented config of a task, as YAML. It stops when it has learned. Raises UserError."""
    values = {"data": {"task": task}, "train": {"stop_at_exact_match": 1.0}}
    config = check_config(Tree("a new config", values))
    lines, section = [HEADER], ""
    known = {key.path: key for key in keys()}
    for key in map(known.__getitem__, USUAL):
        if key.section != section:
            section = key.section
            lines.append(f"\n{section}:\n")
        lines.append(_line(key, config))
    return "".join(lines)


def _line(key: Key, config: Config) -> str:
    """The meaning of a key as comments, and its value in a config."""
    value = _value(key, config)
    indent = "  " if key.section else ""
    texts = [key.meaning, *[f"One of {key.range.replace('`', '')}."] * ("`" in key.range)]
    comments = [f"# {line}" for text in texts for line in wrap(text, 90)]
    value = list(value) if isinstance(value, tuple) else value
    setting = write_yaml({key.name: value}).rstrip()
    if value is None or (key.default == "null" and key.path not in (*WRITTEN_OUT, "data.task")):
        setting = f"# {setting}"
    return "".join(f"{indent}{line}\n" for line in [*comments, setting])


def _value(key: Key, config: Config) -> Any:
    """The value of a key in a config; None in a section that is null."""
    value: Any = config
    for name in key.path.split("."):
        value = getattr(value, name, None)
    return value


def _keys(section: dict[str, Any], prefix: str, schema: dict[str, Any]) -> Iterator[Key]:
    for name, key in section["properties"].items():
        kind = _resolved(key, schema)
        is_section = "properties" in kind
        shape = "section" if is_section else _type_of(kind)
        default = f"{_shown(key['default'])}" if "default" in key else "required"
        if is_section and name not in section.get("required", ()):
            default = ""
        yield Key(f"{prefix}{name}", key["description"], shape, default, _range_of(kind))
        if is_section:
            yield from _keys(kind, f"{prefix}{name}.", schema)


def _resolved(key: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A key's type without `null`, references followed."""
    kinds = [kind for kind in key.get("anyOf", [key]) if kind.get("type") != "null"]
    kinds = [each for kind in kinds for each in kind.get("oneOf", [kind])]
    kinds = [schema["$defs"][k["$ref"].rpartition("/")[2]] if "$ref" in k else k for k in kinds]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _type_of(kind: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "anyOf" in kind:
        return " or ".join(map(_type_of, kind["anyOf"]))
    if kind.get("pattern") == ":":
        return "own code"
    if kind.get("pattern") == "^sealed-":
        return "sealed name"
    if "enum" in kind:
        return "name"
    if kind["type"] == "array":
        return "list of 2" if "prefixItems" in kind else f"list of {_type_of(kind['items'])}"
    return str(kind["type"])


def _range_of(kind: dict[str, Any]) -> str:
    """The bounds of a number, or the names to choose from; of a list, those of its values."""
    if "prefixItems" in kind or "items" in kind:
        return _range_of(kind.get("items") or kind["prefixItems"][0])
    if "enum" in kind:
        return ", ".join(f"`{name}`" for name in kind["enum"])
    if "anyOf" in kind:
        return "; ".join(filter(None, map(_range_of, kind["anyOf"])))
    return ", ".join(f"{sign} {kind[name]:,}" for name, sign in BOUNDS.items() if name in kind)


def _shown(value: object) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
