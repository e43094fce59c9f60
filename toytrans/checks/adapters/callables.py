"""Any callable as a model under check: what can be detected in it, and what was given."""

from inspect import Parameter
from typing import Any, get_args

import torch

from toytrans.checks.adapters.wrapper import refuse_more_than_ids
from toytrans.checks.batch import apart, largest
from toytrans.checks.copies import copy_of
from toytrans.checks.subject import BY_PLACE, RAISED, Adapter, Facts, Kind, arguments
from toytrans.errors import UserError


def of_callable(
    model: Any, known: dict[str, Any], hands: dict[str, Any], batch_first: bool | None
) -> Adapter:
    """The adapter of a callable. known: `Facts`; hands: other arguments of `Adapter`; batch_first:
    None to find it out.

    Raises UserError where something is missing.
    """
    if missing := [name for name in ("pad_id", "vocabulary_size") if name not in known]:
        raise UserError(
            f"check needs {' and '.join(missing)} of a {type(model).__name__}; "
            f"give {' and '.join(f'{name}=...' for name in missing)}"
        )
    refuse_more_than_ids(model, known["pad_id"])
    own = {
        "kind": _kind_of(model, known.get("kind")),
        "name": getattr(model, "__name__", type(model).__name__),
        "time_first": batch_first is False,
    }
    facts = Facts(**{"decoding_start": known.get("start_id")} | known | own)
    return _laid_out(_with_side(Adapter(model, facts, **hands)), batch_first)


def _with_side(tested: Adapter) -> Adapter:
    """The tested with the side on which its batch maker pads targets."""
    facts, symbols = tested.facts, tested.facts.symbols()
    if facts.pad_side is not None or tested.maker is None or not symbols:
        return tested
    try:
        tgt_in = tested.maker([(symbols[:1], symbols[:1]), (symbols[:1], symbols[:1] * 4)])[1]
        left = bool(tgt_in[0, 0] == facts.pad_id) and not bool(tgt_in[0, -1] == facts.pad_id)
    except RAISED:  # whatever a batch maker raises: it is raised again when it is asked
        return tested
    return tested.with_facts(pad_side="left") if left else tested


def _kind_of(model: Any, given: Any) -> Kind:
    """Of a callable, by what it takes: (src, tgt_in), or ids alone and then it must be given."""
    if given is not None:
        if given not in get_args(Kind):
            raise UserError(f"kind {given!r}: give one of {', '.join(get_args(Kind))}")
        of: Kind = given
        return of
    kinds = [parameter.kind for parameter in arguments(model)]
    if sum(kind in BY_PLACE for kind in kinds) == 1 and Parameter.VAR_POSITIONAL not in kinds:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    return "encoder-decoder"


def _laid_out(tested: Adapter, batch_first: bool | None) -> Adapter:
    """The tested as it can be asked: batch first, else time first, else with source and target
    of one length. What can be asked in none of these ways stays as it is, to be refused."""
    first = _independent(tested)
    if batch_first is None and not first:
        turned = tested.with_facts(time_first=True)
        if _independent(turned):
            return turned
    if first is None and tested.facts.has_source:
        equal = tested.with_facts(equal_lengths=True)
        return equal if _independent(equal) is not None else tested
    return tested


@torch.no_grad()
def _independent(tested: Adapter) -> bool | None:
    """Whether the rows of a small batch do not depend on each other; None where it is not taken."""
    made = copy_of(tested)
    asked = tested if made is None else made.model
    symbols = asked.facts.symbols()
    if len(symbols) < 2:
        return True
    many = symbols * 12
    pairs = [(many[row : row + 6], many[2 * row : 2 * row + 4]) for row in range(3)]
    try:
        src, tgt_in, _ = asked.batch(pairs)
        before = asked.ask(src.clone(), tgt_in.clone())
        src[0], tgt_in[0] = src[0].flip(0), tgt_in[0].flip(0)
        after = asked.ask(src.clone(), tgt_in.clone())
    except RAISED:  # whatever a foreign model raises: it is raised again when it is asked
        return None
    moved = largest(apart(after[1:], before[1:]).nan_to_num(0.0, 0.0, 0.0))
    size = largest(before.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4))
    return moved <= 1e-4 * max(size, 1e-30)
