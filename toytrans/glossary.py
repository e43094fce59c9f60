"""What a name means: a task, a fault, a check, or a config key; and a new config with comments."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Any

from toytrans.checks.rules import CAUSES, CHECKS
from toytrans.config import keys as config_keys
from toytrans.config.faults import FAULTS
from toytrans.config.keys import Key, nearest_key
from toytrans.config.load import check_and_trust, flatten, load_config, shipped_names
from toytrans.config.schedules import SCHEDULES
from toytrans.config.schema import Settings
from toytrans.config.yaml import Tree, write_yaml
from toytrans.data.open import open_dataset
from toytrans.data.task_pairs import TaskPairs
from toytrans.data.tasks import TASKS, translations
from toytrans.errors import UserError
from toytrans.exercises.fault_cards import CARDS
from toytrans.model.positions import scheme_names
from toytrans.references import is_reference, shown
from toytrans.resolve import resolve

Card = dict[str, str]
"""What there is to say of a name, by heading."""

LISTS = ("tasks", "faults", "checks", "causes", "keys")
SAMPLES = 5
MOST_SYMBOLS = 12
"""That are named one by one."""


def explain(name: str) -> str:
    """What a config key, say "train.lr", a section, a task, a fault or a check is, as text.

    A task of one's own, FILE.py:NAME, and a config FILE.yaml are tasks too. Raises UserError for
    any other name.
    """
    rows = (f"  {heading}: {text}" for heading, text in card(name).items())
    return "\n".join([name, *(row.replace("\n", "\n    ") for row in rows)])


def card(name: str, trust_code: bool = False) -> Card:
    """What there is to say of a name, by heading. Raises UserError.

    trust_code: whether code may run that the config of a run directory names
    """
    if name in TASKS or is_reference(name):
        return _of_task(_settings_of(name, 10), _settings_of(name, 20))
    if name.endswith((".yaml", ".yml")) or name in shipped_names():
        return card_of_config(Path(name), trust_code)
    if name in FAULTS:
        return _of_fault(name)
    if name in CHECKS:
        return _of_check(name)
    if name in CAUSES:
        return _of_cause(name)
    return _of_key(name)


def card_of_config(path: Path, trust_code: bool = False) -> Card:
    """What there is to say of the task of a config. Raises UserError."""
    config = resolve(load_config(path, trust_code=trust_code))
    return _of_task(config, config)


def listed(kind: str) -> list[tuple[str, ...]]:
    """The rows of a list, under their headings: the tasks, the faults, the checks, the causes of
    their failures, or the keys."""
    if kind == "tasks":
        pairs = ((name, _opened(_settings_of(name, 6))) for name in TASKS)
        rows = [(name, each.task.rule, _arrow(each.samples(SAMPLES)[0])) for name, each in pairs]
        return [("task", "rule", "example"), *rows]
    if kind == "faults":
        found = [(name, each.what, ", ".join(each.checks)) for name, each in CARDS.items()]
        return [("fault", "what it is", "found by"), *found]
    if kind == "checks":
        return [("check", "passes if"), *((each.name, each.title) for each in CHECKS.values())]
    if kind == "causes":
        return [("cause", "seen"), *((code, cause.when) for code, cause in CAUSES.items())]
    every = ((key.path, key.default or "a section", key.meaning) for key in keys())
    return [("key", "default", "meaning"), *every]


def keys() -> list[Key]:
    """All sections and keys, with the names that they choose among. These stand in registries: a
    new task or position scheme is here at once."""
    names: dict[str, Sequence[str]] = {
        "data.task": sorted(TASKS),
        "model.positions": scheme_names(),
        "model.cross_positions": scheme_names(of_cross_attention=True),
        "train.schedule": list(SCHEDULES),
    }
    found = []
    for key in config_keys.keys():  # noqa: SIM118  # a function, no dict
        if known := names.get(key.path):
            key = key._replace(names=tuple(known), range=", ".join(known))
        found.append(key)
    return found


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a config, for editors. Names that are built in complete as examples,
    because code of the user's may stand in their place; a schedule is always one of ours."""
    made = config_keys.json_schema()
    made["$defs"]["TrainConfig"]["properties"]["schedule"]["enum"] = list(SCHEDULES)
    for section, name in (("data", "task"), ("model", "positions"), ("model", "cross_positions")):
        known = next(key.names for key in keys() if key.path == f"{section}.{name}")
        properties = made["$defs"][f"{section.title()}Config"]["properties"]
        properties[name]["examples"] = list(known)
    return made


