"""What a name means: a task, a position scheme, a schedule, a metric, a fault, a check, why
it fails, or a config key.

KINDS says of each kind of names which there are, how they are listed, and what there is to say of
one. The texts stand beside what they explain, as the docstring of a metric does.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from toytrans.checks.rules import CAUSES, CHECKS
from toytrans.config import keys as config_keys
from toytrans.config.fault_cards import CARDS
from toytrans.config.keys import Key, nearest_key
from toytrans.config.load import check_and_trust, load_config
from toytrans.config.schedules import SCHEDULES
from toytrans.config.schema import Settings
from toytrans.config.yaml import Tree
from toytrans.data.open import open_dataset
from toytrans.data.task_dataset import TaskDataset
from toytrans.data.tasks import TASKS, translations
from toytrans.errors import UserError
from toytrans.metrics import METRICS
from toytrans.model.positions import SCHEMES, scheme_class, scheme_names
from toytrans.references import is_reference, shipped_names, shown
from toytrans.resolve import resolve

Card = dict[str, str]
"""What there is to say of a name, by heading."""

SAMPLES = 5
MOST_SYMBOLS = 12
"""That are named one by one."""


def explain(name: str) -> str:
    """What a config key, say "train.lr", a section, a task, a fault or a check is, as text.

    A task of one's own, FILE.py:NAME, and a config FILE.yaml are tasks too. The name of a list, say
    "faults", gives a line for each of its names. Raises UserError for any other name.
    """
    if name in KINDS:
        return "\n".join("  ".join(row) for row in listed(name))
    rows = (f"  {heading}: {text}" for heading, text in card(name).items())
    return "\n".join([name, *(row.replace("\n", "\n    ") for row in rows)])


def card(name: str, trust_code: bool = False) -> Card:
    """What there is to say of a name, by heading. Raises UserError.

    trust_code: whether code may run that the config of a run directory names
    """
    for kind in KINDS.values():
        if name in kind.names():
            return kind.card(name)
    if is_reference(name):
        return _card_of_task(name)
    if name.endswith((".yaml", ".yml")) or name in shipped_names():
        return card_of_config(Path(name), trust_code)
    raise UserError(
        f"no task, position scheme, schedule, metric, fault, check or key {name!r}; "
        f"{_nearest(name)}"
    )


def card_of_config(path: Path, trust_code: bool = False) -> Card:
    """What there is to say of the task of a config. Raises UserError."""
    config = resolve(load_config(path, trust_code=trust_code))
    return _of_task(config, config)


def _nearest(name: str) -> str:
    """What an unknown name may mean."""
    section, _, last = name.rpartition(".")
    others = [*KINDS, *(known for kind in KINDS if kind != "keys" for known in KINDS[kind].names())]
    is_key = last in {key.name for key in keys()}
    near = next(iter(() if is_key else get_close_matches(name, others, n=1)), "")
    near = near or nearest_key(section, last)
    return f"did you mean {near}?" if near else "`toytrans explain` lists all keys"


def listed(kind: str) -> list[tuple[str, ...]]:
    """The rows of a kind of names, below their headings."""
    found = KINDS[kind]
    return [found.headings, *map(found.row, found.names())]


# Tasks -----------------------------------------------------------------------------------------


def _settings_of(name: str, longest: int) -> Settings:
    """The settings of a task. The caller named the task's code, so that is run."""
    tree = Tree(name, {"data": {"task": name, "train_length": [1, longest]}})
    return resolve(check_and_trust(tree))


def _opened(settings: Settings) -> TaskDataset:
    pairs = open_dataset(settings)
    assert isinstance(pairs, TaskDataset)
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


def _card_of_task(name: str) -> Card:
    return _of_task(_settings_of(name, 10), _settings_of(name, 20))


def _row_of_task(name: str) -> tuple[str, ...]:
    pairs = _opened(_settings_of(name, 6))
    return name, pairs.task.rule, _arrow(pairs.samples(SAMPLES)[0])


# Faults, checks, and why they fail -------------------------------------------------------------


def _card_of_fault(name: str) -> Card:
    return CARDS[name].rows(name)


def _row_of_fault(name: str) -> tuple[str, ...]:
    return name, CARDS[name].what, ", ".join(CARDS[name].checks)


