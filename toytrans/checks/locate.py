"""Of a change that moved what must stay: the module where it first shows, and the smallest pair of
sequences that shows it."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, apart, largest
from toytrans.checks.change import Change
from toytrans.checks.result import CannotJudge
from toytrans.checks.subject import Ids, wider
from toytrans.errors import UserError

MOST_ASKED = 80
"""Calls that are spent on making an example smaller."""

REFUSED = (UserError, CannotJudge, IndexError, RuntimeError)
"""What is raised where an example is no longer answered."""

Place = tuple[int, int]
"""Row and place."""


def first_module(batch: Batch, change: Change) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    module = batch.model.module
    if module is None:
        return ""
    before = change.before or batch.ids
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            with change.around():
                new = _outputs(batch, module, change.ids)
            old = new if change.within else _outputs(batch, module, before)
    except Exception:  # a foreign model under hooks
        return ""
    if [name for name, _ in old] != [name for name, _ in new]:
        return ""
    ids = change.ids if change.within else before
    row = int(change.measure(batch).nan_to_num(1e9).amax(1).argmax())
    sides = [_source_places(batch, change, ids, row), _target_places(change, ids, row)]
    for (name, was), (_, now) in zip(old, new, strict=True):
        values = _compared(sides, ids, change.ids, was, now)
        if values and all(_differ(*pair) for pair in values):
            shown = re.sub(r"^model\.(?=.)", "", name)
            layer = re.search(r"\.(\d+)\.", f".{shown}.")
            where = f"in {shown}" + (f" (layer {int(layer[1]) + 1})" if layer else "")
            own = f"in {type(module).__name__}.forward itself, outside its modules"
            return where if shown else own
    return ""


def _differ(old: Tensor, new: Tensor) -> bool:
    """Whether some are apart by more than rounding."""
    share = min(max(1e-7, 100 * torch.finfo(old.dtype).eps), 1e-2)
    return largest(apart(old, new).nan_to_num(1.0)) > share * largest(old.nan_to_num())


def _outputs(batch: Batch, module: nn.Module, ids: Ids) -> list[tuple[str, Tensor]]:
    """What every module gives to a batch, in the order in which they end."""
    seen: list[tuple[str, Tensor]] = []
    names = {part: name for name, part in module.named_modules()}

    def keep(part: nn.Module, _: Any, output: Any) -> None:
        if (value := _tensor(output)) is not None:
            seen.append((names[part], value.detach().clone()))

    with contextlib.ExitStack() as stack:
        for part in names:
            stack.enter_context(part.register_forward_hook(keep))
        stack.enter_context(batch.copy.without_dropout_and_with_state_kept())
        batch.model.ask(ids.src.clone(), ids.tgt_in.clone(), ids.closed)
    return seen


def _tensor(output: Any) -> Tensor | None:
    """The first tensor of numbers in what a module gives."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if hasattr(output, "values") and callable(output.values):
        output = tuple(output.values())
    parts = output if isinstance(output, tuple | list) else ()
    return next((t for part in parts if (t := _tensor(part)) is not None), None)


