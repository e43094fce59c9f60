"""Any callable as a model under check: what can be detected in it, and what was given."""

import inspect
from typing import Any, get_args

import torch
from torch import Tensor, nn

from toytrans.checks.adapters.torch_transformer import TorchTransformer
from toytrans.checks.adapters.wrapper import refuse_more_than_ids
from toytrans.checks.batch import apart, largest
from toytrans.checks.copies import copy_of
from toytrans.checks.subject import RAISED, Adapter, Facts, Kind, logits_of
from toytrans.errors import UserError


def of_callable(model: Any, known: dict[str, Any], hands: dict[str, Any]) -> Adapter:
    """The adapter of a callable. known: `Facts`; hands: other arguments of `Adapter`, and
    batch_first.

    Raises UserError where something is missing.
    """
    if missing := [name for name in ("pad_id", "vocabulary_size") if name not in known]:
        raise UserError(
            f"check needs {' and '.join(missing)} of a {type(model).__name__}; "
            f"give {' and '.join(f'{name}=...' for name in missing)}"
        )
    refuse_more_than_ids(model, known["pad_id"])
    kind = _kind_of(model, known.get("kind"))
    if isinstance(model, TorchTransformer):
        hands = {"embeddings": (model.src_embedding, model.tgt_embedding)} | hands
    batch_first = hands.pop("batch_first", None)
    name = getattr(model, "__name__", type(model).__name__)
    start = {"decoding_start": known.get("start_id")}
    facts = Facts(**start | known | {"name": name, "kind": kind})
    tested = Adapter(model, facts, **hands)
    if not facts.has_source or batch_first is False:
        tested = _adapted(tested, batch_first is not False)
    return _laid_out(_with_side(tested), batch_first)


def _with_side(tested: Adapter) -> Adapter:
    """The tested with the side on which its batch maker pads targets."""
    facts, symbols = tested.facts, tested.facts.symbols()
    if facts.pad_side is not None or tested.maker is None or not symbols:
        return tested
    try:
        tgt_in = tested.maker([(symbols[:1], symbols[:1]), (symbols[:1], symbols[:1] * 4)])[1]
        first, last = tgt_in[0, 0] == facts.pad_id, tgt_in[0, -1] == facts.pad_id
        left = bool(first) and not bool(last)
    except RAISED:  # whatever a batch maker raises: it is raised again when it is asked
        return tested
    return tested.with_facts(pad_side="left") if left else tested


def _kind_of(model: Any, given: Any) -> Kind:
    """Of a callable, by what it takes: (src, tgt_in), or ids alone and then it must be given."""
    if given is not None:
        if given not in get_args(Kind):
            raise UserError(f"kind {given!r}: give one of {', '.join(get_args(Kind))}")
        kind: Kind = given
        return kind
    function = model.forward if isinstance(model, nn.Module) else model
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "encoder-decoder"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return "encoder-decoder"
    if sum(1 for p in parameters if p.kind in positional) == 1:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    return "encoder-decoder"


class Adapted(nn.Module):
    """A model of one stream, or one that wants time before batch, called as (src, tgt_in)."""

    def __init__(self, model: Any, has_source: bool, batch_first: bool) -> None:
        super().__init__()
        self.model = model
        self.has_source, self.batch_first = has_source, batch_first

    def forward(self, src: Tensor, tgt_in: Tensor) -> Any:
        given = [src, tgt_in] if self.has_source else [tgt_in]
        if self.batch_first:
            return self.model(*given)
        logits = logits_of(self.model(*(ids.T for ids in given)))
        return logits.transpose(0, 1) if isinstance(logits, Tensor) and logits.dim() > 2 else logits


def _adapted(tested: Adapter, batch_first: bool) -> Adapter:
    """The tested behind a module that calls it in its own layout."""
    inner = tested.call.model if isinstance(tested.call, Adapted) else tested.call
    made = Adapted(inner, tested.facts.has_source, batch_first)
    call = made if isinstance(inner, nn.Module) else made.forward
    return tested.on(call, tested.embeddings)


def _laid_out(tested: Adapter, batch_first: bool | None) -> Adapter:
    """The tested as it can be asked: batch first, else time first, else with source and target
    of one length. What can be asked in none of these ways stays as it is, to be refused."""
    first = _independent(tested)
    if batch_first is None and not first:
        turned = _adapted(tested, False)
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
    target = 6 if tested.facts.equal_lengths else 4
    pairs = [
        ([symbols[(r + i) % len(symbols)] for i in range(6)],
         [symbols[(2 * r + i) % len(symbols)] for i in range(target)])
        for r in range(3)
    ]  # fmt: skip
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