def _settings_of(name: str, longest: int) -> Settings:
    """The settings of a task. The caller named the task's code, so that is run."""
    tree = Tree(name, {"data": {"task": name, "train_length": [1, longest]}})
    return resolve(check_and_trust(tree))


def _opened(settings: Settings) -> TaskPairs:
    pairs = open_dataset(settings)
    assert isinstance(pairs, TaskPairs)
    return pairs


def _of_task(config: Settings, usual: Settings) -> Card:
    """The card of the task of a config, with the lengths of the usual one. Raises UserError where
    it reads files."""
    data = config.data
    if data.task is None:
        raise UserError("this config reads files; only a task has a card")
    pairs, task = _opened(config), shown(data.task)
    symbols = pairs.facts.vocabulary.symbols
    named = symbols if len(symbols) <= MOST_SYMBOLS else (*symbols[:4], "...", *symbols[-4:])
    lengths = "train {} to {}, test {} to {} source symbols"
    made = {
        "rule": pairs.task.rule,
        "symbols": f"{len(symbols)}: {' '.join(named)}",
        "lengths": lengths.format(*usual.data.lengths["train"], *usual.data.lengths["test"]),
        "metric": "exact match: the whole target right, through its end",
        "examples": "\n".join(map(_arrow, pairs.samples(SAMPLES))),
    }
    if task == "lexicon":
        words = translations(pairs.symbols, config.data_seed)
        entries = ", ".join(f"{word} = {meaning}" for word, meaning in words)
        made["dictionary"] = f"of seed {config.data_seed}: {entries}"
    return made | {"train on it": f"a config with data: {{task: {task}}}"}


def _arrow(sample: tuple[list[str], list[str]]) -> str:
    src, tgt = sample
    return f"{' '.join(src)} -> {' '.join(tgt)}"


def _of_fault(name: str) -> Card:
    found = CARDS[name]
    return {
        "what": found.what,
        "shown by": found.shown_by.replace("FAULT", name),
        "symptom": found.symptom,
        "found by": ", ".join(found.checks),
        "met in": found.threads,
        "ranges": "of five seeds; another seed can lie outside",
    }


def _of_check(name: str) -> Card:
    check = CHECKS[name]
    found = (fault for fault, card in CARDS.items() if name in card.checks)
    card = {"passes if": check.title, "asked": check.how, "does not see": check.limits}
    card["causes"] = ", ".join(cause.code for cause in check.causes if not cause.is_doubt)
    card["doubts"] = ", ".join(cause.code for cause in check.causes if cause.is_doubt)
    card["finds"] = ", ".join(found) or "no fault that --break plants"
    card["ask it alone"] = f"toytrans check RUN --only {name}"
    return {heading: text for heading, text in card.items() if text}


def _of_cause(code: str) -> Card:
    """The card of a cause; what its words hold in braces is filled in where it is met."""
    cause, name = CAUSES[code], code.partition(".")[0]
    words, remedy = cause.pattern
    which = f"the check {name}" if name in CHECKS else "a check of any name"
    card = {
        "why": f"why {which} {'cannot be judged' if cause.is_doubt else 'fails'}",
        "seen": cause.when,
        "says": words,
        "remedy": remedy,
        "read on": f"docs/{cause.read}" if cause.read else "",
    }
    return {heading: text for heading, text in card.items() if text}


def _of_key(name: str) -> Card:
    """The card of a key, or of a section with its keys. Raises UserError for any other name."""
    matching = [key for key in keys() if name in (key.path, key.section)]
    if not matching:
        section, _, last = name.rpartition(".")
        others = (*LISTS, *TASKS, *FAULTS, *CHECKS, *CAUSES)
        is_key = last in {key.name for key in keys()}
        near = next(iter(() if is_key else get_close_matches(name, others, n=1)), "")
        near = near or nearest_key(section, last)
        hint = f"did you mean {near}?" if near else "`toytrans explain` lists all keys"
        raise UserError(f"no task, fault, check or key {name!r}; {hint}")
    key, *inside = matching
    card = {"meaning": key.meaning, "type": key.type, "default": key.default}
    card |= {"range": key.range} | {each.name: each.meaning for each in inside}
    return {heading: text for heading, text in card.items() if text}


# A new config --------------------------------------------------------------------------------

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
