"""The table of changes: pads, later tokens, rows and calls that must move no output, and orders
that must move some.

Each function gives the changes of one kind for a batch. A new invariance is such a function and a
line in `table.PARTS`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.batch import (
    APPENDED_PADS,
    POLARITY,
    SHORT,
    TOLERANCE,
    Batch,
    chosen,
    largest,
)
from toytrans.checks.change import Change, after
from toytrans.checks.embeddings import noise_in_pads
from toytrans.checks.result import CannotJudge, NotApplicable, Wrong
from toytrans.checks.subject import Ids, NoAnswer, wider
from toytrans.errors import UserError

MOST_ALONE = 8
"""Rows of a batch that are asked alone."""

MOST_PLACES, MOST_IN_TRAIN_MODE = 66, 20
"""Places of a target that are changed one by one; of longer ones so many are chosen."""

MOST_REPLACED = 12
"""Places of a target behind which all is replaced at once."""

FEW = 8
"""Symbols up to which targets are changed beside several sources."""

NEAR = 4
"""Places ahead that a triangle off by one lets see: as many as there are layers."""

PREFIXES = (1, 2, 12, 20, 24, 30, 36, 40, 48, 60)
"""Lengths of the prefixes of long targets: with many divisors, as blocks of attention have."""

# Pads ------------------------------------------------------------------------------------------


def pads_appended(batch: Batch) -> Iterator[Change]:
    """More pads behind source and target, or before the target where its pads are."""
    facts = batch.facts
    more = APPENDED_PADS - (not facts.equal_lengths)
    left = facts.pad_side == "left"
    src = wider(batch.src, APPENDED_PADS, facts.source_pad) if facts.has_source else batch.src
    tgt_in = wider(batch.tgt_in, more, facts.pad_id, left)
    of = F.pad(batch.of, (more, 0) if left else (0, more), value=-1)
    target = "the target" if facts.has_source else "the ids"
    asked = {target: (Ids(batch.src, tgt_in), of)}
    if facts.equal_lengths:
        asked = {"both": (Ids(src, tgt_in), of)}
    elif facts.has_source:
        both = Ids(src, tgt_in), of
        asked = {"the source": (Ids(src, batch.tgt_in), batch.of), **asked, "both": both}
    masks = {
        "the source": "is the source's pad mask passed to the encoder and to cross-attention",
        "the target": "is the target's pad mask passed, and is the causal mask",
        "the ids": "is the pad mask passed" + ", and is the causal mask" * facts.is_causal,
        "both": "are the pad masks passed",
    }
    for side, (ids, numbers) in asked.items():
        cause = (
            f"outputs at real places change when pads are appended to {side}: pads are seen as "
            f"keys; {masks[side]}, and {POLARITY}"
        )
        yield Change(f"pads appended to {side}", ids, numbers, cause)
    if batch.copy.drops_masked:
        raise Wrong(
            "dropout is given masked values, below -1e4: where it makes one zero, what was masked "
            "is seen in training; drop before the mask, or weights after softmax"
        )
    yield from _in_many_shapes(batch, of_symbols=False)
    if facts.takes_masks and facts.is_causal and not left:
        yield from _closed_before(batch)


def _closed_before(batch: Batch) -> Iterator[Change]:
    """Places before the ids that a mask closes: their ids must not matter nor, where positions are
    given as well, that they are there."""
    facts, more = batch.facts, APPENDED_PADS - 1
    longer = wider(batch.tgt_in, more, facts.pad_id, left=True)
    closed = F.pad(~batch.real, (more, 0), value=True)
    of = F.pad(batch.of, (more, 0), value=-1)
    before = Ids(batch.src, batch.tgt_in, ~batch.real)
    try:
        batch.ask(batch.src, longer, closed)
    except NoAnswer:  # it takes none
        return
    numbers = torch.arange(longer.numel()).view(longer.shape).where(of >= 0, -1)
    other = Ids(batch.src, longer.masked_fill(closed, int(batch.symbols[0])), closed)
    cause = (
        f"other ids at {more} places before the first token, where attention_mask is 0, move the "
        "outputs: is the mask combined with the causal one, in every layer?"
    )
    with_pads = Ids(batch.src, longer, closed)
    yield Change(f"other ids at {more} closed places before them", other, numbers, cause, with_pads)
    if facts.takes_positions:
        cause = (
            f"{more} pads before the ids, with attention_mask 0 and position_ids that count from "
            "the first token, move the outputs: are the mask and the positions used?"
        )
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
    size = min(facts.source_size or facts.vocabulary_size, 200)
    row = int(batch.real_source.sum(1).argmax())
    src = batch.src[row, batch.real_source[row]][None]
    tgt_in = batch.tgt_in[row, batch.real[row]][None]
    special = {facts.start_id, facts.eos_id} - {facts.pad_id}
    ids = torch.tensor([i for i in range(size) if i not in special])
    many = [src.expand(len(ids), -1), tgt_in.expand(len(ids), -1)]
    longer = torch.cat((many[0], ids[:, None].expand(-1, 2)), 1)
    try:
        moved = batch.moved(batch.ask(longer, many[1]), batch.ask(many[0], many[1])).amax(1)
    except NoAnswer:
        return None
    unseen = ids[moved <= batch.tolerance].tolist()
    return unseen[0] if len(unseen) == 1 and unseen != [facts.pad_id] else None


# The future ------------------------------------------------------------------------------------


def _require_future(batch: Batch) -> None:
    if not batch.facts.is_causal:
        raise NotApplicable("an encoder sees both sides: it has no future to hide")


def later_token(batch: Batch) -> Iterator[Change]:
    """One token of a target changed: beside a source, beside one alone, beside a short one."""
    _require_future(batch)
    row = int(batch.real.sum(1).argmax())
    src, is_free = batch.src[row], not batch.facts.equal_lengths
    if batch.setting.length > SHORT and is_free:
        src = src[batch.real_source[row]]  # its pads would cost as much as the target
    yield _one_by_one(batch, src, row)
    if batch.setting.length <= FEW and is_free:
        yield from _one_alone(batch, src, row)
        shortest = int(batch.real_source.sum(1).argmin()) if batch.facts.has_source else row
        yield _one_by_one(batch, batch.src[shortest][batch.real_source[shortest]], row)


def _changed_places(batch: Batch, row: int) -> tuple[Tensor, Tensor]:
    """Places of a row's target, and the target (J, T) with another token at each."""
    real = batch.real[row].nonzero()[:, 0].tolist()
    count = MOST_IN_TRAIN_MODE if batch.copy.training else MOST_PLACES
    places = torch.tensor([real[i] for i in chosen(len(real), count)[1:]])
    changed = batch.tgt_in[row].repeat(len(places), 1)
    rows = torch.arange(len(places))
    changed[rows, places] = batch.other(changed[rows, places])
    return places, changed


