"""Of a change that moved what must stay: the module and heads where it first shows, and the
smallest pair of sequences that shows it."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, apart, largest
from toytrans.checks.change import Change
from toytrans.checks.subject import Ids
from toytrans.checks.sublayers import ATTENTION_END
from toytrans.errors import UserError

HEADS = ("num_heads", "n_heads", "num_attention_heads", "nhead", "heads", "n_head")
MOST_ASKED = 60
"""Calls that are spent on making an example smaller."""

Place = tuple[int, int]
"""Row and place."""


class ModuleOutput(NamedTuple):
    """A module's output, and the input of the last matrix of an attention."""

    name: str
    value: Tensor
    context: Tensor | None


def first_module(batch: Batch, change: Change) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    module = batch.model.module
    if module is None:
        return ""
    before = change.before or batch.ids
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            after = _outputs(batch, module, change)
            old = after if change.within else _outputs(batch, module, before)
    except Exception:  # a foreign model under hooks
        return ""
    if [seen.name for seen in old] != [seen.name for seen in after]:
        return ""
    ids = change.ids if change.within else before
    row = int(change.measure(batch).nan_to_num(1e9).amax(1).argmax())
    pairs = [_source_places(batch, change, ids, row), _target_places(change, ids, row)]
    for was, now in zip(old, after, strict=True):
        values = _compared(pairs, ids, change.ids, was.value, now.value)
        if not values or not all(_differ(*pair) for pair in values):
            continue
        contexts = []
        if was.context is not None and now.context is not None:
            contexts = _compared(pairs, ids, change.ids, was.context, now.context)
        return _in_words(module, was.name, contexts[-1] if contexts else None)
    return ""


def _differ(old: Tensor, new: Tensor) -> bool:
    by = largest(apart(old, new).nan_to_num(1.0))
    return by > _rounding(old) * max(largest(old.nan_to_num()), 1e-30)


def _rounding(value: Tensor) -> float:
    """The share of the largest number that rounding may move, by dtype."""
    return min(max(1e-7, 100 * torch.finfo(value.dtype).eps), 1e-2)


def _in_words(module: nn.Module, name: str, context: tuple[Tensor, Tensor] | None) -> str:
    """A module by its name and layer, and which heads of an attention differ."""
    shown = re.sub(r"^model\.(?=.)", "", name)
    if not shown:
        return f"in {type(module).__name__}.forward itself, outside its modules"
    layer = re.search(r"\.(\d+)\.", f".{shown}.")
    where = f"in {shown}" + (f" (layer {int(layer[1]) + 1})" if layer else "")
    parent = module.get_submodule(name.rpartition(".")[0])
    counts = (getattr(parent, name, None) for name in HEADS)
    count = next((number for number in counts if isinstance(number, int)), 0)
    if context is None or count < 2 or context[0].shape[-1] % count:
        return where
    by = [largest(part.nan_to_num(1.0)) for part in apart(*context).chunk(count, -1)]
    least = _rounding(context[0]) * max(max(by), 1e-30)
    heads = [str(head) for head, value in enumerate(by) if value > least]
    if not heads:
        return where
    return f"{where}, {'all heads' if len(heads) == count else 'head ' + ', '.join(heads)}"


def _outputs(batch: Batch, module: nn.Module, asked: Change | Ids) -> list[ModuleOutput]:
    """What every module gives to a batch, in the order in which they end."""
    seen: list[ModuleOutput] = []

    def hook(name: str, is_end: bool) -> Callable[..., None]:
        def keep(_: nn.Module, given: Any, output: Any) -> None:
            value = _tensor(output)
            if value is not None:
                context = given[0].detach().clone() if is_end and given else None
                seen.append(ModuleOutput(name, value.detach().clone(), context))

        return keep

    with contextlib.ExitStack() as stack:
        ids = asked.ids if isinstance(asked, Change) else asked
        if isinstance(asked, Change):
            stack.enter_context(asked.around())
        for name, part in module.named_modules():
            is_end = bool(ATTENTION_END.search(name))
            stack.enter_context(part.register_forward_hook(hook(name, is_end)))
        stack.enter_context(batch.copy.without_dropout_and_with_state_kept())
        src, tgt_in, closed = ids
        batch.model.ask(src.clone(), tgt_in.clone(), closed)
    return seen


