"""Where a difference begins: of an example that is asked before a change and after it, the first
operation of torch's whose result differs where it must not, and the kind of thing that it is.

Both passes are recorded operation by operation, and their results compared. From the logits the
difference is followed back through results that differ too. So what differs for a while and is
mended, as a sequence that is turned round and back, is passed over. Names of modules say where it
is, and seldom what it is: that follows from the operations.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED, Adapter
from toytrans.checks.numbers import largest
from toytrans.checks.recording import PRODUCT, Step, recorded
from toytrans.checks.weights_seen import (
    Sizes,
    Weights,
    attention_seen,
    softmax_beside,
    softmaxes_among,
    weights_seen,
)

Kind = Literal[
    "attention",
    "norm",
    "convolution",
    "recurrence",
    "pooling",
    "experts",
    "product",
    "shift",
    "state",
    "length",
    "",
]
"""What a difference may begin in; "" where it cannot be told."""

Context = Callable[[], contextlib.AbstractContextManager[object]]

CONVOLUTION = re.compile(".*conv.*")
RECURRENCE = re.compile(".*(gru|lstm|rnn).*")
NORM = re.compile(".*(layer|batch|group|rms)_norm.*|(var|std)(_mean)?|linalg_vector_norm|norm")
CHOICE = re.compile("topk|sort|argsort|kthvalue|bincount|index_add|index_reduce|scatter_add")
POOLING = re.compile(
    "mean|sum|amax|amin|max|min|prod|median|any|all|logsumexp|cumsum|cumprod|logcumsumexp|cummax|"
    "argmax|.*pool[123]d.*"
)
SHIFT = re.compile(
    "slice|roll|flip|cat|stack|constant_pad_nd|index|gather|index_select|index_put|copy|select|"
    "scatter|unbind|unfold|as_strided|slice_scatter|view|_unsafe_view|reshape"
)
EXPERT = re.compile("expert|moe|router|switch", re.IGNORECASE)


@dataclass(frozen=True)
class Beginning:
    """Where a difference begins. name: of the module, "" for the model itself or where there is
    none; words: that place in words; weights: what is seen of its weights in attention; line: the
    file and line that compute it, "" where only torch's do; closed_in: another attention of the
    same kind that closes what this one shows."""

    kind: Kind
    name: str
    words: str
    weights: dict[str, Any] = field(default_factory=dict)
    line: str = ""
    closed_in: str = ""


def beginning_of(
    model: Adapter,
    before: Ids,
    after: Ids,
    around: tuple[Context, Context],
    place: int,
    changed: list[int],
) -> Beginning | None:
    """Where the answers to two pairs (1, S), (1, T) begin to differ: in the target at one place, or
    before all that is changed, in the source anywhere. around: the contexts in which they are
    asked. changed: places of the target that hold other ids. None where it cannot be followed."""
    if model.facts.pad_side == "left":  # each place is then another one
        return None
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            with around[0]():
                old = recorded(model, before)
            with around[1]():
                new = recorded(model, after)
    except RAISED:  # a foreign model under hooks
        return None
    sizes, twins = Sizes(before, after), _twins(old, new)
    differ = [
        None
        if twin is None
        else differs_where_it_must_not(step.value, new[twin].value, sizes, place, changed)
        for step, twin in zip(old, twins, strict=True)
    ]
    path = _path_to_the_first(old, differ)
    if not path:
        return None
    first = path[-1]
    if SHIFT.fullmatch(old[first].name) and {*softmaxes_among(old)} & {*path[:-1]}:
        return None  # what differs is on the way, in attention of which no axis counts places
    softmax, twin = softmax_beside(old, first), twins[first]
    weights = _weights(old, new, softmax, twins, sizes, place)
    closed_in = _closed_in(model.module, old, new, twins, sizes, place) if weights else {}
    if twin is not None and _are_others_changed(old[first], new[twin]):
        kind: Kind = "state"
    elif softmax is not None and (
        weights
        or first == softmax
        or old[softmax].name == "exp"
        or (softmax < first and PRODUCT.fullmatch(old[first].name))  # weights times values
    ):
        is_closed = bool(weights) and not weights["closed_weight"] and not weights["is_short"]
        kind = "length" if is_closed else "attention"
    else:
        kind = _kind(old, new, path)
    at = old[softmax] if softmax is not None and kind == "attention" else old[first]
    name, words = _named(model.module, at, kind == "attention")
    closed = closed_in.get(weights.get("side", ""), "")
    return Beginning(kind, name, words, weights, at.line, closed)


def _twins(old: list[Step], new: list[Step]) -> list[int | None]:
    """Of each step the number of that which does the same in the other pass; None where there is
    none, because torch takes other ways at other lengths."""
    before, after = ([step.name for step in steps] for steps in (old, new))
    if before == after:
        return [*range(len(old))]
    found: list[int | None] = [None] * len(old)
    for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        found[block.a : block.a + block.size] = range(block.b, block.b + block.size)
    return found


def _weights(
    old: list[Step],
    new: list[Step],
    softmax: int | None,
    twins: list[int | None],
    sizes: Sizes,
    place: int,
) -> dict[str, Any]:
    """What is seen of the weights of a softmax that both passes have."""
    twin = None if softmax is None else twins[softmax]
    if softmax is None or twin is None:
        return {}
    seen = attention_seen(Weights(old, softmax), Weights(new, twin), sizes, place)
    return {} if seen is None else weights_seen(*seen)


def _closed_in(
    module: nn.Module | None,
    old: list[Step],
    new: list[Step],
    twins: list[int | None],
    sizes: Sizes,
    place: int,
) -> dict[str, str]:
    """Of each kind of attention one that closes what must be closed, by its name."""
    found: dict[str, str] = {}
    for softmax in softmaxes_among(old):
        seen = _weights(old, new, softmax, twins, sizes, place)
        if seen and not seen["closed_weight"] and seen["reaches"]:
            found.setdefault(seen["side"], _named(module, old[softmax], is_attention=True)[0])
    return found


def _are_others_changed(old: Step, new: Step) -> bool:
    """Whether other numbers than those that depend on the ids were given to a step."""
    return old.value.shape == new.value.shape and old.others != new.others


# What differs ------------------------------------------------------------------------------------


def differs_where_it_must_not(
    a: Tensor, b: Tensor, sizes: Sizes, place: int, changed: list[int]
) -> bool | None:
    """Whether a result differs where it must not; None where it differs and has no axis of places
    that could tell."""
    if a.shape != b.shape:
        return _begins_otherwise(a, b, sizes)
    moved = _moved(a, b)
    if not bool(moved.any()):
        return False
    if sizes.source[0] != sizes.source[1] or sizes.target[0] != sizes.target[1]:
        return True  # no axis counts what was added, and what was added must not matter
    length = sizes.target[0]
    axes = [axis for axis, size in enumerate(a.shape) if size == length]
    if not axes:
        return None
    is_earlier = bool(changed) and place < min(changed)
    here = [*range(min(changed))] if is_earlier else [place]
    others = [place for place in range(length) if place not in changed]
    return all(_is_moved_at(moved, axis, axes, here, others) for axis in axes)


def _begins_otherwise(a: Tensor, b: Tensor, sizes: Sizes) -> bool | None:
    """Whether results of several lengths differ as far as the shorter one reaches."""
    if a.dim() != b.dim():
        return None
    for axis, both in enumerate(zip(a.shape, b.shape, strict=True)):
        if both[0] != both[1]:
            if both not in (sizes.source, sizes.target):
                return None
            a, b = (x.narrow(axis, 0, min(both)) for x in (a, b))
    return bool(_moved(a, b).any())


def _is_moved_at(
    moved: Tensor, axis: int, axes: list[int], here: list[int], others: list[int]
) -> bool:
    """Whether a result moves at some places, if that axis counts them. On other axes as long, as
    that of keys, places that are changed may move it, so only the others count there."""
    for each in axes:
        index = torch.tensor(here if each == axis else others, device=moved.device)
        moved = moved.index_select(each, index)
    return bool(moved.any())


def _moved(a: Tensor, b: Tensor) -> Tensor:
    """Which numbers differ by more than rounding. NaN is the same as NaN."""
    if not a.is_floating_point() or not b.is_floating_point():
        return a != b
    least, most = tolerances.FIRST_MODULE_SHARE
    share = min(max(least, 100 * torch.finfo(a.dtype).eps), most)
    near = share * largest(torch.where(a.isfinite(), a, 0.0))
    return ~((a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= near))


def _path_to_the_first(steps: list[Step], differ: list[bool | None]) -> list[int]:
    """The first step that differs where it must not and leads to the logits through others that do;
    before it, those without an axis of places that lead to it. Empty where no step does."""
    last = next((n for n in reversed(range(len(steps))) if differ[n]), None)
    if last is None:
        return []
    chain = _ancestors(steps, last, lambda n: differ[n] is not False)
    first = min(n for n in chain if differ[n])
    return sorted(_ancestors(steps, first, lambda n: n in chain))


def _ancestors(steps: list[Step], start: int, counts: Callable[[int], bool]) -> set[int]:
    """A step and those that led to it, as far as they count."""
    found, waiting = {start}, [start]
    while waiting:
        more = {n for n in steps[waiting.pop()].inputs if counts(n)} - found
        found |= more
        waiting += more
    return found


# What kind of thing it is ------------------------------------------------------------------------


def _kind(steps: list[Step], new: list[Step], path: list[int]) -> Kind:
    """What works over places there, as operations and torch's own classes tell; attention is told
    by its softmax elsewhere."""
    *before, last = names = [steps[n].name for n in path]
    inside = [part for n in path for part in steps[n].modules]

    def has(pattern: re.Pattern[str]) -> bool:
        return any(pattern.fullmatch(name) for name in names)

    def runs(*classes: type[nn.Module]) -> bool:
        return any(isinstance(part, classes) for part in inside)

    is_loop = last in ("stack", "cat") and bool({"sigmoid", "tanh", "addmm", "mm"} & {*before})
    if runs(nn.RNNBase, nn.RNNCellBase) or has(RECURRENCE) or is_loop or _turns(steps, new):
        return "recurrence"
    if runs(nn.modules.conv._ConvNd) or has(CONVOLUTION):
        return "convolution"
    if has(NORM) or (has(POOLING) and _standardises(steps, path[-1])):
        return "norm"
    if has(CHOICE) or any(EXPERT.search(type(part).__name__) for part in inside):
        return "experts"
    if has(POOLING):
        return "pooling"
    if has(PRODUCT):
        return "product"
    if has(SHIFT) and steps[path[0]].of_ids:
        return "shift"
    return "length"


def _turns(old: list[Step], new: list[Step]) -> bool:
    """Whether a model loops over places: longer sequences then need more products."""
    count = [sum(bool(PRODUCT.fullmatch(step.name)) for step in steps) for steps in (old, new)]
    return count[0] != count[1]


def _standardises(steps: list[Step], pooled: int) -> bool:
    """Whether what was pooled over places is taken from each of them, or its root is taken."""
    if steps[pooled].name in ("sub", "div"):
        return True
    for follows in (step for step in steps[pooled:] if pooled in step.inputs):
        is_broadcast = follows.value.numel() > steps[pooled].value.numel()
        if (follows.name in ("sub", "rsub") and is_broadcast) or follows.name in ("sqrt", "rsqrt"):
            return True
    return False


def named_place(module: nn.Module | None, step: Step) -> str:
    """The module in which a step ran, in words."""
    return _named(module, step, is_attention="softmax" in step.name)[1]


def _named(module: nn.Module | None, step: Step, is_attention: bool) -> tuple[str, str]:
    """The name of the module in which a step ran, and that in words. Attention is a module with
    others inside."""
    names = {} if module is None else {part: name for name, part in module.named_modules()}
    running = [part for part in step.modules if part in names]
    if is_attention:
        running = [part for part in running if next(part.children(), None) is not None] or running
    name = re.sub(r"^model(\.|$)", "", names[running[-1]] if running else "")
    layer = re.search(r"\.(\d+)\.", f".{name}.")
    if name:
        return name, name + (f" (layer {int(layer[1]) + 1})" if layer else "")
    return "", "" if module is None else f"{type(module).__name__}.forward"
