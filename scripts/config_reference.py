"""Print docs/configuration.md from the keys of a config's schema.

    python scripts/config_reference.py > docs/configuration.md

A test compares the committed page with this output.
"""

from toytrans.config.explain import Key, keys

HEAD = """# Configuration

<!-- Made by scripts/config_reference.py from toytrans/config/schema.py; edit the keys there. -->

One YAML file describes a run. It must name `data.task` or `data.files`. Every other key has a
default. The run directory holds `config.yaml` with the value of every key that applies.

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
- `toytrans new TASK --out FILE` writes a commented file with the usual keys. It trains as
  it is.
- `toytrans explain KEY` gives meaning, type, default and range. A section lists its keys,
  and no key at all lists everything.
- An editor completes keys with the JSON Schema, which `toytrans explain schema` prints.

```
toytrans explain schema
toytrans new sort
toytrans explain train.lr
```

In the tables, *list of 2* is a list of two values, such as `[1, 20]`. A *name* is one of those in
the column *range*. *Own code* is `FILE.py:NAME`; see
[Your own task, positions, model](own.md#your-own-task).
"""

SECTIONS = {
    "": "Top level",
    "data": "Section `data`",
    "data.files": "Section `data.files`",
    "model": "Section `model`",
    "train": "Section `train`",
}

TABLE = """\
| key | description | type | default | range |
|---|---|---|---|---|"""


def page() -> str:
    """The whole page."""
    every = list(keys())
    parts = [HEAD]
    for section, title in SECTIONS.items():
        rows = map(row, (key for key in every if key.section == section))
        parts.append(f"## {title}\n\n{TABLE}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def row(key: Key) -> str:
    """Description, type, default and range of a key."""
    default = key.default
    if default and default != "required":
        default = f"`{default}`"
    meaning = key.meaning.replace("|", "\\|")
    return f"| `{key.name}` | {meaning} | {key.type} | {default} | {key.range} |"


if __name__ == "__main__":
    print(page(), end="")
