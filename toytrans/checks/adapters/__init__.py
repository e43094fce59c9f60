"""The models that `check` knows how to ask: ours, Hugging Face's, torch's, and any callable."""

import math
import operator
import os
from inspect import Parameter
from typing import Any, get_args

import torch
from torch import nn

from toytrans.checks import tolerances
from toytrans.checks.adapters.hugging_face import (
    is_hugging_face,
    of_hugging_face,
    takes_their_arguments,
)
from toytrans.checks.adapters.other_forms import refuse_another_form, refuse_no_ids
from toytrans.checks.adapters.torch_transformer import TorchTransformer
from toytrans.checks.adapters.toytrans import is_run, of_run
from toytrans.checks.adapters.wrapper import refuse_more_than_ids, refuse_one_batch
from toytrans.checks.facts import PROMISES, Facts, Kind
from toytrans.checks.model import BY_PLACE, RAISED, Adapter, arguments
from toytrans.checks.numbers import apart, largest
from toytrans.checks.torch_modes import undisturbed
from toytrans.errors import UserError, did_you_mean

__all__ = ["TorchTransformer", "adapter_of"]

NUMBERS = ("vocabulary_size", "source_size", "max_length", "source_pad_id", "window", "prefix")
IDS = ("pad_id", "start_id", "eos_id")
FUNCTIONS = ("embedding", "loss", "batch", "generate", "inputs", "device")
"""Arguments that an `Adapter` takes beside `Facts`."""

LARGEST_NUMBER = 2**62
"""Sizes and ids are numbers of 64 bits."""

SAID = (
    "kind",
    "source_pad_id",
    "source_size",
    "batch_first",
    "max_length",
    "scale",
    "window",
    "prefix",
    "pad_side",
    "promises",
)
"""Facts that change what is asked, and are said in the report where they are given."""


def adapter_of(model: Any, **given: Any) -> Adapter:
    """The adapter of a model, with what was given over what can be known: arguments of `check`.

    Raises UserError where something is missing.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    known = {name: value for name, value in given.items() if value is not None}
    if "device" in known:
        known["device"] = _device(known["device"])
    if is_run(model) or isinstance(model, Adapter):
        device = known.pop("device", None)
        if known:
            raise UserError(
                "of a run all is known; give check length, effort, seed, device, expected, only or "
                "skip alone"
            )
        made: Adapter = of_run(model) if is_run(model) else model
        made.device = device or made.device
        return made
    _require_right(known)
    _require_numbers(model)
    known["said"] = {name: known[name] for name in SAID if name in known}
    more = {name: known.pop(name) for name in FUNCTIONS if name in known}
    batch_first = known.pop("batch_first", None)
    if is_hugging_face(model) or takes_their_arguments(model):
        if known.get("pad_side") == "left":
            raise UserError("pads before its ids are tried anyhow; leave pad_side out")
        return of_hugging_face(model, known, more)
    if isinstance(model, str | os.PathLike):
        raise UserError(f"{os.fspath(model)!r} is a path; give toytrans.load({os.fspath(model)!r})")
    if not callable(model):
        raise UserError(
            f"{type(model).__name__} cannot be called; give f(src, tgt_in) -> logits, "
            "or a Hugging Face model"
        )
    return _of_callable(model, known, more, batch_first)


def _device(name: Any) -> torch.device:
    """A device by its name. Raises UserError where there is none of that name."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"device {str(name)!r} cannot be taken: {first}") from None
    return device


def _require_numbers(model: Any) -> None:
    """Raises UserError for a module whose weights are on the meta device."""
    if isinstance(model, nn.Module) and any(weight.is_meta for weight in model.parameters()):
        raise UserError(
            f"{type(model).__name__} has weights on the meta device, which hold no numbers; build "
            "it on another device, or call to_empty(device=...) and load weights"
        )


