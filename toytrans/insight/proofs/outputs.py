"""Proofs that the order of the ids is seen, and that nothing is kept from call to call."""

import torch
from torch import Tensor

from toytrans.insight.proofs.answers import apart, largest, wider, worst
from toytrans.insight.proofs.batch import TOLERANCE, ProofBatch, needs_sight
from toytrans.insight.proofs.report import CannotJudge, Outcome, Witness

# What must be seen -----------------------------------------------------------------------------


def order_seen(batch: ProofBatch) -> Outcome:
    """(j) Swapping two different symbols changes the logits."""
    needs_sight(batch)
    if batch.dtype not in TOLERANCE:
        raise CannotJudge("needs fp32 or fp64: half precision rounds as much as a swap may move")
    if not batch.model.has_source:
        return _order_of_ids(batch)
    row = int(batch.real_source.sum(1).argmax())
    swapped, where = _swaps(batch, batch.src[row], batch.real_source[row])
    return _of_swaps(batch, row, row, swapped, where)


def order_seen_far(batch: ProofBatch) -> Outcome:
    """(j) The same in the second half of a longer source, by the outputs for the longest target."""
    needs_sight(batch)
    row, target = (int(real.sum(1).argmax()) for real in (batch.real_source, batch.real))
    half = int(batch.real_source[row].sum()) // 2
    behind = batch.real_source[row] & (torch.arange(batch.src.shape[1]) >= half)
    swapped, where = _swaps(batch, batch.src[row], behind)
    outcome = _of_swaps(batch, row, target, swapped, where)
    cause = (
        f"none of {len(where)} swaps of neighbours behind place {half} of a source changes "
        "anything: order is seen before it; do positions end there?"
    )
    return outcome._replace(cause=cause, length=batch.setting.length)


def _of_swaps(
    batch: ProofBatch, row: int, target: int, swapped: Tensor, where: list[int]
) -> Outcome:
    """Whether swaps in the source of a row move the outputs for the target of another."""
    asked = torch.cat((batch.src[row][None], swapped))
    logits = batch.ask(asked, batch.tgt_in[target].expand(len(asked), -1))
    by = [largest(change[batch.real[target]]) for change in batch.moved(logits[1:], logits[:1])]
    return Outcome(
        max(by),
        batch.tolerance,
        f"{len(by)} swaps of neighbours in a source; places {where[by.index(max(by))]} and "
        f"{where[by.index(max(by))] + 1} change the logits most",
        f"none of {len(by)} swaps of neighbours in a source changes anything: the encoder does "
        "not see order; are positions added to the embeddings?",
        must_change=True,
    )


def _swaps(batch: ProofBatch, ids: Tensor, real: Tensor) -> tuple[Tensor, list[int]]:
    """(N, L) ids with two neighbouring symbols swapped, and at which places."""
    symbol = torch.isin(ids, batch.symbols) & real
    places = (symbol[:-1] & symbol[1:] & (ids[:-1] != ids[1:])).nonzero()[:, 0].tolist()
    if not places:
        raise CannotJudge("needs sequences with two different neighbouring symbols")
    swapped = ids.repeat(len(places), 1)
    for number, place in enumerate(places):
        swapped[number, [place, place + 1]] = ids[[place + 1, place]]
    return swapped, places


def _order_of_ids(batch: ProofBatch) -> Outcome:
    """The order of the ids of a model of one stream, seen from the places that see them."""
    row = int(batch.real.sum(1).argmax())
    ids = batch.tgt_in[row]
    swapped, where = _swaps(batch, ids, batch.real[row])
    logits = batch.ask(batch.src[:1].expand(len(swapped) + 1, -1), torch.cat((ids[None], swapped)))
    moved = batch.moved(logits[1:], logits[:1])
    places = torch.arange(len(ids))
    start = torch.tensor(where)[:, None]
    elsewhere = (places > start + 1) | (places < start if not batch.model.is_causal else False)
    by = largest(moved[elsewhere & batch.real[row]])
    if by <= batch.tolerance and batch.model.is_causal:
        raise CannotJudge(
            "no output changes when two earlier tokens are swapped: a decoder without positions "
            "counts them by its triangle from two layers on; give it two"
        )
    return Outcome(
        by,
        batch.tolerance,
        f"{len(where)} swaps of neighbours: outputs at other places change",
        f"none of {len(where)} swaps of neighbours changes an output elsewhere: order is not "
        "seen; are positions added to the embeddings?",
        must_change=True,
    )


# What is kept from call to call ----------------------------------------------------------------


def nothing_kept(batch: ProofBatch) -> Outcome:
    """(v) An answer does not depend on what was asked before: rows in another order have other
    pads in the same shape, and longer and shorter batches come between."""
    needs_sight(batch)
    order = torch.arange(len(batch.src)).flip(0)
    pad, left = batch.model.pad_id, batch.model.pad_side == "left"
    src = wider(batch.src, 1, batch.model.source_pad) if batch.model.has_source else batch.src
    by = {
        "with its rows in another order": batch.differ(
            batch.ask(batch.src[order], batch.tgt_in[order])[order], batch.logits, batch.real
        )
    }
    longer = wider(batch.tgt_in, 1, pad, left)
    batch.ask(src, longer)
    batch.ask(src.flip(0), longer.flip(0))
    batch.ask(batch.src[:1], batch.tgt_in[:1])
    again = largest(apart(batch.ask(batch.src, batch.tgt_in), batch.logits).nan_to_num())
    by["after other calls"] = again if again > batch.tolerance else 0.0
    if changed := sorted(batch.variant.overwritten):
        return Outcome(
            1.0,
            0.0,
            "",
            f"the model changes the ids that it is handed: {' and '.join(changed)} hold other ids "
            "after a call; change a copy (masked_fill for masked_fill_, clone before assigning)",
        )
    bad = next((name for name, change in by.items() if not change <= batch.tolerance), "")
    return Outcome(
        worst(by.values()),
        batch.tolerance,
        "rows in another order, and the same batch after others, give the same logits",
        f"the same batch {bad} gives other logits: something is kept from call to call, or rows "
        "are mixed up; is a mask or a cache kept from another batch?",
        witness=Witness(
            (batch.src, batch.tgt_in), (batch.src[order], batch.tgt_in[order]), "order"
        ),
    )
