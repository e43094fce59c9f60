"""The table of changes: pads, later tokens, rows and calls that must move no output; the one engine
that compares answers; and, of a change that moved some, the smallest example and the first module.

A `Change` says which outputs must repeat which. `stays` asks a batch for changes that must move
nothing. Each function behind it gives the changes of one kind for a batch. A new invariance is
such a function and a line in `plan.PARTS`.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.checks.batch import (
    APPENDED_PADS,
    POLARITY,
    TOLERANCE,
    Batch,
    apart,
    chosen,
    embeddings_changed,
    largest,
    worst,
)
from toytrans.checks.result import Result, Told, measured, unsure, wrong
from toytrans.checks.subject import Ids, NoAnswer, wider
from toytrans.errors import UserError


@dataclass(frozen=True)
class Change:
    """Other ids, and what must stay.

    name: what is changed, in words. ids: src (N, S), tgt_in (N, T).
    of: (N, T), for each output the number of the one before that it must repeat: row * T + place;
    -1 for none. before: what it is compared with, which may be these very ids; None for the batch.
    cause: what it means where something moves, or what makes it of which outputs (N, T) moved.
    around: a context in which it is asked.
    """

    name: str
    ids: Ids
    of: Tensor
    cause: str | Callable[[Tensor], str]
    before: Ids | None = None
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    def measure(self, batch: Batch) -> Tensor:
        """How far each output is from the one that it must repeat, (N, T); 0 where it need not."""
        with self.around():
            logits = before = batch.ask(*self.ids)
        if self.before is not self.ids:
            before = batch.logits if self.before is None else batch.ask(*self.before)
        wanted = before.flatten(0, 1)[self.of.clamp(min=0)]
        return batch.moved(logits, wanted).masked_fill(self.of < 0, 0.0)


def stays(changes: Callable[[Batch], Iterable[Change]]) -> Callable[[Batch], Result]:
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
                return measured(largest(moved), batch.tolerance, "", cause, change=(change, moved))
            by = worst((by, largest(moved)))
            names[change.name] += 1
        listed = [f"{name} ({count})" if count > 1 else name for name, count in names.items()]
        return measured(by, batch.tolerance, f"{', '.join(listed)}: nothing moves", "")

    return ask


# Pads ------------------------------------------------------------------------------------------


def pads_appended(batch: Batch) -> Iterator[Change]:
    """More pads behind source and target."""
    facts, more = batch.facts, APPENDED_PADS - 1
    causal = "is the target's pad mask passed, and is the causal mask"
    asked = {
        "the source": (
            (APPENDED_PADS, 0),
            "is the source's pad mask passed to the encoder and to cross-attention",
        ),
        "the target": ((0, more), causal),
        "both": ((APPENDED_PADS, more), "are the pad masks passed"),
    }
    if not facts.has_source:
        causal = "is the pad mask passed" + ", and is the causal mask" * facts.is_causal
        asked = {"the ids": ((0, more), causal)}
    for side, (pads, mask) in asked.items():
        cause = (
            f"outputs at real places change when pads are appended to {side}: pads are seen as "
            f"keys; {mask}, and {POLARITY}"
        )
        yield Change(f"pads appended to {side}", *batch.padded(*pads), cause)
    if batch.model.drops_masked:
        raise wrong(
            "dropout is given masked values, below -1e4: where it makes one zero, what was masked "
            "is seen in training; drop before the mask, or weights after softmax"
        )
    if facts.kind == "decoder" and not facts.masks_from_ids:
        yield from _closed_before(batch)


def _closed_before(batch: Batch) -> Iterator[Change]:
    """Places before the ids that a mask closes must not matter, where positions are given as well;
    where they are not, the ids there must not."""
    facts, more = batch.facts, APPENDED_PADS - 1
    longer = F.pad(batch.tgt_in, (more, 0), value=facts.pad_id)
    closed = F.pad(~batch.real, (more, 0), value=True)
    of = F.pad(batch.of, (more, 0), value=-1)
    with_pads = Ids(batch.src, longer, closed)
    try:
        batch.ask(*with_pads)
    except NoAnswer:  # it takes none
        return
    asked, before = with_pads, Ids(batch.src, batch.tgt_in, ~batch.real)
    if not facts.takes_positions:
        asked = Ids(batch.src, longer.masked_fill(closed, int(batch.symbols[0])), closed)
        of, before = torch.arange(longer.numel()).view(longer.shape).where(of >= 0, -1), with_pads
    cause = (
        f"{more} places before the first token, where attention_mask is 0, move the outputs: is "
        "the mask combined with the causal one in every layer, and are position_ids used?"
    )
    yield Change(f"{more} pads before them", asked, of, cause, before)


def pads_hold_anything(batch: Batch) -> Iterator[Change]:
    """Noise in the place of what the embeddings hold for pads."""
    cause = (
        "real outputs change with what the embedding of a pad holds: pads are seen as keys; are "
        "the pad masks passed to encoder, decoder and cross-attention, each the right way round?"
    )
    name = "noise a hundred times as large in the embeddings of pads"
    yield Change(name, batch.ids, batch.of, cause, around=partial(_noise_in_pads, batch))


@contextlib.contextmanager
def _noise_in_pads(batch: Batch) -> Iterator[None]:
    """What the embeddings make of pads is noise meanwhile, on both sides, a hundred times as large.
    Raises Told where a side is not met."""

    def edit(side: str, embedded: Tensor) -> Tensor:
        real = batch.real_source if side == "src" else batch.real
        noise = batch.noise(embedded) * 100 * embedded.abs().amax()
        return torch.where(real[..., None], embedded, noise)

    with embeddings_changed(batch, edit) as met:
        yield
    for side, name in (("src", "source"), ("tgt", "target")):
        if side not in met and (side == "tgt" or batch.facts.has_source):
            why = f"the {name} is embedded by another module, or at another width"
            raise unsure(why)


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
    return f"{text}; is the causal mask passed, and {POLARITY}"


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
        "the same batch with its rows in another order gives other logits: rows are mixed up, or a "
        "mask or a cache is kept from another batch"
    )
    ids = Ids(batch.src.flip(0), batch.tgt_in.flip(0))
    yield Change("rows in another order", ids, batch.of.flip(0), cause)


def empty_pair_added(batch: Batch) -> Iterator[Change]:
    """A pair without symbols gives numbers, and leaves the other rows as they are. It is what the
    user's batch maker makes of it, or else a source of nothing but pads."""
    facts = batch.facts
    if not facts.has_source:
        raise Told("does not apply", "the model has no source that could be empty")
    has_maker = batch.model.maker is not None and not facts.is_textbook
    try:
        src, tgt_in, _ = batch.model.batch([([], [])])
    except UserError as error:
        reason = f"needs a batch maker that takes a pair without symbols: {error}"
        raise unsure(reason) from None
    if not has_maker:
        src = torch.full_like(batch.src[:1], facts.source_pad)
    may_come = has_maker or facts.is_textbook

    def added(ids: Tensor, row: Tensor, pad: int) -> Tensor:
        width = max(ids.shape[1], row.shape[1])
        return torch.cat([wider(part, width - part.shape[1], pad) for part in (ids, row)])

    longer = added(batch.tgt_in, tgt_in, facts.pad_id)
    of = F.pad(batch.of, (0, longer.shape[1] - batch.of.shape[1], 0, 1), value=-1)
    cause = "a pair without symbols moves the outputs of other rows: rows are mixed up"
    ids = Ids(added(batch.src, src, facts.source_pad), longer)
    change = Change("an empty pair added", ids, of, cause)
    try:
        own = batch.ask(*ids)[-1][facts.real_inputs(longer)[-1]]
        moved = math.nan if bool(own.isnan().any()) else largest(change.measure(batch))
    except NoAnswer:
        if may_come:
            raise
        moved = math.nan
    if math.isnan(moved) and may_come:
        raise wrong(
            "a pair without symbols spoils its own outputs, or those of other rows: a row of "
            "attention with every key closed turns into NaN after softmax over -inf alone; "
            "give such rows zeros"
        )
    if not may_come and not moved <= batch.tolerance:
        raise unsure(
            "a source of pads alone turns into NaN, or spoils other rows; give batch=... (a batch "
            "maker) to show an empty one of yours"
        )
    yield change


