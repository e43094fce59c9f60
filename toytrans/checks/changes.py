"""Changes that must move nothing, and the one comparer that looks whether they do.

A `Change` is other ids, or other circumstances, and says which output must repeat which. Each
invariance is a generator of changes; the first change that moves an output is the failure.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import largest, worst
from toytrans.checks.outcome import (
    Cause,
    Evidence,
    Judged,
    Outcome,
    does_not_apply,
    fails,
    measured,
)


@dataclass(frozen=True)
class Change:
    """Other ids, and what must stay.

    name: what is changed, in words. ids: src (N, S), tgt_in (N, T). must_repeat (N, T): for each
    output the number of the other one that it must repeat, row * T + place as in `Batch.numbers`;
    -1 for none. causes: rows of the table, of which the first that fits is the cause of a failure;
    evidence: what they go by, by names, or a function that makes it of which outputs (N, T) moved.
    around: a context in which the ids are asked, and with is_around_both those before the change
    too.

    The numbers count the outputs of the batch, or of other ids that are asked as well, `before`.
    Where in_one_call is true they count the outputs of this very call, which then holds a row as it
    was among the rows that are changed: that costs one call and not two.
    """

    name: str
    ids: Ids
    must_repeat: Tensor
    causes: tuple[Cause, ...]
    evidence: Evidence | Callable[[Tensor], Evidence] = field(default_factory=dict)
    before: Ids | None = None
    in_one_call: bool = False
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    is_around_both: bool = False

    @property
    def around_before(self) -> Callable[[], contextlib.AbstractContextManager[object]]:
        """The context in which the ids before the change are asked."""
        return self.around if self.is_around_both else contextlib.nullcontext

    def ids_before(self, asked: Asked) -> Ids:
        """The ids whose outputs must be repeated."""
        if self.in_one_call:
            return self.ids
        return asked.ids if self.before is None else self.before

    def moved(self, asked: Asked) -> Tensor:
        """How far each output is from the one that it must repeat, (N, T); 0 where it need not."""
        if self.around is contextlib.nullcontext and len(self.ids.tgt_in) == 1:
            logits = asked.ask_once(self.ids)
        else:
            with self.around():
                logits = asked.ask(*self.ids)
        if self.in_one_call:
            before = logits
        elif self.is_around_both:
            with self.around():
                before = asked.ask(*self.ids_before(asked))
        elif self.before is None:
            before = asked.logits
        else:
            before = asked.ask_once(self.before)
        wanted = before.flatten(0, 1)[self.must_repeat.clamp(min=0)]
        return asked.moved(logits, wanted).masked_fill(self.must_repeat < 0, 0.0)


class Broken(NamedTuple):
    """A change that moved what must stay, and how far each output moved, (N, T)."""

    change: Change
    moved: Tensor

    def moves_equal_rows(self, asked: Asked) -> bool:
        """Whether the change also moves an output where all rows of the batch are the one in which
        outputs moved most, so that no row can see another one. True where that cannot be asked."""
        change, before = self.change, self.change.ids_before(asked)
        if change.ids.masked is not None:
            return True
        count, width = len(change.ids.tgt_in), before.tgt_in.shape[1]
        n = int(self.moved.nan_to_num(math.inf).amax(1).argmax())
        numbers = change.must_repeat[n]
        row = int(numbers.max()) // width
        after, before = (
            Ids(ids.src[at].expand(count, -1), ids.tgt_in[at].expand(count, -1))
            for ids, at in ((change.ids, n), (before, row))
        )
        try:
            with change.around():
                new = asked.ask(*after)[0]
                old = asked.ask(*before)[0] if change.in_one_call else new
        except Judged:  # what is changed in embeddings is changed for the ids of the batch alone
            return True
        old = old if change.in_one_call else asked.ask(*before)[0]
        moved = asked.moved(new, old[(numbers % width).clamp(min=0)])
        return bool((~(moved <= asked.tolerance))[numbers >= 0].any())


def compare(asked: Asked, changes: Iterable[Change]) -> tuple[Outcome, Broken | None]:
    """Whether none of some changes moves an output that must stay; the first that does is the
    failure. Where there is no change, nothing is judged."""
    asked.require_changing_logits()
    by, names = 0.0, Counter[str]()
    for change in changes:
        moved = change.moved(asked)
        seen = ~(moved <= asked.tolerance)
        if bool(seen.any()):
            given = change.evidence
            evidence: Mapping[str, Any] = given(seen) if callable(given) else given
            failure = fails(*change.causes, **evidence)
            by = largest(moved)
            failure = replace(failure, difference=by, tolerance=asked.tolerance)
            return failure, Broken(change, moved)
        by = worst((by, largest(moved)))
        names[change.name] += 1
    if not names:
        return does_not_apply("a batch of this size cannot be changed so"), None
    listed = [f"{name} ({count})" if count > 1 else name for name, count in names.items()]
    return measured(by, asked.tolerance, f"{', '.join(listed)}: nothing moves"), None
