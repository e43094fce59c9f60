"""The table of changes: pads, later tokens, rows and calls that must move no output, and orders
that must move some; and the one engine that compares answers.

A `Change` says which outputs must repeat which. `stays` asks a batch for changes that must move
nothing, `moves` for one that must move something. Each function behind them gives the changes of
one kind for a batch. A new invariance is such a function and a line in `plan.PARTS`.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.batch import (
    APPENDED_PADS,
    POLARITY,
    TOLERANCE,
    Batch,
    chosen,
    largest,
    worst,
)
from toytrans.checks.copies import copy_of
from toytrans.checks.embeddings import noise_in_pads
from toytrans.checks.result import CannotJudge, NotApplicable, Result, Wrong, measured
from toytrans.checks.subject import Ids, NoAnswer, wider
from toytrans.errors import UserError


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


# Pads ------------------------------------------------------------------------------------------


def pads_appended(batch: Batch) -> Iterator[Change]:
    """More pads behind source and target, or before the target where its pads are."""
    facts, more = batch.facts, APPENDED_PADS - 1
    left = facts.pad_side == "left"
    tgt_in = wider(batch.tgt_in, more, facts.pad_id, left)
    of = F.pad(batch.of, (more, 0) if left else (0, more), value=-1)
    if facts.has_source:
        src = wider(batch.src, APPENDED_PADS, facts.source_pad)
        mask = "is the source's pad mask passed to the encoder and to cross-attention"
        asked = [("the source", Ids(src, batch.tgt_in), batch.of, mask)]
        mask = "is the target's pad mask passed, and is the causal mask"
        asked.append(("the target", Ids(batch.src, tgt_in), of, mask))
        asked.append(("both", Ids(src, tgt_in), of, "are the pad masks passed"))
    else:
        mask = "is the pad mask passed" + ", and is the causal mask" * facts.is_causal
        asked = [("the ids", Ids(batch.src, tgt_in), of, mask)]
    for side, ids, numbers, mask in asked:
        cause = (
            f"outputs at real places change when pads are appended to {side}: pads are seen as "
            f"keys; {mask}, and {POLARITY}"
        )
        yield Change(f"pads appended to {side}", ids, numbers, cause)
    if batch.model.drops_masked:
        raise Wrong(
            "dropout is given masked values, below -1e4: where it makes one zero, what was masked "
            "is seen in training; drop before the mask, or weights after softmax"
        )
    if facts.takes_masks and facts.is_causal and not left:
        yield from _closed_before(batch)


def _closed_before(batch: Batch) -> Iterator[Change]:
    """Places before the ids that a mask closes: their ids must not matter nor, where positions are
    given as well, that they are there."""
    facts, more = batch.facts, APPENDED_PADS - 1
    longer = wider(batch.tgt_in, more, facts.pad_id, left=True)
    closed = F.pad(~batch.real, (more, 0), value=True)
    of = F.pad(batch.of, (more, 0), value=-1)
    with_pads, other = (
        Ids(batch.src, ids, closed)
        for ids in (longer, longer.masked_fill(closed, int(batch.symbols[0])))
    )
    try:
        batch.ask(*with_pads)
    except NoAnswer:  # it takes none
        return
    numbers = torch.arange(longer.numel()).view(longer.shape).where(of >= 0, -1)
    cause = (
        f"other ids at {more} places before the first token, where attention_mask is 0, move the "
        "outputs: is the mask combined with the causal one, in every layer?"
    )
    yield Change(f"other ids at {more} closed places before them", other, numbers, cause, with_pads)
    if facts.takes_positions:
        cause = (
            f"{more} pads before the ids, with attention_mask 0 and position_ids that count from "
            "the first token, move the outputs: are the mask and the positions used?"
        )
        before = Ids(batch.src, batch.tgt_in, ~batch.real)
        yield Change(f"{more} pads before them", with_pads, of, cause, before)


def pads_hold_anything(batch: Batch) -> Iterator[Change]:
    """Noise in the place of what the embeddings hold for pads."""
    cause = (
        "real outputs change with what the embedding of a pad holds: pads are seen as keys; are "
        "the pad masks passed to encoder, decoder and cross-attention, each the right way round?"
    )
    name = "noise a hundred times as large in the embeddings of pads"
    yield Change(name, batch.ids, batch.of, cause, around=partial(noise_in_pads, batch))


def other_source_pad(batch: Batch) -> int | None:
    """The one id that acts as a pad behind a source where the pad's id does not."""
    facts = batch.facts
    known = facts.source_pad_id is not None or not facts.masks_from_ids
    if known or not facts.has_source or batch.logits_constant:
        return None
    row = int(batch.real_source.sum(1).argmax())
    special = {facts.start_id, facts.eos_id} - {facts.pad_id}
    size = min(facts.source_size or facts.vocabulary_size, 200)
    ids = torch.tensor([i for i in range(size) if i not in special])
    src = batch.src[row, batch.real_source[row]].expand(len(ids), -1)
    tgt_in = batch.tgt_in[row, batch.real[row]].expand(len(ids), -1)
    longer = torch.cat((src, ids[:, None].expand(-1, 2)), 1)
    try:
        moved = batch.moved(batch.ask(longer, tgt_in), batch.ask(src, tgt_in)).amax(1)
    except NoAnswer:
        return None
    unseen = ids[moved <= batch.tolerance].tolist()
    return unseen[0] if len(unseen) == 1 and unseen != [facts.pad_id] else None


