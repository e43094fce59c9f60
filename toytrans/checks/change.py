"""A change of what a model is asked, and the one engine that compares answers.

A `Change` says which outputs must repeat which. `stays` asks a batch for changes that must move
nothing, `moves` for some of which one must.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
    -1 for none. before: what it is compared with; None for the batch. within: the numbers are of
    outputs of this very answer.
    cause: what it means where something moves, or what makes it of which outputs (N, T) moved.
    around: a context in which it is asked. moved: how far outputs moved, where known already.
    """

    name: str
    ids: Ids
    of: Tensor
    cause: str | Callable[[Tensor], str] = ""
    before: Ids | None = None
    within: bool = False
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    moved: Tensor | None = None

    def measure(self, batch: Batch) -> Tensor:
        """How far each output is from the one that it must repeat, (N, T); 0 where it need not."""
        if self.moved is not None:
            return self.moved
        with self.around():
            logits = batch.ask(*self.ids)
        before = logits if self.within else batch.logits
        if self.before is not None:
            before = batch.ask(*self.before)
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
                result = measured(largest(moved), batch.tolerance, "", cause)
                return replace(result, change=replace(change, moved=moved))
            by = worst((by, largest(moved)))
            names[change.name] += 1
        return measured(by, batch.tolerance, f"{_listed(names)}: nothing moves", "")

    return ask


def moves(changes: Changes) -> Callable[[Batch], Result]:
    """A check that one of some changes, all of one kind, moves some output."""

    def ask(batch: Batch) -> Result:
        batch.require_changing_logits()
        by, change = 0.0, None
        for change in changes(batch):
            by = max(by, largest(change.measure(batch)))
        assert change is not None and isinstance(change.cause, str)
        evidence = f"{change.name}: outputs move"
        return measured(by, batch.tolerance, evidence, change.cause, must_change=True)

    return ask


def _listed(names: Counter[str]) -> str:
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in names.items())


@contextlib.contextmanager
def after(*asked: Callable[[], object]) -> Iterator[None]:
    """A context that asks other things first."""
    for ask in asked:
        ask()
    yield