def _require_right(known: dict[str, Any]) -> None:
    """Whole numbers of any kind become int, one embedding two, promises a set. Raises UserError for
    others, and for ids that the vocabulary does not have."""
    for name in known.keys() & {*NUMBERS, *IDS}:
        value = known[name]
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = -1
        if not 0 <= number <= LARGEST_NUMBER:
            raise UserError(f"{name} {value!r}: give a whole number, 0 or more")
        known[name] = number
    size = known.get("vocabulary_size")
    for name in IDS:
        if size is not None and known.get(name, -1) >= size:
            raise UserError(f"{name} {known[name]} is not below vocabulary_size {size}")
    if (side := known.get("pad_side", "right")) not in ("right", "left"):
        raise UserError(f"pad_side {side!r}: give right or left")
    scale = known.get("scale", 1)
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < math.inf:
        raise UserError(f"scale {scale!r}: give the number, above 0, that multiplies q k")
    if (embedding := known.get("embedding")) is not None:
        pair = embedding if isinstance(embedding, tuple | list) else (embedding, embedding)
        if len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair):
            raise UserError("embedding is a torch.nn.Module, or two: the source's and the target's")
        known["embedding"] = tuple(pair)
    if (promises := known.get("promises")) is not None:
        names = [promises] if isinstance(promises, str) else list(promises)
        if unknown := [name for name in names if name not in PROMISES]:
            raise UserError(f"no promise {unknown[0]}; {did_you_mean(unknown[0], PROMISES)}")
        known["promises"] = frozenset(names)


# Any callable ------------------------------------------------------------------------------------


def _of_callable(
    model: Any, known: dict[str, Any], more: dict[str, Any], batch_first: bool | None
) -> Adapter:
    """The adapter of a callable, as it can be asked: batch first, else time first, else with source
    and target of one length. What can be asked in none of these ways is refused with what to write
    around it where that can be told, and else stays as it is, to be refused when it is asked.

    known: `Facts`; more: other arguments of `Adapter`; batch_first: None to find it out. Raises
    UserError where something is missing.
    """
    if missing := [name for name in ("pad_id", "vocabulary_size") if name not in known]:
        raise UserError(
            f"check needs {' and '.join(missing)} of a {type(model).__name__}; "
            f"give {' and '.join(f'{name}=...' for name in missing)}"
        )
    forward = getattr(type(model), "forward", None)
    if getattr(forward, "__module__", "") == nn.Transformer.__module__:
        raise UserError(
            f"{type(model).__name__} of torch takes vectors, not ids: give "
            "toytrans.checks.adapters.TorchTransformer(model, source embedding, target embedding, "
            "output layer), or a module of your own around it"
        )
    if isinstance(model, nn.Module) and any(map(nn.parameter.is_lazy, model.parameters())):
        raise UserError(f"{type(model).__name__} has lazy layers without sizes; call it once first")
    name = getattr(model, "__name__", type(model).__name__)
    refuse_more_than_ids(model, name, known, {*more.get("inputs", ())})
    refuse_one_batch(model, name, known)
    kinds = [parameter.kind for parameter in arguments(model)]
    takes_one = sum(kind in BY_PLACE for kind in kinds) == 1
    if "kind" not in known and takes_one and Parameter.VAR_POSITIONAL not in kinds:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    if (kind := known.get("kind", "encoder-decoder")) not in get_args(Kind):
        raise UserError(f"kind {kind!r}: give one of {', '.join(get_args(Kind))}")

    def made(**others: bool) -> Adapter:
        facts: dict[str, Any] = {
            "time_first": batch_first is False,
            "decoding_start": known.get("start_id"),
        }
        return Adapter(model, Facts(name=name, **facts | known | others), **more)

    plain = made()
    first = _rows_are_apart(plain)
    if batch_first is None and not first:
        turned = made(time_first=True, layout_is_guessed=True)
        if _rows_are_apart(turned):
            return turned
    if first is None:
        refuse_another_form(plain)
        equal = made(equal_lengths=True)
        if kind == "encoder-decoder" and _rows_are_apart(equal) is not None:
            return equal
        refuse_no_ids(plain)
    return plain


@torch.no_grad()
def _rows_are_apart(tested: Adapter) -> bool | None:
    """Whether the rows of a small batch do not depend on each other; None where it is not taken."""
    asked = tested.copied() or tested
    with undisturbed(asked.module):
        return _moves_no_other_row(asked)


def _moves_no_other_row(asked: Adapter) -> bool | None:
    """Whether other symbols in one row leave the outputs of the others as they are."""
    symbols = asked.facts.symbols()
    if len(symbols) < 2:
        return True
    many = symbols * 12
    pairs = [(many[row : row + 6], many[2 * row : 2 * row + 4]) for row in range(3)]
    try:
        src, tgt_in, _ = asked.batch(pairs)
        before = asked.ask(src, tgt_in)
        src[0], tgt_in[0] = src[0].flip(0), tgt_in[0].flip(0)
        after = asked.ask(src, tgt_in)
    except RAISED:  # whatever a foreign model raises: it is raised again when it is asked
        return None
    moved = largest(apart(after[1:], before[1:]).nan_to_num(0.0, 0.0, 0.0))
    size = largest(before.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4))
    return moved <= tolerances.LAYOUT * max(size, 1e-30)