def other_calls_between(batch: Batch) -> Iterator[Change]:
    """The same batch after longer and shorter ones of other rows; its ids stay as they are."""

    @contextlib.contextmanager
    def after_others() -> Iterator[None]:
        (src, longer, _), _ = batch.padded(1, 1)
        batch.ask(src.flip(0), longer.flip(0))
        batch.ask(batch.src[:1], batch.tgt_in[:1])
        yield

    cause = (
        "the same batch after other calls gives other logits: something is kept from call to call; "
        "is a mask or a cache kept from another batch?"
    )
    yield Change("the same after other calls", batch.ids, batch.of, cause, around=after_others)
    if changed := sorted(batch.model.overwritten):
        raise wrong(
            f"the model changes the ids that it is handed: {' and '.join(changed)} hold other ids "
            "after a call; change a copy (masked_fill for masked_fill_, clone before assigning)"
        )


# Many shapes -----------------------------------------------------------------------------------


def other_shapes(batch: Batch, with_symbols: bool) -> Iterator[Change]:
    """A short batch with pads, or other symbols, behind it, in many shapes: a mask may be lost at a
    single one.

    In one run of calls the source takes every width, the target takes every width, their
    difference every number of -8..8, and the batch every number of rows up to some. The rows are
    the batch's own, some of them more than once.
    """
    facts = batch.facts
    last = (batch.real * torch.arange(batch.real.shape[1])).amax(1)[:, None]
    for number, (source, target, count) in enumerate(_shapes(batch)):
        rows = torch.arange(count) % len(batch.src)
        more = source - batch.src.shape[1], target - batch.tgt_in.shape[1]
        ids, of = batch.padded(*more, rows)
        if with_symbols:
            is_real = torch.arange(target) <= last[rows]
            ids = Ids(ids.src, ids.tgt_in.where(is_real, batch.other(ids.tgt_in)))
        tried = "one shape" if number == 1 else f"{number} shapes"
        places = f"{source} source and {target}" if facts.has_source else f"{target}"
        cause = f"outputs at real places change in a batch of {count} rows, {places} target places"
        cause += (
            f", and not in {tried} before: a mask is lost at single shapes; how is it made there?"
            if number
            else ": rows are mixed up, or a mask is lost; what depends on the batch's shape?"
        )
        yield Change("other shapes", ids, of, cause)


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


