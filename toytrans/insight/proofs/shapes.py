"""A small batch in many shapes: a mask may be lost at a single one of them.

In one run of calls the source takes every width, the target takes every width, their difference
every number of -8..8, and the batch every number of rows up to some. Behind the targets of two rows
in three come pads, behind those of the third other symbols: neither may move what is before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.insight.proofs.answers import NoAnswer, largest, wider, worst
from toytrans.insight.proofs.batch import ProofBatch
from toytrans.insight.proofs.report import Outcome, Witness

PERIOD = 17
"""Neighbouring widths in which target and source differ by each number of -8..8 once."""

WORK = 15e9
"""Multiplications (`Counted`) after which no further shape is tried: about 3 s."""


GROUP = 3
"""Rows of which two are followed by pads, and the last by symbols."""


class Shape(NamedTuple):
    """Places of the source, 0 where there is none, and of the target, and rows."""

    source: int
    target: int
    rows: int

    def __str__(self) -> str:
        source = f"{self.source} source and " if self.source else ""
        return f"{self.rows} rows, {source}{self.target} target places"


@dataclass
class Shapes:
    """What a batch came to in many shapes: how far pads and other symbols behind the targets moved
    what is before them, and where they did so first. length: symbols of the plan's longest batch.
    """

    length: int
    count: int = 0
    widest: int = 0
    most_rows: int = 0
    by_pads: float = 0.0
    by_symbols: float = 0.0
    pads_at: tuple[Shape, Witness] | None = None
    symbols_at: tuple[Shape, Witness] | None = None

    def added_to(self, outcome: Outcome, by: float, at: tuple[Shape, Witness] | None) -> Outcome:
        """An outcome that passes, with what the shapes add to it."""
        if at is not None:
            others = self.count - 1
            shapes = "one shape" if others == 1 else f"{others} shapes"
            cause = f"outputs at real places change in a batch of {at[0]}" + (
                f", and not in {shapes} before: a mask is lost at single shapes; how is it made "
                "there?"
                if others
                else ": rows are mixed up, or a mask is lost; what depends on the batch's shape?"
            )
            return Outcome(by, outcome.tolerance, "", cause, witness=at[1], length=self.length)
        if not self.count:
            return outcome
        evidence = (
            f"{outcome.evidence}; the same in {self.count} shapes, up to {self.widest} places and "
            f"{self.most_rows} rows"
        )
        return outcome._replace(difference=worst((outcome.difference, by)), evidence=evidence)


def in_many_shapes(batch: ProofBatch) -> Shapes:
    """A small batch in every shape, tried once for all the proofs that ask; none in train mode."""
    if batch.shapes is None:
        batch.shapes = _tried(batch)
    shapes: Shapes = batch.shapes
    return shapes


def _tried(batch: ProofBatch) -> Shapes:
    shapes, spent = Shapes(batch.setting.widest), 0.0
    ids = batch.src.numel() + batch.tgt_in.numel()
    for shape in _shapes(batch):
        spent += batch.work * max(1.0, shape.rows * (shape.source + shape.target) / ids)
        if spent > WORK:
            break
        try:
            _try(batch, shape, shapes)
        except NoAnswer:  # more places than it takes
            break
        shapes.count += 1
        shapes.widest = max(shapes.widest, shape.source, shape.target)
        shapes.most_rows = max(shapes.most_rows, shape.rows)
        if shapes.pads_at or shapes.symbols_at:
            break
    return shapes


def _shapes(batch: ProofBatch) -> Iterator[Shape]:
    """Widths beyond the batch's own; the rows become fewer as the widths grow."""
    model = batch.model
    first = max(batch.src.shape[1], batch.tgt_in.shape[1]) + 1
    widest = 0 if batch.variant.training else batch.setting.widest
    last = int(min(widest + 1, model.limit or math.inf))
    if first <= last:
        yield Shape(first * model.has_source, first, 2)
    for number, source in enumerate(range(first, last + 1)):
        place = number % PERIOD
        start = source - place
        is_whole = start + PERIOD - 1 <= last and model.has_source and not model.equal_lengths
        target = start + 2 * place % PERIOD if is_whole else source
        yield Shape(source * model.has_source, target, max(GROUP, batch.setting.most_rows - number))


def _try(batch: ProofBatch, shape: Shape, shapes: Shapes) -> None:
    """One shape, its rows the batch's own, some of them more than once."""
    model, left = batch.model, batch.model.pad_side == "left"
    width = batch.tgt_in.shape[1]
    rows = torch.arange(shape.rows)
    group, place = rows // GROUP, rows % GROUP
    has_symbols = (place == GROUP - 1) & model.is_causal & (not left)
    of = torch.where(has_symbols, group + shape.target, 2 * group + place) % len(batch.src)
    src, before = batch.src[of], batch.tgt_in[of]
    if model.has_source:
        src = wider(src, shape.source - src.shape[1], model.source_pad)
    tgt_in = wider(before, shape.target - width, model.pad_id, left)
    behind = torch.arange(shape.target) > _last(batch.real[of])[:, None]
    tgt_in = torch.where(behind & has_symbols[:, None], batch.other(tgt_in), tgt_in)
    logits = batch.ask(src, tgt_in)
    inside = slice(-width, None) if left else slice(width)
    moved = batch.moved(logits[:, inside], batch.logits[of]).masked_fill(~batch.real[of], 0.0)
    by_pads, by_symbols = largest(moved[~has_symbols]), largest(moved[has_symbols])
    shapes.by_pads = worst((shapes.by_pads, by_pads))
    shapes.by_symbols = worst((shapes.by_symbols, by_symbols))
    if not by_pads <= batch.tolerance:
        shift = shape.target - width if left else 0
        pair = (batch.src[of], before)
        shapes.pads_at = shape, Witness(pair, (src, tgt_in), "pads", shift=shift)
    if not by_symbols <= batch.tolerance:
        prefix = (src, tgt_in[:, :width])
        shapes.symbols_at = shape, Witness((src, tgt_in), prefix, "prefix", width)


def _last(real: Tensor) -> Tensor:
    """The last real place of each row (B, T) -> (B,)."""
    return (real * torch.arange(real.shape[1])).amax(1)
