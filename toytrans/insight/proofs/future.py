"""Proofs that no output sees the future, or the length of the target."""

import torch
from torch import Tensor

from toytrans.insight.proofs.answers import chosen, largest, worst
from toytrans.insight.proofs.batch import POLARITY, SHORT, ProofBatch, needs_sight
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, Outcome, Witness
from toytrans.insight.proofs.shapes import in_many_shapes

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


def _needs_causal(batch: ProofBatch) -> None:
    if not batch.model.is_causal:
        raise NotApplicable("an encoder sees both sides: it has no future to hide")


def future_changed(batch: ProofBatch) -> Outcome:
    """(b) Another token at place j leaves the outputs before j as they are."""
    _needs_causal(batch)
    needs_sight(batch)
    row = int(batch.real.sum(1).argmax())
    src, target = batch.src[row], batch.tgt_in[row]
    is_free = not batch.model.equal_lengths
    if batch.setting.length > SHORT and is_free:
        src = src[batch.real_source[row]]  # its pads would cost as much as the target
    asked = [(src, len(target))]
    if batch.setting.length <= FEW and is_free:
        asked.append((src, 1))  # a pair alone
        shortest = int(batch.real_source.sum(1).argmin()) if batch.model.has_source else row
        asked.append((batch.src[shortest][batch.real_source[shortest]], len(target)))
    outcomes = [_one_by_one(batch, source, row, rows) for source, rows in asked]
    return next((outcome for outcome in outcomes if not outcome.passed), outcomes[0])


def _one_by_one(batch: ProofBatch, source: Tensor, row: int, most: int) -> Outcome:
    """Tokens of a target changed one by one, beside a source (S,), so many rows in a call."""
    real = batch.real[row].nonzero()[:, 0].tolist()
    count = MOST_IN_TRAIN_MODE if batch.variant.training else MOST_PLACES
    places = torch.tensor([real[i] for i in chosen(len(real), count)[1:]])
    if most == 1:
        places = places[: len(places) // 2 + 1 : len(places) // 2]  # the first and a later one
    before = batch.tgt_in[row].expand(len(places), -1)
    after = before.clone()
    rows = torch.arange(len(places))
    after[rows, places] = batch.other(before[rows, places])
    if most == 1:
        asked = [batch.ask(source[None], ids[None]) for ids in (before[0], *after)]
        logits = torch.cat(asked)
    else:
        targets = torch.cat((before[:1], after))
        logits = batch.ask(source.expand(len(targets), -1), targets)
    moved = batch.moved(logits[1:], logits[:1])  # (J, T)
    earlier = (torch.arange(moved.shape[1]) < places[:, None]) & batch.real[row]
    seen = earlier & ~(moved <= batch.tolerance)
    number = int(seen.sum(1).argmax())
    return Outcome(
        largest(moved[earlier]),
        batch.tolerance,
        f"tokens {places[0]}..{places[-1]} changed one by one: no earlier output moves",
        _what_is_seen(seen, places.tolist()) if bool(seen.any()) else "",
        witness=Witness(
            (source[None], before[number][None]),
            (source[None], after[number][None]),
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


def all_replaced(batch: ProofBatch) -> Outcome:
    """(e) All that follows a place replaced at once, target pads by symbols: no output moves."""
    asked = _replacements(batch)
    by: list[float] = []
    witness = None
    if asked:
        rows = torch.tensor([row for row, _ in asked])
        kept = torch.tensor([place for _, place in asked])[:, None]
        tgt_in = batch.tgt_in[rows]
        inside = torch.arange(tgt_in.shape[1]) <= kept
        changed = torch.where(inside, tgt_in, batch.other(tgt_in))
        moved = batch.moved(batch.ask(batch.src[rows], changed), batch.logits[rows])
        moved = moved.masked_fill(~(inside & batch.real[rows]), 0.0)
        by = [largest(moved)]
        bad = (~(moved <= batch.tolerance)).any(1).nonzero()[:, 0].tolist()
        if bad:
            after = asked[bad[0]][1] + 1
            target = torch.cat((batch.tgt_in[:, :after], batch.other(batch.tgt_in[:, after:])), 1)
            pair = (batch.src, target)
            witness = Witness((batch.src, batch.tgt_in), pair, "future", after)
    of_target = ("target pads", "the target's pad mask")
    pads, pad_mask = of_target if batch.model.has_source else ("pads", "the pad mask")
    return Outcome(
        worst([0.0, *by]),
        batch.tolerance,
        f"all that follows a place replaced at once, {pads} by symbols: no output moves",
        f"outputs move with what follows them: the decoder sees the future or {pads}; "
        f"are the causal mask and {pad_mask} passed, and {POLARITY}",
        witness=witness,
    )


def _replacements(batch: ProofBatch) -> list[tuple[int, int]]:
    """Rows, and the last place that each keeps: up to the end of the row's target, since beyond it
    less is replaced, and nothing else."""
    width = batch.real.shape[1]
    places = chosen(width - 1, MOST_REPLACED)
    ends = [int(real.nonzero().max()) if bool(real.any()) else -1 for real in batch.real]
    asked = []
    for row, end in enumerate(ends):
        needed = [place for place in places if bool(batch.real[row, : place + 1].any())]
        up_to_end = sum(place < end for place in needed) + 1
        asked += [(row, place) for place in needed[:up_to_end]]
    return asked


def prefixes_asked(batch: ProofBatch) -> Outcome:
    """(u) The logits of a prefix of the target = the prefix of its logits."""
    _needs_causal(batch)
    needs_sight(batch)
    if batch.model.equal_lengths:
        raise CannotJudge("needs a model that takes source and target of different lengths")
    width = batch.tgt_in.shape[1]
    by, witness = {}, None
    short = [1 + place for place in chosen(width - 1, FEW)]
    round_ones = [length for length in PREFIXES if length < width]
    if batch.variant.training:
        round_ones = round_ones[::3]
    for length in short if width <= PREFIXES[2] else round_ones:
        prefix = batch.tgt_in[:, :length]
        real = batch.real[:, :length]
        by[length] = batch.differ(batch.ask(batch.src, prefix), batch.logits[:, :length], real)
        if witness is None and not by[length] <= batch.tolerance:
            witness = Witness((batch.src, batch.tgt_in), (batch.src, prefix), "prefix", length)
    bad = next((n for n, change in by.items() if not change <= batch.tolerance), None)
    outcome = Outcome(
        worst(by.values()),
        batch.tolerance,
        f"prefixes of {', '.join(map(str, by))} tokens give the logits of the whole",
        f"a prefix of length {bad} alone gets other logits than within all {width} tokens: outputs "
        "depend on the target's length, which decoding does not know; are positions or scales "
        "counted from the end, or the future seen?",
        witness=witness,
    )
    if not outcome.passed:
        return outcome
    shapes = in_many_shapes(batch)
    return shapes.added_to(outcome, shapes.by_symbols, shapes.symbols_at)
