"""A short batch in many other shapes: a mask may be lost at a single one."""

import math
from collections.abc import Iterator

import torch

from toytrans.checks.asked import Asked
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids
from toytrans.checks.outcome import Cause

WORK_IN_OTHER_SHAPES = 8e9
"""Multiplications that the other shapes are kept within, about 2 s."""

PERIOD = 17
"""Of so many neighbouring widths, target and source differ by each number of -8..8 once."""


def in_other_shapes(
    asked: Asked, with_symbols: bool, causes: tuple[Cause, ...]
) -> Iterator[Change]:
    """A batch with pads behind it, in many shapes; with_symbols: each row stands there twice, and
    the second time with symbols behind its target, which must change nothing.

    In one run of calls the source takes every width, the target takes every width, their
    difference every number of -8..8, and the batch every number of rows up to some. The rows are
    the batch's own, some of them more than once.
    """
    facts = asked.facts
    last = (asked.real * torch.arange(asked.real.shape[1])).amax(1)[:, None]
    last = last.clamp(min=facts.prefix - 1)
    for number, (source, target, count) in enumerate(_shapes(asked)):
        rows = torch.arange(count) // (1 + with_symbols) % len(asked.src)
        more = source - asked.src.shape[1], target - asked.tgt_in.shape[1]
        ids, numbers = asked.with_pads(*more, rows)
        if with_symbols:
            stays = (torch.arange(target) <= last[rows]) | (torch.arange(count)[:, None] % 2 == 0)
            ids = Ids(ids.src, ids.tgt_in.where(stays, asked.other(ids.tgt_in)))
            row_before = torch.arange(count * target).view(count, target) - target
            numbers = row_before.masked_fill(stays.all(1, keepdim=True) | (numbers < 0), -1)
        evidence = {
            "rows": count,
            "places": f"{source} source and {target}" if facts.has_source else f"{target}",
            "shapes_that_pass": number,
            "tried": "one shape" if number == 1 else f"{number} shapes",
            "widest": asked.setting.widest,
        }
        yield Change("other shapes", ids, numbers, causes, evidence, in_one_call=with_symbols)


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
