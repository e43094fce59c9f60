"""A zoo of small models, each with the verdict that `toytrans.check` must give it.

A family is a module here. Each of its models is registered by `@faulty` or `@sound`, above a class,
a function that makes it, or a function that takes the place of one part of a `Translator`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from .parts import END, PAD, START, SYMBOLS, Translator, given_with, make_batch

FAMILIES = (
    "faulty_models",
    "modes",
    "dead_weights",
    "attention_by_hand",
    "sound_models",
    "ours",
    "hugging_face",
    "kinds",
    "reach",
    "causes",
    "losses",
    "odd",
    "signatures",
)


@dataclass(frozen=True)
class Entry:
    """A model and its verdict: PASS, FAIL, cannot judge, refused (a UserError), or several of
    them. checks: of a FAIL, at least one of these fails, any where empty; of a PASS, all of these
    pass. is_long: the verdict needs the longer sequences that `check` tries by default. cause: the
    code of one cause of a FAIL, or of a doubt; is_first: of the first failure, whatever is asked.
    doubts: the codes of all doubts, where given. says: words of a report without a cause. is_quick:
    the shortest batch is asked alone."""

    name: str
    build: Callable[[], dict[str, Any]]
    verdict: str
    checks: tuple[str, ...]
    is_long: bool
    cause: str
    doubts: str | None
    says: str
    is_first: bool
    is_quick: bool


_found: list[Entry] = []


def entry(
    checks: str = "",
    part: str = "",
    *,
    verdict: str,
    base: type = Translator,
    is_long: bool = False,
    cause: str = "",
    doubts: str | None = None,
    says: str = "",
    is_first: bool = False,
    is_quick: bool = False,
    name: str = "",
    **given: Any,
) -> Callable[[Any], Any]:
    """Registers what makes a model, or, with `part`, a function in the place of a method of `base`
    ("keys"), of its attention or layer ("layer.branch"), of the loss, or behind the batch maker;
    also a value for an attribute, with a `name`. given: further arguments of `check`; with
    embedding=True, those of the model."""

    def register(maker: Any) -> Any:
        def build() -> dict[str, Any]:
            torch.manual_seed(3)
            made = with_part(part, maker, base) if part else maker()
            made = made if isinstance(made, dict) else {"model": made}
            model = made["model"]
            named = {"pad_id": PAD, "vocabulary_size": SYMBOLS, "start_id": START, "eos_id": END}
            is_known = hasattr(getattr(model, "config", None), "model_type")  # Hugging Face's
            arguments = ({} if is_known else named) | given | made
            if arguments.get("embedding") is True:
                both = hasattr(model, "source") and hasattr(model, "target")
                arguments["embedding"] = (model.source, model.target) if both else None
            return arguments

        words = name or maker.__name__.replace("_", " ").strip()
        of, quick = tuple(checks.split()), is_quick or is_first
        _found.append(
            Entry(words, build, verdict, of, is_long, cause, doubts, says, is_first, quick)
        )
        return maker

    return register


faulty = partial(entry, verdict="FAIL")
sound = partial(entry, verdict="PASS", embedding=True)


def with_part(part: str, other: Any, base: type = Translator) -> Any:
    """A model with another part, or the arguments of `check` with another loss or batch."""
    if part == "loss":
        return given_with(loss=other)
    if part == "batch":
        return given_with(batch=lambda pairs: other(*make_batch(pairs)))
    *owner, method = part.split(".")
    changed = {method: other}
    for name in owner:
        changed = {name: type(name, (getattr(base, name),), changed)}
    return type("Model", (base,), changed)()


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