# The future ------------------------------------------------------------------------------------


def later_token(batch: Batch) -> Iterator[Change]:
    """One token of a target changed, beside a source and beside a short one; all are asked in one
    call, in which the target as it is comes first."""
    row = int(batch.real.sum(1).argmax())
    rows = {row, int(batch.real_source.sum(1).argmin())} if batch.is_short else {row}
    real = batch.real[row].nonzero()[:, 0].tolist()
    places = torch.tensor([real[i] for i in chosen(len(real), 34)[1:]])
    tgt_in = batch.tgt_in[row]
    changed = torch.cat((tgt_in[None], batch.one_by_one(tgt_in, places)))
    at = torch.arange(changed.shape[1])
    earlier = torch.where((at < places[:, None]) & batch.real[row], at, -1)
    of = F.pad(earlier, (0, 0, 1, 0), value=-1)

    def cause(seen: Tensor) -> str:
        return _what_is_seen(seen[1:], places)

    for n in rows if batch.facts.has_source else {row}:
        source = batch.src[n, batch.real_source[n]]  # pads would cost as much
        ids = Ids(source.expand(len(of), -1), changed)
        yield Change("later tokens one by one", ids, of, cause, before=ids)


def _what_is_seen(seen: Tensor, places: Tensor) -> str:
    """(J, T) outputs that move with a later token at J places -> what that means."""
    number = int(seen.sum(1).argmax())
    outputs, place = seen[number].nonzero()[:, 0].tolist(), int(places[number])
    moving = f"places {outputs[0]}..{outputs[-1]}" if len(outputs) > 1 else f"place {outputs[0]}"
    text = f"outputs at {moving} change when token {place} changes: the decoder sees the future"
    ahead = int((places[:, None] - torch.arange(seen.shape[1]))[seen].max())
    first = int(seen.any(0).int().argmax())
    if ahead <= 4 and ahead < places[-1]:  # one for each layer
        return (
            f"{text}, {ahead} ahead and no more; is the triangle off by one, in each layer or "
            "in some (tril(1) for tril(), triu(2) for triu(1))?"
        )
    if first > 0:
        return (
            f"{text}, from output {first} on and not before; is the mask made for all lengths, or "
            "kept from a shorter one?"
        )
    if ahead < places[-1]:
        return f"{text}, up to {ahead} ahead; is the causal mask right in every layer?"
    return f"{text}; is the causal mask passed, and {POLARITY}"


def all_that_follows(batch: Batch) -> Iterator[Change]:
    """All tokens behind a place replaced at once, pads as well."""
    count, width = batch.real.shape
    behind = chosen(width - 1, 8 if batch.is_short else 4)
    rows = torch.arange(count).repeat_interleave(len(behind))
    inside = torch.arange(width) <= torch.tensor(behind).repeat(count)[:, None]
    tgt_in = batch.tgt_in[rows]
    ids = Ids(batch.src[rows], torch.where(inside, tgt_in, batch.other(tgt_in)))
    cause = (
        "outputs move with what follows them: the decoder sees the future; is the causal mask "
        f"passed, and {POLARITY}"
    )
    yield Change("all that follows a place", ids, torch.where(inside, batch.of[rows], -1), cause)


