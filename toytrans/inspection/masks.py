"""Which query may attend to which key, and why: tables of the masks of a batch.

In toytrans True = may attend. The masks are those that the model's attention received, beside what
the ids say that they should be.
"""

from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from toytrans.config.schema import PadMask
from toytrans.inspection.mask_effects import rows_without_keys, softmax_of_a_row
from toytrans.inspection.panels import (
    CLOSED,
    count,
    label,
    mask_cells,
    panel,
    shape_of,
)
from toytrans.inspection.shown import ATTENTIONS, REASONS, InspectedBatch
from toytrans.model.masks import MaskMaker, causal_mask, padding_mask
from toytrans.table import Table
from toytrans.tokens import PAD_ID

MARKS = f"1 = may attend, {CLOSED} = masked; queries down, keys across"


def tables(inspected: InspectedBatch) -> Iterator[Table]:
    """Tables 1 to 9: the batch, every mask of every pair, what masks do, and their polarity."""
    rows = range(len(inspected.batch.src))
    yield from (pair_table(inspected, row) for row in rows)
    for row in rows:
        yield source_pads(inspected, row)
        yield from _both_pad_masks(inspected, row)
        yield from decoder_self(inspected, row)
        yield cross(inspected, row)
        yield from (_reasons(inspected, row, name) for name in ATTENTIONS)
    yield rows_without_keys(inspected)
    yield softmax_of_a_row(inspected)
    note = (
        "Here 1 = True = may attend, as in scaled_dot_product_attention. Other libraries mean the "
        "opposite: --as LIBRARY prints these masks in a library's own convention."
    )
    yield panel("9", "Polarity", [], [], notes=(note,))


def notes_of_batch(inspected: InspectedBatch) -> tuple[str, str]:
    """Whether the targets are shifted, and which ids the masks are made from."""
    batch = inspected.batch
    following, labels = batch.tgt_in[:, 1:], batch.tgt_out[:, :-1]
    shift = "tgt_out is NOT tgt_in shifted by one place: a fault is in it."
    if torch.equal(following, labels.where(padding_mask(following), PAD_ID)):
        shift = "tgt_out is tgt_in shifted by one place: after reading tgt_in up to a place, the "
        shift += "decoder must predict the token below it."
    return shift, "The decoder's pad mask is made from tgt_in, the loss mask from tgt_out."


def pair_table(inspected: InspectedBatch, row: int) -> Table:
    """Table 1: tokens and ids of a pair, tgt_in above tgt_out, and the labels that count."""
    lines: list[tuple[str, list[str]]] = []
    real = []
    for name, ids in inspected.batch.named().items():
        lines += [(name, inspected.names(ids[row])), ("id", [str(i) for i in ids[row].tolist()])]
        real.append(f"{name} {int(padding_mask(ids[row]).sum())} of {ids.shape[1]}")
    lines.append(("loss", inspected.loss_marks(row)))
    width = max(len(cells) for _, cells in lines)
    return panel(
        "1",
        f"Batch, pair {row + 1}",
        [str(place) for place in range(width)],
        [(name, cells + [""] * (width - len(cells))) for name, cells in lines],
        shape=f"real places: {', '.join(real)}",
        legend=f"places across; loss: 1 = label counted, {CLOSED} = pad ignored",
        notes=notes_of_batch(inspected) if row == len(inspected.batch.src) - 1 else (),
    )


def source_pads(inspected: InspectedBatch, row: int) -> Table:
    """Table 2: from the ids of the source to the broadcast mask."""
    mask, full = inspected.masks.encoder_self, inspected.full_mask("encoder_self")[row]
    note = f"{int((~full).sum())} of {full.numel()} cells masked"
    note += "; every query sees the same keys" if mask.shape[2] == 1 else ""
    ids = inspected.batch.src
    return _mask(inspected, "2", "Source pads", "encoder_self", row, mask, note, ids=ids)


