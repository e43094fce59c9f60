"""Is nothing closed that should be open? Every source token moves some output, every past target
token a later one.

A token counts as seen where another one in its place changes a single bit of an output; what is
never seen, with several symbols in several sequences, is blind.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.checks.batch import LARGEST_LOGITS, SHORT, Batch, apart, chosen
from toytrans.checks.result import CannotJudge, NotApplicable, Result, Wrong, measured
from toytrans.checks.seen import attention_seen
from toytrans.checks.subject import NoAnswer
from toytrans.errors import UserError

MOST_PLACES = 34
"""Places of a sequence that are asked about; of longer ones so many are chosen."""

MOST_IDS = 256
"""Ids of which it is asked whether they are closed as pads are, or more where answers are small."""

SPECIAL = 5
"""Special ids are among so many at either end of a vocabulary."""

RUN = 8
"""In long sequences so many blind neighbours are more than chance."""


SHIFTED_AGAIN = (
    "no target token moves the output at its own place, which predicts the token behind it: the "
    "decoder reads its inputs one place late; does the model shift them by itself?"
)


@dataclass
class Trials:
    """Batches of one length with different seeds, made one by one as far as they are needed."""

    make: Callable[[int], Batch | None]
    count: int
    made: list[Batch]

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.count):
            if number == len(self.made):
                batch = self.make(number)
                if batch is None:
                    return
                self.made.append(batch)
            yield self.made[number]


def tokens_seen(side: str, trials: Trials) -> Result:
    """Every real token of the "source" moves some output, or every one of the "target" that at some
    later place: places first, then ids, then for sources the cross-attention."""
    batch = trials.made[0]
    if side == "source" and not batch.facts.has_source:
        raise NotApplicable("the model has no source")
    batch.require_changing_logits()
    what = "output" if side == "source" else "later output"
    if not batch.facts.is_causal:
        what = "output at another place"
    try:
        seen, places, is_own = _seen_places(trials, side)
        blind = (~seen).nonzero()[:, 0].tolist()
        if batch.setting.length > SHORT:
            step = (places[-1] - places[0]) / max(1, len(places) - 1)
            blind = _runs(blind, math.ceil(RUN / step))
        if blind:
            raise Wrong(_blind(side, [places[number] for number in blind], places, what))
        if side == "target" and not is_own:
            raise Wrong(SHIFTED_AGAIN)
        asked = _closed_ids(trials, side)
        maps = _cross_maps(trials) if side == "source" else ""
    except Wrong as wrong:
        return measured(1.0, 0.0, "", str(wrong))
    ids = f"; none of {asked} ids is closed as pads are" if asked else ""
    evidence = f"each of up to {places[-1] + 1} {side} tokens moves some {what}{ids}{maps}"
    return measured(0.0, 0.0, evidence, "")


def _blind(side: str, blind: list[int], asked: list[int], what: str) -> str:
    places, count = _named(blind), asked[-1] + 1
    if blind == asked:
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


def _pair(batch: Batch, length: int, of_source: int | None = None) -> tuple[Tensor, Tensor]:
    """One pair whose sides are both of some symbols: (1, S), (1, T)."""
    of_source = length if of_source is None or batch.facts.equal_lengths else of_source
    src, tgt_in, _ = batch.model.batch([(batch.row(of_source), batch.row(length))])
    if not batch.facts.has_source:
        return src[:, :0], tgt_in[:, batch.facts.real_inputs(tgt_in)[0]]
    if not batch.facts.equal_lengths:
        src = src[:, batch.facts.real_source(src)[0]]
        tgt_in = tgt_in[:, batch.facts.real_inputs(tgt_in)[0]]
    return src, tgt_in


def _moved(batch: Batch, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
    """Which outputs change by a single bit, (N, T): both asked for in batches of one shape."""
    return _is_changed(batch.ask(*new), batch.ask(*old))


def _is_changed(new: Tensor, old: Tensor) -> Tensor:
    """Which of two logits (N, T, V) differ by a single bit: (N, T)."""
    difference = apart(new, old)
    changed: Tensor = ((difference != 0) | difference.isnan()).any(-1)
    return changed


def _moved_by_each(batch: Batch, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
    """As `_moved`, of many equal old rows: long ones are asked half as often, in halves of one
    shape."""
    count = len(old[0])
    if count <= SHORT:
        return _moved(batch, old, new)
    half = (count + 1) // 2
    before = batch.ask(*(ids[:half] for ids in old))
    halves = [batch.ask(*(ids[rows] for ids in new)) for rows in (slice(half), slice(-half, None))]
    changed = [_is_changed(after, before) for after in halves]
    return torch.cat((changed[0], changed[1][2 * half - count :]))


def _seen_places(trials: Trials, side: str) -> tuple[Tensor, list[int], bool]:
    """Which places of one side some output sees, in any trial; which were asked about; and whether
    a target token moves the output at its own place."""
    seen = torch.zeros(0, dtype=torch.bool)
    at: list[int] = []
    is_own = not trials.made[0].facts.is_causal
    for batch in trials:
        long = batch.setting.length
        src, tgt_in = _pair(batch, long, min(long, SHORT) if side == "target" else None)
        ids, rest = (src, tgt_in) if side == "source" else (tgt_in, src)
        at = _places(batch, side, src, tgt_in)
        seen = seen if len(seen) == len(at) else torch.zeros(len(at), dtype=torch.bool)
        places, rows = torch.tensor(at), torch.arange(len(at))
        many, others = ids.repeat(len(at), 1), rest.expand(len(at), -1)
        for _ in range(1 if batch.setting.length > SHORT else 3):
            changed = many.clone()
            changed[rows, places] = batch.other(many[rows, places])
            if side == "source":
                moved = _moved_by_each(batch, (many, others), (changed, others))
            else:
                moved = _moved_by_each(batch, (others, many), (others, changed))
                where = torch.arange(moved.shape[1])
                is_own = is_own or bool((moved & (where == places[:, None])).any())
                later = where > places[:, None]
                moved = moved & (later if batch.facts.is_causal else where != places[:, None])
            seen = seen | moved.any(1)
            if bool(seen.all()):
                return seen, at, is_own
    return seen, at, is_own


def _places(batch: Batch, side: str, src: Tensor, tgt_in: Tensor) -> list[int]:
    """The places to ask about: in a source not the last where a model insists on the end there; in
    a target not the last, which nothing follows, nor the first where it holds the start, which is
    never another token."""
    model = batch.facts
    if side == "source":
        places = chosen(src.shape[1], MOST_PLACES)
        return places if _end_may_change(batch, src, tgt_in) else places[:-1]
    first, last = int(model.is_causal and model.start_id is not None), int(model.is_causal)
    return [first + place for place in chosen(tgt_in.shape[1] - last - first, MOST_PLACES)]


def _end_may_change(batch: Batch, src: Tensor, tgt_in: Tensor) -> bool:
    """Whether a source (1, S) is taken whose end is another token."""
    if int(src[0, -1]) != batch.facts.eos_id:
        return True
    other = src.clone()
    other[0, -1] = batch.symbols[0]
    try:
        batch.ask(other, tgt_in)
    except NoAnswer:
        return False
    return True


def _closed_ids(trials: Trials, side: str) -> int:
    """How many ids were asked whether they change nothing where a pad stands in their place. Raises
    Wrong where some do."""
    first = next(iter(trials))
    model = first.facts
    if not model.masks_from_ids or first.setting.length > SHORT:
        return 0
    pad = model.source_pad if side == "source" else model.pad_id
    room = LARGEST_LOGITS // (8 * model.vocabulary_size)
    symbols = first.symbols
    ids = symbols[:: math.ceil(len(symbols) / max(MOST_IDS, room))]
    closed = torch.ones(len(ids), dtype=torch.bool)
    end_closed = side == "source" and model.eos_id not in (None, pad)
    for batch in trials:
        src, tgt_in = _pair(batch, 5)
        row = (src if side == "source" else tgt_in)[0]
        inside = torch.isin(row, batch.symbols).nonzero()[:, 0]
        if not len(inside):
            return 0
        place = int(inside[-1]) if side == "source" else int(inside[-2])
        new = row.repeat(len(ids), 1)
        new[:, place] = ids
        old = new.clone()
        old[:, place] = pad
        rest = (tgt_in if side == "source" else src).expand(len(ids), -1)
        try:
            if side == "source":
                moved = _moved(batch, (old, rest), (new, rest))
                end_closed = end_closed and _is_end_closed(batch, row, rest[:1])
            else:
                moved = _moved(batch, (rest, old), (rest, new))
                at = torch.arange(moved.shape[1])
                moved = moved & (at > place if model.is_causal else at != place)
        except (NoAnswer, UserError):  # a pad between symbols is not taken
            return 0
        closed &= ~moved.any(1)
        if not bool(closed.any()) and not end_closed:
            return len(ids)
    blind = ids[closed].tolist()
    if blind or end_closed:
        raise Wrong(_closed(first, side, blind, end_closed, len(ids)))
    return len(ids)


def _is_end_closed(batch: Batch, row: Tensor, tgt_in: Tensor) -> bool:
    """Whether a pad in the place of the end of a source changes nothing."""
    if int(row[-1]) != batch.facts.eos_id:
        return False
    without = row.clone()
    without[-1] = batch.facts.source_pad
    return not bool(_moved(batch, (without[None], tgt_in), (row[None], tgt_in)).any())


def _closed(batch: Batch, side: str, closed: list[int], end_closed: bool, asked: int) -> str:
    """What closed ids mean. Raises CannotJudge where they may be special ones."""
    model = batch.facts
    listed = ", ".join(map(str, closed[:8])) + (", ..." if len(closed) > 8 else "")
    some = f"{'id' if len(closed) == 1 else 'ids'} {listed}"
    if end_closed or (model.eos_id in closed and side == "source"):
        return f"the end of the source, id {model.eos_id}, is closed as pads are"
    at_an_end = all(min(i, model.vocabulary_size - 1 - i) < SPECIAL for i in closed)
    missing = [f"{name}=..." for name in ("start_id", "eos_id") if getattr(model, name) is None]
    if not model.is_textbook and at_an_end and len(closed) <= 3 and missing:
        if side == "source" and model.source_pad_id is None:
            missing.append("source_pad_id=...")
        raise CannotJudge(
            f"{some} of the {side} changes nothing, as a pad does: if it is a special one, give "
            f"{' or '.join(missing)}"
        )
    return (
        f"{some} of {asked} of the {side} are closed as pads are: the mask takes symbols for "
        "pads; is it made by comparing with the pad's id alone?"
    )


def _cross_maps(trials: Trials) -> str:
    """What cross-attention shows. Raises Wrong where cells are closed that should be open."""
    seen: Tensor | None = None
    for batch in trials:
        if batch.facts.equal_lengths or batch.setting.length > SHORT:
            return ""
        src, tgt_in, _ = batch.model.batch([(batch.row(5), batch.row(9))])
        src = src[:, batch.facts.real_source(src)[0]]
        src, tgt_in = src.clone(), tgt_in.clone()
        try:
            with (
                batch.copy.without_dropout_and_with_state_kept(),
                attention_seen(None, src, tgt_in) as attentions,
            ):
                batch.model.call(src, tgt_in)
        except Exception:  # some models do not run under a dispatch mode
            return ""
        shape = (tgt_in.shape[1], src.shape[1])
        maps = [a.weights for a in attentions if a.weights.shape[-2:] == shape]
        if not maps:
            return "; judged by outputs alone, not by attention weights"
        cells = torch.cat([(weights != 0).reshape(-1, *shape) for weights in maps]).any(0)
        seen = cells if seen is None else seen | cells
        if bool(seen.all()):
            break
    assert seen is not None
    blind = (~seen.any(0)).nonzero()[:, 0].tolist()
    if blind:
        raise Wrong(
            f"cross-attention gives no weight to {_named(blind)} of {seen.shape[1]} of the "
            "source, in any layer or head: its mask closes real tokens"
        )
    if torch.equal(seen, torch.ones_like(seen).tril()):
        raise Wrong(
            "cross-attention looks at the source through a triangle: place t of the target sees "
            "places 0..t of the source alone; the causal mask belongs to self-attention"
        )
    return "; cross-attention gives weight to each"
