"""A new config with the usual keys, each with its meaning."""

from textwrap import wrap

from toytrans.config.explain import Key, keys, value_of
from toytrans.config.load import check_config
from toytrans.config.schema import Config
from toytrans.config.yaml import Tree, write_yaml

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
    "train.eval_every",
    "train.stop_at_exact_match",
)
"""Keys of a new config."""

LEARNED = {"eval_every": 100, "stop_at_exact_match": 0.99}
"""Of `train`: measured often, and stopped when nearly all is right."""

WRITTEN_OUT = ("data.symbols", "data.train_length", *(f"train.{key}" for key in LEARNED))
"""Keys of a new config that are written as values although they are null by default."""

HEADER = """\
# Train with `toytrans train FILE`. `toytrans explain KEY` explains a key.
# Remove the # before a key to set it; otherwise it follows from other keys.
"""


def new_config(task: str) -> str:
    """A commented config of a task, as YAML. It stops when it has learned. Raises UserError."""
    values = {"data": {"task": task}, "train": LEARNED}
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
    value = value_of(key, config)
    indent = "  " if key.section else ""
    texts = [key.meaning, *[f"One of {key.range.replace('`', '')}."] * ("`" in key.range)]
    comments = [f"# {line}" for text in texts for line in wrap(text, 90)]
    value = list(value) if isinstance(value, tuple) else value
    setting = write_yaml({key.name: value}).rstrip()
    if value is None or (key.default == "null" and key.path not in (*WRITTEN_OUT, "data.task")):
        setting = f"# {setting}"
    return "".join(f"{indent}{line}\n" for line in [*comments, setting])
