"""Of a change that moved an output, the smallest example, and where it begins to differ."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.beginning import Beginning, beginning_of
from toytrans.checks.changes import Broken, Change
from toytrans.checks.ids import Ids, wider
from toytrans.checks.outcome import Counterexample, Judged
from toytrans.errors import UserError

REFUSED = (UserError, Judged, IndexError, RuntimeError)
"""What is raised where an example is no longer answered."""

MOST_TRIED = 200
"""Examples that are tried, each smaller than one that fails."""

NOT_A_NUMBER = 1e9
"""How far an output moves that becomes NaN."""


class Example(NamedTuple):
    """A pair before and after a change, without pads but for those that are appended.

    src: ids of the source. tgt, other: ids of the target before and after, the latter may be
    shorter, or longer. place: of the output that moves. pads: appended to source and target.
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
        if len(self.other) > len(self.tgt) + 1:
            yield self._replace(other=self.other[:-1])
        for n in range(len(self.src) - 1):
            yield self._replace(src=self.src[:n] + self.src[n + 1 :])

    def asked(self, batch: Asked) -> tuple[Ids, Ids]:
        """What is asked before the change and after."""
        src, tgt, other = (torch.tensor([x], dtype=torch.int64) for x in self[:3])
        more = wider(src, self.pads[0], batch.facts.source_pad)
        return Ids(src, tgt), Ids(more, wider(other, self.pads[1], batch.facts.pad_id))

    def said(self, batch: Asked, by: float) -> str:
        """The example in words."""
        target = "tgt_in" if batch.facts.has_source else "ids"
        what = [f"token {p} from {self.tgt[p]} to {self.other[p]}" for p in self.changed]
        for count, side in zip(self.pads, ("src", target), strict=True):
            what += [f"{count} pad{'s' * (count > 1)} behind {side}"] if count else []
        if len(self.other) < len(self.tgt):
            what.append(f"its first {len(self.other)} alone")
        if more := self.other[len(self.tgt) :]:
            what.append(f"{more} behind {target}")
        changed = " and ".join(what) or "asked so"
        pair = f"src {self.src}, " * batch.facts.has_source + f"{target} {self.tgt}"
        moves = f"moves by {by:.2g}" if by < NOT_A_NUMBER else "is NaN"
        return f"{pair}: {changed}, and output {self.place} {moves}"


def smallest_example(
    asked: Asked, broken: Broken
) -> tuple[Counterexample, Beginning | None] | None:
    """The smallest example of a failure, made of the pair in which outputs move most, and where it
    begins; None where that pair does not fail alone."""
    change, moved = broken
    if change.ids.masked is not None:
        return None
    nan = NOT_A_NUMBER if bool(moved.isnan().any()) else -1.0  # the same kind of failure
    example = _of_one_pair(asked, change, moved)

    def by(example: Example) -> float:
        """How far the output of an example moves; -1 where it is not answered."""
        was, now = example.asked(asked)
        with contextlib.suppress(*REFUSED), torch.no_grad():
            with change.around():
                new = asked.ask(*now)[0, example.place]
            with change.around_before():
                old = asked.ask(*was)[0, example.place]
            return float(asked.moved(new, old).nan_to_num(nan))
        return -1.0

    if not by(example) > asked.tolerance:
        return None
    begins = _beginning(asked, change, example)  # of one token alone torch takes other ways
    tried, going = 0, True
    while going and tried < MOST_TRIED:
        going = False
        for smaller in example.smaller():
            tried += 1
            if by(smaller) > asked.tolerance:
                example, going = smaller, True
                break
    most, (before, after) = by(example), example.asked(asked)
    found = Counterexample(
        before,
        after,
        example.place,
        most if most < NOT_A_NUMBER else float("nan"),
        asked.tolerance,
        str(asked.logits.dtype).removeprefix("torch."),
        asked.model.mode,
        example.said(asked, most),
        is_whole=change.around is contextlib.nullcontext,
    )
    return found, begins


def _of_one_pair(asked: Asked, change: Change, moved: Tensor) -> Example:
    """The pair in which outputs move most, as an example."""
    facts = asked.facts
    n, t = divmod(int(moved.nan_to_num(NOT_A_NUMBER).argmax()), moved.shape[1])
    before, ids = change.ids_before(asked), change.ids
    row, place = divmod(int(change.must_repeat[n, t]), before.tgt_in.shape[1])
    real = facts.real_inputs(before.tgt_in)[row]
    more_source = abs(ids.src.shape[1] - before.src.shape[1])  # pads may be left out as well
    more_target = max(0, ids.tgt_in.shape[1] - before.tgt_in.shape[1])
    return Example(
        before.src[row][facts.real_source(before.src)[row]].tolist(),
        before.tgt_in[row][real].tolist(),
        ids.tgt_in[n][facts.real_inputs(ids.tgt_in[n][None])[0]].tolist(),
        int(real[:place].sum()),
        (more_source, more_target),
    )


def _beginning(asked: Asked, change: Change, example: Example) -> Beginning | None:
    """Where an example begins to differ."""
    before, after = example.asked(asked)
    around = change.around_before, change.around
    return beginning_of(asked.model, before, after, around, example.place, example.changed)
