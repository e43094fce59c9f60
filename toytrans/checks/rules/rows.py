"""Rows: a pair gives the same alone and in any batch, and so it does beside an empty one."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.checks.asked import Asked
from toytrans.checks.beginning import CHOICE, NORM, POOLING
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids, wider
from toytrans.checks.model import RAISED, NoAnswer
from toytrans.checks.numbers import largest, spread_out
from toytrans.checks.outcome import Evidence, Judged, fails, unsure
from toytrans.checks.recording import recorded
from toytrans.checks.registry import WITH_SOURCE, Check, Kinds
from toytrans.checks.torch_modes import outputs_of
from toytrans.errors import UserError

ROWS = Check(
    "rows",
    "a pair gives the same in any batch",
    how="without pads: other rows, another order, alone; with pads: alone, another order; an empty "
    "pair added",
    essential=True,
    follows=("scale",),
    may_be_batch_statistics=True,
)

# Without pads --------------------------------------------------------------------------------

AXES = (
    "is every axis the one that you take it for: batch_first=True in torch's layers, x.size(1) for "
    "the number of places?"
)

SEES_ROWS = "outputs of a pair change with the symbols of other pairs in its batch"


def mixes_in(what: str) -> Callable[[Evidence], bool]:
    """Whether rows first mix in this, by the evidence of `_where_rows_mix`."""

    def fits(evidence: Evidence) -> bool:
        return bool(evidence["mixes_in"] == what)

    return fits


BATCH_NORM = ROWS.cause(
    "batch_norm",
    when="rows first mix in batch normalisation",
    words=f"{{where}}BatchNorm takes its statistics over all rows and places of a batch, so "
    f"{SEES_ROWS}",
    remedy="LayerNorm, or statistics over real places that eval mode keeps (track_running_stats)",
    fits=mixes_in("batch norm"),
)
LENGTH_FIRST = ROWS.cause(
    "length_first",
    when="rows first mix in a layer of torch's without batch_first=True",
    words=f"{{where}}it takes (L, B, D), because batch_first is False, and is fed (B, L, D), so "
    f"{SEES_ROWS}",
    remedy="give it batch_first=True",
    fits=mixes_in("length first"),
)
SOFTMAX_OVER_ROWS = ROWS.cause(
    "softmax_over_rows",
    when="rows first mix in a softmax whose weights sum to one over rows",
    words=f"{{where}}softmax sums to one over the rows of a batch, or over all its tokens, so "
    f"{SEES_ROWS}",
    remedy="is it softmax(-1)?",
    fits=mixes_in("softmax"),
)
CHOICE_AMONG_ROWS = ROWS.cause(
    "choice",
    when="rows first mix where tokens are sorted or chosen, as for experts",
    words=f"{{where}}tokens are chosen among those of all rows, as for experts with a capacity, so "
    f"{SEES_ROWS}",
    remedy="choose for each token by itself, and drop none because of what other rows hold",
    fits=mixes_in("choice"),
)
STATISTIC = ROWS.cause(
    "statistic",
    when="rows first mix in a sum, a mean, a largest number or a norm",
    words=f"{{where}}a sum, mean or norm is taken over the rows of a batch, so {SEES_ROWS}",
    remedy="take it over the features of each place, or over the places of each row",
    fits=mixes_in("statistic"),
)
MIXED = ROWS.cause(
    "mixed",
    when="without pads, outputs of a pair move with what other pairs hold",
    words="{where}without any pad, outputs of a pair change with the symbols of other pairs in its "
    "batch: rows see each other",
    remedy=AXES,
)
BY_NUMBER = ROWS.cause(
    "by_number",
    when="without pads, outputs of a pair move with its place among the rows, not with what other "
    "rows hold",
    words="without any pad, outputs of a pair change with its number in the batch, whatever the "
    "other pairs hold: something is counted along the rows",
    remedy="do positions or a mask count rows, as x.size(0) does, or a table (L, 1, D) beside "
    "(B, L, D)?",
)
BY_COUNT = ROWS.cause(
    "by_count",
    when="without pads, a pair alone gives other outputs than among others, whatever these hold",
    words="without any pad, a pair gives other outputs alone than among {count} pairs, whatever "
    "these hold and in any order: the number of rows matters",
    remedy="what depends on x.size(0), or on an axis of length 1?",
)
LAYOUT_GUESSED = ROWS.doubt(
    "layout_guessed",
    when="fed (B, L), rows are mixed up, and fed (L, B), they are not; nothing says how it is fed",
    words="fed ids as (B, L), the model mixes the rows of a batch up; fed (L, B), it does not, so "
    "it was asked like that",
    remedy="if you feed it (L, B), give batch_first=False; if you feed it (B, L), it needs "
    "batch_first=True in its layers, or positions by x.size(1)",
)


@ROWS.part("without pads", on="every", of_rows=True)
def without_pads(asked: Asked) -> Iterator[Change]:
    """Pairs of one length, without pads, must each give the same whatever the other rows hold; in a
    short batch in another order and alone too. That is asked before anything that has to do with
    pads."""
    if asked.facts.layout_is_guessed:
        raise Judged(unsure(LAYOUT_GUESSED, give=("batch_first",)))
    count, length = len(asked.src), asked.setting.length
    pairs = [(asked.row(length - 1), asked.row(length - 2)) for _ in range(count)]
    ids, _ = asked.made_of(pairs)  # of a shape that no other batch has
    numbers = torch.arange(ids.tgt_in.numel()).view(ids.tgt_in.shape)
    numbers = numbers.masked_fill(~asked.facts.real_inputs(ids.tgt_in), -1)
    for first in (0, 1) if asked.is_short else (0,):  # each second row is another pair
        is_kept = torch.arange(count)[:, None] % 2 == first
        others = Ids(*(_others(asked, part).where(~is_kept, part) for part in ids[:2]))
        kept = numbers.masked_fill(~is_kept, -1)
        evidence = partial(_where_rows_mix, asked, ids, others, first)
        causes = (BATCH_NORM, LENGTH_FIRST, SOFTMAX_OVER_ROWS, CHOICE_AMONG_ROWS, STATISTIC, MIXED)
        yield Change("other pairs beside", others, kept, causes, evidence, before=ids)
    if asked.is_short:
        turned = Ids(ids.src.flip(0), ids.tgt_in.flip(0))
        yield Change("rows in another order", turned, numbers.flip(0), (BY_NUMBER,), before=ids)
        alone = Ids(ids.src[:1], ids.tgt_in[:1])
        by_count = {"count": count}
        yield Change("a pair alone", alone, numbers[:1], (BY_COUNT,), by_count, before=ids)


def _where_rows_mix(asked: Asked, ids: Ids, others: Ids, first: int, _: Tensor) -> dict[str, str]:
    """The first module whose output for the rows that stayed, first, first + 2 and so on, is
    another beside other rows, and what mixes them there, as evidence."""
    module, count = asked.model.module, len(ids.tgt_in)
    if module is None:
        return {"where": "", "mixes_in": ""}
    kept: list[dict[str, Tensor]] = []
    for each in (ids, others):
        with torch.enable_grad(), outputs_of(module) as seen:  # torch takes no shortcut so
            asked.model.ask(*each)
        kept.append({name: x[first::2] for name, x in _by_rows(seen, count).items()})
    old, new = kept
    differ = (n for n in old if n in new and not torch.allclose(old[n], new[n], equal_nan=True))
    name = next(differ, "")
    parts = dict(module.named_modules())
    parent = name.rpartition(".")[0]
    mixes_in = _what_mixes(asked, ids, parts[name])
    if not mixes_in and _chooses(asked, ids, parts[parent]):
        name, mixes_in = parent, "choice"
    where = re.sub(r"^model(\.|$)", "", name) + ": " if name else ""
    return {"where": where, "mixes_in": mixes_in}


def _chooses(asked: Asked, ids: Ids, part: nn.Module) -> bool:
    """Whether a module itself sorts or chooses tokens, and none of its parts."""
    with contextlib.suppress(*RAISED):  # a foreign model under a dispatch mode
        own = [each for each in recorded(asked.model, ids) if each.modules[-1:] == (part,)]
        return any(CHOICE.fullmatch(step.name) or step.name == "nonzero" for step in own)
    return False


def _what_mixes(asked: Asked, ids: Ids, part: nn.Module) -> str:
    """What in a module mixes rows, as its class and its operations tell."""
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return "batch norm"
    if getattr(part, "batch_first", None) is False and not asked.facts.time_first:
        return "length first"
    try:
        steps = [step for step in recorded(asked.model, ids) if part in step.modules]
    except RAISED:  # a foreign model under a dispatch mode
        return ""
    softmaxes = [step.value for step in steps if "softmax" in step.name]
    rows = {len(ids.tgt_in), ids.tgt_in.numel(), ids.src.numel()}
    for weights in softmaxes:
        axes = [axis for axis in range(weights.dim() - 1) if weights.shape[axis] in rows]
        if any(torch.allclose(s := weights.sum(axis), torch.ones_like(s)) for axis in axes):
            return "softmax"
    if any(CHOICE.fullmatch(step.name) or step.name == "nonzero" for step in steps):
        return "choice"
    is_statistic = any(POOLING.fullmatch(step.name) or NORM.fullmatch(step.name) for step in steps)
    return "statistic" if is_statistic and not softmaxes else ""


def _by_rows(outputs: Mapping[str, Any], count: int) -> dict[str, Tensor]:
    """Of what modules give that which has so many rows, rows first."""
    found: dict[str, Tensor] = {}
    for name, output in outputs.items():
        first = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(first, Tensor) or not first.dim():
            continue
        if len(first) == count:
            found[name] = first
        elif first.dim() > 2 and first.shape[1] == count:  # of two axes the last one is of features
            found[name] = first.transpose(0, 1)
    return found


def _others(asked: Asked, ids: Tensor) -> Tensor:
    """Other symbols in the place of symbols; what is special stays."""
    return torch.where(torch.isin(ids, asked.symbols), asked.other(ids), ids)


# In a padded batch ---------------------------------------------------------------------------

DIFFERS_ALONE = ROWS.cause(
    "differs_alone",
    when="a pair with its pads gives other outputs alone than in its batch",
    words="pair {row} of {count}, with the same pads, gives other outputs alone than in its batch",
    remedy="is a mask left out for a single row, or kept from another batch?",
    explains=False,
)
DEPENDS_ON_ORDER = ROWS.cause(
    "depends_on_order",
    when="outputs move with the order of the rows of a padded batch",
    words="the same padded batch with its rows in another order gives other logits: rows get the "
    "masks of others",
    remedy="is a mask or a cache kept from another batch, or its axis of rows broadcast?",
    explains=False,
)


@ROWS.part("a pair alone", on="every", of_rows=True, also_follows=("pads", "future"))
def a_pair_alone(asked: Asked) -> Iterator[Change]:
    """Some pairs of a padded batch are asked alone, with the same pads."""
    rows = spread_out(len(asked.src), 5)
    for row in rows if asked.is_short else rows[:2]:
        ids, evidence = asked.alone(row), {"row": row, "count": len(asked.src)}
        must_repeat, causes = asked.numbers[row, None], (DIFFERS_ALONE,)
        yield Change("a pair alone with its pads", ids, must_repeat, causes, evidence)


@ROWS.part("another order", on="every", of_rows=True, also_follows=("pads", "future"))
def another_order(asked: Asked) -> Iterator[Change]:
    """The rows of a padded batch are turned round: other rows then have other pads, in the same
    shape."""
    ids = Ids(asked.src.flip(0), asked.tgt_in.flip(0))
    must_repeat = asked.numbers.flip(0)
    yield Change("rows in another order", ids, must_repeat, (DEPENDS_ON_ORDER,))


# An empty pair -------------------------------------------------------------------------------

EMPTY_MOVES_OTHERS = ROWS.cause(
    "empty_moves_others",
    when="outputs move when a pair without symbols is added to the batch",
    words="a pair without symbols moves the outputs of other rows: rows are mixed up",
    remedy="what depends on the other rows of a batch?",
    explains=False,
)
EMPTY_GIVES_NAN = ROWS.cause(
    "empty_gives_nan",
    when="a pair without symbols gives NaN, or makes other rows NaN",
    words="a pair without symbols spoils its own outputs, or those of other rows: a row of "
    "attention with every key closed turns into NaN after softmax over -inf alone",
    remedy="give such rows zeros",
    explains=False,
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


@ROWS.part(
    "an empty pair",
    kinds=Kinds(WITH_SOURCE.names, "the model has no source that could be empty"),
    also_follows=("pads",),
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
    if facts.is_causal and not tgt_in.shape[1]:  # it cuts the target twice, say
        raise Judged(unsure(EMPTY_NOT_MADE, error="the decoder gets no place to start from"))
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
