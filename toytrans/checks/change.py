"""A change of what a model is asked, and the one engine that compares answers.

A `Change` says which outputs must repeat which. `stays` asks a batch for changes that must move
nothing, `moves` for one that must move something.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torch import Tensor

from toytrans.checks.batch import Batch, largest, worst
from toytrans.checks.result import Result, measured
from toytrans.checks.subject import Ids


@dataclass(frozen=True)
class Change:
    """Other ids, and what must stay.

    name: what is changed, in words. ids: src (N, S), tgt_in (N, T).
    of: (N, T), for each output the number of the one before that it must repeat: row * T + place;
    -1 for none. before: what it is compared with, which may be these very ids; None for the batch.
    cause: what it means where something moves, or what makes it of which outputs (N, T) moved.
    around: a context in which it is asked. moved: how far outputs moved, where known already.
    """

    name: str
    ids: Ids
    of: Tensor
    cause: str | Callable[[Tensor], str]
    before: Ids | None = None
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    moved: Tensor | None = None

    def measure(self, batch: Batch) -> Tensor:
        """How far each output is from the one that it must repeat, (N, T); 0 where it need not."""
        if self.moved is not None:
            return self.moved
        with self.around():
            logits = before = batch.ask(*self.ids)
        if self.before is not self.ids:
            before = batch.logits if self.before is None else batch.ask(*self.before)
        wanted = before.flatten(0, 1)[self.of.clamp(min=0)]
        return batch.moved(logits, wanted).masked_fill(self.of < 0, 0.0)


Changes = Callable[[Batch], Iterable[Change]]


def stays(changes: Changes) -> Callable[[Batch], Result]:
    """A check that none of some changes moves an output that must stay; the first that does is the
    result."""

    def ask(batch: Batch) -> Result:
        batch.require_changing_logits()
        by, names = 0.0, Counter[str]()
        for change in changes(batch):
            moved = change.measure(batch)
            seen = ~(moved <= batch.tolerance)
            if bool(seen.any()):
                cause = change.cause if isinstance(change.cause, str) else change.cause(seen)
                change = replace(change, moved=moved)
                return measured(largest(moved), batch.tolerance, "", cause, change=change)
            by = worst((by, largest(moved)))
            names[change.name] += 1
        listed = [f"{name} ({count})" if count > 1 else name for name, count in names.items()]
        return measured(by, batch.tolerance, f"{', '.join(listed)}: nothing moves", "")

    return ask


def moves(changes: Callable[[Batch], Change]) -> Callable[[Batch], Result]:
    """A check that a change moves some output."""

    def ask(batch: Batch) -> Result:
        batch.require_changing_logits()
        change = changes(batch)
        by, evidence = largest(change.measure(batch)), f"{change.name}: outputs move"
        return measured(by, batch.tolerance, evidence, str(change.cause), must_change=True)

    return ask
