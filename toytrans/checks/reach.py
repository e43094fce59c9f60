"""What reaches an output: every source token some output and every past target token a later one,
seen by single bits; pads and the future none, by gradients.

A token counts as seen where another one in its place changes a single bit of an output; what is
never seen, with several symbols in several sequences, is blind.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.checks.attention import attention_seen
from toytrans.checks.batch import (
    LARGEST_LOGITS,
    SHORT,
    Batch,
    apart,
    chosen,
    embeddings_changed,
    largest,
    worst,
)
from toytrans.checks.result import Result, Told, measured, unsure, wrong
from toytrans.checks.subject import Ids
from toytrans.errors import UserError

FUTURE = "the future"


def tokens_seen(side: str) -> Callable[[Batch], Result]:
    """The check that every real token of the "source" moves some output, or every one of the
    "target" one at some later place: places first, then ids, then for sources the
    cross-attention."""

    def ask(batch: Batch) -> Result:
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
    """The batch, then two others of its size, made as far as they are needed."""
    yield batch
    for number in range(1, 3):
        if number not in batch.kept:
            setting = replace(batch.setting, seed=batch.setting.seed + number)
            batch.kept[number] = Batch(batch.model, setting)
        yield batch.kept[number]


def _named(places: list[int]) -> str:
    listed = ", ".join(map(str, places[:8])) + ", ..." * (len(places) > 8)
    return f"place{'s' * (len(places) > 1)} {listed}"


def _moved(batch: Batch, side: str, rest: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Which outputs change by a single bit, (N, T), where one side's ids are others and those of
    the other side (1, L) are the rest: both are asked for in batches of one shape."""
    rest = rest.expand(len(old), -1)
    asked = [Ids(x, rest) if side == "source" else Ids(rest, x) for x in (new, old)]
    difference = apart(batch.ask(*asked[0]), batch.ask(*asked[1]))
    changed: Tensor = ((difference != 0) | difference.isnan()).any(-1)
    return changed


def _elsewhere(batch: Batch, side: str, moved: Tensor, places: Tensor) -> Tensor:
    """Which rows move an output that counts, (N,): of a target a later one, or one at another place
    than that of the row, (N, 1)."""
    if side == "source":
        return moved.any(1)
    at = torch.arange(moved.shape[1])
    return (moved & (at > places if batch.facts.is_causal else at != places)).any(1)


def _every_place(first: Batch, side: str, what: str) -> int:
    """How many tokens one side has at most. Raises Told where no output sees some of them, in any
    trial, or where no target token moves the output at its own place."""
    length, is_source = first.setting.length, side == "source"
    seen, is_own = torch.zeros(0, dtype=torch.bool), is_source or not first.facts.is_causal
    for batch in _trials(first):
        pair = batch.pair(length if is_source else min(length, SHORT), length)
        ids, rest = pair[:2] if is_source else pair[1::-1]
        at = _places(batch, side, pair)
        places = torch.tensor(at)[:, None]
        seen = seen if len(seen) == len(at) else torch.zeros(len(at), dtype=torch.bool)
        for _ in range(3 if batch.is_short else 1):
            changed = batch.one_by_one(ids[0], places[:, 0])
            moved = _moved(batch, side, rest, ids.expand_as(changed), changed)
            is_own = is_own or bool(moved.gather(1, places).any())
            seen = seen | _elsewhere(batch, side, moved, places)
            if bool(seen.all()):
                break
        if bool(seen.all()):
            break
    blind = [place for place, is_seen in zip(at, seen.tolist(), strict=True) if not is_seen]
    if not first.is_short:  # eight blind neighbours are more than chance
        run = math.ceil(8 * (len(at) - 1) / max(1, at[-1] - at[0]))
        windows = [at[start : start + run] for start in range(len(at) - run + 1)]
        blind = sorted({place for each in windows if {*each} <= {*blind} for place in each})
    if blind == at:
        end = "the decoder does not see the source" if is_source else "it sees only itself"
        raise wrong(f"no {side} token moves any {what}: {end}; do the masks close everything?")
    if blind:
        raise wrong(
            f"{side} tokens at {_named(blind)} of {at[-1] + 1} move no {what}, whatever symbol is "
            "there: the mask closes real tokens; is it made from the right ids and lengths?"
        )
    if not is_own:
        raise wrong(
            "no target token moves the output at its own place, which predicts the token behind "
            "it: the decoder reads its inputs one place late; does the model shift them by itself?"
        )
    return at[-1] + 1