def _tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, tuple | list):
        return next((t for part in output if (t := _tensor(part)) is not None), None)
    if hasattr(output, "values") and callable(output.values):
        return next((t for part in output.values() if (t := _tensor(part)) is not None), None)
    return None


def _compared(
    pairs: list[list[tuple[Place, Place]]], before: Ids, after: Ids, *values: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The parts of two outputs that must be equal, (N, ...) each: by the places of the source, of
    the target, or of both where its shape fits both."""
    found = []
    for side in (0, 1):
        old, new = (
            _batch_first(value, tuple(ids[side].shape))  # type: ignore[union-attr]
            for value, ids in zip(values, (before, after), strict=True)
        )
        if old is None or new is None or not pairs[side] or old.shape[2:] != new.shape[2:]:
            continue
        was, now = (torch.tensor(places).T for places in zip(*pairs[side], strict=True))
        found.append((old[was[0], was[1]], new[now[0], now[1]]))
    return found


def _batch_first(value: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    if value.dim() < 3 or 0 in shape:
        return None
    if tuple(value.shape[:2]) == shape:
        return value
    return value.transpose(0, 1) if tuple(value.shape[:2]) == shape[::-1] else None


def _target_places(change: Change, before: Ids, n: int) -> list[tuple[Place, Place]]:
    """Places of the target before, and in row n after, that must hold the same."""
    width = before.tgt_in.shape[1]
    return [
        (divmod(number, width), (n, t)) for t, number in enumerate(change.of[n].tolist())
        if number >= 0
    ]  # fmt: skip


def _source_places(batch: Batch, change: Change, before: Ids, n: int) -> list[tuple[Place, Place]]:
    """The real places of the source, which no change alters, before and after."""
    if not batch.facts.has_source:
        return []
    row = int(change.of[n].max()) // before.tgt_in.shape[1]
    old, new = (
        batch.facts.real_source(ids.src)[at].nonzero()[:, 0].tolist()
        for ids, at in ((before, row), (change.ids, n))
    )
    return [((row, p), (n, q)) for p, q in zip(old, new, strict=False)]


# The smallest example --------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A pair before and after a change, without pads but for those that are appended.

    src: ids of the source. tgt, other: ids of the target before and after, the latter may be
    shorter. appended: pads behind source and target. place: of the output that moves.
    """

    src: list[int]
    tgt: list[int]
    other: list[int]
    appended: tuple[int, int]
    place: int

    def without(self, start: int, stop: int) -> "Example":
        """The same without the target's tokens from start to stop."""
        cut = [ids[:start] + ids[stop:] for ids in (self.tgt, self.other)]
        place = self.place - (stop - start) * (self.place >= stop)
        return replace(self, tgt=cut[0], other=cut[1], place=place)

    @property
    def changed(self) -> list[int]:
        """Places of tokens that are others after the change."""
        both = zip(self.tgt, self.other, strict=False)
        return [place for place, (old, new) in enumerate(both) if old != new]

    def smaller(self, symbols: Tensor) -> Iterator["Example"]:
        """Examples with less in them, the bolder cuts first."""
        last = max([self.place, *self.changed])
        is_prefix = len(self.other) < len(self.tgt)
        if is_prefix and len(self.other) > self.place + 1:
            yield replace(self, other=self.other[: self.place + 1])
        if is_prefix and len(self.tgt) > len(self.other) + 1:
            yield replace(self, tgt=self.tgt[: len(self.other) + 1])
        if not is_prefix and len(self.tgt) > last + 1:
            yield self.without(last + 1, len(self.tgt))
        if len(self.changed) > 1:
            for place in self.changed[::-1]:
                back = [*self.other[:place], self.tgt[place], *self.other[place + 1 :]]
                yield replace(self, other=back)
        free = [p for p in range(1, last) if p != self.place and p not in self.changed]
        if len(free) > 1 and free[-1] - free[0] == len(free) - 1:
            yield self.without(free[0], free[len(free) // 2])
        for place in free[:2]:
            yield self.without(place, place + 1)
        if self.place > 0 and self.place not in self.changed:
            yield replace(self.without(self.place, self.place + 1), place=self.place - 1)
        known = set(symbols.tolist())
        for cut in dict.fromkeys((len(self.src) // 2, 1)):
            if cut and known & set(self.src[cut:]):
                yield replace(self, src=self.src[cut:])


def smallest(batch: Batch, change: Change) -> str:
    """A pair of the failing batch, made as short as it still fails, in words; "" for none."""
    try:
        with torch.no_grad():
            return _smallest(batch, change)
    except (UserError, IndexError, RuntimeError):  # it no longer answers
        return ""


def _smallest(batch: Batch, change: Change) -> str:
    moved = change.measure(batch).nan_to_num(1e9)
    n, t = divmod(int(moved.argmax()), moved.shape[1])
    before = change.ids if change.within else change.before or batch.ids
    row, place = divmod(int(change.of[n, t]), before.tgt_in.shape[1])
    pair = Ids(change.ids.src[n][None], change.ids.tgt_in[n][None])
    fallback = f"{_shown(batch, *pair[:2])} in row {n} of {len(moved)}"
    if len(moved) == 1 and len(before.src) > 1:
        fallback = f"{_shown(batch, *pair[:2])} alone and in row {row} of the batch"
    fallback += f": {float(moved[n, t]):.2g} apart"
    if change.ids.closed is not None or batch.facts.equal_lengths:
        return ""
    real = batch.facts.real_inputs(before.tgt_in)[row]
    inside = batch.facts.real_inputs(pair.tgt_in)[0]
    source = batch.facts.real_source(before.src)[row]
    example = Example(
        before.src[row][source].tolist(),
        before.tgt_in[row][real].tolist(),
        pair.tgt_in[0][inside].tolist(),
        tuple(
            max(0, new.shape[1] - old.shape[1])
            for old, new in zip(before[:2], pair[:2], strict=True)
        ),  # type: ignore[arg-type]
        int(real[:place].sum()),
    )

    def fails(example: Example) -> float:
        src, tgt = torch.tensor([example.src]), torch.tensor([example.tgt])
        if not batch.facts.has_source:
            src = before.src[:1]
        other, facts = torch.tensor([example.other]), batch.facts
        wide = nn.functional.pad(src, (0, example.appended[0]), value=facts.source_pad)
        left = facts.pad_side == "left"
        behind = (example.appended[1], 0) if left else (0, example.appended[1])
        other = nn.functional.pad(other, behind, value=facts.pad_id)
        shift = example.appended[1] * left
        with change.around():
            new = batch.ask(wide, other)[0, example.place + shift]
        return float(batch.moved(new, batch.ask(src, tgt)[0, example.place]).nan_to_num(1e9))

    budget, going = MOST_ASKED, fails(example) > batch.tolerance
    if not going:
        return fallback
    while going and budget > 0:
        going = False
        for smaller in example.smaller(batch.symbols):
            budget -= 1
            with contextlib.suppress(UserError, IndexError, RuntimeError):
                if fails(smaller) > batch.tolerance:
                    example, going = smaller, True
                    break
    return _told(batch, example, fails(example))


def _told(batch: Batch, example: Example, by: float) -> str:
    """An example in words."""
    src, tgt = torch.tensor([example.src]), torch.tensor([example.tgt])
    shown = _shown(batch, src, tgt)
    names = ("src", "tgt_in" if batch.facts.has_source else "them")
    where = "before" if batch.facts.pad_side == "left" else "behind"
    what = [
        f"token {place} from {example.tgt[place]} to {example.other[place]}"
        for place in example.changed
    ]
    what += [
        f"{count} pad{'s' * (count > 1)} {where if name != 'src' else 'behind'} {name}"
        for count, name in zip(example.appended, names, strict=True)
        if count
    ]
    if len(example.other) < len(example.tgt):
        what.append(f"its first {len(example.other)} alone")
    changed = " and ".join(what) or "asked so"
    return f"{shown}: {changed}, and output {example.place} moves by {by:.2g}"


def _shown(batch: Batch, src: Tensor, tgt_in: Tensor) -> str:
    target = f"tgt_in {tgt_in[0].tolist()}"
    has_source = batch.facts.has_source
    return f"src {src[0].tolist()}, {target}" if has_source else f"ids {tgt_in[0].tolist()}"
