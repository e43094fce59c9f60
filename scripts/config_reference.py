"""Print docs/configuration.md from the JSON Schema of a config.

    python scripts/config_reference.py > docs/configuration.md

A test compares the committed page with this output.
"""

from typing import Any

from toytrans.config import Config

HEAD = """# Configuration

<!-- Made by scripts/config_reference.py; edit the descriptions in toytrans/config.py instead. -->

One YAML file describes a run. It must name `data.task` or `data.files`. Every other key has a
default. The run directory holds `config.yaml` with the value of every key.

```yaml
seed: 0
data:
  task: reverse
  symbols: 100
  train_length: [1, 20]
model:
  positions: sinusoidal
train:
  max_steps: 200
  lr: 3e-3
```

- Numbers follow YAML 1.2, so `1e-3` is a number.
- `--set section.key=value` overrides a key on the command line. It obeys the same rules.
- An unknown key, a wrong type or two settings that contradict each other stop the command before
  training. The error names file, line, key and remedy.
- An editor completes keys with the JSON Schema, which this command prints:

```
toytrans schema
```

In the tables, *list of 2* is a list of two values, such as `[1, 20]`. A *name* is one of those in
the column *range*. *Own code* is `FILE.py:NAME` or `package.module:NAME`; see
[Your own task, positions, model](own.md).
"""

SECTIONS = {
    "": "Top level",
    "data": "Section `data`",
    "data.files": "Section `data.files`",
    "model": "Section `model`",
    "train": "Section `train`",
}

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """The whole page."""
    schema = Config.model_json_schema()
    parts = [HEAD]
    for path, title in SECTIONS.items():
        section = schema
        for name in path.split(".") if path else ():
            section = resolved(section["properties"][name], schema)
        parts.append(f"## {title}\n\n{table(section, schema)}\n")
    return "\n".join(parts)


def table(section: dict[str, Any], schema: dict[str, Any]) -> str:
    """One row per key: description, type, default and range."""
    rows = ["| key | description | type | default | range |", "|---|---|---|---|---|"]
    for name, key in section["properties"].items():
        kind = resolved(key, schema)
        if "properties" in kind:
            shape, default = "section", "required" if name in section.get("required", ()) else ""
        else:
            shape = type_of(kind)
            default = f"`{shown(key['default'])}`" if "default" in key else "required"
        description = key["description"].replace("|", "\\|")
        rows.append(f"| `{name}` | {description} | {shape} | {default} | {range_of(kind)} |")
    return "\n".join(rows)


def resolved(key: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A key's type without `null`, references followed."""
    kinds = [kind for kind in key.get("anyOf", [key]) if kind.get("type") != "null"]
    kinds = [each for kind in kinds for each in kind.get("oneOf", [kind])]
    kinds = [schema["$defs"][k["$ref"].rpartition("/")[2]] if "$ref" in k else k for k in kinds]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def type_of(kind: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "anyOf" in kind:
        return " or ".join(map(type_of, kind["anyOf"]))
    if kind.get("pattern") == ":":
        return "own code"
    if "enum" in kind:
        return "name"
    if kind["type"] == "array":
        return "list of 2" if "prefixItems" in kind else f"list of {type_of(kind['items'])}"
    return str(kind["type"])


def range_of(kind: dict[str, Any]) -> str:
    """The bounds of a number, or the names to choose from; of a list, those of its values."""
    if "prefixItems" in kind or "items" in kind:
        return range_of(kind.get("items") or kind["prefixItems"][0])
    if "enum" in kind:
        return ", ".join(f"`{name}`" for name in kind["enum"])
    if "anyOf" in kind:
        return "; ".join(filter(None, map(range_of, kind["anyOf"])))
    return ", ".join(f"{sign} {kind[name]:,}" for name, sign in BOUNDS.items() if name in kind)


def shown(value: object) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


if __name__ == "__main__":
    print(page(), end="")