def order_is_seen(batch: Batch) -> Result:
    """Two different neighbouring symbols in another order move some output, each pair of the
    longest row at a time; of long sources those in the second half. Outputs at swapped places may
    move. All are asked in one call, in which the ids as they are come first."""
    batch.require_changing_logits()
    facts, far = batch.facts, not batch.is_short
    if batch.dtype not in TOLERANCE:
        raise unsure("needs fp32 or fp64: half precision rounds as much as a swap may move")
    if far and (batch.dtype != torch.float64 or not facts.has_source):
        raise Told("does not apply", "rounding may move logits as far as such a swap, but in fp64")
    side, real = (batch.src, batch.real_source) if facts.has_source else (batch.tgt_in, batch.real)
    row, target = (int(inside.sum(1).argmax()) for inside in (real, batch.real))
    ids, first = side[row], int(real[row].sum()) // 2 if far else 0
    symbol = torch.isin(ids, batch.symbols) & real[row] & (torch.arange(len(ids)) >= first)
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()
    if not len(places):
        raise unsure("needs sequences with two different neighbouring symbols")
    places = places[chosen(len(places), 12)]
    swapped = ids.repeat(len(places) + 1, 1)
    for number, place in enumerate(places[:, 0].tolist(), 1):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    at = torch.arange(batch.tgt_in.shape[1])
    elsewhere = batch.real[target].expand(len(places), -1)
    where = f" behind place {first}" * far
    cause = (
        f"no swap of neighbours in a source{where} changes anything: the encoder does not see "
        f"order; are positions added to the embeddings{', at every place' * far}?"
    )
    asked = Ids(swapped, batch.tgt_in[target].expand(len(swapped), -1))
    if not facts.has_source:
        asked = Ids(batch.src[:1].expand(len(swapped), -1), swapped)
        elsewhere = elsewhere & (at != places) & (at != places + 1)
        cause = (
            "no swap of neighbours changes an output elsewhere: order is not seen; are positions "
            "added to the embeddings?"
        )
    of = F.pad(torch.where(elsewhere, at, -1), (0, 0, 1, 0), value=-1)
    by = largest(Change("", asked, of, cause, before=asked).measure(batch))
    if facts.kind == "decoder" and by <= batch.tolerance:
        raise unsure(
            "no output changes when two earlier tokens are swapped: a decoder without positions "
            "counts them by its triangle from two layers on; give it two"
        )
    evidence = f"{len(places)} swaps of neighbours: outputs move"
    return measured(by, batch.tolerance, evidence, cause, must_change=True)


