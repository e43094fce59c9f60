"""A zoo of small models, each with the verdict that `toytrans.check` must give it.

A family is a module here. Each of its models is a class or a function under `@faulty` or
`@sound`: its name is the entry's name, the first line of its docstring says why.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

PAD, START, END, SYMBOLS = 0, 1, 2, 20
"""Ids and size of the vocabulary that most models share."""

FAMILIES = (
    "faulty_inputs",
    "faulty_training",
    "attention_by_hand",
    "sound_models",
    "ours",
    "hugging_face",
    "habits",
)


@dataclass(frozen=True)
class Entry:
    """A model and its verdict: PASS, FAIL, cannot judge, refused (a UserError), or several of
    them. checks: of a FAIL, at least one of these fails, any where empty; of a PASS, all of these
    pass. is_long: the verdict needs the longer sequences that `check` tries by default. says: words
    of the report."""

    name: str
    family: str
    build: Callable[[], dict[str, Any]]
    verdict: str
    checks: tuple[str, ...]
    why: str
    is_long: bool
    says: str


_found: list[Entry] = []


def faulty(
    checks: str = "", verdict: str = "FAIL", is_long: bool = False, says: str = "", **given: Any
) -> Callable[[Any], Any]:
    """Registers a maker of a faulty model; given: further arguments of `check`."""
    return lambda maker: _register(maker, verdict, checks, given, is_long, says)


def sound(
    verdict: str = "PASS", checks: str = "", is_long: bool = False, says: str = "", **given: Any
) -> Callable[[Any], Any]:
    """Registers a maker of a sound model; its embeddings are given too, where it has both."""
    own = {"embedding": True} | given
    return lambda maker: _register(maker, verdict, checks, own, is_long, says)


def _register(
    maker: Any, verdict: str, checks: str, given: dict[str, Any], is_long: bool, says: str
) -> Any:
    def build() -> dict[str, Any]:
        torch.manual_seed(3)
        made = maker()
        made = made if isinstance(made, dict) else {"model": made}
        model = made["model"]
        named = {"pad_id": PAD, "vocabulary_size": SYMBOLS, "start_id": START, "eos_id": END}
        arguments = (named if _is_foreign(model) else {}) | given | made
        if arguments.get("embedding") is True:
            both = hasattr(model, "source") and hasattr(model, "target")
            arguments["embedding"] = (model.source, model.target) if both else None
        return arguments

    name, family = maker.__name__.replace("_", " ").strip(), maker.__module__.rpartition(".")[2]
    why = (maker.__doc__ or "").partition("\n")[0]
    assert why, f"{name} lacks a docstring"
    _found.append(Entry(name, family, build, verdict, tuple(checks.split()), why, is_long, says))
    return maker


def _is_foreign(model: Any) -> bool:
    """Whether check knows nothing of a model: it has no Hugging Face config."""
    return not hasattr(getattr(model, "config", None), "model_type")


@cache
def entries() -> tuple[Entry, ...]:
    """All of them, family by family."""
    for family in FAMILIES:
        importlib.import_module(f".{family}", __name__)
    names = [entry.name for entry in _found]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    return tuple(_found)


def built(name: str) -> dict[str, Any]:
    """The arguments of `check` for an entry."""
    return next(entry for entry in entries() if entry.name == name).build()
