"""Of a change that moved what must stay: the module where it first shows, and the smallest pair of
sequences that shows it."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, apart, largest
from toytrans.checks.changes import Change
from toytrans.checks.result import CannotJudge
from toytrans.checks.subject import Ids, wider
from toytrans.errors import UserError

REFUSED = (UserError, CannotJudge, IndexError, RuntimeError)
"""What is raised where an example is no longer answered."""


def first_module(batch: Batch, change: Change) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    facts, module = batch.facts, batch.model.module
    if module is None:
        return ""
    before, ids = change.before or batch.ids, change.ids
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            with change.around():
                new = _outputs(batch, module, ids)
            old = new if change.before is ids else _outputs(batch, module, before)
    except Exception:  # a foreign model under hooks
        return ""
    if [name for name, _ in old] != [name for name, _ in new]:
        return ""
    # the numbers of places that must hold the same before and after: of the target, of the source
    row = int(change.measure(batch).nan_to_num(1e9).amax(1).argmax())
    here = (change.of[row] >= 0).nonzero()[:, 0]
    was_row = int(change.of[row].max()) // before.tgt_in.shape[1]
    places = [(change.of[row][here], here + row * ids.tgt_in.shape[1])]
    if facts.has_source:
        rows = (before.src[was_row, None], ids.src[row, None])
        real = [facts.real_source(src)[0].nonzero()[:, 0] for src in rows]
        count = min(map(len, real))
        numbers = was_row * before.src.shape[1], row * ids.src.shape[1]
        places.append((real[0][:count] + numbers[0], real[1][:count] + numbers[1]))
    for (name, was), (_, now) in zip(old, new, strict=True):
        differ = []
        for (then, here), side in zip(places, (1, 0), strict=False):
            first, second = _at(was, before[side], then), _at(now, ids[side], here)
            if first is not None and second is not None and first.shape == second.shape:
                share = min(max(1e-7, 100 * torch.finfo(was.dtype).eps), 1e-2)
                by = largest(apart(first, second).nan_to_num(1.0))
                differ.append(by > share * largest(first.nan_to_num()))
        if differ and all(differ):
            shown = re.sub(r"^model\.(?=.)", "", name)
            layer = re.search(r"\.(\d+)\.", f".{shown}.")
            where = f"in {shown}" + (f" (layer {int(layer[1]) + 1})" if layer else "")
            own = f"in {type(module).__name__}.forward itself, outside its modules"
            return where if shown else own
    return ""


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
        batch.model.ask(*ids)
    return seen


def _tensor(output: Any) -> Tensor | None:
    """The first tensor of numbers in what a module gives."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if hasattr(output, "values") and callable(output.values):
        output = tuple(output.values())
    parts = output if isinstance(output, tuple | list) else ()
    return next((t for part in parts if (t := _tensor(part)) is not None), None)


def _at(value: Tensor, ids: Tensor | None, numbers: Tensor) -> Tensor | None:
    """An output at some numbered places of ids, (N, ...); None where it is laid out neither as
    they are nor time first, or where there are no places."""
    if ids is None or value.dim() < 3 or not len(numbers):
        return None
    if value.shape[:2] != ids.shape:
        value = value.transpose(0, 1)
    return value.flatten(0, 1)[numbers] if value.shape[:2] == ids.shape else None


# The smallest example --------------------------------------------------------------------------


class Example(NamedTuple):
    """A pair before and after a change, without pads but for those that are appended.

    src: ids of the source. tgt, other: ids of the target before and after, the latter may be
    shorter. place: of the output that moves.
    """

    src: list[int]
    tgt: list[int]
    other: list[int]
    place: int

    @property
    def changed(self) -> list[int]:
        """Places of tokens that are others after the change."""
        both = zip(self.tgt, self.other, strict=False)
        return [place for place, (old, new) in enumerate(both) if old != new]

    def smaller(self) -> Iterator["Example"]:
        """Examples with less in them, the bolder cuts first. The target's first token stays."""

        def without(start: int, stop: int, place: int) -> Example:
            tgt, other = (ids[:start] + ids[stop:] for ids in (self.tgt, self.other))
            return Example(self.src, tgt, other, place - (stop - start) * (place >= stop))

        for start, stop in _cuts(1, len(self.tgt)):
            if not start <= self.place < stop:
                yield without(start, stop, self.place)
        for place in self.changed if len(self.changed) > 1 else ():
            other = [*self.other[:place], self.tgt[place], *self.other[place + 1 :]]
            yield self._replace(other=other)
        for start, stop in _cuts(0, len(self.src) - 1):
            yield self._replace(src=self.src[:start] + self.src[stop:])
        if self.place:
            yield without(self.place, self.place + 1, self.place - 1)