def _card_of_check(name: str) -> Card:
    check = CHECKS[name]
    found = (fault for fault, card in CARDS.items() if name in card.checks)
    card = {"passes if": check.title, "asked": check.how, "does not see": check.limits}
    card["causes"] = ", ".join(cause.code for cause in check.causes if not cause.is_doubt)
    card["doubts"] = ", ".join(cause.code for cause in check.causes if cause.is_doubt)
    card["finds"] = ", ".join(found) or "no fault that --break plants"
    card["ask only it"] = f"toytrans check RUN --only {name}"
    return {heading: text for heading, text in card.items() if text}


def _card_of_cause(code: str) -> Card:
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


def _row_of_check(name: str) -> tuple[str, ...]:
    return name, CHECKS[name].title


def _row_of_cause(code: str) -> tuple[str, ...]:
    return code, CAUSES[code].when


# Position schemes, metrics and schedules -------------------------------------------------------


def _row_of_scheme(name: str) -> tuple[str, ...]:
    return name, _paragraphs(scheme_class(name))[0]


def _card_of_scheme(name: str) -> Card:
    what, *more = _paragraphs(scheme_class(name))
    card = {"what": what, "the model is": scheme_class(name).summary, "more": "\n".join(more)}
    card["take it"] = f"model.positions: {name}"
    return {heading: text for heading, text in card.items() if text}


def _paragraphs(documented: type) -> list[str]:
    """The paragraphs of a docstring, each on one line, without what it says of fields."""
    text = inspect.cleandoc(documented.__doc__ or "").partition("\nnames: ")[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _row_of_metric(name: str) -> tuple[str, ...]:
    return name, METRICS[name].label, METRICS[name].better


def _card_of_metric(name: str) -> Card:
    metric = METRICS[name]
    card = {"what": metric.label, "better": metric.better}
    if metric.count is not None:
        card |= {"counts in each pair": _doc(metric.count), "divided by": metric.per}
    return card | {"compare by it": f"toytrans eval RUN RUN --metric {name}"}


def _row_of_schedule(name: str) -> tuple[str, ...]:
    return name, _doc(SCHEDULES[name])


def _card_of_schedule(name: str) -> Card:
    where = "the share of train.lr, once the warm-up is over"
    return {"what": where, "course": _doc(SCHEDULES[name]), "take it": f"train.schedule: {name}"}


def _doc(function: Callable[..., Any]) -> str:
    """The docstring of a function, on one line."""
    return " ".join((function.__doc__ or "").split())


# Keys ------------------------------------------------------------------------------------------


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


def _names_of_keys() -> list[str]:
    return list(dict.fromkeys(key.path for key in keys()))


def _row_of_key(name: str) -> tuple[str, ...]:
    key = next(key for key in keys() if key.path == name)
    return key.path, key.default or "a section", key.meaning


def _card_of_key(name: str) -> Card:
    """The card of a key, or of a section with its keys."""
    key, *inside = (key for key in keys() if name in (key.path, key.section))
    card = {"meaning": key.meaning, "type": key.type, "default": key.default}
    card |= {"range": key.range} | {each.name: each.meaning for each in inside}
    return {heading: text for heading, text in card.items() if text}


# All kinds of names ----------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of names. headings, row: of their list. card: what there is to say of one."""

    names: Callable[[], Collection[str]]
    headings: tuple[str, ...]
    row: Callable[[str], tuple[str, ...]]
    card: Callable[[str], Card]


KINDS = {
    "tasks": Kind(TASKS.keys, ("task", "rule", "example"), _row_of_task, _card_of_task),
    "positions": Kind(
        SCHEMES.keys, ("position scheme", "what it is"), _row_of_scheme, _card_of_scheme
    ),
    "faults": Kind(CARDS.keys, ("fault", "what it is", "found by"), _row_of_fault, _card_of_fault),
    "checks": Kind(CHECKS.keys, ("check", "passes if"), _row_of_check, _card_of_check),
    "causes": Kind(CAUSES.keys, ("cause", "seen"), _row_of_cause, _card_of_cause),
    "metrics": Kind(
        METRICS.keys, ("metric", "what it is", "better"), _row_of_metric, _card_of_metric
    ),
    "schedules": Kind(SCHEDULES.keys, ("schedule", "course"), _row_of_schedule, _card_of_schedule),
    "keys": Kind(_names_of_keys, ("key", "default", "meaning"), _row_of_key, _card_of_key),
}
"""Each kind by the name of its list. A name that two kinds have means the first."""