# The smallest example, and the first module ----------------------------------------------------

REFUSED = (UserError, Told, IndexError, RuntimeError)
"""What is raised where an example is no longer answered."""

MOST_TRIED = 200
"""Examples that are tried, each smaller than one that fails."""


class Example(NamedTuple):
    """A pair before and after a change, without pads but for those that are appended.

    src: ids of the source. tgt, other: ids of the target before and after, the latter may be
    shorter. place: of the output that moves. pads: appended to source and target.
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
        for n in range(len(self.src) - 1):
            yield self._replace(src=self.src[:n] + self.src[n + 1 :])

    def asked(self, batch: Batch) -> tuple[Ids, Ids]:
        """What is asked before the change and after."""
        src, tgt, other = (torch.tensor([x], dtype=torch.int64) for x in self[:3])
        more = wider(src, self.pads[0], batch.facts.source_pad)
        return Ids(src, tgt), Ids(more, wider(other, self.pads[1], batch.facts.pad_id))


def located(batch: Batch, change: Change, moved: Tensor) -> dict[str, str]:
    """The smallest example of a failure, made of the pair in which outputs move most, and where it
    first shows, in words; nothing where that pair does not fail alone."""
    if change.ids.closed is not None:
        return {}
    facts = batch.facts
    nan = 1e9 if bool(moved.isnan().any()) else -1.0  # an example shows the same kind of failure
    n, t = divmod(int(moved.nan_to_num(1e9).argmax()), moved.shape[1])
    before, ids = change.before or batch.ids, change.ids
    row, place = divmod(int(change.of[n, t]), before.tgt_in.shape[1])
    real = facts.real_inputs(before.tgt_in)[row]
    more_source = abs(ids.src.shape[1] - before.src.shape[1])  # pads may be left out as well
    more_target = max(0, ids.tgt_in.shape[1] - before.tgt_in.shape[1])
    example = Example(
        before.src[row][facts.real_source(before.src)[row]].tolist(),
        before.tgt_in[row][real].tolist(),
        ids.tgt_in[n][facts.real_inputs(ids.tgt_in[n][None])[0]].tolist(),
        int(real[:place].sum()),
        (more_source, more_target),
    )

    def by(example: Example) -> float:
        """How far the output of an example moves; -1 where it is not answered."""
        was, now = example.asked(batch)
        with contextlib.suppress(*REFUSED), torch.no_grad():
            with change.around():
                new = batch.ask(*now)[0, example.place]
            old = batch.ask(*was)[0, example.place]
            return float(batch.moved(new, old).nan_to_num(nan))
        return -1.0

    if not by(example) > batch.tolerance:
        return {}
    tried, going = 0, True
    while going and tried < MOST_TRIED:
        going = False
        for smaller in example.smaller():
            tried += 1
            if by(smaller) > batch.tolerance:
                example, going = smaller, True
                break
    target = "tgt_in" if facts.has_source else "ids"
    what = [f"token {p} from {example.tgt[p]} to {example.other[p]}" for p in example.changed]
    for count, side in zip(example.pads, ("src", target), strict=True):
        what += [f"{count} pad{'s' * (count > 1)} behind {side}"] if count else []
    if len(example.other) < len(example.tgt):
        what.append(f"its first {len(example.other)} alone")
    changed = " and ".join(what) or "asked so"
    pair = f"src {example.src}, " * facts.has_source + f"{target} {example.tgt}"
    moves = f"moves by {most:.2g}" if (most := by(example)) < 1e9 else "is NaN"
    text = f"{pair}: {changed}, and output {example.place} {moves}"
    return {"where": _first_module(batch, change, example), "example": text}


def _first_module(batch: Batch, change: Change, example: Example) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    module, (was, now) = batch.model.module, example.asked(batch)
    if module is None:
        return ""
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            with change.around():
                new = _outputs(batch, module, now)
            old = _outputs(batch, module, was)
    except Exception:  # a foreign model under hooks
        return ""
    if [name for name, _ in old] != [name for name, _ in new]:
        return ""
    source = slice(was.src.shape[1])
    sides = [(was.tgt_in, now.tgt_in, slice(example.place, example.place + 1))]
    sides += [(was.src, now.src, source)] if batch.facts.has_source else []
    for (name, first), (_, second) in zip(old, new, strict=True):
        differ = []
        for ids, others, places in sides:
            a, b = _laid_out(first, ids), _laid_out(second, others)
            if a is not None and b is not None and a.shape[2:] == b.shape[2:]:
                share = min(max(1e-7, 100 * torch.finfo(first.dtype).eps), 1e-2)
                by = largest(apart(a[:, places], b[:, places]).nan_to_num(1.0))
                differ.append(by > share * largest(a[:, places].nan_to_num()))
        if differ and all(differ):
            shown = re.sub(r"^model\.(?=.)", "", name)
            layer = re.search(r"\.(\d+)\.", f".{shown}.")
            where = f"in {shown}" + (f" (layer {int(layer[1]) + 1})" if layer else "")
            own = f"in {type(module).__name__}.forward itself, outside its modules"
            return where if shown else own
    return ""


def _outputs(batch: Batch, module: nn.Module, ids: Ids) -> list[tuple[str, Tensor]]:
    """What every module gives to a batch, in the order in which they end."""
    seen: list[tuple[str, Tensor]] = []
    names = {part: name for name, part in module.named_modules()}

    def keep(part: nn.Module, _: Any, output: Any) -> None:
        output = tuple(output.values()) if isinstance(output, dict) else output
        parts = output if isinstance(output, tuple | list) else (output,)
        numbers = [t for t in parts if isinstance(t, Tensor) and t.is_floating_point()]
        seen.extend((names[part], value.detach().clone()) for value in numbers[:1])

    with contextlib.ExitStack() as stack:
        for part in names:
            stack.enter_context(part.register_forward_hook(keep))
        batch.model.ask(*ids)
    return seen


def _laid_out(value: Tensor, ids: Tensor) -> Tensor | None:
    """An output as ids are, (1, L, ...); None where it is laid out neither so nor time first."""
    if value.dim() < 3 or not ids.numel():
        return None
    value = value if value.shape[:2] == ids.shape else value.transpose(0, 1)
    return value if value.shape[:2] == ids.shape else None
