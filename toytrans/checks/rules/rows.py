"""Rows: a pair gives the same alone and in any batch, and so it does beside an empty one."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.asked import Asked
from toytrans.checks.causes_by_kind import causes_by_kind
from toytrans.checks.changes import Change
from toytrans.checks.common_causes import POLARITY
from toytrans.checks.ids import Ids, wider
from toytrans.checks.model import NoAnswer
from toytrans.checks.numbers import largest, spread_out
from toytrans.checks.outcome import Judged, fails, unsure
from toytrans.checks.registry import WITH_SOURCE, Check, Kinds
from toytrans.errors import UserError

ROWS = Check(
    "rows",
    "a pair gives the same in any batch",
    how="a pair alone; another order; an empty pair added",
    follows=("scale", "pads"),
    follows_in={"decoder": ("future",)},
    may_be_another_pad=True,
)

CONSEQUENCE = "a pair gives other outputs alone than in a padded batch"

BY_KIND = causes_by_kind(
    ROWS,
    CONSEQUENCE,
    {
        "norm": "take them over the features of each place, not over the batch or its pads",
        "convolution": "set pads to zero before it, in every layer",
        "recurrence": "pack the sequences (pack_padded_sequence), or let it run forward alone",
        "pooling": "leave pads out, and divide by the number of real places",
        "experts": "let each token choose alone, and leave pads out",
        "state": "is a mask or a cache kept, or a table changed while it is read (max_norm)?",
        "product": "set pads to zero before it",
        "shift": "are rows and places taken for each other?",
        "length": "count real places, not the padded width",
    },
)

DIFFERS_ALONE = ROWS.cause(
    "differs_alone",
    when="a pair alone gives other outputs than in a padded batch",
    words="pair {row} of {count} gives other outputs alone than in a padded batch: pads are seen, "
    "or rows are mixed up",
    remedy=f"are all pad masks passed, {POLARITY}",
    read="mistakes/pads-in-cross-attention.md",
)
DEPENDS_ON_ORDER = ROWS.cause(
    "depends_on_order",
    when="outputs move with the order of the rows",
    words="the same batch with its rows in another order gives other logits: rows are mixed up, or "
    "a mask or a cache is kept from another batch",
    remedy="is every axis the one that you take it for, and is anything kept from call to call?",
)
EMPTY_MOVES_OTHERS = ROWS.cause(
    "empty_moves_others",
    when="outputs move when a pair without symbols is added to the batch",
    words="a pair without symbols moves the outputs of other rows: rows are mixed up",
    remedy="what depends on the other rows of a batch?",
)
EMPTY_GIVES_NAN = ROWS.cause(
    "empty_gives_nan",
    when="a pair without symbols gives NaN, or makes other rows NaN",
    words="a pair without symbols spoils its own outputs, or those of other rows: a row of "
    "attention with every key closed turns into NaN after softmax over -inf alone",
    remedy="give such rows zeros",
)
EMPTY_MAY_NOT_COME = ROWS.doubt(
    "empty_may_not_come",
    when="a source of pads alone gives NaN, and nothing says that one can come",
    words="a source of pads alone turns into NaN, or spoils other rows",
    remedy="give batch=... (a batch maker) to show an empty one of yours",
)
EMPTY_NOT_MADE = ROWS.doubt(
    "empty_not_made",
    when="the batch maker does not take a pair without symbols",
    words="needs a batch maker that takes a pair without symbols: {error}",
)


@ROWS.part("a pair alone", on="every")
def a_pair_alone(asked: Asked) -> Iterator[Change]:
    """Some pairs are asked alone, without their pads and with them."""
    rows = spread_out(len(asked.src), 5)
    for row in rows:
        src, tgt_in, numbers = (
            asked.src[row, None],
            asked.tgt_in[row, None],
            asked.numbers[row, None],
        )
        inside, real = asked.real_source[row], asked.real[row]
        evidence, causes = {"row": row, "count": len(asked.src)}, (*BY_KIND, DIFFERS_ALONE)
        alone = Ids(src[:, inside], tgt_in[:, real])
        yield Change("a pair alone", alone, numbers[:, real], causes, evidence)
        if row in rows[:2] or asked.is_short:
            padded = Ids(src, tgt_in)
            yield Change("a pair alone with its pads", padded, numbers, causes, evidence)


@ROWS.part("another order", on="every")
def another_order(asked: Asked) -> Iterator[Change]:
    """The rows are turned round: other rows then have other pads, in the same shape."""
    ids = Ids(asked.src.flip(0), asked.tgt_in.flip(0))
    must_repeat = asked.numbers.flip(0)
    yield Change("rows in another order", ids, must_repeat, (DEPENDS_ON_ORDER,))


@ROWS.part(
    "an empty pair",
    kinds=Kinds(WITH_SOURCE.names, "the model has no source that could be empty"),
)
def an_empty_pair(asked: Asked) -> Iterator[Change]:
    """A pair without symbols is added; it gives numbers, and leaves the other rows as they are. It
    is what your batch maker makes of it, or else a source of nothing but pads. That such a source
    can come is known from `batch=`, or from `promises=["empty_sources"]`; otherwise NaN there is no
    failure."""
    facts = asked.facts
    of_pads_alone = asked.model.maker is None or "empty_sources" in facts.promises
    may_come = asked.model.maker is not None or "empty_sources" in facts.promises
    try:
        src, tgt_in, _ = asked.model.batch([([], [])])
    except UserError as error:
        raise Judged(unsure(EMPTY_NOT_MADE, error=str(error))) from None
    if of_pads_alone:
        src = torch.full_like(asked.src[:1], facts.source_pad)

    def added(ids: Tensor, row: Tensor, pad: int) -> Tensor:
        width = max(ids.shape[1], row.shape[1])
        return torch.cat([wider(part, width - part.shape[1], pad) for part in (ids, row)])

    longer = added(asked.tgt_in, tgt_in, facts.pad_id)
    more = longer.shape[1] - asked.numbers.shape[1]
    must_repeat = F.pad(asked.numbers, (0, more, 0, 1), value=-1)
    ids = Ids(added(asked.src, src, facts.source_pad), longer)
    change = Change("an empty pair added", ids, must_repeat, (EMPTY_MOVES_OTHERS,))
    try:
        own = asked.ask(*ids)[-1][facts.real_inputs(longer)[-1]]
        moved = math.nan if bool(own.isnan().any()) else largest(change.moved(asked))
    except NoAnswer:
        if may_come:
            raise
        moved = math.nan
    if math.isnan(moved) and may_come:
        raise Judged(fails(EMPTY_GIVES_NAN))
    if not may_come and not moved <= asked.tolerance:
        raise Judged(unsure(EMPTY_MAY_NOT_COME))
    yield change
