"""A short batch in many other shapes, because a mask may be lost at a single one. *pads* and
*future* ask for them together, as most of the time of both goes there."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids
from toytrans.checks.outcome import Cause

WORK_IN_OTHER_SHAPES = 8e9
"""Multiplications that the other shapes are kept within, about 2 s."""

PERIOD = 17
"""Of so many neighbouring widths, target and source differ by each number of -8..8 once."""


class Shape:
    """A batch in another shape, with pads behind it. Where later tokens may not matter, each row
    stands there twice, and the second time with symbols behind its target: so one answer shows
    what pads move and what symbols do.

    ids: src (N, S) and tgt_in (N, T). of_pads, of_symbols (N, T): the numbers of the outputs that
    rows with pads repeat, of the batch as it is, and rows with symbols, of this very call.
    """

    def __init__(self, asked: Asked, number: int, source: int, target: int, count: int) -> None:
        self.asked, is_doubled = asked, asked.facts.is_causal
        rows = (number + torch.arange(count) // (1 + is_doubled)) % len(asked.src)
        more = source - asked.src.shape[1], target - asked.tgt_in.shape[1]
        self.ids, self.of_pads = asked.with_pads(*more, rows)
        self.of_symbols = torch.full_like(self.of_pads, -1)
        self.moved: tuple[Tensor, Tensor] | None = None
        if is_doubled:
            last = (asked.real * torch.arange(asked.real.shape[1])).amax(1)[:, None]
            last = last.clamp(min=asked.facts.prefix - 1)
            is_second = torch.arange(count)[:, None] % 2 == 1
            stays = (torch.arange(target) <= last[rows]) | ~is_second
            symbols = asked.other(self.ids.tgt_in)
            self.ids = Ids(self.ids.src, self.ids.tgt_in.where(stays, symbols))
            row_before = torch.arange(count * target).view(count, target) - target
            self.of_symbols = row_before.masked_fill(~is_second | (self.of_pads < 0), -1)
            self.of_pads = self.of_pads.masked_fill(is_second, -1)

    def moved_by(self, symbols: bool) -> Tensor:
        """How far outputs move with symbols, or with pads, (N, T), asked for once."""
        if self.moved is None:
            logits, before = self.asked.ask(*self.ids), self.asked.logits
            self.moved = (
                self._moved(logits, before, self.of_pads),
                self._moved(logits, logits, self.of_symbols),
            )
        return self.moved[symbols]

    def _moved(self, logits: Tensor, before: Tensor, numbers: Tensor) -> Tensor:
        wanted = before.flatten(0, 1)[numbers.clamp(min=0)]
        return self.asked.moved(logits, wanted).masked_fill(numbers < 0, 0.0)


@dataclass(frozen=True)
class ChangeOfShape(Change):
    """A change that two checks ask for together."""

    shape: Shape | None = None

    def moved(self, asked: Asked) -> Tensor:
        """How far each output is from the one that it must repeat, (N, T)."""
        if self.shape is None or self.shape.asked is not asked:
            return super().moved(asked)
        return self.shape.moved_by(self.in_one_call)


def in_other_shapes(
    asked: Asked, with_symbols: bool, causes: tuple[Cause, ...]
) -> Iterator[Change]:
    """A batch with pads behind it, in many shapes; with_symbols: what symbols behind a target move,
    else what the pads do.

    In one run of calls the source takes every width, the target takes every width, their
    difference every number of -8..8, and the batch every number of rows up to some. The rows are
    the batch's own, some of them more than once.
    """
    if "other shapes" not in asked.shared:
        shapes = enumerate(_shapes(asked))
        asked.shared["other shapes"] = [Shape(asked, n, *shape) for n, shape in shapes]
    for number, shape in enumerate(asked.shared["other shapes"]):
        (count, target), source = shape.ids.tgt_in.shape, shape.ids.src.shape[1]
        evidence = {
            "rows": count,
            "places": f"{source} source and {target}" if asked.facts.has_source else f"{target}",
            "shapes_that_pass": number,
            "tried": "one shape" if number == 1 else f"{number} shapes",
            "widest": asked.setting.widest,
        }
        numbers = shape.of_symbols if with_symbols else shape.of_pads
        yield ChangeOfShape(
            "other shapes",
            shape.ids,
            numbers,
            causes,
            evidence,
            in_one_call=with_symbols,
            shape=shape,
        )


def _shapes(asked: Asked) -> Iterator[tuple[int, int, int]]:
    """Places of source and target beyond the batch's own, and rows, which become fewer as the
    widths grow; none beyond a bound of work."""
    facts, spent = asked.facts, 0.0
    first = max(asked.src.shape[1], asked.tgt_in.shape[1]) + 1
    last = int(min(asked.setting.widest + 1, facts.max_length or math.inf))
    for number, source in enumerate(range(first, last + 1)):
        place = number % PERIOD
        start = source - place
        is_whole = start + PERIOD - 1 <= last and facts.has_source
        target = start + 2 * place % PERIOD if is_whole else source
        rows = max(2, asked.setting.most_rows - number)
        spent += asked.work * rows * (source + target) / (asked.src.numel() + asked.tgt_in.numel())
        if spent > WORK_IN_OTHER_SHAPES:
            return
        yield source, target, rows
