"""What a name means: a key of a config, a task, or a fault."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import cast, get_args

from toytrans.config.explain import explain_key, keys
from toytrans.config.names import FaultName, TaskName
from toytrans.errors import UserError


def explain(name: str) -> str:
    """What a config key, say "train.lr", a section, a task or a fault is, as text.

    Raises UserError for any other name.
    """
    tasks, faults = get_args(TaskName), get_args(FaultName)
    if name in tasks:
        return _text(name, _of_task(name))
    if name in faults:
        return _text(name, _of_fault(cast(FaultName, name)))
    near = get_close_matches(name, (*tasks, *faults), n=1)
    if near and all(name != key.path for key in keys()):
        raise UserError(f"no key, task or fault {name!r}; did you mean {near[0]}?")
    first, *others = explain_key(name)
    return _text(name, first.card | {key.name: key.meaning for key in others})


def _text(name: str, card: Mapping[str, str]) -> str:
    return "\n".join([name, *(f"  {heading}: {text}" for heading, text in card.items())])


def _of_task(name: str) -> dict[str, str]:
    from toytrans.config.schema import Config
    from toytrans.data.open import open_dataset
    from toytrans.data.tasks.base import TaskPairs

    data = {"task": name, "train_length": [1, 10]}
    pairs = open_dataset(Config.model_validate({"data": data}))
    assert isinstance(pairs, TaskPairs)
    src, tgt = pairs.samples(1)[0]
    return {
        "rule": pairs.task.rule,
        "example": f"{' '.join(src)} -> {' '.join(tgt)}",
        "train on it": f"a config with data: {{task: {name}}}",
    }


def _of_fault(name: FaultName) -> dict[str, str]:
    from toytrans.insight.diagnosis.fault_cards import CARDS

    card = CARDS[name]
    return {
        "what": card.what,
        "shown by": card.shown_by,
        "symptom": card.symptom,
        "found by": " ".join(f"({letter})" for letter in card.proofs),
        "met in": card.threads,
        "ranges": "of five seeds; another seed can lie outside",
    }