def _compared(
    sides: list[list[tuple[Place, Place]]], before: Ids, after: Ids, was: Tensor, now: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The parts of two outputs that must be equal, (N, ...) each: by the places of the source, of
    the target, or of both where its shape fits both."""
    found = []
    for side, places in enumerate(sides):
        old = _batch_first(was, before[side])
        new = _batch_first(now, after[side])
        if old is None or new is None or not places or old.shape[2:] != new.shape[2:]:
            continue
        then, here = (torch.tensor(pairs).T for pairs in zip(*places, strict=True))
        found.append((old[then[0], then[1]], new[here[0], here[1]]))
    return found


def _batch_first(value: Tensor, ids: Tensor | None) -> Tensor | None:
    """An output that is laid out as ids, or time first; None for another."""
    if value.dim() < 3 or ids is None or not ids.numel():
        return None
    if value.shape[:2] == ids.shape:
        return value
    return value.transpose(0, 1) if value.shape[:2] == ids.T.shape else None


def _target_places(change: Change, before: Ids, n: int) -> list[tuple[Place, Place]]:
    """Places of the target before, and in row n after, that must hold the same."""
    width, numbers = before.tgt_in.shape[1], enumerate(change.of[n].tolist())
    return [(divmod(number, width), (n, t)) for t, number in numbers if number >= 0]


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
    appended: list[int]
    place: int

    @property
    def changed(self) -> list[int]:
        """Places of tokens that are others after the change."""
        both = zip(self.tgt, self.other, strict=False)
        return [place for place, (old, new) in enumerate(both) if old != new]

    def smaller(self) -> Iterator["Example"]:
        """Examples with less in them, the bolder cuts first. The target's first token stays."""
        for start, stop in _cuts(1, len(self.tgt)):
            if not start <= self.place < stop:
                yield self._without(start, stop)
        for place in self.changed if len(self.changed) > 1 else ():
            back = [*self.other[:place], self.tgt[place], *self.other[place + 1 :]]
            yield replace(self, other=back)
        for start, stop in _cuts(0, len(self.src) - 1):
            yield replace(self, src=self.src[:start] + self.src[stop:])
        if self.place:
            yield replace(self._without(self.place, self.place + 1), place=self.place - 1)

    def _without(self, start: int, stop: int) -> "Example":
        """The same without the target's tokens from start to stop."""
        tgt, other = (ids[:start] + ids[stop:] for ids in (self.tgt, self.other))
        place = self.place - (stop - start if self.place >= stop else 0)
        return replace(self, tgt=tgt, other=other, place=place)


def _cuts(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges between two places: the whole, its halves, their halves, down to single places."""
    size = end - first
    while size > 0:
        yield from ((start, min(start + size, end)) for start in range(first, end, size))
        size //= 2


def smallest(batch: Batch, change: Change) -> str:
    """A pair of the failing batch, made as short as it still fails, in words; "" for none."""
    if change.ids.closed is not None:
        return ""
    try:
        with torch.no_grad():
            return _smallest(batch, change)
    except REFUSED:
        return ""


def _smallest(batch: Batch, change: Change) -> str:
    facts, moved = batch.facts, change.measure(batch).nan_to_num(1e9)
    n, t = divmod(int(moved.argmax()), moved.shape[1])
    before = change.ids if change.within else change.before or batch.ids
    row, place = divmod(int(change.of[n, t]), before.tgt_in.shape[1])
    src, tgt_in = change.ids.src[n][None], change.ids.tgt_in[n][None]
    real = facts.real_inputs(before.tgt_in)[row]
    longer = src.shape[1] - before.src.shape[1], tgt_in.shape[1] - before.tgt_in.shape[1]
    example = Example(
        before.src[row][facts.real_source(before.src)[row]].tolist(),
        before.tgt_in[row][real].tolist(),
        tgt_in[facts.real_inputs(tgt_in)].tolist(),
        [max(0, pads) for pads in longer],
        int(real[:place].sum()),
    )

    def by(example: Example) -> float:
        """How far the output of an example moves."""
        alone, tgt, other = (
            torch.tensor([ids], dtype=torch.int64)
            for ids in (example.src, example.tgt, example.other)
        )
        longer = wider(alone, example.appended[0], facts.source_pad)
        left = facts.pad_side == "left"
        other = wider(other, example.appended[1], facts.pad_id, left)
        with change.around():
            new = batch.ask(longer, other)[0, example.place + example.appended[1] * left]
        return float(batch.moved(new, batch.ask(alone, tgt)[0, example.place]).nan_to_num(1e9))

    budget, going = MOST_ASKED, by(example) > batch.tolerance
    if not going:
        where = f"in row {n} of {len(moved)}"
        if len(moved) == 1 and len(before.src) > 1:
            where = f"alone and in row {row} of the batch"
        return f"{_shown(batch, src, tgt_in)} {where}: {float(moved[n, t]):.2g} apart"
    while going and budget > 0:
        going = False
        for smaller in example.smaller():
            budget -= 1
            with contextlib.suppress(*REFUSED):
                if by(smaller) > batch.tolerance:
                    example, going = smaller, True
                    break
    return _told(batch, example, by(example))


def _told(batch: Batch, example: Example, by: float) -> str:
    """An example in words."""
    what = [
        f"token {place} from {example.tgt[place]} to {example.other[place]}"
        for place in example.changed
    ]
    left = batch.facts.pad_side == "left"
    sides = ("behind src", f"{'before' if left else 'behind'} {_target(batch)}")
    for count, side in zip(example.appended, sides, strict=True):
        what += [f"{count} pad{'s' * (count > 1)} {side}"] if count else []
    if len(example.other) < len(example.tgt):
        what.append(f"its first {len(example.other)} alone")
    shown = _shown(batch, torch.tensor([example.src]), torch.tensor([example.tgt]))
    changed = " and ".join(what) or "asked so"
    return f"{shown}: {changed}, and output {example.place} moves by {by:.2g}"


def _target(batch: Batch) -> str:
    return "tgt_in" if batch.facts.has_source else "ids"


def _shown(batch: Batch, src: Tensor, tgt_in: Tensor) -> str:
    target = f"{_target(batch)} {tgt_in[0].tolist()}"
    return f"src {src[0].tolist()}, {target}" if batch.facts.has_source else target