def _one_by_one(batch: Batch, source: Tensor, row: int) -> Change:
    """All in one call, in which the target as it is comes first."""
    places, changed = _changed_places(batch, row)
    target = batch.tgt_in[row][None]
    ids = Ids(source.expand(len(places) + 1, -1), torch.cat((target, changed)))
    at = torch.arange(target.shape[1])
    earlier = (at < places[:, None]) & batch.real[row]
    of = torch.cat((torch.full_like(target, -1), torch.where(earlier, at, -1)))
    cause = lambda seen: _what_is_seen(seen[1:], places.tolist())  # noqa: E731
    return Change("later tokens one by one", ids, of, cause, within=True)


def _one_alone(batch: Batch, source: Tensor, row: int) -> Iterator[Change]:
    """The first and a later one, in batches of one row."""
    places, changed = _changed_places(batch, row)
    at = torch.arange(changed.shape[1])
    before = Ids(source[None], batch.tgt_in[row][None])
    for number in dict.fromkeys((0, len(places) // 2)):
        place = int(places[number])
        of = torch.where((at < place) & batch.real[row], at, -1)[None]
        cause = partial(_what_is_seen, places=[place])
        ids = Ids(source[None], changed[number][None])
        yield Change("a later token of a pair alone", ids, of, cause, before)


def _what_is_seen(seen: Tensor, places: list[int]) -> str:
    """(J, T) outputs that move with a later token -> what that means."""
    number = int(seen.sum(1).argmax())
    outputs, place = seen[number].nonzero()[:, 0].tolist(), places[number]
    moving = f"places {outputs[0]}..{outputs[-1]}" if len(outputs) > 1 else f"place {outputs[0]}"
    ahead = max(
        int(place - t) for n, place in enumerate(places) for t in seen[n].nonzero()[:, 0].tolist()
    )
    text = f"outputs at {moving} change when token {place} changes: the decoder sees the future"
    first = min(int(row.nonzero()[0, 0]) for row in seen if bool(row.any()))
    if ahead <= NEAR and ahead < places[-1]:  # one for each layer
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
    _require_future(batch)
    width = batch.real.shape[1]
    asked: list[tuple[int, int]] = []
    for row, real in enumerate(batch.real):
        end = int(real.nonzero().max()) if bool(real.any()) else -1
        kept = [p for p in chosen(width - 1, MOST_REPLACED) if bool(real[: p + 1].any())]
        up_to_end = sum(place < end for place in kept) + 1  # beyond it less is replaced
        asked += [(row, place) for place in kept[:up_to_end]]
    if not asked:
        return
    rows = torch.tensor([row for row, _ in asked])
    places = torch.tensor([place for _, place in asked])[:, None]
    inside = torch.arange(width) <= places
    tgt_in = batch.tgt_in[rows]
    changed = torch.where(inside, tgt_in, batch.other(tgt_in))
    of = torch.where(inside, batch.of[rows], -1)
    cause = (
        "outputs move with what follows them: the decoder sees the future; is the causal mask "
        f"passed, and {POLARITY}"
    )
    yield Change("all that follows a place", Ids(batch.src[rows], changed), of, cause)


def prefixes(batch: Batch) -> Iterator[Change]:
    """The beginning of every target alone."""
    _require_future(batch)
    if batch.facts.equal_lengths:
        raise CannotJudge("needs a model that takes source and target of different lengths")
    width = batch.tgt_in.shape[1]
    round_ones = [length for length in PREFIXES if length < width]
    if batch.copy.training:
        round_ones = round_ones[::3]
    short = [1 + place for place in chosen(width - 1, FEW)]
    for length in short if width <= PREFIXES[2] else round_ones:
        cause = (
            f"a prefix of length {length} alone gets other logits than within all {width} tokens: "
            "outputs depend on the target's length, which decoding does not know; are positions or "
            "scales counted from the end, or the future seen?"
        )
        ids = Ids(batch.src, batch.tgt_in[:, :length])
        yield Change("prefixes of targets", ids, batch.of[:, :length], cause)
    yield from _in_many_shapes(batch, of_symbols=True)


# Rows and calls --------------------------------------------------------------------------------


def rows_alone(batch: Batch) -> Iterator[Change]:
    """A pair alone, without its pads and with them."""
    rows = chosen(len(batch.src), MOST_ALONE)
    for row in rows:
        ids, of = _alone(batch, row)
        yield Change("a pair alone", ids, of, _alone_cause(batch, row, "alone"))
        if row in rows[:2] or batch.setting.length <= SHORT:
            cause = _alone_cause(batch, row, "in a batch of its own, with its pads,")
            ids = Ids(batch.src[row][None], batch.tgt_in[row][None])
            yield Change("a pair alone with its pads", ids, batch.of[row][None], cause)


def _alone_cause(batch: Batch, row: int, how: str) -> str:
    return (
        f"pair {row} of {len(batch.src)} gives other outputs {how} than in a padded batch: pads "
        f"are seen, or rows are mixed up; are all pad masks passed, {POLARITY}"
    )


def _alone(batch: Batch, row: int) -> tuple[Ids, Tensor]:
    """A row as a batch of its own, without its pads, and the numbers of its outputs."""
    real_source, real = batch.real_source[row], batch.real[row]
    if batch.facts.equal_lengths:
        width = max(int(real_source.sum()), int(real.sum()))
        ids = Ids(batch.src[row][None, :width], batch.tgt_in[row][None, :width])
        return ids, batch.of[row][None, :width]
    ids = Ids(batch.src[row][real_source][None], batch.tgt_in[row][real][None])
    return ids, batch.of[row][real][None]


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
    facts = batch.facts
    if not facts.has_source:
        raise NotApplicable("the model has no source that could be empty")
    ends = facts.eos_id is not None or batch.model.maker is not None
    give = (
        "a source without a token spoils its outputs; give eos_id=... if sources end with one, or "
        "a batch maker"
    )
    try:
        src, tgt_in, _ = batch.model.batch([([], [])])
    except UserError as error:
        raise CannotJudge(
            f"needs a batch maker that takes a pair without symbols: {error}"
        ) from None
    rows = batch.src, src
    longer = _stacked(batch.tgt_in, tgt_in, facts.pad_id, facts.pad_side == "left")
    of = F.pad(batch.of, (0, longer.shape[1] - batch.of.shape[1], 0, 1), value=-1)
    change = Change("an empty pair added", Ids(_stacked(*rows, facts.source_pad), longer), of, (
        "a pair without symbols moves the outputs of other rows: rows are mixed up"))  # fmt: skip
    try:
        logits = batch.ask(*change.ids)
    except NoAnswer as error:
        if not ends:
            raise CannotJudge(f"{give} ({error})") from None
        raise
    moved = largest(change.measure(batch))
    stay = moved <= batch.tolerance
    own = not bool(logits[-1][facts.real_inputs(longer)[-1]].isnan().any())
    all_pads = _takes_pads_alone(batch, longer)
    is_sound = own and (all_pads or not facts.is_textbook)
    if stay and not is_sound and not ends:
        raise CannotJudge(give)
    if stay and is_sound and not all_pads and batch.model.maker is None:
        raise CannotJudge(
            "a source of pads alone turns into NaN, or spoils other rows; whether an empty source "
            "of yours has an end in it, your batch maker shows (batch=...)"
            if ends
            else give
        )
    if not is_sound or math.isnan(moved):
        what = "its own outputs" if stay else "those of other rows"
        raise Wrong(
            f"a pair without symbols spoils {what}: a row of attention with every key closed turns "
            "into NaN after softmax over -inf alone; give such rows zeros"
        )
    yield change


def _stacked(ids: Tensor, row: Tensor, pad: int, left: bool = False) -> Tensor:
    """(B, L) ids with one more row (1, K), each padded to the wider of the two."""
    width = max(ids.shape[1], row.shape[1])
    return torch.cat([wider(part, width - part.shape[1], pad, left) for part in (ids, row)])


def _takes_pads_alone(batch: Batch, tgt_in: Tensor) -> bool:
    """Whether a last row of nothing but pads gives numbers and leaves the others alone."""
    pads = torch.full_like(batch.src[:1], batch.facts.source_pad)
    try:
        logits = batch.ask(torch.cat((batch.src, pads)), tgt_in)
    except NoAnswer:
        return False
    width = batch.logits.shape[1]
    others = batch.differ(logits[:-1, :width], batch.logits, batch.real)
    return others <= batch.tolerance and not bool(logits[-1, 0].isnan().any())


def other_calls_between(batch: Batch) -> Iterator[Change]:
    """The same batch after longer and shorter ones of other rows; its ids stay as they are."""
    facts = batch.facts
    src = wider(batch.src, 1, facts.source_pad) if facts.has_source else batch.src
    longer = wider(batch.tgt_in, 1, facts.pad_id, facts.pad_side == "left")
    others = partial(
        after,
        partial(batch.ask, src, longer),
        partial(batch.ask, src.flip(0), longer.flip(0)),
        partial(batch.ask, batch.src[:1], batch.tgt_in[:1]),
    )
    cause = (
        "the same batch after other calls gives other logits: something is kept from call to call; "
        "is a mask or a cache kept from another batch?"
    )
    yield Change("the same after other calls", batch.ids, batch.of, cause, around=others)
    if changed := sorted(batch.copy.overwritten):
        raise Wrong(
            f"the model changes the ids that it is handed: {' and '.join(changed)} hold other ids "
            "after a call; change a copy (masked_fill for masked_fill_, clone before assigning)"
        )


# Many shapes -----------------------------------------------------------------------------------

PERIOD = 17
"""Neighbouring widths in which target and source differ by each number of -8..8 once."""

WORK_IN_SHAPES = 15e9
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


def _in_many_shapes(batch: Batch, of_symbols: bool) -> Iterator[Change]:
    """A short batch in many shapes: a mask may be lost at a single one of them.

    In one run of calls the source takes every width, the target takes every width, their difference
    every number of -8..8, and the batch every number of rows up to some. Behind the targets of two
    rows in three come pads, behind those of the third other symbols: the ones are asked for of
    pads, the others of the future, and each shape is asked once.
    """
    known = batch.kept.setdefault("shapes", [])
    shapes = batch.kept.setdefault("shapes to try", _shapes(batch))
    number = 0
    while True:
        if number == len(known):
            found = _tried(batch, shapes, number)
            if found is None:
                return
            known.append(found)
        change, has_symbols = known[number]
        number += 1
        assert change.moved is not None
        is_other = has_symbols != of_symbols
        yield replace(change, moved=change.moved.masked_fill(is_other[:, None], 0.0))


def _tried(batch: Batch, shapes: Iterator[Shape], number: int) -> tuple[Change, Tensor] | None:
    """The next shape, measured, and which of its rows are followed by symbols; None for no more."""
    shape = next(shapes, None)
    if shape is None:
        return None
    change, has_symbols = _of_shape(batch, shape, number)
    try:
        moved = change.measure(batch)
    except NoAnswer:  # more places than it takes
        return None
    return replace(change, moved=moved), has_symbols


def _shapes(batch: Batch) -> Iterator[Shape]:
    """Widths beyond the batch's own; the rows become fewer as the widths grow. None in train mode,
    nor beyond a bound of work."""
    facts, spent = batch.facts, 0.0
    ids = batch.src.numel() + batch.tgt_in.numel()
    first = max(batch.src.shape[1], batch.tgt_in.shape[1]) + 1
    widest = 0 if batch.copy.training else batch.setting.widest
    last = int(min(widest + 1, facts.limit or math.inf))
    shapes = [Shape(first * facts.has_source, first, 2)] if first <= last else []
    for number, source in enumerate(range(first, last + 1)):
        place = number % PERIOD
        start = source - place
        is_whole = start + PERIOD - 1 <= last and facts.has_source and not facts.equal_lengths
        target = start + 2 * place % PERIOD if is_whole else source
        rows = max(GROUP, batch.setting.most_rows - number)
        shapes.append(Shape(source * facts.has_source, target, rows))
    for shape in shapes:
        spent += batch.work * max(1.0, shape.rows * (shape.source + shape.target) / ids)
        if spent > WORK_IN_SHAPES:
            return
        yield shape


def _of_shape(batch: Batch, shape: Shape, number: int) -> tuple[Change, Tensor]:
    """One shape, its rows the batch's own, some of them more than once."""
    facts, left = batch.facts, batch.facts.pad_side == "left"
    width = batch.tgt_in.shape[1]
    group, place = torch.arange(shape.rows) // GROUP, torch.arange(shape.rows) % GROUP
    has_symbols = (place == GROUP - 1) & facts.is_causal & (not left)
    of = torch.where(has_symbols, group + shape.target, 2 * group + place) % len(batch.src)
    src = batch.src[of]
    if facts.has_source:
        src = wider(src, shape.source - src.shape[1], facts.source_pad)
    more = shape.target - width
    tgt_in = wider(batch.tgt_in[of], more, facts.pad_id, left)
    last = (batch.real[of] * torch.arange(width)).amax(1)
    behind = torch.arange(shape.target) > last[:, None]
    tgt_in = torch.where(behind & has_symbols[:, None], batch.other(tgt_in), tgt_in)
    numbers = F.pad(batch.of[of], (more, 0) if left else (0, more), value=-1)
    tried = "one shape" if number == 1 else f"{number} shapes"
    cause = f"outputs at real places change in a batch of {shape}" + (
        f", and not in {tried} before: a mask is lost at single shapes; how is it made there?"
        if number
        else ": rows are mixed up, or a mask is lost; what depends on the batch's shape?"
    )
    ids, length = Ids(src, tgt_in), batch.setting.widest
    return Change("more in other shapes", ids, numbers, cause, length=length), has_symbols


# The order of the ids --------------------------------------------------------------------------


def neighbours_swapped(batch: Batch) -> Iterator[Change]:
    """Two different neighbouring symbols in another order, each pair of a row at a time."""
    if batch.dtype not in TOLERANCE:
        raise CannotJudge("needs fp32 or fp64: half precision rounds as much as a swap may move")
    if not batch.facts.has_source:
        yield _swapped_ids(batch)
        return
    row = int(batch.real_source.sum(1).argmax())
    cause = (
        "no swap of neighbours in a source changes anything: the encoder does not see order; are "
        "positions added to the embeddings?"
    )
    yield _swapped_source(batch, row, row, batch.real_source[row], cause)


def neighbours_swapped_far(batch: Batch) -> Iterator[Change]:
    """The same in the second half of a long source, by the outputs for the longest target."""
    row, target = (int(real.sum(1).argmax()) for real in (batch.real_source, batch.real))
    half = int(batch.real_source[row].sum()) // 2
    behind = batch.real_source[row] & (torch.arange(batch.src.shape[1]) >= half)
    cause = (
        f"no swap of neighbours behind place {half} of a source changes anything: order is seen "
        "before it; do positions end there?"
    )
    yield _swapped_source(batch, row, target, behind, cause)


def _swapped_source(batch: Batch, row: int, target: int, where: Tensor, cause: str) -> Change:
    """Swaps in the source of a row, asked of the target of another; the source itself is first."""
    swapped, _ = _swaps(batch, batch.src[row], where)
    src = torch.cat((batch.src[row][None], swapped))
    width = batch.tgt_in.shape[1]
    numbers = torch.where(batch.real[target], torch.arange(width), -1).repeat(len(src), 1)
    ids = Ids(src, batch.tgt_in[target].expand(len(src), -1))
    name = f"{len(swapped)} swaps of neighbours in a source"
    return Change(name, ids, numbers, cause, within=True, length=batch.setting.length)


def _swaps(batch: Batch, ids: Tensor, real: Tensor) -> tuple[Tensor, list[int]]:
    """(N, L) ids with two neighbouring symbols swapped, and at which places."""
    symbol = torch.isin(ids, batch.symbols) & real
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()[:, 0].tolist()
    if not places:
        raise CannotJudge("needs sequences with two different neighbouring symbols")
    swapped = ids.repeat(len(places), 1)
    for number, place in enumerate(places):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    return swapped, places


def _swapped_ids(batch: Batch) -> Change:
    """Swaps in the ids of a model of one stream, seen from the places that see them."""
    row = int(batch.real.sum(1).argmax())
    ids, is_causal = batch.tgt_in[row], batch.facts.is_causal
    swapped, where = _swaps(batch, ids, batch.real[row])
    places, start = torch.arange(len(ids)), torch.tensor(where)[:, None]
    elsewhere = (places > start + 1) | (places < start if not is_causal else False)
    of = torch.where(elsewhere & batch.real[row], places, -1)
    of = torch.cat((torch.full((1, len(ids)), -1), of))
    asked = Ids(batch.src[:1].expand(len(of), -1), torch.cat((ids[None], swapped)))
    cause = (
        f"none of {len(where)} swaps of neighbours changes an output elsewhere: order is not seen; "
        "are positions added to the embeddings?"
    )
    change = Change(f"{len(where)} swaps of neighbours", asked, of, cause, within=True)
    moved = change.measure(batch)
    if is_causal and largest(moved) <= batch.tolerance:
        raise CannotJudge(
            "no output changes when two earlier tokens are swapped: a decoder without positions "
            "counts them by its triangle from two layers on; give it two"
        )
    return replace(change, moved=moved)