def prefixes(batch: Batch) -> Iterator[Change]:
    """The beginning of every target alone."""
    width, few = batch.tgt_in.shape[1], 8 if batch.is_short else 1
    more = 12, 24, 36, 48, 60  # with many divisors, as blocks of attention have
    for length in (n for n in range(1, width) if n <= few or n in more):
        cause = (
            f"a prefix of length {length} alone gets other logits than within all {width} tokens: "
            "outputs depend on the target's length, which decoding does not know; are positions or "
            "scales counted from the end, or the future seen?"
        )
        ids = Ids(batch.src, batch.tgt_in[:, :length])
        yield Change("prefixes of targets", ids, batch.of[:, :length], cause)


# Rows and calls --------------------------------------------------------------------------------


def rows_alone(batch: Batch) -> Iterator[Change]:
    """A pair alone, without its pads and with them."""
    rows = chosen(len(batch.src), 5)
    for row in rows:
        cause = (
            f"pair {row} of {len(batch.src)} gives other outputs alone than in a padded batch: "
            f"pads are seen, or rows are mixed up; are all pad masks passed, {POLARITY}"
        )
        src, tgt_in, of = batch.src[row, None], batch.tgt_in[row, None], batch.of[row, None]
        inside, real = batch.real_source[row], batch.real[row]
        ids = Ids(src[:, inside], tgt_in[:, real])
        yield Change("a pair alone", ids, of[:, real], cause)
        if row in rows[:2] or batch.is_short:
            yield Change("a pair alone with its pads", Ids(src, tgt_in), of, cause)


def rows_in_another_order(batch: Batch) -> Iterator[Change]:
    """Rows in another order have other pads in the same shape."""
    cause = (
        "the same batch with its rows in another order gives other logits: something is kept from "
        "call to call, or rows are mixed up; is a mask or a cache kept from another batch?"
    )
    ids = Ids(batch.src.flip(0), batch.tgt_in.flip(0))
    yield Change("rows in another order", ids, batch.of.flip(0), cause)


def empty_pair_added(batch: Batch) -> Iterator[Change]:
    """A pair without symbols gives numbers, and leaves the other rows as they are; so does a source
    of nothing but pads, unless the batch maker never makes one."""
    facts, has_maker = batch.facts, batch.model.maker is not None
    if not facts.has_source:
        raise NotApplicable("the model has no source that could be empty")
    try:
        src, tgt_in, _ = batch.model.batch([([], [])])
    except UserError as error:
        reason = f"needs a batch maker that takes a pair without symbols: {error}"
        raise CannotJudge(reason) from None

    def added(ids: Tensor, row: Tensor, pad: int, left: bool = False) -> Tensor:
        width = max(ids.shape[1], row.shape[1])
        return torch.cat([wider(part, width - part.shape[1], pad, left) for part in (ids, row)])

    longer = added(batch.tgt_in, tgt_in, facts.pad_id, facts.pad_side == "left")
    of = F.pad(batch.of, (0, longer.shape[1] - batch.of.shape[1], 0, 1), value=-1)
    pads = torch.full_like(batch.src[:1], facts.source_pad)
    cause = "a pair without symbols moves the outputs of other rows: rows are mixed up"
    for source in (src, pads) if facts.is_textbook or not has_maker else (src,):
        may_come = facts.is_textbook or (source is src and (has_maker or facts.eos_id is not None))
        ids = Ids(added(batch.src, source, facts.source_pad), longer)
        change = Change("an empty pair added", ids, of, cause)
        try:
            own = batch.ask(*ids)[-1][facts.real_inputs(longer)[-1]]
            moved = math.nan if bool(own.isnan().any()) else largest(change.measure(batch))
        except NoAnswer:
            if may_come:
                raise
            moved = math.nan
        if math.isnan(moved) and may_come:
            raise Wrong(
                "a pair without symbols spoils its own outputs, or those of other rows: a row of "
                "attention with every key closed turns into NaN after softmax over -inf alone; "
                "give such rows zeros"
            )
        if not may_come and not moved <= batch.tolerance:
            raise CannotJudge(
                "a source of pads alone turns into NaN, or spoils other rows; give eos_id=... if "
                "sources end with one, and batch=... (a batch maker) to show an empty one of yours"
            )
        yield change


