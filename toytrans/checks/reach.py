"""What the tokens of a side reach: each of the source some output, each of the target a later one.

A token counts as seen where another one in its place changes a single bit of an output; what is
never seen, with several symbols in several sequences, is blind.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from toytrans.checks.asked import LARGEST_LOGITS, Asked
from toytrans.checks.batch import SHORT
from toytrans.checks.beginning import named_place
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED, Adapter
from toytrans.checks.numbers import apart, listed_places, spread_out
from toytrans.checks.outcome import Cause, Evidence, Judged, fails, unsure
from toytrans.checks.recording import recorded
from toytrans.errors import UserError


@dataclass(frozen=True)
class Side:
    """The source or the target, and why its tokens may reach nothing: none does; those from some
    place on, or at some places, do not; some ids do not, because they are taken for pads, or, a
    doubt, may be special ones."""

    name: str
    nothing_seen: tuple[Cause, ...]
    places_unseen: tuple[Cause, ...]
    ids_masked: Cause
    ids_special: Cause

    @property
    def is_source(self) -> bool:
        """Whether it is the source."""
        return self.name == "source"

    def what_moves(self, asked: Asked) -> str:
        """What must move with a token, in words."""
        if not asked.facts.is_causal:
            return "output at another place"
        return "output" if self.is_source else "later output"


def trials(asked: Asked) -> Iterator[Asked]:
    """The batch, then two others of its size, made as far as they are needed."""
    yield asked
    for number in range(1, 3):
        if number not in asked.shared:
            setting = replace(asked.setting, seed=asked.setting.seed + number)
            asked.shared[number] = Asked(asked.model, setting)
        yield asked.shared[number]


def _moved(asked: Asked, side: Side, rest: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Which outputs change by a single bit, (N, T), where one side's ids are others and those of
    the other side (1, L) are the rest: both are asked for in batches of one shape."""
    rest = rest.expand(len(old), -1)
    handed = [Ids(x, rest) if side.is_source else Ids(rest, x) for x in (new, old)]
    difference = apart(asked.ask(*handed[0]), asked.ask(*handed[1]))
    changed: Tensor = ((difference != 0) | difference.isnan()).any(-1)
    return changed


def _elsewhere(asked: Asked, side: Side, moved: Tensor, places: Tensor) -> Tensor:
    """Which rows move an output that counts, (N,): of a target a later one, or one at another place
    than that of the row, (N, 1)."""
    if side.is_source:
        return moved.any(1)
    at = torch.arange(moved.shape[1])
    return (moved & (at > places if asked.facts.is_causal else at != places)).any(1)


def _ids_and_rest(side: Side, pair: Ids) -> tuple[Tensor, Tensor]:
    """The ids of a side, and those of the other one."""
    return (pair.src, pair.tgt_in) if side.is_source else (pair.tgt_in, pair.src)


def every_place(first: Asked, side: Side, *one_late: Cause) -> int:
    """How many tokens one side has at most. Raises Judged where no output sees some of them, in any
    trial, and where no target token moves the output at its own place; one_late: its causes."""
    length, reads = first.setting.length, False
    is_own = side.is_source or not first.facts.is_causal
    seen = torch.zeros(0, dtype=torch.bool)
    for asked in trials(first):
        pair = asked.pair(length if side.is_source else min(length, SHORT), length)
        ids, rest = _ids_and_rest(side, pair)
        at = _places(asked, side, pair)
        places = torch.tensor(at)[:, None]
        seen = seen if len(seen) == len(at) else torch.zeros(len(at), dtype=torch.bool)
        for _ in range(3 if asked.is_short else 1):
            changed = asked.one_by_one(ids[0], places[:, 0])
            moved = _moved(asked, side, rest, ids.expand_as(changed), changed)
            reads = reads or bool(moved.any())
            is_own = is_own or bool(moved.gather(1, places).any())
            seen = seen | _elsewhere(asked, side, moved, places)
            if bool(seen.all()):
                break
        if bool(seen.all()):
            break
    blind = [place for place, is_seen in zip(at, seen.tolist(), strict=True) if not is_seen]
    if not first.is_short:
        blind = _neighbours(blind, at)
    evidence = {"what": side.what_moves(first), "count": at[-1] + 1, "reads": reads}
    if blind == at:
        raise Judged(fails(*side.nothing_seen, **evidence))
    if blind:
        seen_before = [place for place in at if place < blind[0]]
        is_cut = at[at.index(blind[0]) :] == blind and bool(seen_before) and len(blind) > 1
        evidence |= {"is_cut": is_cut, "first": blind[0], "where": "", "line": ""}
        if is_cut:
            sizes = range(seen_before[-1] + 1, blind[0] + 1)
            evidence |= _where_it_is_cut(first.model, pair, ids.shape[1], sizes)
        raise Judged(fails(*side.places_unseen, places=listed_places(blind), **evidence))
    if not is_own:
        raise Judged(fails(*one_late, first_is_constant=_first_is_constant(first)))
    return at[-1] + 1