def _cuts(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges between two places: the whole, its halves, their halves, down to single places."""
    size = end - first
    while size > 0:
        yield from ((start, min(start + size, end)) for start in range(first, end, size))
        size //= 2


@torch.no_grad()
def smallest(batch: Batch, change: Change) -> str:
    """A pair of the failing batch, made as short as it still fails, in words; "" for none."""
    if change.ids.closed is not None:
        return ""
    facts, moved = batch.facts, change.measure(batch)
    nan = 1e9 if bool(moved.isnan().any()) else -1.0  # an example shows the same kind of failure
    moved = moved.nan_to_num(1e9)
    n, t = divmod(int(moved.argmax()), moved.shape[1])
    before, ids = change.before or batch.ids, change.ids
    row, place = divmod(int(change.of[n, t]), before.tgt_in.shape[1])
    tgt_in = ids.tgt_in[n][None]
    real = facts.real_inputs(before.tgt_in)[row]
    sides = (ids.src, before.src), (ids.tgt_in, before.tgt_in)
    pads = [max(0, new.shape[1] - old.shape[1]) for new, old in sides]
    left, target = facts.pad_side == "left", "tgt_in" if facts.has_source else "ids"
    example = Example(
        before.src[row][facts.real_source(before.src)[row]].tolist(),
        before.tgt_in[row][real].tolist(),
        tgt_in[facts.real_inputs(tgt_in)].tolist(),
        int(real[:place].sum()),
    )

    def by(example: Example) -> float:
        """How far the output of an example moves; -1 where it is not answered."""
        src, tgt, other = (torch.tensor([x], dtype=torch.int64) for x in example[:3])
        longer = wider(src, pads[0], facts.source_pad), wider(other, pads[1], facts.pad_id, left)
        with contextlib.suppress(*REFUSED):
            with change.around():
                new = batch.ask(*longer)[0, example.place + pads[1] * left]
            old = batch.ask(src, tgt)[0, example.place]
            return float(batch.moved(new, old).nan_to_num(nan))
        return -1.0

    def shown(src: list[int], tgt: list[int]) -> str:
        return f"src {src}, {target} {tgt}" if facts.has_source else f"{target} {tgt}"

    if not (first := by(example)) > batch.tolerance:
        if first < 0:
            return ""
        where = f"in row {n} of {len(moved)}"
        if len(moved) == 1 and len(before.src) > 1:
            where = f"alone and in row {row} of the batch"
        pair = shown(ids.src[n].tolist(), ids.tgt_in[n].tolist())
        return f"{pair} {where}: {float(moved[n, t]):.2g} apart"
    budget, going = 80, True
    while going and budget > 0:
        going = False
        for smaller in example.smaller():
            budget -= 1
            if by(smaller) > batch.tolerance:
                example, going = smaller, True
                break
    what = [f"token {p} from {example.tgt[p]} to {example.other[p]}" for p in example.changed]
    behind = "behind src", f"{'before' if left else 'behind'} {target}"
    for count, side in zip(pads, behind, strict=True):
        what += [f"{count} pad{'s' * (count > 1)} {side}"] if count else []
    if len(example.other) < len(example.tgt):
        what.append(f"its first {len(example.other)} alone")
    changed = " and ".join(what) or "asked so"
    pair = shown(example.src, example.tgt)
    moves = f"moves by {most:.2g}" if (most := by(example)) < 1e9 else "is NaN"
    return f"{pair}: {changed}, and output {example.place} {moves}"