def other_calls_between(batch: Batch) -> Iterator[Change]:
    """The same batch after longer and shorter ones of other rows; its ids stay as they are."""
    facts = batch.facts
    src = wider(batch.src, int(facts.has_source), facts.source_pad)
    longer = wider(batch.tgt_in, 1, facts.pad_id, facts.pad_side == "left")

    @contextlib.contextmanager
    def after_others() -> Iterator[None]:
        batch.ask(src.flip(0), longer.flip(0))
        batch.ask(batch.src[:1], batch.tgt_in[:1])
        yield

    cause = (
        "the same batch after other calls gives other logits: something is kept from call to call; "
        "is a mask or a cache kept from another batch?"
    )
    yield Change("the same after other calls", batch.ids, batch.of, cause, around=after_others)
    if changed := sorted(batch.model.overwritten):
        raise Wrong(
            f"the model changes the ids that it is handed: {' and '.join(changed)} hold other ids "
            "after a call; change a copy (masked_fill for masked_fill_, clone before assigning)"
        )


def fresh_copies_agree(batch: Batch) -> Result:
    """Of two copies that were never asked one meets a long batch first, and one a short batch."""
    original, precision = batch.model.original, batch.model.precision
    copies = [original and copy_of(original, precision) for _ in range(2)]
    drawn = [(batch.row(4), batch.row(4)), (batch.row(2), batch.row(2))]
    short, _ = batch.made_of(drawn)
    answers: list[dict[Ids, Tensor]] = []
    for made, order in zip(copies, ((batch.ids, short), (short, batch.ids)), strict=True):
        if made is None:
            raise NotApplicable("the model cannot be copied")
        with torch.no_grad():
            answers.append({ids: made.ask(*ids) for ids in order})
    by = worst(
        batch.differ(answers[0][ids], answers[1][ids], batch.facts.real_inputs(ids.tgt_in))
        for ids in (batch.ids, short)
    )
    cause = (
        f"a batch gives other logits after a shorter or a longer one than before any, by {by:.2g}: "
        "something is kept from call to call; is a mask made for another batch?"
    )
    return measured(by, batch.tolerance, "the same whatever is asked first", cause)


def same_again(batch: Batch) -> Iterator[Change]:
    """The batch after all that was asked since."""
    cause = (
        f"{batch.facts.name} answers the same input otherwise after some more calls; what does it "
        "keep from call to call?"
    )
    yield Change("the same at the end", batch.ids, batch.of, cause)


# Many shapes -----------------------------------------------------------------------------------


def other_shapes(batch: Batch, with_symbols: bool) -> Iterator[Change]:
    """A short batch with pads, or other symbols, behind it, in many shapes: a mask may be lost at a
    single one.

    In one run of calls the source takes every width, the target takes every width, their
    difference every number of -8..8, and the batch every number of rows up to some. The rows are
    the batch's own, some of them more than once.
    """
    facts, left = batch.facts, batch.facts.pad_side == "left"
    last = (batch.real * torch.arange(batch.real.shape[1])).amax(1)[:, None]
    for number, (source, target, count) in enumerate(_shapes(batch)):
        rows = torch.arange(count) % len(batch.src)
        src = batch.src[rows]
        if facts.has_source:
            src = wider(src, source - src.shape[1], facts.source_pad)
        more = target - batch.tgt_in.shape[1]
        tgt_in = wider(batch.tgt_in[rows], more, facts.pad_id, left)
        if with_symbols and not left:
            tgt_in = tgt_in.where(torch.arange(target) <= last[rows], batch.other(tgt_in))
        of = F.pad(batch.of[rows], (more, 0) if left else (0, more), value=-1)
        tried = "one shape" if number == 1 else f"{number} shapes"
        places = f"{source} source and {target}" if facts.has_source else f"{target}"
        cause = f"outputs at real places change in a batch of {count} rows, {places} target places"
        cause += (
            f", and not in {tried} before: a mask is lost at single shapes; how is it made there?"
            if number
            else ": rows are mixed up, or a mask is lost; what depends on the batch's shape?"
        )
        yield Change("other shapes", Ids(src, tgt_in), of, cause)


