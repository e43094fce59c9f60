"""Any callable as a model under check: what can be detected in it, and what was given."""

from inspect import Parameter
from typing import Any, get_args

import torch
from torch import nn

from toytrans.checks.adapters.wrapper import refuse_more_than_ids
from toytrans.checks.batch import apart, largest
from toytrans.checks.copies import copy_of
from toytrans.checks.subject import BY_PLACE, RAISED, Adapter, Facts, Kind, arguments
from toytrans.errors import UserError


def of_callable(
    model: Any, known: dict[str, Any], hands: dict[str, Any], batch_first: bool | None
) -> Adapter:
    """The adapter of a callable, as it can be asked: batch first, else time first, else with source
    and target of one length. What can be asked in none of these ways stays as it is, to be refused.

    known: `Facts`; hands: other arguments of `Adapter`; batch_first: None to find it out. Raises
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
    refuse_more_than_ids(model, known["pad_id"])
    kinds = [parameter.kind for parameter in arguments(model)]
    takes_one = sum(kind in BY_PLACE for kind in kinds) == 1
    if "kind" not in known and takes_one and Parameter.VAR_POSITIONAL not in kinds:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    if (kind := known.get("kind", "encoder-decoder")) not in get_args(Kind):
        raise UserError(f"kind {kind!r}: give one of {', '.join(get_args(Kind))}")
    name = getattr(model, "__name__", type(model).__name__)
    own = {"name": name, "time_first": batch_first is False}
    facts = Facts(**{"decoding_start": known.get("start_id")} | known | own)
    made = Adapter(model, facts, **hands)
    if facts.pad_side is None and made.maker is not None and _pads_before(made):
        made = made.on(model, made.embeddings, pad_side="left")
    first = _rows_are_apart(made)
    if batch_first is None and not first:
        turned = made.on(model, made.embeddings, time_first=True)
        if _rows_are_apart(turned):
            return turned
    if first is None and facts.has_source:
        equal = made.on(model, made.embeddings, equal_lengths=True)
        return made if _rows_are_apart(equal) is None else equal
    return made


def _pads_before(tested: Adapter) -> bool:
    """Whether a batch maker pads targets on the left."""
    pad, symbols = tested.facts.pad_id, tested.facts.symbols()
    try:
        _, tgt_in, _ = tested.batch([(symbols[:1], symbols[:1]), (symbols[:1], symbols[:1] * 4)])
    except RAISED:  # whatever a batch maker raises: it is raised again when it is asked
        return False
    return bool(tgt_in[0, 0] == pad) and not bool(tgt_in[0, -1] == pad)


@torch.no_grad()
def _rows_are_apart(tested: Adapter) -> bool | None:
    """Whether the rows of a small batch do not depend on each other; None where it is not taken."""
    asked = copy_of(tested) or tested
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
    return moved <= 1e-4 * max(size, 1e-30)
