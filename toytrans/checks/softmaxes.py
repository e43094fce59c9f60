"""Softmax in anybody's code, seen without names: torch's operations are followed on one pass,
from each softmax back to the product of queries and keys, and on to the product with values.

A tensor that depends on the ids has a `History`: what became of it since a matrix of weights, or a
product, made it. Tensors without one are weights, masks and constants. A softmax that is written
out (exp, sum, div) is not seen.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Judged, does_not_apply

VIEWS = re.compile(
    "(_unsafe_)?view(_as_real|_as_complex)?|_reshape_alias|transpose|permute|t|squeeze|unsqueeze|"
    "expand|slice|select|split|split_with_sizes|unbind|unfold|diagonal|as_strided|alias|detach|"
    "lift_fresh|clone|_to_copy|nan_to_num|native_dropout"
)
"""Operations that keep every number, or drop some."""

SLOPES = re.compile(
    "sigmoid|tanh|clamp(_min|_max)?|neg|cat|stack|constant_pad_nd|repeat|index(_select)?|flip"
)
"""Operations through which a factor passes, with slope 1 at 0, but for the sigmoid: a cap is
c tanh(x / c)."""


class History(NamedTuple):
    """What is known of a tensor that depends on the ids.

    factor: of the constant numbers that multiplied it; NaN where something else did. width: of what
    a matrix of weights made it from. inner: of scores, the width over which queries met keys.
    plain: nothing but views and numbers since then. learned: one number was a parameter. biased:
    something was added that is no mask. fills: what closed scores hold. heads: of one row's
    scores. softmax: the number of the softmax that made these weights, or this product of them
    with values (is_context). whole: the tensor as it was made, while it is only viewed.
    mixed: heads were split by a reshape across places.
    """

    factor: float = 1.0
    width: int = 0
    inner: int = 0
    heads: int = 1
    plain: bool = False
    learned: bool = False
    biased: bool = False
    fills: tuple[float, ...] = ()
    softmax: int = -1
    is_context: bool = False
    whole: Tensor | None = None
    mixed: bool = False


@dataclass
class Softmax:
    """A softmax: the module in which it ran, its weights, and the history of its input.

    is_attention: its weights are multiplied with values; is_untouched: as softmax made them;
    sums_keys: over the axis that sums to one, None where that is not known; merged: heads are
    merged by a reshape across places.
    """

    module: nn.Module | None
    weights: Tensor
    scores: History
    is_attention: bool = False
    is_untouched: bool = False
    sums_keys: bool | None = None
    merged: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        queries, keys = self.weights.shape[-2:]
        return queries, keys


class Follower(TorchDispatchMode):
    """Follows what depends on some ids, all of `rows` rows. largest: of all scores q k."""

    sharpened = 1.0
    largest = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: skipping it would import the compiler, which takes longer than all checks."""
        return False

    def __init__(self, rows: int, *ids: Tensor, silent: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows, self.silent = rows, silent
        self.seen: list[Softmax] = []
        self.running: list[nn.Module] = []
        self.known = {id(x): (x, History()) for x in ids}  # the tensor too: its id is then its own
        self.learned: dict[int, Tensor] = {}

    def history(self, value: Any) -> History | None:
        """What is known of a tensor; None for weights, masks and constants."""
        return self.known[id(value)][1] if id(value) in self.known else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:  # which is done before dispatch otherwise
                return func.decompose(*args, **named)
        result = func(*args, **named)
        name = func.overloadpacket.__name__.rstrip("_")
        given = list(tensors_in((args, tuple(named.values()))))
        histories = [history for x in given if (history := self.history(x)) is not None]
        if histories:
            history = self._followed(name, args, named, histories, result)
            for part in tensors_in(result):
                smaller = history.whole is not None and part.numel() != history.whole.numel()
                mine = history._replace(whole=None) if smaller else history
                self.known[id(part)] = (part, mine)
        elif any(isinstance(x, nn.Parameter) or id(x) in self.learned for x in given):
            self.learned |= {id(x): x for x in tensors_in(result) if x.numel() == 1}
        return result

    def _followed(
        self, name: str, args: Any, named: Any, histories: list[History], result: Any
    ) -> History:
        """The history of a result. What is not named here starts anew."""
        if VIEWS.fullmatch(name):
            return histories[0]
        if SLOPES.fullmatch(name):
            factor = histories[0].factor * (0.25 if name == "sigmoid" else 1)
            plain = histories[0].plain and histories[0].inner > 0
            return histories[0]._replace(factor=factor, plain=plain, whole=None)
        if name in ("mul", "div"):
            return self._times(name, args[0], args[1])
        if name in ("add", "sub"):
            factor = float(named.get("alpha", 1)) * (-1 if name == "sub" else 1)
            return self._plus(args[0], args[1], factor)
        if name in ("masked_fill", "where", "index_put"):
            return self._filled(name, args)
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            return self._product(args, named, result)
        if name in ("_softmax", "_safe_softmax"):
            parents = [part for part in self.running if next(part.children(), None) is not None]
            around = parents or self.running
            module = around[-1] if around else None
            self.seen.append(Softmax(module, result.detach(), histories[0]))
            return History(softmax=len(self.seen) - 1, whole=result)
        return History()

    def _times(self, name: str, a: Any, b: Any) -> History:
        mine, other = self.history(a), self.history(b)
        if mine is None and name == "mul":
            a, b, mine, other = b, a, other, mine
        number = _number(b) if other is None else None
        if mine is None:
            return History()
        if number is not None:
            number = 1 / number if name == "div" and number else number
            is_learned = isinstance(b, nn.Parameter) or id(b) in self.learned
            whole = None if mine.whole is None or mine.softmax >= 0 else mine.whole * number
            factor, learned = mine.factor * abs(number), mine.learned or is_learned
            return mine._replace(factor=factor, learned=learned, whole=whole)
        if mine.softmax >= 0 or (other is None and not mine.inner):  # rotary positions
            return mine._replace(plain=False, whole=None)
        if mine.inner:
            return mine._replace(factor=math.nan, whole=None)
        return History()

    def _plus(self, a: Any, b: Any, factor: float) -> History:
        """a + factor b"""
        mine, other = self.history(a), self.history(b)
        if other is not None:
            other = other._replace(factor=other.factor * abs(factor))
        if mine is None or (other is not None and other.inner and not mine.inner):
            a, b, mine, other, factor = b, a, other, mine, 1.0
        assert mine is not None
        if mine.inner:
            return _masked(mine, b if other is None or not other.inner else None, factor)
        if other is None:
            return mine._replace(whole=None)  # a bias of a projection; places
        if not math.isclose(mine.factor, other.factor):
            return History()
        width, plain = max(mine.width, other.width), mine.plain and other.plain
        return History(mine.factor, width, plain=plain, learned=mine.learned or other.learned)

    def _filled(self, name: str, args: Any) -> History:
        """masked_fill(x, mask, value), where(mask, x, y), index_put(x, [mask], value)."""
        if len(args) < 3:
            return History()
        mask, old, new = args[:3] if name == "where" else (args[1], args[0], args[2])
        mask = next(tensors_in(mask))
        if name == "where" and self.history(old) is None:
            old, new, mask = new, old, ~mask
        elif name == "where":
            mask = ~mask
        mine = self.history(old)
        if mine is None:
            return History()
        if not mine.inner or mask.is_floating_point():
            return mine._replace(plain=False, whole=None)
        is_constant = self.history(new) is None and id(new) not in self.learned
        value = _number(new) if is_constant else None
        if value is None:
            return mine._replace(biased=True, whole=None)
        used = (value,) if bool(mask.any()) else ()
        return mine._replace(fills=mine.fills + used, whole=None)

    def _product(self, args: Any, named: Any, result: Tensor) -> History:
        *added, a, b = tensors_in(args)
        mine, other = self.history(a), self.history(b)
        for history, value, axis in ((mine, a, -1), (other, b, -2)):
            if history is not None and history.softmax >= 0 and not history.is_context:
                return self._context(history, value, axis, other if axis == -1 else mine, result)
        if mine is None or other is None:
            of = mine or other
            if of is not None and of.is_context and _is_merged(of.whole, a, self.rows):
                self.seen[of.softmax].merged = True
            is_bare = of is None or of.factor > 0.99  # larger ones scale embeddings, not scores
            return History(width=a.shape[-1], plain=is_bare, whole=result)
        if not added:  # else a mask is among them already
            self.largest = max(self.largest, largest(result.nan_to_num(0.0)))
            if self.sharpened != 1:
                result.mul_(self.sharpened)
        history = History(
            mine.factor * other.factor * float(named.get("alpha", 1)),
            max(mine.width, other.width),
            inner=a.shape[-1],
            heads=max(1, len(result) // self.rows) if result.dim() == 3 else 1,
            plain=mine.plain and other.plain and bool(mine.width and other.width),
            learned=mine.learned or other.learned,
            mixed=_is_split(mine, a, self.rows) or _is_split(other, b.mT, self.rows),
        )
        return _masked(history, added[0], 1) if added else history  # baddbmm(mask, q, k)

    def _context(
        self, weights: History, value: Tensor, axis: int, values: History | None, result: Tensor
    ) -> History:
        """The product of weights with values; with a constant, weights are mixed between heads."""
        if values is None:
            return weights._replace(whole=None)
        attention = self.seen[weights.softmax]
        attention.is_attention = True
        if attention.shape[0] == self.silent:
            result.zero_()
        if weights.whole is not None:
            attention.is_untouched = True
            sums = value.sum(axis).nan_to_num(0.0)
            is_one = ((sums - 1).abs() < tolerances.SUM_OF_WEIGHTS) | (sums == 0)
            attention.sums_keys = attention.sums_keys or bool(is_one.all())
        return History(softmax=weights.softmax, is_context=True, whole=result)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in some arguments, or in what an operation gives."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.is_complex() else None
    return float(value) if isinstance(value, int | float) else None


def _masked(scores: History, added: Any, factor: float) -> History:
    """Scores to which something was added: a mask holds 0 where it is open, and below that one
    number, or large ones."""
    values = torch.as_tensor([] if added is None else added).detach().unique() * factor
    closed = values[values != 0]
    if (
        added is not None
        and len(closed)
        and (len(closed) == 1 or float(closed.max()) < tolerances.CLOSED_SCORE)
    ):
        is_mask = float(closed.max()) < tolerances.CLOSED_SCORE or (
            len(values) == 2 and float(closed) < 0
        )
        if is_mask:
            return scores._replace(fills=(*scores.fills, float(closed.max())), whole=None)
    return scores._replace(biased=True, whole=None)


def _is_split(history: History | None, part: Tensor, rows: int) -> bool:
    """Whether queries or keys (B H, T, Dh) are a projection (B, T, D), read in its own order: no
    axes were swapped, so each head holds pieces of other places."""
    whole = history.whole if history is not None and history.width else None
    if whole is None or part.dim() != 3 or part.shape[1] < 2:
        return False
    heads = whole.shape[-1] // part.shape[-1]
    return heads > 1 and len(part) == rows * heads and _is_read_as(whole, part)


def _is_merged(whole: Tensor | None, merged: Tensor, rows: int) -> bool:
    """Whether heads' outputs (B H, T, Dh) are read in their own order as (B T, H Dh)."""
    if whole is None or whole.shape[-2] < 2:
        return False
    heads = whole.numel() // (rows * whole.shape[-1] * whole.shape[-2])
    same_width = merged.shape[-1] == heads * whole.shape[-1]
    return heads > 1 and same_width and _is_read_as(whole, merged)


def _is_read_as(whole: Tensor, part: Tensor) -> bool:
    """Whether a part is the whole in its own order. Of one number everywhere nobody can tell."""
    if part.numel() != whole.numel() or not bool((part != part.flatten()[0]).any()):
        return False
    return torch.allclose(part, whole.reshape(part.shape).to(part.dtype), equal_nan=True)


class Watching(Protocol):
    """A dispatch mode that knows which modules are running."""

    running: list[nn.Module]

    def __enter__(self) -> Any: ...

    def __exit__(self, *raised: Any) -> Any: ...


@contextlib.contextmanager
def watched(module: nn.Module | None, mode: Watching) -> Iterator[None]:
    """Operations go through a mode, which is told which parts of a module are running. Attention is
    made of products and a softmax meanwhile, whatever kernel the model asks for."""

    def enter(part: nn.Module, _: Any) -> None:
        mode.running.append(part)

    def leave(*_: Any) -> None:
        mode.running.pop()

    fast = torch.backends.mha.get_fastpath_enabled()
    parts = () if module is None else module.modules()
    with contextlib.ExitStack() as stack:
        for part in parts:
            if not isinstance(part, torch.jit.ScriptModule):  # which takes no hooks
                stack.callback(part.register_forward_pre_hook(enter).remove)
                stack.callback(part.register_forward_hook(leave, always_call=True).remove)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(mode)
        yield


@contextlib.contextmanager
def softmaxes_seen(
    module: nn.Module | None, *ids: Tensor, silent: int = 0
) -> Iterator[list[Softmax]]:
    """Every softmax that runs meanwhile on what depends on ids, (B, S) and (B, T), in order. What
    attentions of so many silent queries give is zero."""
    mode = Follower(len(ids[-1]), *ids, silent=silent)
    with watched(module, mode), torch.no_grad():
        yield mode.seen


def softmaxes_of(asked: Asked) -> list[Softmax]:
    """Every softmax of one pass over a batch."""
    return _followed(asked).seen


def _followed(asked: Asked) -> Follower:
    """One pass over a batch."""
    if "followed" not in asked.shared:
        model = asked.model
        src, tgt_in = model.placed(asked.src, asked.tgt_in)
        mode = Follower(len(tgt_in), src, tgt_in)
        with watched(model.module, mode), torch.no_grad(), model.without_dropout():
            model.answer(src, tgt_in)
        asked.shared["followed"] = mode
    found: Follower = asked.shared["followed"]
    return found


class Sharper(Follower):
    """Makes scores q k larger, whatever ids are asked: rows of whole numbers are taken for ids."""

    def __init__(self, factor: float) -> None:
        super().__init__(1)
        self.sharpened = factor

    def history(self, value: Any) -> History | None:
        """The same, where rows of whole numbers are taken for ids."""
        is_ids = isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 2
        return super().history(value) or (History() if is_ids else None)


@contextlib.contextmanager
def scores_as_trained(asked: Asked, sign: int) -> Iterator[None]:
    """Scores q k are as large meanwhile as training makes them, if they are smaller, and have their
    sign or the other. Raises Judged where no scores are seen."""
    try:
        size = _followed(asked).largest
    except Exception:  # some models do not run under a dispatch mode
        size = 0.0
    if not size:
        raise Judged(does_not_apply("no scores of queries and keys are seen"))
    with watched(None, Sharper(sign * max(1.0, tolerances.TRAINED_SCORE / size))):
        yield


def weights_over(softmax: Softmax, queries: int, keys: int) -> Tensor | None:
    """The weights of so many queries over so many keys, (..., Tq, Tk); None where they are laid out
    in another way. They may be filled up behind the keys, to a width that is faster."""
    weights = softmax.weights
    if weights.dim() < 2 or weights.shape[-2] != queries or weights.shape[-1] < keys:
        return None
    return None if bool(weights[..., keys:].any()) else weights[..., :keys]


def module_of(module: nn.Module | None, softmax: Softmax) -> str:
    """The name of the module in which a softmax ran; "" where none is known."""
    names = {} if module is None else {part: name for name, part in module.named_modules()}
    return re.sub(r"^model(\.|$)", "", names.get(softmax.module, ""))
