"""Proofs that nothing is closed that should be open: every source token moves some output, every
past target token a later one.

A token counts as seen where another one in its place changes a single bit of an output; what is
never seen, with several symbols in several sequences, is blind.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.insight.proofs.attention_maps import AttentionMaps
from toytrans.insight.proofs.batch import Examples, NoAnswer, apart, calm
from toytrans.insight.proofs.outputs import MOST_PLACES, chosen
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, Outcome

MOST_IDS = 256
"""Ids of which it is asked whether they are closed as pads are."""

RUN = 8
"""In long sequences so many blind neighbours are more than chance."""


def source_seen(trials: Sequence[Examples]) -> Outcome:
    """(s) Every real source token moves some output."""
    if not trials[0].subject.has_source:
        raise NotApplicable("the model has no source")
    return _judged(trials, "source")


def target_seen(trials: Sequence[Examples]) -> Outcome:
    """(t) Every real target token moves the output at some later place."""
    return _judged(trials, "target")


def _judged(trials: Sequence[Examples], side: str) -> Outcome:
    """The proof for one side: places first, then ids, then for sources the cross-attention."""
    x = trials[0]
    if x.sees_nothing:
        raise CannotJudge("the logits never change, so nothing can be seen through them")
    what = "output" if side == "source" else "later output"
    if not x.subject.is_causal:
        what = "output at another place"
    count = 0
    for length in sorted({trial.setting.length for trial in trials}):
        at = [trial for trial in trials if trial.setting.length == length]
        seen, places = _seen_places(at, side)
        count = max(count, places[-1] + 1)
        blind = (~seen).nonzero()[:, 0].tolist()
        if length > 12:
            blind = _runs(blind, RUN)
        if blind:
            blind = [places[number] for number in blind]
            return _failed(len(blind), _blind(side, blind, places[-1] + 1, what))
    closed, asked = _closed_ids(trials, side)
    if closed:
        return _failed(len(closed), _closed(x, side, closed, asked))
    maps = _cross_maps(trials) if side == "source" else ""
    if maps.startswith("!"):
        return _failed(1, maps[1:])
    ids = f"; none of {asked} ids is closed as pads are" if asked else ""
    return Outcome(
        0.0, 0.0, f"each of up to {count} {side} tokens moves some {what}{ids}{maps}", ""
    )


def _failed(count: int, cause: str) -> Outcome:
    return Outcome(float(count), 0.0, "", cause)


def _blind(side: str, blind: list[int], count: int, what: str) -> str:
    places = _named(blind)
    if len(blind) == count:
        end = "the decoder does not see the source" if side == "source" else "it sees only itself"
        return f"no {side} token moves any {what}: {end}; do the masks close everything?"
    return (
        f"{side} tokens at {places} of {count} move no {what}, whatever symbol is there: the mask "
        "closes real tokens; is it made from the right ids and lengths?"
    )


def _named(places: list[int]) -> str:
    """Places in words: place 4, places 4..9, places 1, 5."""
    if len(places) == 1:
        return f"place {places[0]}"
    if places == list(range(places[0], places[-1] + 1)):
        return f"places {places[0]}..{places[-1]}"
    return f"places {', '.join(map(str, places[:8]))}{', ...' if len(places) > 8 else ''}"


def _runs(places: list[int], least: int) -> list[int]:
    """Of some places those that stand in a run of `least` neighbours."""
    inside: list[int] = []
    run: list[int] = []
    for place in [*places, -1]:
        if run and place != run[-1] + 1:
            inside += run if len(run) >= least else []
            run = []
        run.append(place)
    return inside


def _pair(x: Examples, length: int) -> tuple[Tensor, Tensor]:
    """One pair whose sides are both of some symbols: (1, S), (1, T)."""
    src, tgt_in, _ = x.make_batch([(x._row(length), x._row(length))])
    if not x.subject.has_source:
        return src[:, :0], tgt_in[:, x.subject.real_inputs(tgt_in)[0]]
    if not x.subject.equal_lengths:
        src = src[:, x.subject.real_source(src)[0]]
        tgt_in = tgt_in[:, x.subject.real_inputs(tgt_in)[0]]
    return src, tgt_in


def _moved(x: Examples, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
    """Which outputs change by a single bit, (N, T): both asked for in batches of one shape."""
    difference = apart(x.ask(*new), x.ask(*old))
    changed: Tensor = ((difference != 0) | difference.isnan()).any(-1)
    return changed


def _seen_places(trials: Sequence[Examples], side: str) -> tuple[Tensor, list[int]]:
    """Which places of one side some output sees, in any trial; and which were asked about."""
    seen: Tensor | None = None
    at: list[int] = []
    for x in trials:
        src, tgt_in = _pair(x, x.setting.length)
        ids, rest = (src, tgt_in) if side == "source" else (tgt_in, src)
        count = ids.shape[1] - int(side == "target" and x.subject.is_causal)
        at = chosen(count, MOST_PLACES)
        places, rows = torch.tensor(at), torch.arange(len(at))
        for _ in range(1 if x.setting.length > 12 else 3):
            many = ids.repeat(len(places), 1)
            changed = many.clone()
            changed[rows, places] = x.other(many[rows, places])
            others = rest.expand(len(places), -1)
            if side == "source":
                by = _moved(x, (many, others), (changed, others))
            else:
                by = _moved(x, (others, many), (others, changed))
                where = torch.arange(by.shape[1])
                later = where > places[:, None]
                by = by & (later if x.subject.is_causal else where != places[:, None])
            found = by.any(1)
            seen = found if seen is None or len(seen) != len(found) else seen | found
    assert seen is not None
    first = trials[0].subject
    if side == "target" and first.start_id is not None and first.start_id == first.pad_id:
        seen[0] = True  # a start that is the pad may be closed with the pads
    return seen, at


def _closed_ids(trials: Sequence[Examples], side: str) -> tuple[list[int], int]:
    """Ids that change nothing where a pad stands in their place, and how many were asked about."""
    subject = trials[0].subject
    short = [trial for trial in trials if trial.setting.length <= 12]
    if not subject.masks_from_ids or not short:
        return [], 0
    pad = subject.source_pad if side == "source" else subject.pad_id
    symbols = trials[0].symbols
    step = max(1, math.ceil(len(symbols) / MOST_IDS))
    ids = symbols[::step]
    closed = torch.ones(len(ids), dtype=torch.bool)
    end_closed = side == "source" and subject.eos_id not in (None, pad)
    for x in short:
        src, tgt_in = _pair(x, 5)
        row = (src if side == "source" else tgt_in)[0]
        inside = torch.isin(row, x.symbols).nonzero()[:, 0]
        if not len(inside):
            return [], 0
        place = int(inside[-1]) if side == "source" else int(inside[-2])
        new = row.repeat(len(ids), 1)
        new[:, place] = ids
        old = new.clone()
        old[:, place] = pad
        rest = (tgt_in if side == "source" else src).expand(len(ids), -1)
        try:
            if side == "source":
                by = _moved(x, (old, rest), (new, rest))
                if end_closed and int(row[-1]) == subject.eos_id:
                    without = row.clone()
                    without[-1] = pad
                    end = _moved(x, (without[None], rest[:1]), (row[None], rest[:1]))
                    end_closed = not bool(end.any())
                else:
                    end_closed = False
            else:
                by = _moved(x, (rest, old), (rest, new))
                at = torch.arange(by.shape[1])
                by = by & (at > place if subject.is_causal else at != place)
        except (NoAnswer, UserError):  # a pad between symbols is not taken
            return [], 0
        closed &= ~by.any(1)
    found = ids[closed].tolist()
    return ([int(subject.eos_id or 0), *found] if end_closed else found), len(ids)


def _closed(x: Examples, side: str, closed: list[int], asked: int) -> str:
    """What closed ids mean. Raises CannotJudge where they may be special ones."""
    subject = x.subject
    listed = ", ".join(map(str, closed[:8])) + (", ..." if len(closed) > 8 else "")
    some = f"{'id' if len(closed) == 1 else 'ids'} {listed}"
    ours = subject.ours is not None
    ends = subject.eos_id is not None and subject.start_id is not None
    if subject.eos_id in closed and side == "source":
        return f"the end of the source, id {subject.eos_id}, is closed as pads are"
    if not ours and len(closed) <= 3 and len(closed) < asked / 2:
        names = [
            f"{name}=..."
            for name, value in (
                ("start_id", subject.start_id),
                ("eos_id", subject.eos_id),
                ("source_pad_id", subject.source_pad_id if side == "source" else 0),
            )
            if value is None
        ]
        if not ends:
            raise CannotJudge(
                f"{some} of the {side} changes nothing, as a pad does: if it is a special one, "
                f"give {' or '.join(names) or 'ids that are symbols'}"
            )
    return (
        f"{some} of {asked} of the {side} are closed as pads are: the mask takes symbols for "
        "pads; is it made by comparing with the pad's id alone?"
    )


def _cross_maps(trials: Sequence[Examples]) -> str:
    """What cross-attention shows: "!" and a cause where cells are closed that should be open."""
    seen: Tensor | None = None
    for x in [trial for trial in trials if trial.setting.length <= 12]:
        if x.subject.equal_lengths:
            return ""
        src, tgt_in, _ = x.make_batch([(x._row(5), x._row(9))])
        src = src[:, x.subject.real_source(src)[0]]
        maps = AttentionMaps(tgt_in.shape[1], src.shape[1])
        try:
            with torch.no_grad(), calm(x.variant), maps:
                x.subject.call(src, tgt_in)
        except Exception:  # some models do not run under a dispatch mode
            return ""
        if maps.seen is None:
            return "; no attention from target to source was met, so it was judged from outside"
        seen = maps.seen if seen is None else seen | maps.seen
    if seen is None:
        return ""
    blind = (~seen.any(0)).nonzero()[:, 0].tolist()
    if blind:
        return (
            f"!cross-attention gives no weight to {_named(blind)} of {seen.shape[1]} of the "
            "source, in any layer or head: its mask closes real tokens"
        )
    if torch.equal(seen, torch.ones_like(seen).tril()):
        return (
            "!cross-attention looks at the source through a triangle: place t of the target sees "
            "places 0..t of the source alone; the causal mask belongs to self-attention"
        )
    return "; cross-attention gives weight to each"