def _first_is_constant(asked: Asked) -> bool:
    """Whether the first output is the same for all sources of a batch."""
    first = asked.logits[:, 0]
    return asked.facts.has_source and bool((first == first[0]).all())


def is_cut(evidence: Evidence) -> bool:
    """Whether no token counts from some place on."""
    return bool(evidence.get("is_cut"))


def _where_it_is_cut(model: Adapter, pair: Ids, length: int, sizes: range) -> dict[str, str]:
    """The module that takes so many of all places, one of some sizes, and its line, as evidence."""
    with contextlib.suppress(*RAISED):  # a foreign model under a dispatch mode
        steps = recorded(model, pair)
        for step in steps:
            for given in (steps[n].value.shape for n in step.inputs):
                both = zip(given, step.value.shape, strict=False)
                is_one = len(given) == step.value.dim() and step.name in ("slice", "narrow")
                if is_one and any(old == length and new in sizes for old, new in both):
                    words = named_place(model.module, step)
                    return {"where": f"{words}: " if words else "", "line": step.line}
    return {}


def _neighbours(blind: list[int], at: list[int]) -> list[int]:
    """Of blind places among those that were asked, `at`, the ones that lie side by side over eight
    places: that is more than chance in a long sequence."""
    run = math.ceil(8 * (len(at) - 1) / max(1, at[-1] - at[0]))
    windows = [at[start : start + run] for start in range(len(at) - run + 1)]
    return sorted({place for each in windows if {*each} <= {*blind} for place in each})


def _places(asked: Asked, side: Side, pair: Ids) -> list[int]:
    """The places to ask about: in a source not the end, which some models insist on; in a target
    not the last, which nothing follows, nor the first where it holds the start, which is never
    another token."""
    facts, (src, tgt_in, _) = asked.facts, pair
    if not side.is_source:
        first, last = int(facts.is_causal and facts.start_id is not None), int(facts.is_causal)
        return [first + place for place in spread_out(tgt_in.shape[1] - last - first, 34)]
    return spread_out(src.shape[1] - (int(src[0, -1]) not in asked.symbols.tolist()), 34)


def every_id(first: Asked, side: Side, end_masked: Cause | None = None) -> int:
    """How many ids were asked whether they change nothing where a pad stands in their place; with a
    cause `end_masked`, the end of a source among them. Raises Judged where some do."""
    facts = first.facts
    if not facts.masks_from_ids:
        return 0
    pad = facts.source_pad if side.is_source else facts.pad_id
    most = max(256, LARGEST_LOGITS // (8 * facts.vocabulary_size))
    ids = first.symbols[:: math.ceil(len(first.symbols) / most)]
    masked = torch.ones(len(ids) + 1, dtype=torch.bool)  # the last is the end
    masked[-1] = end_masked is not None and facts.eos_id is not None
    for asked in trials(first):
        pair = asked.pair(5, 5)
        (row,), rest = _ids_and_rest(side, pair)
        inside = torch.isin(row, asked.symbols).nonzero()[:, 0]
        if not len(inside):
            return 0
        at = int(inside[-1 if side.is_source else -2])
        places = torch.full((len(ids) + 1, 1), at)
        new = row.repeat(len(places), 1)
        new[:-1, at] = ids
        if end_masked is not None and facts.eos_id not in (None, pad) and row[-1] == facts.eos_id:
            places[-1] = len(row) - 1
        old = new.scatter(1, places, pad)
        try:
            moved = _moved(asked, side, rest, old, new)
        except UserError:  # a pad between symbols is not taken
            return 0
        masked &= ~_elsewhere(asked, side, moved, places)
        if not bool(masked.any()):
            return len(ids)
    if end_masked is not None and not masked[:-1].any():
        raise Judged(fails(end_masked, end=facts.eos_id))
    found = ids[masked[:-1]].tolist()
    listed = ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")
    some = f"{'id' if len(found) == 1 else 'ids'} {listed}"
    at_an_end = all(min(i, facts.vocabulary_size - 1 - i) < 5 for i in found)
    missing = [f"{name}=..." for name in ("start_id", "eos_id") if getattr(facts, name) is None]
    if at_an_end and len(found) <= 3 and missing:
        missing += ["source_pad_id=..."] if side.is_source and facts.source_pad_id is None else []
        raise Judged(unsure(side.ids_special, ids=some, needed=" or ".join(missing)))
    raise Judged(fails(side.ids_masked, ids=some, count=len(ids)))
