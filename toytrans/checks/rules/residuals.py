"""Sub-layers one at a time: what each is given is carried past it, as past its neighbours."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.asked import Asked
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Outcome, does_not_apply, fails, passes
from toytrans.checks.rules.sublayers import SUBLAYERS
from toytrans.checks.softmaxes import softmaxes_seen

RESIDUAL_LOST = SUBLAYERS.cause(
    "residual_lost",
    when="with one sub-layer silenced its input reaches no output, and with others of the same "
    "layer silenced theirs does",
    words="with {name} silenced, what it is given reaches no output, though past {other} it does: "
    "a residual connection is missing",
    remedy="x = x + {name}(...)",
)


@dataclass(frozen=True)
class SubLayer:
    """A self-attention, or a feed-forward network beside one. layer: the name of the module that
    holds both; of_source: whether it works on places of the source."""

    name: str
    part: nn.Module
    layer: str
    of_source: bool


@SUBLAYERS.part("each residual")
def each_residual(asked: Asked) -> Outcome:
    """Each self-attention, and each module of two matrices beside one in the same layer, is
    silenced alone. Where its input then reaches no output, and past its neighbour it does, the
    residual connection around it is lost. Other modules may replace what they are given."""
    if asked.model.module is None:
        return does_not_apply("a function shows no modules")
    ids = asked.pair(6, 11)
    try:
        sublayers = _sublayers(asked, ids)
    except RAISED:  # some models do not run under a dispatch mode
        sublayers = []
    layers: dict[str, list[SubLayer]] = {}
    for each in sublayers:
        layers.setdefault(each.layer, []).append(each)
    judged = [each for group in layers.values() if len(group) > 1 for each in group]
    if not judged:
        return does_not_apply("no layer is seen that holds self-attention and feed-forward")
    carries = {each.name: _is_carried_past(asked, ids, each) for each in judged}
    for lost in judged:
        others = [each.name for each in layers[lost.layer] if carries[each.name]]
        if not carries[lost.name] and others:
            return fails(RESIDUAL_LOST, name=lost.name, other=others[0])
    return passes(f"what each of {len(judged)} sub-layers is given is carried past it")


def _sublayers(asked: Asked, ids: Ids) -> list[SubLayer]:
    """Each self-attention, and the feed-forward networks beside them."""
    module = asked.model.module
    assert module is not None
    handed, shapes = asked.model.placed(*ids[:2]), dict[nn.Module, list[Any]]()
    with _shapes_seen(module, shapes), softmaxes_seen(module, *handed) as seen:
        asked.model.ask(*handed)
    places = {ids.src.shape[1]: True} if asked.facts.has_source else {}
    places[ids.tgt_in.shape[1]] = False
    squares = {x.module for x in seen if x.is_attention and x.shape[0] == x.shape[1]}
    attentions = {x.module for x in seen}
    found = []
    names = {part: name for name, part in module.named_modules()}
    for part, name in names.items():
        both = shapes.get(part, [])
        if len(both) != 1 or both[0] is None or not name:
            continue
        side = next((places[n] for n in both[0][:2] if n in places), None)
        layer = name.rpartition(".")[0]
        beside = {p for p, other in names.items() if other.rpartition(".")[0] == layer}
        is_forward = beside & squares and not {*part.modules()} & attentions
        is_forward = is_forward and sum(p.dim() > 1 for p in part.parameters()) > 1
        if side is not None and (part in squares or is_forward):
            found.append(SubLayer(name, part, layer, side))
    return found


@contextlib.contextmanager
def _shapes_seen(module: nn.Module, shapes: dict[nn.Module, list[Any]]) -> Iterator[None]:
    """Of each call of a part the shape (B, L, D), or (L, B, D), that it is given and gives; None
    where these differ, or where it is given two such tensors: one may be what it adds itself."""

    def note(part: nn.Module, given: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        before = {id(x): x.shape for x in given if isinstance(x, Tensor)}
        is_alike = isinstance(first, Tensor) and first.dim() == 3
        is_alike = is_alike and first.shape == next(iter(before.values()), None)
        is_alike = is_alike and list(before.values()).count(first.shape) == 1
        shapes.setdefault(part, []).append(tuple(first.shape) if is_alike else None)

    with contextlib.ExitStack() as stack:
        for part in module.modules():
            if not isinstance(part, torch.jit.ScriptModule):  # which takes no hooks
                stack.callback(part.register_forward_hook(note).remove)
        yield


def _is_carried_past(asked: Asked, ids: Ids, sublayer: SubLayer) -> bool:
    """Whether outputs depend on the tokens of a half while a part of it gives zeros."""

    def silence(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    src = torch.where(torch.isin(ids.src, asked.symbols), asked.other(ids.src), ids.src)
    later = torch.cat((ids.tgt_in[:, :1], asked.other(ids.tgt_in[:, 1:])), 1)
    changed = Ids(src, ids.tgt_in) if sublayer.of_source else Ids(ids.src, later)
    hook = sublayer.part.register_forward_hook(silence)
    try:
        with torch.enable_grad():  # with it torch takes no shortcut past the hook
            both = [asked.model.ask(*pair[:2]).detach() for pair in (ids, changed)]
    finally:
        hook.remove()
    return largest(asked.moved(*both)[:, 1:]) > asked.tolerance
