"""Is nothing closed that should be open? Every source token moves some output, every past target
token a later one.

A token counts as seen where another one in its place changes a single bit of an output; what is
never seen, with several symbols in several sequences, is blind.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.checks.batch import LARGEST_LOGITS, SHORT, Batch, apart, chosen
from toytrans.checks.result import CannotJudge, NotApplicable, Result, Wrong, measured
from toytrans.checks.seen import attention_seen
from toytrans.checks.subject import Ids, NoAnswer
from toytrans.errors import UserError

SEEDS = 3
"""Batches in which it is asked whether every token is seen."""

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


def tokens_seen(side: str) -> Callable[[Batch], Result]:
    """The check that every real token of the "source" moves some output, or every one of the
    "target" one at some later place: places first, then ids, then for sources the
    cross-attention."""

    def ask(batch: Batch) -> Result:
        if side == "source" and not batch.facts.has_source:
            raise NotApplicable("the model has no source")
        batch.require_changing_logits()
        what = "output" if side == "source" else "later output"
        if not batch.facts.is_causal:
            what = "output at another place"
        count = _every_place(batch, side, what)
        ids = maps = ""
        if batch.is_short:
            asked = _every_id(batch, side)
            ids = f"; none of {asked} ids is closed as pads are" if asked else ""
            maps = _every_cell(batch) if side == "source" else ""
        evidence = f"each of up to {count} {side} tokens moves some {what}{ids}{maps}"
        return measured(0.0, 0.0, evidence, "")

    return ask


def _trials(batch: Batch) -> Iterator[Batch]:
    """The batch, then others of its size, made as far as they are needed."""
    yield batch
    for number in range(1, SEEDS):
        if number not in batch.kept:
            setting = replace(batch.setting, seed=batch.setting.seed + number)
            batch.kept[number] = Batch(batch.copy, setting)
        yield batch.kept[number]


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
    src, tgt_in, _ = batch.model.batch([(batch.row(of_source or length), batch.row(length))])
    real_source = batch.facts.real_source(src)[0] & batch.facts.has_source
    return src[:, real_source], tgt_in[:, batch.facts.real_inputs(tgt_in)[0]]


def _moved(batch: Batch, old: Ids, new: Ids) -> Tensor:
    """Which outputs change by a single bit, (N, T): both asked for in batches of one shape."""
    difference = apart(batch.ask(*new), batch.ask(*old))
    changed: Tensor = ((difference != 0) | difference.isnan()).any(-1)
    return changed


def _moved_on(batch: Batch, side: str, rest: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The same where one side's ids are others and those of the other side (1, L) are the rest."""
    rest = rest.expand(len(old), -1)
    if side == "source":
        return _moved(batch, Ids(old, rest), Ids(new, rest))
    return _moved(batch, Ids(rest, old), Ids(rest, new))


def _every_place(first: Batch, side: str, what: str) -> int:
    """How many tokens one side has at most. Raises Wrong where no output sees some of them, in any
    trial, or where no target token moves the output at its own place."""
    facts, length = first.facts, first.setting.length
    seen = torch.zeros(0, dtype=torch.bool)
    is_own = side == "source" or not facts.is_causal
    for batch in _trials(first):
        src, tgt_in = _pair(batch, length, min(length, SHORT) if side == "target" else None)
        ids, rest = (src, tgt_in) if side == "source" else (tgt_in, src)
        at = _places(batch, side, src, tgt_in)
        seen = seen if len(seen) == len(at) else torch.zeros(len(at), dtype=torch.bool)
        places = torch.tensor(at)
        for _ in range(3 if batch.is_short else 1):
            changed = batch.one_by_one(ids[0], places)
            moved = _moved_on(batch, side, rest, ids.expand_as(changed), changed)
            if side == "target":
                where = torch.arange(moved.shape[1])
                is_own = is_own or bool((moved & (where == places[:, None])).any())
                moved &= where > places[:, None] if facts.is_causal else where != places[:, None]
            seen = seen | moved.any(1)
            if bool(seen.all()):
                break
        if bool(seen.all()):
            break
    blind = (~seen).nonzero()[:, 0].tolist()
    if not first.is_short:
        blind = _runs(blind, math.ceil(RUN * (len(at) - 1) / max(1, at[-1] - at[0])))
    if blind:
        raise Wrong(_blind(side, [at[number] for number in blind], at, what))
    if not is_own:
        raise Wrong(SHIFTED_AGAIN)
    return at[-1] + 1


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


def _every_id(first: Batch, side: str) -> int:
    """How many ids were asked whether they change nothing where a pad stands in their place. Raises
    Wrong where some do."""
    facts, is_source = first.facts, side == "source"
    if not facts.masks_from_ids:
        return 0
    pad = facts.source_pad if is_source else facts.pad_id
    room = LARGEST_LOGITS // (8 * facts.vocabulary_size)
    ids = first.symbols[:: math.ceil(len(first.symbols) / max(MOST_IDS, room))]
    closed = torch.ones(len(ids), dtype=torch.bool)
    end_closed = is_source and facts.eos_id not in (None, pad)
    for batch in _trials(first):
        src, tgt_in = _pair(batch, 5)
        row, rest = (src[0], tgt_in) if is_source else (tgt_in[0], src)
        inside = torch.isin(row, batch.symbols).nonzero()[:, 0]
        if not len(inside):
            return 0
        place = int(inside[-1]) if is_source else int(inside[-2])
        new = row.repeat(len(ids), 1)
        new[:, place] = ids
        old = new.clone()
        old[:, place] = pad
        without_end = row[None].clone()
        without_end[0, -1] = pad
        try:
            moved = _moved_on(batch, side, rest, old, new)
            if end_closed:
                is_end = int(row[-1]) == facts.eos_id
                end_moves = _moved_on(batch, side, rest, row[None], without_end)
                end_closed = is_end and not bool(end_moves.any())
        except (NoAnswer, UserError):  # a pad between symbols is not taken
            return 0
        if not is_source:
            at = torch.arange(moved.shape[1])
            moved &= at > place if facts.is_causal else at != place
        closed &= ~moved.any(1)
        if not bool(closed.any()) and not end_closed:
            return len(ids)
    raise Wrong(_closed(first, side, ids[closed].tolist(), end_closed, len(ids)))


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


def _every_cell(first: Batch) -> str:
    """What cross-attention shows. Raises Wrong where cells are closed that should be open."""
    seen: Tensor | None = None
    for batch in _trials(first):
        src, tgt_in = (ids.clone() for ids in _pair(batch, 9, 5))
        try:
            with (
                batch.copy.without_dropout_and_with_state_kept(),
                attention_seen(None, src, tgt_in) as attentions,
            ):
                batch.model.answer(src, tgt_in)
        except Exception:  # some models do not run under a dispatch mode
            return ""
        shape = (tgt_in.shape[1], src.shape[1])
        maps = [a.weights for a in attentions if a.shape == shape]
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