def _shapes(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Places of source and target beyond the batch's own, and rows, which become fewer as the
    widths grow; none beyond a bound of work, about 2 s. Of 17 neighbouring widths target and source
    differ by each number of -8..8 once."""
    facts, spent, period = batch.facts, 0.0, 17
    first = max(batch.src.shape[1], batch.tgt_in.shape[1]) + 1
    last = int(min(batch.setting.widest + 1, facts.max_length or math.inf))
    for number, source in enumerate(range(first, last + 1)):
        place = number % period
        start = source - place
        is_whole = start + period - 1 <= last and facts.has_source
        target = start + 2 * place % period if is_whole else source
        rows = max(2, batch.setting.most_rows - number)
        spent += batch.work * rows * (source + target) / (batch.src.numel() + batch.tgt_in.numel())
        if spent > 8e9:
            return
        yield source, target, rows


# The order of the ids --------------------------------------------------------------------------


def neighbours_swapped(batch: Batch) -> Change:
    """Two different neighbouring symbols in another order, each pair of a row at a time."""
    facts = batch.facts
    if batch.dtype not in TOLERANCE:
        raise CannotJudge("needs fp32 or fp64: half precision rounds as much as a swap may move")
    if facts.has_source:
        row = int(batch.real_source.sum(1).argmax())
        cause = (
            "no swap of neighbours in a source changes anything: the encoder does not see order; "
            "are positions added to the embeddings?"
        )
        return _swaps(batch, batch.src[row], batch.real_source[row], row, cause)
    row = int(batch.real.sum(1).argmax())
    cause = (
        "no swap of neighbours changes an output elsewhere: order is not seen; are positions added "
        "to the embeddings?"
    )
    change = _swaps(batch, batch.tgt_in[row], batch.real[row], row, cause)
    if facts.is_causal and largest(change.measure(batch)) <= batch.tolerance:
        raise CannotJudge(
            "no output changes when two earlier tokens are swapped: a decoder without positions "
            "counts them by its triangle from two layers on; give it two"
        )
    return change


def neighbours_swapped_far(batch: Batch) -> Change:
    """The same in the second half of a long source, by the outputs for the longest target."""
    if not batch.facts.has_source:
        raise NotApplicable("the model has no source")
    if batch.dtype != torch.float64:
        raise NotApplicable("rounding may move logits as far as such a swap, but in fp64")
    row, target = (int(real.sum(1).argmax()) for real in (batch.real_source, batch.real))
    half = int(batch.real_source[row].sum()) // 2
    behind = batch.real_source[row] & (torch.arange(batch.src.shape[1]) >= half)
    cause = (
        f"no swap of neighbours behind place {half} of a source changes anything: order is seen "
        "before it; do positions end there?"
    )
    return _swaps(batch, batch.src[row], behind, target, cause)


def _swaps(batch: Batch, ids: Tensor, where: Tensor, row: int, cause: str) -> Change:
    """Swaps of ids (L,) beside the target of a row, or of this target where there is no source;
    the ids as they are come first. Outputs at swapped places may move."""
    symbol = torch.isin(ids, batch.symbols) & where
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()
    if not len(places):
        raise CannotJudge("needs sequences with two different neighbouring symbols")
    places = places[chosen(len(places), 12)]
    swapped = ids.repeat(len(places) + 1, 1)
    for number, place in enumerate(places[:, 0].tolist(), 1):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    at = torch.arange(batch.tgt_in.shape[1])
    elsewhere = batch.real[row].expand(len(places), -1)
    asked = Ids(swapped, batch.tgt_in[row].expand(len(swapped), -1))
    if not batch.facts.has_source:
        asked = Ids(batch.src[:1].expand(len(swapped), -1), swapped)
        elsewhere = elsewhere & (at != places) & (at != places + 1)
    of = F.pad(torch.where(elsewhere, at, -1), (0, 0, 1, 0), value=-1)
    return Change(f"{len(places)} swaps of neighbours", asked, of, cause, before=asked)