def _both_pad_masks(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Table 3: pads masked as keys, and as keys and queries, whichever the model uses."""
    src = inspected.batch.src
    pads = int((~padding_mask(src[row])).sum())
    effects = {
        "keys": f"Pad columns are masked. {count(pads, 'pad row')} still attend; no query reads "
        "them.",
        "keys_and_queries": f"Pad rows are masked too: {count(pads, 'row')} without a visible key.",
    }
    for setting in get_args(PadMask):
        used = " (this model's)" if setting == inspected.model.settings.pad_mask else ""
        effect = effects[setting] if pads else "This pair has no pads, so both are the same."
        notes = effect, f"model.pad_mask: {setting}{used}"
        name = f"Encoder self, {'keys only' if setting == 'keys' else label(setting)}"
        mask = MaskMaker(setting).encoder_self(src)
        yield _mask(inspected, "3", name, "encoder_self", row, mask, *notes, sees=True)


def decoder_self(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Table 4: pads, the causal mask, and the mask that the model used."""
    tgt_in = inspected.batch.tgt_in
    right = MaskMaker(inspected.model.settings.pad_mask).decoder_self(tgt_in)[:, 0]
    combined = "masked where either is masked"
    if not torch.equal(inspected.full_mask("decoder_self"), right):
        combined = "NOT the two combined: a fault is in it"
    triangle, used = causal_mask(tgt_in.shape[1])[None, None], inspected.masks.decoder_self
    past = "a query sees itself and the keys before it"
    for title, mask, note in (
        ("pads", padding_mask(tgt_in)[:, None, None, :], "from tgt_in"),
        ("triangle", triangle, past),
        ("as used", used, combined),
    ):
        name = f"Decoder self, {title}"
        yield _mask(inspected, "4", name, "decoder_self", row, mask, note, sees=mask is used)


def cross(inspected: InspectedBatch, row: int) -> Table:
    """Table 5: target places down, source places across. Only source pads are masked."""
    full = inspected.full_mask("cross")
    src, tgt_in = inspected.batch.src, inspected.batch.tgt_in
    if torch.equal(full, padding_mask(src)[:, None].expand_as(full)):
        note = "Only source pads are masked, for every query alike. The loss ignores target pads."
    elif torch.equal(full, MaskMaker("keys_and_queries").cross(src, tgt_in)[:, 0]):
        note = "Source pads are masked as keys, and target pads as queries."
    else:
        note = "NOT the source's pads: a fault is in it."
    mask = inspected.masks.cross
    return _mask(inspected, "5", "Cross-attention", "cross", row, mask, note, ids=src)


def _reasons(inspected: InspectedBatch, row: int, name: str) -> Table:
    """Table 6: a letter in each masked cell, and how many there are of each."""
    grid = inspected.reasons(name)[row]
    queries, keys = inspected.tokens(name, row)
    letters = [letter for line in grid for letter in line]
    counts = {letter: letters.count(letter) for letter in REASONS if letter in letters}
    wrong = counts.get("!", 0)
    each = ", ".join(f"{letter} {n}" for letter, n in counts.items() if letter != "!")
    notes = [f"masked {sum(counts.values()) - wrong} of {len(letters)}{each and ': '}{each}"]
    if wrong:
        notes.append(f"{count(wrong, 'cell')} (!) visible, but a pad key or the future")
    shown = [letter for letter in REASONS if letter in "ptbq" or letter in counts]
    return panel(
        "6",
        f"Reasons, {label(name)}, pair {row + 1}",
        keys,
        list(zip(queries, grid, strict=True)),
        shape=f"{len(queries)} x {len(keys)}",
        legend="; ".join(f"{letter} = {REASONS[letter]}" for letter in shown),
        notes=tuple(notes),
        marks=True,
    )


def _mask(
    inspected: InspectedBatch,
    number: str,
    name: str,
    attention: str,
    row: int,
    mask: Tensor,
    *notes: str,
    ids: Tensor | None = None,
    sees: bool = False,
) -> Table:
    """One pair of a mask (B or 1, 1, Tq or 1, Tk).

    ids: what it is made from, for the shapes. sees: print how many keys each query sees.
    """
    queries, keys = inspected.tokens(attention, row)
    full = mask.expand(len(inspected.batch.src), 1, len(queries), -1)
    cells = mask_cells(full[row, 0])
    if sees:
        keys = [*keys, "| sees"]
        for line, seen in zip(cells, full[row, 0].sum(-1).tolist(), strict=True):
            line.append(f"| {seen:>4}")
    shapes: Sequence[Tensor] = [mask, full] if ids is None else [ids, mask, full]
    shape = shape_of(*(each.shape for each in shapes))
    rows = list(zip(queries, cells, strict=True))
    return panel(number, f"{name}, pair {row + 1}", keys, rows, shape, MARKS, notes, marks=True)