def _places(batch: Batch, side: str, pair: Ids) -> list[int]:
    """The places to ask about: in a source not the end, which some models insist on; in a target
    not the last, which nothing follows, nor the first where it holds the start, which is never
    another token."""
    facts, (src, tgt_in, _) = batch.facts, pair
    if side == "target":
        first, last = int(facts.is_causal and facts.start_id is not None), int(facts.is_causal)
        return [first + place for place in chosen(tgt_in.shape[1] - last - first, 34)]
    return chosen(src.shape[1] - (int(src[0, -1]) not in batch.symbols.tolist()), 34)


def _every_id(first: Batch, side: str) -> int:
    """How many ids were asked whether they change nothing where a pad stands in their place, the
    end of a source among them. Raises Told where some do."""
    facts, is_source = first.facts, side == "source"
    if not facts.masks_from_ids:
        return 0
    pad = facts.source_pad if is_source else facts.pad_id
    most = max(256, LARGEST_LOGITS // (8 * facts.vocabulary_size))
    ids = first.symbols[:: math.ceil(len(first.symbols) / most)]
    closed = torch.ones(len(ids) + 1, dtype=torch.bool)  # the last is the end
    for batch in _trials(first):
        pair = batch.pair(5, 5)
        (row,), rest = pair[:2] if is_source else pair[1::-1]
        inside = torch.isin(row, batch.symbols).nonzero()[:, 0]
        if not len(inside):
            return 0
        places = torch.full((len(ids) + 1, 1), int(inside[-1] if is_source else inside[-2]))
        new = row.repeat(len(places), 1)
        new[:-1, places[0, 0]] = ids
        if is_source and facts.eos_id not in (None, pad) and int(row[-1]) == facts.eos_id:
            places[-1] = len(row) - 1
        old = new.scatter(1, places, pad)
        try:
            moved = _moved(batch, side, rest, old, new)
        except UserError:  # a pad between symbols is not taken
            return 0
        closed &= ~_elsewhere(batch, side, moved, places)
        if not bool(closed.any()):
            return len(ids)
    if not closed[:-1].any():
        raise wrong(f"the end of the source, id {facts.eos_id}, is closed as pads are")
    found = ids[closed[:-1]].tolist()
    listed = ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")
    some = f"{'id' if len(found) == 1 else 'ids'} {listed}"
    at_an_end = all(min(i, facts.vocabulary_size - 1 - i) < 5 for i in found)
    missing = [f"{name}=..." for name in ("start_id", "eos_id") if getattr(facts, name) is None]
    if not facts.is_textbook and at_an_end and len(found) <= 3 and missing:
        missing += ["source_pad_id=..."] if is_source and facts.source_pad_id is None else []
        raise unsure(
            f"{some} of the {side} changes nothing, as a pad does: if it is a special one, give "
            f"{' or '.join(missing)}"
        )
    raise wrong(
        f"{some} of {len(ids)} of the {side} are closed as pads are: the mask takes symbols for "
        "pads; is it made by comparing with the pad's id alone?"
    )


def _every_cell(first: Batch) -> str:
    """What cross-attention shows. Raises Told where cells are closed that should be open."""
    seen: Tensor | None = None
    for batch in _trials(first):
        src, tgt_in = (ids.clone() for ids in batch.pair(5, 9)[:2])
        try:
            with batch.model.without_dropout(), attention_seen(None, src, tgt_in) as attentions:
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
            return "; cross-attention gives weight to each"
    assert seen is not None
    blind = (~seen.any(0)).nonzero()[:, 0].tolist()
    if blind:
        raise wrong(
            f"cross-attention gives no weight to {_named(blind)} of {seen.shape[1]} of the "
            "source, in any layer or head: its mask closes real tokens"
        )
    if torch.equal(seen, torch.ones_like(seen).tril()):
        raise wrong(
            "cross-attention looks at the source through a triangle: place t of the target sees "
            "places 0..t of the source alone; the causal mask belongs to self-attention"
        )
    return "; cross-attention gives weight to each"


# Gradients ------------------------------------------------------------------------------------


def gradients_towards(of_future: bool) -> Callable[[Batch], Result]:
    """The check that gradients towards the future, or towards pads, are zero."""

    def ask(batch: Batch) -> Result:
        if "gradients" not in batch.kept:
            batch.kept["gradients"] = _gradients(batch)
        by, size = batch.kept["gradients"]
        mine = {name: value for name, value in by.items() if (name == FUTURE) == of_future}
        if not mine:
            raise Told("does not apply", "the embedding of no target is met")
        least = size * batch.tolerance / batch.typical_logit
        reached = [name for name, value in mine.items() if not value <= least]
        most = worst(mine.values())
        exactly = "exactly zero" if most == 0 else "zero but for rounding"
        return measured(
            most,
            least if most else 0.0,
            f"gradients towards {', '.join(mine)} are {exactly}",
            f"real outputs depend on {' and '.join(reached)}: attention weights there are not "
            "zero; is the mask added before softmax, in every layer, the right way round?",
        )

    return ask


def _gradients(batch: Batch) -> tuple[dict[str, float], float]:
    """The largest gradients towards pads and the future, and that towards any token. Of longer
    batches those in eval mode and fp64 alone, and none beyond 66 places."""
    exact = batch.dtype == torch.float64 and not batch.model.training
    if not batch.is_short and not (exact and batch.tgt_in.shape[1] <= 66):
        raise Told(
            "does not apply", "gradients of longer batches are taken in eval mode and fp64 alone"
        )
    leaves: dict[str, list[Tensor]] = {}

    def edit(side: str, embedded: Tensor) -> Tensor:
        leaf = embedded.detach().requires_grad_()
        leaves.setdefault(side, []).append(leaf)
        return leaf.clone()  # which a model may change in place

    with torch.enable_grad(), embeddings_changed(batch, edit):
        logits = batch.model.ask(*batch.ids)
    if not logits.requires_grad:
        raise unsure("needs gradients, and the model answers without (torch.no_grad?)")
    plain = logits.detach()
    counts = batch.as_infinite(plain).isfinite() | plain.isnan()
    weighed = torch.where(counts & batch.counted_ids, logits * batch.noise(logits), 0.0)
    weighed = weighed.sum(-1) * batch.real
    pads = "target pads" if batch.facts.has_source else "pads"
    by: dict[str, float] = {}
    size = 0.0
    if "src" in leaves:
        gradient = _gradient(weighed.sum(), leaves["src"])
        by["source pads"] = largest(gradient[~batch.real_source])
        size = largest(gradient[batch.real_source].nan_to_num())
    width = logits.shape[1]
    step = width // 4 if width > 8 else 1
    for place in range(0, width, step) if "tgt" in leaves else ():
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        later = torch.arange(width) > (place if batch.facts.is_causal else width)
        closed_pads = gradient[batch.real[:, place]][(~batch.real & ~later)[batch.real[:, place]]]
        size = max(size, largest(gradient.nan_to_num()))
        by[pads] = worst((by.get(pads, 0.0), largest(closed_pads)))
        by[FUTURE] = worst((by.get(FUTURE, 0.0), largest(gradient[:, later])))
    return by, size


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Of a value with respect to leaves (B, L, ...), the largest of each place: (B, L)."""
    gradients = torch.autograd.grad(
        value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.stack([part.abs().flatten(2).amax(2) for part in gradients]).amax(0)
