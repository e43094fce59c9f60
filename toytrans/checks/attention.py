"""Attention in anybody's code, seen without names: torch's operations are followed on one pass,
from each softmax back to the product of queries and keys, and on to the product with values.

A tensor that depends on the ids has a `Trace`: what became of it since a matrix of weights, or a
product, made it. Tensors without one are weights, masks and constants. A softmax that is written
out (exp, sum, div) is not seen.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from toytrans.checks.batch import Batch
from toytrans.checks.result import Result, Told, measured, unsure

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

MASKED = -10.0
"""A score below it gets no weight to speak of."""


class Trace(NamedTuple):
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
class Attention:
    """A softmax: the module in which it ran, its weights, and the trace of its input. is_attention:
    its weights are multiplied with values; is_untouched: as softmax made them; sums_keys: over the
    axis that sums to one, None where that is not known; merged: heads are merged by a reshape
    across places."""

    module: nn.Module | None
    weights: Tensor
    scores: Trace
    is_attention: bool = False
    is_untouched: bool = False
    sums_keys: bool | None = None
    merged: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        queries, keys = self.weights.shape[-2:]
        return queries, keys


class Seeing(TorchDispatchMode):
    """Follows what depends on some ids, all of `rows` rows."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: skipping it would import the compiler, which takes longer than all checks."""
        return False

    def __init__(self, rows: int, *ids: Tensor, silent: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows, self.silent = rows, silent
        self.seen: list[Attention] = []
        self.running: list[nn.Module] = []
        self.known = {id(x): (x, Trace()) for x in ids}  # the tensor too: its id is then its own
        self.learned: dict[int, Tensor] = {}

    def trace(self, value: Any) -> Trace | None:
        return self.known[id(value)][1] if id(value) in self.known else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:  # which is done before dispatch otherwise
                return func.decompose(*args, **named)
        result = func(*args, **named)
        name = func.overloadpacket.__name__.rstrip("_")
        given = list(_tensors((args, tuple(named.values()))))
        traces = [trace for x in given if (trace := self.trace(x)) is not None]
        if traces:
            trace = self._followed(name, args, named, traces, result)
            for part in _tensors(result):
                smaller = trace.whole is not None and part.numel() != trace.whole.numel()
                mine = trace._replace(whole=None) if smaller else trace
                self.known[id(part)] = (part, mine)
        elif any(isinstance(x, nn.Parameter) or id(x) in self.learned for x in given):
            self.learned |= {id(x): x for x in _tensors(result) if x.numel() == 1}
        return result

    def _followed(
        self, name: str, args: Any, named: Any, traces: list[Trace], result: Any
    ) -> Trace:
        """The trace of a result. What is not named here starts anew."""
        if VIEWS.fullmatch(name):
            return traces[0]
        if SLOPES.fullmatch(name):
            factor = traces[0].factor * (0.25 if name == "sigmoid" else 1)
            plain = traces[0].plain and traces[0].inner > 0
            return traces[0]._replace(factor=factor, plain=plain, whole=None)
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
            self.seen.append(Attention(module, result.detach(), traces[0]))
            return Trace(softmax=len(self.seen) - 1, whole=result)
        return Trace()

    def _times(self, name: str, a: Any, b: Any) -> Trace:
        mine, other = self.trace(a), self.trace(b)
        if mine is None and name == "mul":
            a, b, mine, other = b, a, other, mine
        number = _number(b) if other is None else None
        if mine is None:
            return Trace()
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
        return Trace()

    def _plus(self, a: Any, b: Any, factor: float) -> Trace:
        """a + factor b"""
        mine, other = self.trace(a), self.trace(b)
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
            return Trace()
        width, plain = max(mine.width, other.width), mine.plain and other.plain
        return Trace(mine.factor, width, plain=plain, learned=mine.learned or other.learned)

    def _filled(self, name: str, args: Any) -> Trace:
        """masked_fill(x, mask, value), where(mask, x, y), index_put(x, [mask], value)."""
        if len(args) < 3:
            return Trace()
        mask, old, new = args[:3] if name == "where" else (args[1], args[0], args[2])
        mask = next(_tensors(mask))
        if name == "where" and self.trace(old) is None:
            old, new, mask = new, old, ~mask
        elif name == "where":
            mask = ~mask
        mine = self.trace(old)
        if mine is None:
            return Trace()
        if not mine.inner or mask.is_floating_point():
            return mine._replace(plain=False, whole=None)
        is_constant = self.trace(new) is None and id(new) not in self.learned
        value = _number(new) if is_constant else None
        if value is None:
            return mine._replace(biased=True, whole=None)
        used = (value,) if bool(mask.any()) else ()
        return mine._replace(fills=mine.fills + used, whole=None)

    def _product(self, args: Any, named: Any, result: Tensor) -> Trace:
        *added, a, b = _tensors(args)
        mine, other = self.trace(a), self.trace(b)
        for trace, value, axis in ((mine, a, -1), (other, b, -2)):
            if trace is not None and trace.softmax >= 0 and not trace.is_context:
                return self._context(trace, value, axis, other if axis == -1 else mine, result)
        if mine is None or other is None:
            of = mine or other
            if of is not None and of.is_context and _is_merged(of.whole, a, self.rows):
                self.seen[of.softmax].merged = True
            is_bare = of is None or of.factor > 0.99  # larger ones scale embeddings, not scores
            return Trace(width=a.shape[-1], plain=is_bare, whole=result)
        trace = Trace(
            mine.factor * other.factor * float(named.get("alpha", 1)),
            max(mine.width, other.width),
            inner=a.shape[-1],
            heads=max(1, len(result) // self.rows) if result.dim() == 3 else 1,
            plain=mine.plain and other.plain and bool(mine.width and other.width),
            learned=mine.learned or other.learned,
            mixed=_is_split(mine, a, self.rows) or _is_split(other, b.mT, self.rows),
        )
        return _masked(trace, added[0], 1) if added else trace  # baddbmm(mask, q, k)

    def _context(
        self, weights: Trace, value: Tensor, axis: int, values: Trace | None, result: Tensor
    ) -> Trace:
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
            is_one = ((sums - 1).abs() < 0.05) | (sums == 0)
            attention.sums_keys = attention.sums_keys or bool(is_one.all())
        return Trace(softmax=weights.softmax, is_context=True, whole=result)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.is_complex() else None
    return float(value) if isinstance(value, int | float) else None


def _masked(scores: Trace, added: Any, factor: float) -> Trace:
    """Scores to which something was added: a mask holds 0 where it is open, and below that one
    number, or large ones."""
    values = torch.as_tensor([] if added is None else added).detach().unique() * factor
    closed = values[values != 0]
    if added is not None and len(closed) and (len(closed) == 1 or float(closed.max()) < MASKED):
        is_mask = float(closed.max()) < MASKED or (len(values) == 2 and float(closed) < 0)
        if is_mask:
            return scores._replace(fills=(*scores.fills, float(closed.max())), whole=None)
    return scores._replace(biased=True, whole=None)


def _is_split(trace: Trace | None, part: Tensor, rows: int) -> bool:
    """Whether queries or keys (B H, T, Dh) are a projection (B, T, D), read in its own order: no
    axes were swapped, so each head holds pieces of other places."""
    whole = trace.whole if trace is not None and trace.width else None
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


@contextlib.contextmanager
def attention_seen(
    module: nn.Module | None, *ids: Tensor, silent: int = 0
) -> Iterator[list[Attention]]:
    """Every softmax that runs meanwhile on what depends on ids, (B, S) and (B, T), in order. What
    attentions of so many silent queries give is zero."""
    mode = Seeing(len(ids[-1]), *ids, silent=silent)

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
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # which is made of products and a softmax
        with mode, torch.no_grad():
            yield mode.seen


# What they are judged by ------------------------------------------------------------------------


def attentions(batch: Batch) -> list[Attention]:
    """Every softmax of one pass."""
    if "attentions" not in batch.kept:
        src, tgt_in = batch.src.clone(), batch.tgt_in.clone()
        with (
            attention_seen(batch.model.module, src, tgt_in) as batch.kept["attentions"],
            batch.model.without_dropout(),
        ):
            batch.model.answer(src, tgt_in)
    found: list[Attention] = batch.kept["attentions"]
    return found


def attention_is_right(batch: Batch) -> Result:
    """Scores are q k / root of the head's width (Vaswani et al. 2017, equation 1), closed ones
    hold a number that closes, and softmax sums over the keys."""
    seen = attentions(batch)
    found = [attention for attention in seen if attention.is_attention and attention.scores.inner]
    if not found:
        raise Told(
            "does not apply",
            "no softmax is of a product of queries and keys, as in additive attention"
            if any(attention.is_attention for attention in seen)
            else "no softmax of torch's gives weights of values: there is none, or it is written "
            "out",
        )
    doubts = []
    for is_leak in (True, False):
        faults = []
        for attention in found:
            try:
                fault = _leak(attention) if is_leak else _wrong_scale(batch, attention)
            except Told as doubt:
                doubts.append(f"{_where(batch, attention)}{doubt}")
                continue
            faults += [f"{_where(batch, attention)}{fault}"] if fault else []
        if faults:
            count = f" ({len(faults)} of {len(found)} attentions)" if len(faults) > 1 else ""
            return measured(len(faults), 0.0, "", faults[0] + count, explains=is_leak)
    if doubts:
        raise unsure(doubts[0])
    fills = sorted({fill for a in found for fill in a.scores.fills}, reverse=True)
    closed = f", closed ones hold {', '.join(f'{x:.3g}' for x in fills)}" if fills else ""
    wanted = "1 / root of d_head" if batch.facts.scale is None else f"{batch.facts.scale:g}"
    count = f"{len(found)} attention{'s' * (len(found) > 1)}"
    evidence = f"{count}: scores are q k times {wanted}{closed}; softmax over keys"
    return measured(0.0, 0.0, evidence, "")


def _leak(attention: Attention) -> str:
    """What lets an attention see what its masks should close."""
    scores = attention.scores
    if scores.mixed or attention.merged:
        return (
            "heads are split or merged by a reshape alone, which mixes them with places; "
            "view(B, T, H, d).transpose(1, 2) splits, transpose(1, 2).reshape(B, T, H * d) merges"
        )
    if attention.sums_keys is False:
        return (
            "softmax runs over another axis than the keys: the weights of a query do not sum to "
            "one; is it softmax(-1)?"
        )
    if attention.is_untouched and scores.fills and min(scores.fills) > MASKED:
        fill = min(scores.fills)
        return f"closed scores hold {fill:g}, which closes nothing; fill with -inf or -1e9"
    return ""


def _wrong_scale(batch: Batch, attention: Attention) -> str:
    """A wrong scale that is known as a mistake, in words; "" for the right one. Raises Told
    for another, which may be meant, as all those of Hugging Face's layers, which hold what their
    config says."""
    scores, facts = attention.scores, batch.facts

    def near(wanted: float) -> bool:
        return math.isclose(
            scores.factor, wanted, rel_tol=0.01
        )  # but for half precision's rounding

    wanted = scores.inner**-0.5 if facts.scale is None else facts.scale
    if scores.learned:
        raise unsure("a learned number scales the scores, so no other is wanted")
    if near(wanted):
        return ""
    is_said = f"scores are q k times {scores.factor:.3g}"
    if facts.scale is not None:
        return f"{is_said}, and scale={wanted:g} was given"
    right = f"1 / root of the head's width {scores.inner} is {wanted:.3g}"
    meant = "" if facts.is_textbook else f"; if that is meant, give scale={scores.factor:.3g}"
    if not type(attention.module).__module__.startswith("transformers."):
        for width in (scores.width, scores.inner * scores.heads):
            if width != scores.inner and width and near(width**-0.5):
                return f"{is_said}, 1 / root of the model's width {width}; {right}{meant}"
        if near(1 / scores.inner):
            return f"{is_said}; {right}: scaled twice, or by the width in place of its root?{meant}"
        if near(scores.inner**0.5):
            return f"{is_said}; {right}: multiplied in place of divided?{meant}"
        has_heads = scores.heads > 1 or scores.inner < scores.width
        if near(1) and scores.plain and has_heads and not scores.biased:
            return f"nothing scales the scores q k; {right}{meant}"
    if facts.is_textbook:
        return f"{is_said}; {right}"
    if math.isnan(scores.factor):
        raise unsure("the scores are multiplied with more than numbers: their scale is unknown")
    raise unsure(f"{is_said}; {right}. T5, Luong's attention and norms of queries differ{meant}")


def _where(batch: Batch, attention: Attention) -> str:
    """The module of an attention, as "decoder.0.self_attn: "; "" where none is known."""
    module = batch.model.module
    names = {} if module is None else {part: name for name, part in module.named_modules()}
    name = re.sub(r"^model(\.|$)", "", names.get(attention.module, ""))
    return f"{name}: " if name else ""
