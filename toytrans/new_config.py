"""A new config of a task, with a comment above each key: what `toytrans new` writes."""

from textwrap import wrap
from typing import Any

from toytrans.config.keys import Key
from toytrans.config.load import check_and_trust, flatten
from toytrans.config.yaml import Tree, write_yaml
from toytrans.glossary import keys
from toytrans.resolve import resolve

USUAL = {
    "": "seed",
    "data.": "task symbols train_length test_length batch_tokens",
    "model.": "d_model n_heads n_encoder_layers n_decoder_layers d_ff dropout positions",
    "train.": "max_steps lr schedule warmup_steps eval_every stop_at_exact_match",
}
"""Keys of a new config, by section."""

LEARNED = {"eval_every": 100, "stop_at_exact_match": 0.99}
"""Of `train`: measured often, and stopped when nearly all is right."""

FOLLOW = ("data.test_length", "train.warmup_steps")
"""Keys of a new config that follow from others until their # is removed."""

HEADER = """\
# Train with `toytrans train FILE`. `toytrans explain KEY` explains a key.
# Remove the # before a key to set it; otherwise it follows from other keys.
"""


def new_config(task: str) -> str:
    """A commented config of a task, as YAML. It stops when it has learned. Raises UserError."""
    config = check_and_trust(Tree("a new config", {"data": {"task": task}, "train": LEARNED}))
    values = flatten(resolve(config).model_dump(mode="json"))
    known, lines = {key.path: key for key in keys()}, [HEADER]
    for section, names in USUAL.items():
        lines += [f"\n{section[:-1]}:\n"] if section else []
        lines += [_line(known[section + name], values[section + name]) for name in names.split()]
    return "".join(lines)


def _line(key: Key, value: Any) -> str:
    """The meaning of a key as comments, and its value."""
    indent = "  " if key.section else ""
    texts = [key.meaning, *[f"One of {key.range}."] * bool(key.names)]
    comments = [f"# {line}" for text in texts for line in wrap(text, 90)]
    setting = write_yaml({key.name: value}).rstrip()
    setting = f"# {setting}" if key.path in FOLLOW else setting
    return "".join(f"{indent}{line}\n" for line in [*comments, setting])
