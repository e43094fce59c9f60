"""The models that `check` knows how to ask: ours, Hugging Face's, torch's, and any callable."""

import math
import operator
import os
from typing import Any

from torch import nn

from toytrans.checks.adapters.callables import of_callable
from toytrans.checks.adapters.hugging_face import is_hugging_face, of_hugging_face
from toytrans.checks.adapters.torch_transformer import TorchTransformer
from toytrans.checks.adapters.toytrans import is_run, of_run
from toytrans.checks.subject import Adapter
from toytrans.errors import UserError

NUMBERS = ("vocabulary_size", "source_size", "max_length", "source_pad_id")
IDS = ("pad_id", "start_id", "eos_id")


def adapter_of(model: Any, **given: Any) -> Adapter:
    """The adapter of a model, with what was given over what can be known: arguments of `check`.

    Raises UserError where something is missing.
    """
    known = {name: value for name, value in given.items() if value is not None}
    if is_run(model) or isinstance(model, Adapter):
        if known:
            raise UserError("of a run all is known; give check length, seed, only or skip alone")
        return of_run(model) if is_run(model) else model
    _require_right(known)
    # what the adapter is handed, by its names for them; the rest are facts
    names = {"embedding": "embeddings", "loss": "loss", "batch": "maker", "generate": "generate"}
    hands = {own: known.pop(name) for name, own in names.items() if name in known}
    batch_first = known.pop("batch_first", None)
    if is_hugging_face(model):
        return of_hugging_face(model, known, hands)
    if isinstance(model, str | os.PathLike):
        raise UserError(f"{os.fspath(model)!r} is a path; give toytrans.load({os.fspath(model)!r})")
    if not callable(model):
        raise UserError(
            f"{type(model).__name__} cannot be called; give f(src, tgt_in) -> logits, "
            "or a Hugging Face model"
        )
    return of_callable(model, known, hands, batch_first)


def _require_right(known: dict[str, Any]) -> None:
    """Whole numbers of any kind become int, one embedding two. Raises UserError for others, and for
    ids that the vocabulary does not have."""
    for name in known.keys() & {*NUMBERS, *IDS}:
        value = known[name]
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = -1
        if number < 0:
            raise UserError(f"{name} {value!r}: give a whole number, 0 or more")
        known[name] = number
    size = known.get("vocabulary_size")
    for name in IDS:
        if size is not None and known.get(name, -1) >= size:
            raise UserError(f"{name} {known[name]} is not below vocabulary_size {size}")
    scale = known.get("scale", 1)
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < math.inf:
        raise UserError(f"scale {scale!r}: give the number, above 0, that multiplies q k")
    if (embedding := known.get("embedding")) is not None:
        pair = embedding if isinstance(embedding, tuple | list) else (embedding, embedding)
        if len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair):
            raise UserError("embedding is a torch.nn.Module, or two: the source's and the target's")
        known["embedding"] = tuple(pair)


__all__ = ["TorchTransformer", "adapter_of"]
