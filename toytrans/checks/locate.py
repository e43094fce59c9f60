"""Of a change that moved what must stay: the smallest pair of sequences that shows it, and the
module in which it first shows."""

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

MOST_TRIED = 200
"""Examples that are tried, each smaller than one that fails."""


class Example(NamedTuple):
    """A pair before and after a change, without pads but for those that are appended.

    src: ids of the source. tgt, other: ids of the target before and after, the latter may be
    shorter. place: of the output that moves. pads: appended to source and target.
    """

    src: list[int]
    tgt: list[int]
    other: list[int]
    place: int
    pads: tuple[int, int]

    @property
    def changed(self) -> list[int]:
        """Places of tokens that are others after the change."""
        both = zip(self.tgt, self.other, strict=False)
        return [place for place, (old, new) in enumerate(both) if old != new]

    def smaller(self) -> Iterator["Example"]:
        """Examples with one token less in them, or one change. The target's first token stays."""
        place, last = self.place, (self.place,) if self.place else ()
        for n in (*(n for n in range(1, len(self.tgt)) if n != place), *last):
            tgt, other = (ids[:n] + ids[n + 1 :] for ids in (self.tgt, self.other))
            yield self._replace(tgt=tgt, other=other, place=place - (n <= place))
        for n in self.changed if len(self.changed) > 1 else ():
            yield self._replace(other=[*self.other[:n], self.tgt[n], *self.other[n + 1 :]])
        for n in range(len(self.src) - 1):
            yield self._replace(src=self.src[:n] + self.src[n + 1 :])

    def asked(self, batch: Batch) -> tuple[Ids, Ids]:
        """What is asked before the change and after."""
        src, tgt, other = (torch.tensor([x], dtype=torch.int64) for x in self[:3])
        more = wider(src, self.pads[0], batch.facts.source_pad)
        return Ids(src, tgt), Ids(more, wider(other, self.pads[1], batch.facts.pad_id))


def located(batch: Batch, change: Change) -> dict[str, str]:
    """The smallest example of a failure, made of the pair in which outputs move most, and where it
    first shows, in words; nothing where that pair does not fail alone."""
    if change.ids.closed is not None:
        return {}
    facts, moved = batch.facts, change.measure(batch)
    nan = 1e9 if bool(moved.isnan().any()) else -1.0  # an example shows the same kind of failure
    n, t = divmod(int(moved.nan_to_num(1e9).argmax()), moved.shape[1])
    before, ids = change.before or batch.ids, change.ids
    row, place = divmod(int(change.of[n, t]), before.tgt_in.shape[1])
    real = facts.real_inputs(before.tgt_in)[row]
    more_source = abs(ids.src.shape[1] - before.src.shape[1])  # pads may be left out as well
    more_target = max(0, ids.tgt_in.shape[1] - before.tgt_in.shape[1])
    example = Example(
        before.src[row][facts.real_source(before.src)[row]].tolist(),
        before.tgt_in[row][real].tolist(),
        ids.tgt_in[n][facts.real_inputs(ids.tgt_in[n][None])[0]].tolist(),
        int(real[:place].sum()),
        (more_source, more_target),
    )

    def by(example: Example) -> float:
        """How far the output of an example moves; -1 where it is not answered."""
        was, now = example.asked(batch)
        with contextlib.suppress(*REFUSED), torch.no_grad():
            with change.around():
                new = batch.ask(*now)[0, example.place]
            old = batch.ask(*was)[0, example.place]
            return float(batch.moved(new, old).nan_to_num(nan))
        return -1.0

    if not by(example) > batch.tolerance:
        return {}
    tried, going = 0, True
    while going and tried < MOST_TRIED:
        going = False
        for smaller in example.smaller():
            tried += 1
            if by(smaller) > batch.tolerance:
                example, going = smaller, True
                break
    target = "tgt_in" if facts.has_source else "ids"
    what = [f"token {p} from {example.tgt[p]} to {example.other[p]}" for p in example.changed]
    for count, side in zip(example.pads, ("src", target), strict=True):
        what += [f"{count} pad{'s' * (count > 1)} behind {side}"] if count else []
    if len(example.other) < len(example.tgt):
        what.append(f"its first {len(example.other)} alone")
    changed = " and ".join(what) or "asked so"
    pair = f"src {example.src}, " * facts.has_source + f"{target} {example.tgt}"
    moves = f"moves by {most:.2g}" if (most := by(example)) < 1e9 else "is NaN"
    text = f"{pair}: {changed}, and output {example.place} {moves}"
    return {"where": _first_module(batch, change, example), "example": text}


def _first_module(batch: Batch, change: Change, example: Example) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    module, (was, now) = batch.model.module, example.asked(batch)
    if module is None:
        return ""
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            with change.around():
                new = _outputs(batch, module, now)
            old = _outputs(batch, module, was)
    except Exception:  # a foreign model under hooks
        return ""
    if [name for name, _ in old] != [name for name, _ in new]:
        return ""
    source = slice(was.src.shape[1])
    sides = [(was.tgt_in, now.tgt_in, slice(example.place, example.place + 1))]
    sides += [(was.src, now.src, source)] if batch.facts.has_source else []
    for (name, first), (_, second) in zip(old, new, strict=True):
        differ = []
        for ids, others, places in sides:
            a, b = _laid_out(first, ids), _laid_out(second, others)
            if a is not None and b is not None and a.shape[2:] == b.shape[2:]:
                share = min(max(1e-7, 100 * torch.finfo(first.dtype).eps), 1e-2)
                by = largest(apart(a[:, places], b[:, places]).nan_to_num(1.0))
                differ.append(by > share * largest(a[:, places].nan_to_num()))
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
        output = tuple(output.values()) if isinstance(output, dict) else output
        parts = output if isinstance(output, tuple | list) else (output,)
        numbers = [t for t in parts if isinstance(t, Tensor) and t.is_floating_point()]
        seen.extend((names[part], value.detach().clone()) for value in numbers[:1])

    with contextlib.ExitStack() as stack:
        for part in names:
            stack.enter_context(part.register_forward_hook(keep))
        batch.model.ask(*ids)
    return seen


def _laid_out(value: Tensor, ids: Tensor) -> Tensor | None:
    """An output as ids are, (1, L, ...); None where it is laid out neither so nor time first."""
    if value.dim() < 3 or not ids.numel():
        return None
    value = value if value.shape[:2] == ids.shape else value.transpose(0, 1)
    return value if value.shape[:2] == ids.shape else None
