"""Proofs that look from outside, at logits: pads, the future, rows, lengths, order."""

import math

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.insight.proofs.batch import (
    MORE,
    TOLERANCE,
    Examples,
    NoAnswer,
    apart,
    largest,
    wider,
    worst,
)
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, Outcome, Witness

POLARITY = "is True = block what your layer expects?"

MOST_PLACES = 66
"""Places of a target that are changed one by one; of longer ones so many are chosen."""

FEW = 8
"""Prefixes that are asked for."""

NEAR = 4
"""Places ahead that a triangle off by one lets see: as many as there are layers."""


def _sees(x: Examples) -> None:
    """Raises CannotJudge where the logits are the same whatever is asked."""
    if x.sees_nothing:
        raise CannotJudge(
            "the logits never change, so nothing can be seen through them; is the output layer "
            "zero? train a step, or give it other weights"
        )


def chosen(count: int, most: int) -> list[int]:
    """Of the places 0 .. count - 1 the ends and some between, `most` at most."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


# Pads ------------------------------------------------------------------------------------------


def pads_appended(x: Examples) -> Outcome:
    """(a) More pads behind source and target leave the outputs at real places as they are."""
    _sees(x)
    pad, width = x.subject.pad_id, x.tgt_in.shape[1]
    left = x.subject.pad_side == "left"
    tgt_in = wider(x.tgt_in, MORE - 1, pad, left)
    inside = slice(-width, None) if left else slice(width)
    asked = {"the target": (x.src, tgt_in)}
    if x.subject.has_source:
        src = wider(x.src, MORE, x.subject.source_pad)
        both = {"the source": (src, x.tgt_in), "both": (src, tgt_in)}
        asked = {"both": both["both"]} if x.subject.equal_lengths else both | asked
    by = {
        side: x.differ(x.ask(*given)[:, inside if given[1] is tgt_in else slice(None)], x.logits,
                       x.real)
        for side, given in asked.items()
    }  # fmt: skip
    order = [side for side in ("the source", "the target", "both") if side in by]
    side = next((side for side in order if not by[side] <= x.tolerance), order[-1])
    if not by[side] <= x.tolerance and side != "the target":
        _other_pad(x)
    where = {
        "the source": "is the source's pad mask passed to the encoder and to cross-attention",
        "the target": "is the target's pad mask passed, and is the causal mask",
        "both": "are the pad masks passed",
    }[side]
    worst_of = worst(by.values())
    note = "" if left or x.subject.has_source else _pads_before(x)
    evidence = (
        f"{MORE} pads behind the source, {MORE - 1} {'before' if left else 'behind'} the target: "
        "nothing changes"
        if x.subject.has_source
        else f"{MORE - 1} pads {'before' if left else 'behind'} the ids: nothing changes{note}"
    )
    return Outcome(
        worst_of,
        x.tolerance,
        evidence,
        f"outputs at real places change when pads are appended to {side}: pads are seen as keys; "
        f"{where}, and {POLARITY}",
        witness=Witness((x.src, x.tgt_in), asked[side], "pads", shift=MORE - 1 if left else 0),
    )


def _pads_before(x: Examples) -> str:
    """What pads before the ids of a model of one stream do: nothing where positions follow the
    mask; else nothing can be told."""
    if x.subject.kind == "decoder" and x.subject.masks_from_ids:
        return "; pads before them were not tried (pad_side='left')"
    try:
        logits = x.ask(x.src, wider(x.tgt_in, MORE - 1, x.subject.pad_id, left=True))
    except NoAnswer:
        return "; pads before them are not taken"
    by = x.differ(logits[:, MORE - 1 :], x.logits, x.real)
    if by <= x.tolerance:
        return f", nor do {MORE - 1} before them"
    return "; pads before them count as positions here, so they were not judged (pad_side='left')"


def _other_pad(x: Examples) -> None:
    """Raises CannotJudge where the source has another id that acts as a pad."""
    subject = x.subject
    if subject.source_pad_id is not None or not subject.masks_from_ids or subject.ours is not None:
        return
    size = min(subject.source_size or subject.vocabulary_size, 200)
    special = {subject.pad_id, subject.start_id, subject.eos_id}
    row = int(x.real_source.sum(1).argmax())
    src = x.src[row, x.real_source[row]][None]
    tgt_in = x.tgt_in[row, x.real[row]][None]
    ids = torch.tensor([i for i in range(size) if i not in special])
    many = [src.expand(len(ids), -1), tgt_in.expand(len(ids), -1)]
    longer = torch.cat((many[0], ids[:, None].expand(-1, 2)), 1)
    try:
        moved = x.moved(x.ask(longer, many[1]), x.ask(many[0], many[1])).amax(1)
    except NoAnswer:
        return
    unseen = ids[moved <= x.tolerance].tolist()
    if len(unseen) == 1:
        raise CannotJudge(
            f"id {subject.pad_id} behind a source is seen as a symbol, and id {unseen[0]} is not "
            f"seen: if the source has a pad of its own, give source_pad_id={unseen[0]}"
        )


# The future ------------------------------------------------------------------------------------


def _needs_causal(x: Examples) -> None:
    if not x.subject.is_causal:
        raise NotApplicable("an encoder sees both sides: it has no future to hide")


def future_changed(x: Examples) -> Outcome:
    """(b) Another token at place j leaves the outputs before j as they are."""
    _needs_causal(x)
    _sees(x)
    row = int(x.real.sum(1).argmax())
    src, target = x.src[row], x.tgt_in[row]
    asked = [(src, len(target))]
    if x.setting.length <= FEW and not x.subject.equal_lengths:
        asked.append((src, 1))  # a pair alone
        shortest = int(x.real_source.sum(1).argmin()) if x.subject.has_source else row
        asked.append((x.src[shortest][x.real_source[shortest]], len(target)))
    found = [_one_by_one(x, source, row, rows) for source, rows in asked]
    return next((outcome for outcome in found if not outcome.passed), found[0])


def _one_by_one(x: Examples, source: Tensor, row: int, most: int) -> Outcome:
    """Tokens of a target changed one by one, beside a source (S,), so many rows in a call."""
    real = x.real[row].nonzero()[:, 0].tolist()
    places = torch.tensor([real[i] for i in chosen(len(real), MOST_PLACES)[1:]])
    if most == 1:
        places = places[: len(places) // 2 + 1 : len(places) // 2]  # the first and a later one
    src, before = (ids.expand(len(places), -1) for ids in (source, x.tgt_in[row]))
    after = before.clone()
    rows = torch.arange(len(places))
    after[rows, places] = x.other(before[rows, places])
    each = 1 if most == 1 else len(places)
    moved = torch.cat(
        [
            x.moved(x.ask(s, new), x.ask(s, old))
            for s, new, old in zip(*(ids.split(each) for ids in (src, after, before)), strict=True)
        ]
    )  # (J, T)
    earlier = (torch.arange(moved.shape[1]) < places[:, None]) & x.real[row]
    seen = earlier & ~(moved <= x.tolerance)
    number = int(seen.sum(1).argmax())
    return Outcome(
        largest(moved[earlier]),
        x.tolerance,
        f"tokens {places[0]}..{places[-1]} changed one by one: no earlier output moves",
        _what_is_seen(seen, places.tolist()) if bool(seen.any()) else "",
        witness=Witness(
            (src[number][None], before[number][None]),
            (src[number][None], after[number][None]),
            "future",
        ),
    )


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
    whole = bool(seen[:, 0].any())
    if ahead <= NEAR and ahead < places[-1]:  # one for each layer
        return (
            f"{text}, {ahead} ahead and no more; is the triangle off by one, in each layer or "
            "in some (tril(1) for tril(), triu(2) for triu(1))?"
        )
    if not whole and first > 0:
        return (
            f"{text}, from output {first} on and not before; is the mask made for all lengths, or "
            "kept from a shorter one?"
        )
    if ahead < places[-1]:
        return f"{text}, up to {ahead} ahead; is the causal mask right in every layer?"
    return f"{text}; is the causal mask passed, and {POLARITY}"


def all_replaced(x: Examples) -> Outcome:
    """(e) All that follows a place replaced at once, target pads by symbols: no output moves."""
    longest = x.real.shape[1]
    by: list[float] = []
    witness = None
    for place in chosen(longest - 1, 12 if longest > 20 else 20):
        changed = x.tgt_in.clone()
        changed[:, place + 1 :] = x.other(changed[:, place + 1 :])
        moved = x.moved(x.ask(x.src, changed), x.logits)[:, : place + 1]
        by.append(largest(moved[x.real[:, : place + 1]]))
        if witness is None and not by[-1] <= x.tolerance:
            witness = Witness((x.src, x.tgt_in), (x.src, changed), "future", place + 1)
    return Outcome(
        worst([0.0, *by]),
        x.tolerance,
        "all that follows a place replaced at once, target pads by symbols: no output moves",
        "outputs move with what follows them: the decoder sees the future or target pads; "
        f"are the causal mask and the target's pad mask passed, and {POLARITY}",
        witness=witness,
    )


def prefixes_asked(x: Examples) -> Outcome:
    """(u) The logits of a prefix of the target = the prefix of its logits."""
    _needs_causal(x)
    _sees(x)
    if x.subject.equal_lengths:
        raise CannotJudge("needs a model that takes source and target of different lengths")
    width = x.tgt_in.shape[1]
    by, witness = {}, None
    for length in [1 + place for place in chosen(width - 1, FEW)]:
        prefix = x.tgt_in[:, :length]
        real = x.real[:, :length]
        by[length] = x.differ(x.ask(x.src, prefix), x.logits[:, :length], real)
        if witness is None and not by[length] <= x.tolerance:
            witness = Witness((x.src, x.tgt_in), (x.src, prefix), "prefix", length)
    bad = next((n for n, found in by.items() if not found <= x.tolerance), None)
    return Outcome(
        worst(by.values()),
        x.tolerance,
        f"prefixes of {', '.join(map(str, by))} tokens give the logits of the whole",
        f"the first {bad} tokens alone give other logits than before the rest of {width}: outputs "
        "depend on the target's length, which decoding does not know; are positions or scales "
        "counted from the end, or the future seen?",
        witness=witness,
    )


# Rows ------------------------------------------------------------------------------------------


def one_at_a_time(x: Examples) -> Outcome:
    """(d) A pair alone gives what it gives in a batch, in any order."""
    _sees(x)
    by: dict[int, float] = {}
    for row in chosen(len(x.src), 8):
        src, tgt_in = _alone(x, row)
        found = x.ask(src, tgt_in)[0]
        where = x.real[row]
        together = x.logits[row] if x.subject.equal_lengths else x.logits[row][where]
        mask = where if x.subject.equal_lengths else torch.ones(len(found), dtype=torch.bool)
        by[row] = largest(x.moved(found[None], together[None])[0][mask])
    worst_row = max(by, key=lambda row: math.inf if math.isnan(by[row]) else by[row])
    return Outcome(
        worst(by.values()),
        x.tolerance,
        f"{len(by)} pairs, each alone and unpadded, as in their batch of {len(x.src)}",
        f"pair {worst_row} of {len(x.src)} gives other outputs alone than in a padded "
        f"batch: pads are seen, or rows are mixed up; are all pad masks passed, {POLARITY}",
        witness=Witness((x.src, x.tgt_in), _alone(x, worst_row), "alone", row=worst_row),
    )


def _alone(x: Examples, row: int) -> tuple[Tensor, Tensor]:
    """A row as a batch of its own, without its pads."""
    src, tgt_in = x.src[row], x.tgt_in[row]
    if x.subject.equal_lengths:
        width = max(int(x.real_source[row].sum()), int(x.real[row].sum()))
        return src[None, :width], tgt_in[None, :width]
    return src[x.real_source[row]][None], tgt_in[x.real[row]][None]


def empty_row(x: Examples) -> Outcome:
    """(i) A pair without symbols gives numbers, and leaves the other rows as they are; so does a
    source of nothing but pads, whose own outputs may be NaN where such a row never comes, as the
    source ends with EOS."""
    if not x.subject.has_source:
        raise NotApplicable("the model has no source that could be empty")
    pad = x.subject.source_pad
    ends = x.subject.eos_id is not None or x.subject.batch is not None
    give = (
        "a source without a token spoils its outputs; give eos_id=... if sources end with one, "
        "or a batch maker"
    )
    try:
        _, tgt_in, _ = x.make_batch([([], [])])
        empty, _, _ = x.make_batch([([], [])])
    except UserError as error:
        raise CannotJudge(
            f"needs a batch maker that takes a pair without symbols: {error}"
        ) from None
    src = _with_row(x.src, empty, pad)
    tgt = _with_row(x.tgt_in, tgt_in, x.subject.pad_id, x.subject.pad_side == "left")
    count = len(x.src)
    try:
        logits = x.ask(src, tgt)
    except NoAnswer as error:
        if not ends:
            raise CannotJudge(f"{give} ({error})") from None
        raise
    others = x.differ(logits[:count, : x.logits.shape[1]], x.logits, x.real)
    real = x.subject.real_inputs(tgt)[count]
    own = not bool(logits[count][real].isnan().any())
    all_pads = _takes_pads_alone(x, torch.cat((x.src, torch.full_like(x.src[:1], pad))), tgt)
    needed = own and (all_pads or x.subject.ours is None)
    if not ends and not needed and others <= x.tolerance:
        raise CannotJudge(give)
    what = "its own outputs" if others <= x.tolerance else "those of other rows"
    note = "" if all_pads else "; a source of pads alone, which never comes here, would spoil it"
    return Outcome(
        others if needed else math.nan,
        x.tolerance,
        f"a pair without symbols gives numbers and changes no other row{note}",
        f"a pair without symbols spoils {what}: a row of attention with every key closed "
        "turns into NaN after softmax over -inf alone; give such rows zeros",
    )


def _with_row(ids: Tensor, row: Tensor, pad: int, left: bool = False) -> Tensor:
    """(B, L) ids with one more row (1, K), each padded to the wider of the two."""
    width = max(ids.shape[1], row.shape[1])
    return torch.cat([wider(part, width - part.shape[1], pad, left) for part in (ids, row)])


def _takes_pads_alone(x: Examples, src: Tensor, tgt_in: Tensor) -> bool:
    """Whether a last row of nothing but pads gives numbers and leaves the others alone."""
    try:
        logits = x.ask(src, tgt_in)
    except NoAnswer:
        return False
    others = x.differ(logits[: len(x.logits), : x.logits.shape[1]], x.logits, x.real)
    return others <= x.tolerance and not bool(logits[-1, 0].isnan().any())


# What must be seen -----------------------------------------------------------------------------


def order_seen(x: Examples) -> Outcome:
    """(j) Swapping two different symbols changes the logits."""
    _sees(x)
    if x.dtype not in TOLERANCE:
        raise CannotJudge("needs fp32 or fp64: half precision rounds as much as a swap may move")
    if not x.subject.has_source:
        return _order_of_ids(x)
    row = int(x.real_source.sum(1).argmax())
    first = x.src[row]
    swapped, where = _swaps(x, first, x.real_source[row])
    asked = torch.cat((first[None], swapped))
    logits = x.ask(asked, x.tgt_in[row].expand(len(asked), -1))
    by = [largest(found[x.real[row]]) for found in x.moved(logits[1:], logits[:1])]
    return Outcome(
        max(by),
        x.tolerance,
        f"{len(by)} swaps of neighbours in a source; places {where[by.index(max(by))]} and "
        f"{where[by.index(max(by))] + 1} change the logits most",
        f"none of {len(by)} swaps of neighbours in a source changes anything: the encoder does "
        "not see order; are positions added to the embeddings?",
        must_change=True,
    )


def _swaps(x: Examples, ids: Tensor, real: Tensor) -> tuple[Tensor, list[int]]:
    """(N, L) ids with two neighbouring symbols swapped, and at which places."""
    symbol = torch.isin(ids, x.symbols) & real
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()[:, 0].tolist()
    if not places:
        raise CannotJudge("needs sequences with two different neighbouring symbols")
    swapped = ids.repeat(len(places), 1)
    for number, place in enumerate(places):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    return swapped, places


def _order_of_ids(x: Examples) -> Outcome:
    """The order of the ids of a model of one stream, seen from the places that see them."""
    row = int(x.real.sum(1).argmax())
    ids = x.tgt_in[row]
    swapped, where = _swaps(x, ids, x.real[row])
    logits = x.ask(x.src[:1].expand(len(swapped) + 1, -1), torch.cat((ids[None], swapped)))
    moved = x.moved(logits[1:], logits[:1])
    places = torch.arange(len(ids))
    start = torch.tensor(where)[:, None]
    elsewhere = (places > start + 1) | (places < start if not x.subject.is_causal else False)
    by = largest(moved[elsewhere & x.real[row]])
    if by <= x.tolerance and x.subject.is_causal:
        raise CannotJudge(
            "no output changes when two earlier tokens are swapped: a decoder without positions "
            "counts them by its triangle from two layers on; give it two"
        )
    return Outcome(
        by,
        x.tolerance,
        f"{len(where)} swaps of neighbours: outputs at other places change",
        f"none of {len(where)} swaps of neighbours changes an output elsewhere: order is not "
        "seen; are positions added to the embeddings?",
        must_change=True,
    )


# What is kept from call to call ----------------------------------------------------------------


def nothing_kept(x: Examples) -> Outcome:
    """(v) An answer does not depend on what was asked before: rows in another order have other
    pads in the same shape, and longer and shorter batches come between."""
    _sees(x)
    order = torch.arange(len(x.src)).flip(0)
    pad, left = x.subject.pad_id, x.subject.pad_side == "left"
    src = wider(x.src, 1, x.subject.source_pad) if x.subject.has_source else x.src
    by = {
        "with its rows in another order": x.differ(
            x.ask(x.src[order], x.tgt_in[order])[order], x.logits, x.real
        )
    }
    longer = wider(x.tgt_in, 1, pad, left)
    x.ask(src, longer)
    x.ask(src.flip(0), longer.flip(0))
    x.ask(x.src[:1], x.tgt_in[:1])
    again = largest(apart(x.ask(x.src, x.tgt_in), x.logits).nan_to_num())
    by["after other calls"] = again if again > x.tolerance else 0.0
    bad = next((name for name, found in by.items() if not found <= x.tolerance), "")
    return Outcome(
        worst(by.values()),
        x.tolerance,
        "rows in another order, and the same batch after others, give the same logits",
        f"the same batch {bad} gives other logits: something is kept from call to call, or rows "
        "are mixed up; is a mask or a cache kept from another batch?",
        witness=Witness((x.src, x.tgt_in), (x.src[order], x.tgt_in[order]), "order"),
    )
