"""The keys of a config as a table: path, meaning, type, default and range of each.

Pydantic makes a JSON Schema of the classes in `schema`, and the table is read from that. `explain`,
the docs, `toytrans new` and the remedies of errors use it; a training does not need it.
"""

from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from toytrans.config.schema import Config

SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
"""The bounds of a number in a JSON Schema, and how the table writes them."""


class Key(NamedTuple):
    """A key of a config, or a section, whose type is "section".

    default and range are written as in YAML. `names` are those that the key chooses among, as far
    as they stand in this file.
    """

    path: str
    meaning: str
    type: str
    default: str = ""
    range: str = ""
    names: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        """The section around the key, say train; empty for a key that stands in none."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of its path, say lr."""
        return self.path.rpartition(".")[2]


@cache
def keys() -> tuple[Key, ...]:
    """All sections and keys, each section before its keys."""
    schema = json_schema()
    return tuple(_keys_of(schema, schema["$defs"], ""))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a config, for editors."""
    return Config.model_json_schema()


def _keys_of(section: dict[str, Any], sections: dict[str, Any], prefix: str) -> list[Key]:
    """The keys of a section of the JSON Schema, and those of the sections inside it."""
    found = []
    for name, schema in section["properties"].items():
        path, meaning = prefix + name, " ".join(schema["description"].split())
        is_required = name in section.get("required", ())
        forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
        if reference := forms[0].get("$ref"):
            found.append(Key(path, meaning, "section", "required" * is_required))
            found += _keys_of(sections[reference.rpartition("/")[2]], sections, f"{path}.")
            continue
        names = tuple(name for form in forms for name in form.get("enum", ()))
        found.append(
            Key(
                path,
                meaning,
                " or ".join(map(_type_of, forms)),
                "required" if is_required else _as_yaml(schema.get("default")),
                ", ".join(names) or _range_of(forms[0]),
                names,
            )
        )
    return found


def _type_of(form: dict[str, Any]) -> str:
    """The type of a value in words."""
    if form["type"] == "array":
        return "list of 2"
    return str(form.get("format", "name" if "enum" in form else form["type"]))


def _range_of(form: dict[str, Any]) -> str:
    """The bounds of a number, or of the numbers of a list."""
    form = form.get("prefixItems", [form])[0]
    return ", ".join(f"{sign} {form[bound]:,}" for bound, sign in SIGNS.items() if bound in form)


def _as_yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


LIKE, ALIKE = 0.75, 0.85
"""How like a known key must be in its own section, and elsewhere, where a like name may well mean
something else."""


def nearest_key(section: str, name: str) -> str:
    """The key most like this one, first of its own section, then anywhere; empty without one."""
    own = {key.name: key.path for key in keys() if key.section == section}
    near = get_close_matches(name, own, n=1, cutoff=LIKE)
    near += [known for known in own if name.startswith(known) and len(known) > 1]
    if near:
        return own[near[0]]
    every = {key.name: key.path for key in keys()}
    near = get_close_matches(name, every, n=1, cutoff=ALIKE)
    return every[near[0]] if near else ""
