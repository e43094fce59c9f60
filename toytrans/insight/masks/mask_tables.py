"""What may look at what, and why not: the masks of a batch as panels, as rows and as plain data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toytrans.choices import PadMask
from toytrans.config import Config
from toytrans.data import open_source
from toytrans.data.batches import Batch, make_batch
from toytrans.data.files import TextPair, encode_pairs
from toytrans.data.pairs import DatasetInfo
from toytrans.insight.tables import ATTENTIONS, CLOSED, Panel, View, number, shape_of
from toytrans.model.masks import MaskMaker, Masks, causal_mask, padding_mask
from toytrans.tokens import PAD_ID, Vocabulary, vocabulary_of
from toytrans.training.faults import objective_of

MARKS = f"1 = may look, {CLOSED} = may not; queries down, keys across"

REASONS = {
    "p": "pad key",
    "t": "future",
    "b": "both",
    "q": "pad query",
    "?": "for none of these",
    "!": "open though a pad key or the future",
}
"""Why a cell is closed, or in the last case should be."""

Cells = list[list[str]]


def batch_of_config(
    config: Config, rows: int, facts: DatasetInfo | None = None
) -> tuple[Batch, Vocabulary]:
    """The first training pairs of a config, padded to one batch, as training is given them.

    facts: those of a run, which decide the vocabulary.
    """
    source = open_source(config, facts)
    size = source.size("train")
    count = rows if size is None else min(rows, size)
    pairs = source.pairs("train", torch.arange(count))
    batch = make_batch(pairs, config.source_bos)
    return objective_of(config.fault).batch(batch), source.facts.vocabulary


def batch_of_sequences(
    src: Sequence[str],
    tgt: Sequence[str],
    vocabulary: Vocabulary | None = None,
    source_bos: bool = False,
) -> tuple[Batch, Vocabulary]:
    """Sequences such as "5 7 9", padded to one batch.

    Without a vocabulary whole numbers k get the id k + 3, as in a task; other symbols get ids in
    their order. Raises UserError for a symbol that a given vocabulary lacks.
    """
    text = [
        TextPair(s.split(), t.split(), f"--src {s!r}", f"--tgt {t!r}")
        for s, t in zip(src, tgt, strict=True)
    ]
    if vocabulary is None:
        vocabulary = _vocabulary([side for pair in text for side in (pair.src, pair.tgt)])
    return make_batch(encode_pairs(text, vocabulary), source_bos), vocabulary


def _vocabulary(sequences: list[list[str]]) -> Vocabulary:
    found = vocabulary_of(sequences)
    symbols = found.symbols
    if all(symbol.isascii() and symbol.isdigit() and len(symbol) < 5 for symbol in symbols):
        largest = max((int(symbol) for symbol in symbols), default=-1)
        numbers = tuple(str(k) for k in range(largest + 1))
        if set(symbols) <= set(numbers):
            return Vocabulary(numbers)
    return found


def masks_as_data(view: View) -> dict[str, Any]:
    """Ids and masks of a batch; masks as (B, Tq, Tk) lists of 0 and 1."""
    ids = {name: found.tolist() for name, found in view.batch.named().items()}
    return ids | {name: view.whole(name).int().tolist() for name in ATTENTIONS}


COLUMNS = ("pair", "mask", "query", "query_token", "key", "key_token", "look", "reason")


def masks_as_rows(view: View) -> Iterator[tuple[int | str, ...]]:
    """One row a cell, under COLUMNS: pairs from 1, places from 0, look 1 or 0, reason a word."""
    for name in ATTENTIONS:
        grids = reasons(view, name)
        for pair, grid in enumerate(grids):
            queries, keys = view.tokens(name, pair)
            looks = view.whole(name)[pair].int().tolist()
            for q, query in enumerate(queries):
                for k, key in enumerate(keys):
                    reason = REASONS.get(grid[q][k], "")
                    yield pair + 1, name, q, query, k, key, looks[q][k], reason


def reasons(view: View, name: str) -> list[Cells]:
    """Why each cell of a mask is closed: a letter of REASONS, or "1" where it is rightly open.

    Read off the ids, and laid beside the mask that the model used: (B, Tq, Tk) as lists.
    """
    queries, keys = view.ids(name)
    whole = view.whole(name)
    pad_key = ~padding_mask(keys)[:, None, :].expand_as(whole)
    pad_query = ~padding_mask(queries)[:, :, None].expand_as(whole)
    future = torch.zeros_like(whole)
    if name == "decoder_self":
        future = ~causal_mask(whole.shape[1]).expand_as(whole)
    letters = "?qptb1!"  # a later one overrules those before it
    where = (pad_query, pad_key, future, pad_key & future, whole, whole & (pad_key | future))
    code = torch.zeros(whole.shape, dtype=torch.long)
    for value, cells in enumerate(where, start=1):
        code[cells] = value
    return [[[letters[c] for c in line] for line in grid] for grid in code.tolist()]


def panels(view: View) -> Iterator[Panel]:
    """Panels 1 to 6: the batch, then every mask of every pair."""
    yield from batch_panels(view)
    for row in range(len(view.batch.src)):
        yield source_pads(view, row)
        yield from _two_settings(view, row)
        yield from decoder_self(view, row)
        yield cross(view, row)
        yield from (_reasons(view, row, name) for name in ATTENTIONS)


def batch_panels(view: View) -> list[Panel]:
    """Panel 1: tokens and ids of each pair, tgt_in over tgt_out, and the labels that count."""
    found = [_pair(view, row) for row in range(len(view.batch.src))]
    found[-1] = replace(found[-1], notes=notes_of_batch(view.batch))
    return found


def notes_of_batch(batch: Batch) -> tuple[str, str]:
    """On the shift, which is looked for, and on where the masks come from."""
    read, labels = batch.tgt_in[:, 1:], batch.tgt_out[:, :-1]
    if torch.equal(read, labels.where(padding_mask(read), PAD_ID)):
        shift = "tgt_out is tgt_in moved by one place: having read tgt_in up to a place, the "
        shift += "decoder is to say what stands below it."
    else:
        shift = "tgt_out is NOT tgt_in moved by one place: a fault is in it."
    return shift, "The decoder's pad mask is read from tgt_in, the loss mask from tgt_out."


def _pair(view: View, row: int) -> Panel:
    rows: list[tuple[str, list[str]]] = []
    real = []
    for name, ids in view.batch.named().items():
        rows += [(name, view.names(ids[row])), ("id", [str(i) for i in ids[row].tolist()])]
        real.append(f"{name} {int(padding_mask(ids[row]).sum())} of {ids.shape[1]}")
    counted = padding_mask(view.batch.tgt_out[row]).tolist()
    rows.append(("loss", ["1" if counts else CLOSED for counts in counted]))
    width = max(len(cells) for _, cells in rows)
    return Panel(
        "1",
        f"Batch, {_of(row)}",
        [str(place) for place in range(width)],
        [(label, cells + [""] * (width - len(cells))) for label, cells in rows],
        shape=f"real places: {', '.join(real)}",
        legend=f"places across; loss: 1 = label counted, {CLOSED} = label ignored",
    )


def source_pads(view: View, row: int) -> Panel:
    """Panel 2: from the ids to the square that the mask broadcasts to."""
    mask, whole = view.masks.encoder_self, view.whole("encoder_self")
    closed = int((~whole[row]).sum())
    shape = shape_of(view.batch.src.shape, mask.shape, (len(whole), 1, *whole.shape[1:]))
    note = f"{closed} of {whole[row].numel()} cells closed"
    alike = "; the same keys in every row" if mask.shape[2] == 1 else ""
    name = f"Source pads, {_of(row)}"
    return _mask_panel("2", name, view, "encoder_self", row, whole, shape, (note + alike,))


def _two_settings(view: View, row: int) -> Iterator[Panel]:
    """Panel 3: key-only beside key-and-query, whichever of them the model takes."""
    src, pads = view.batch.src, int((~padding_mask(view.batch.src[row])).sum())
    settings: dict[PadMask, tuple[str, str]] = {
        "keys": (
            "keys only",
            f"Pad columns closed; {_count(pads, 'pad row')} alive, read by none.",
        ),
        "keys_and_queries": (
            "keys and queries",
            f"Pad rows closed too: {_count(pads, 'row')} with nothing to look at.",
        ),
    }
    for setting, (name, says) in settings.items():
        mask = MaskMaker(setting).encoder_self(src)
        whole = mask[:, 0].expand(-1, src.shape[1], -1)
        used = f"model.pad_mask: {setting}"
        if setting == view.model.config.pad_mask:
            used += " (this model's)"
        shape = shape_of(mask.shape, (len(src), 1, *whole.shape[1:]))
        name = f"Encoder self, {name}, {_of(row)}"
        notes = (says if pads else "No pads here, so the two are the same.", used)
        yield _mask_panel("3", name, view, "encoder_self", row, whole, shape, notes, sees=True)


def decoder_self(view: View, row: int) -> Iterator[Panel]:
    """Panel 4: pads, the triangle, and what the model made of the two."""
    tgt_in = view.batch.tgt_in
    shape = (len(tgt_in), tgt_in.shape[1], tgt_in.shape[1])
    pads = padding_mask(tgt_in)[:, None, None, :]  # (B, 1, 1, T)
    triangle = causal_mask(tgt_in.shape[1])[None, None]  # (1, 1, T, T)
    used = view.whole("decoder_self")
    both = (pads & triangle)[:, 0]
    if view.model.config.pad_mask == "keys_and_queries":
        both = both & padding_mask(tgt_in)[:, :, None]
    same = torch.equal(used, both)
    note = "closed where either is closed" if same else "NOT the two combined: a fault is in it"
    for name, mask, notes in (
        ("pads", pads, ("from tgt_in",)),
        ("triangle", triangle, ("a query sees itself and what is before it",)),
        ("as used", view.masks.decoder_self, (note,)),
    ):
        whole = mask[:, 0].expand(shape)
        shapes = shape_of(mask.shape, (shape[0], 1, *shape[1:]))
        name = f"Decoder self, {name}, {_of(row)}"
        sees = mask is view.masks.decoder_self
        yield _mask_panel("4", name, view, "decoder_self", row, whole, shapes, notes, sees)


def cross(view: View, row: int) -> Panel:
    """Panel 5: target places by source places, from source pads alone."""
    mask, whole = view.masks.cross, view.whole("cross")
    src, tgt_in, _ = view.batch
    if torch.equal(whole, padding_mask(src)[:, None].expand_as(whole)):
        note = "From source pads alone, the same in every row; pads of the target leave through "
        note += "the loss."
    elif torch.equal(whole, MaskMaker("keys_and_queries").cross(src, tgt_in)[:, 0]):
        note = "From source pads, and pads of the target closed as queries."
    else:
        note = "NOT the source's pads: a fault is in it."
    shape = shape_of(view.batch.src.shape, mask.shape, (len(whole), 1, *whole.shape[1:]))
    name = f"Cross-attention, {_of(row)}"
    return _mask_panel("5", name, view, "cross", row, whole, shape, (note,))


def _reasons(view: View, row: int, name: str) -> Panel:
    """Panel 6: a letter in each closed cell, and how many there are of each."""
    grid = reasons(view, name)[row]
    queries, keys = view.tokens(name, row)
    letters = [letter for line in grid for letter in line]
    found = {letter: letters.count(letter) for letter in REASONS if letter in letters}
    closed = sum(count for letter, count in found.items() if letter != "!")
    total = ", ".join(f"{letter} {count}" for letter, count in found.items() if letter != "!")
    notes = [f"closed {closed} of {len(letters)}{': ' if closed else ''}{total}"]
    if "!" in found:
        notes.append(f"{_count(found['!'], 'cell')} (!) open though a pad key or the future")
    wanted = [letter for letter in REASONS if letter in "ptbq" or letter in found]
    return Panel(
        "6",
        f"Reasons, {name.replace('_', ' ')}, {_of(row)}",
        keys,
        list(zip(queries, grid, strict=True)),
        shape=f"{len(queries)} x {len(keys)}",
        legend="; ".join(f"{letter} = {REASONS[letter]}" for letter in wanted),
        notes=tuple(notes),
        marks=True,
    )


def _mask_panel(
    number: str,
    name: str,
    view: View,
    attention: str,
    row: int,
    whole: Tensor,
    shape: str,
    notes: tuple[str, ...],
    sees: bool = False,
) -> Panel:
    """One pair of a mask (B, Tq, Tk); sees: with the number of open keys at the end of a row."""
    queries, keys = view.tokens(attention, row)
    cells = [["1" if seen else CLOSED for seen in line] for line in whole[row].tolist()]
    if sees:
        keys = [*keys, SEES]
        counts = whole[row].sum(-1).tolist()
        cells = [[*line, f"| {count:>4}"] for line, count in zip(cells, counts, strict=True)]
    rows = list(zip(queries, cells, strict=True))
    return Panel(number, name, keys, rows, shape, MARKS, notes, marks=True)


SEES = "| sees"


def polarity(library: str | None = None) -> Panel:
    """Panel 9, the line that belongs to every mask, ours or a library's."""
    note = (
        "Here 1 = True = may look, as scaled_dot_product_attention takes it; others mean the "
        "opposite: --as LIBRARY prints these masks in a library's own words."
        if library is None
        else f"Each mask above is in the polarity of {library}, which stands below it. Without "
        "--as, masks are shown as toytrans has them: 1 = True = may look."
    )
    return Panel("9", "Polarity", [], [], notes=(note,))


def converted(view: View, row: int, library: str) -> Iterator[Panel]:
    """One pair's masks as another library's arguments; shapes are those of the whole batch."""
    from toytrans.insight.masks.conventions import convert

    src, tgt_in, _ = view.batch
    heads = view.model.config.n_heads
    twice = Masks(*(torch.cat((mask, mask)) for mask in view.masks))
    all_of_it = convert(view.masks, src, tgt_in, library, heads)
    doubled = convert(twice, torch.cat((src, src)), torch.cat((tgt_in, tgt_in)), library, heads)
    for found, more in zip(all_of_it, doubled, strict=True):
        table = _part(found.tensor, more.tensor.shape, len(src), row)
        notes = [f"{found.says}."]
        while table.dim() > 2:  # heads, or an axis of 1
            if len(table) > 1:
                notes.append(f"Shown: the first of {len(table)} heads, all the same.")
            table = table[0]
        queries, keys = view.tokens(found.attention, row)
        labels = queries if len(table) == len(queries) else ["all"] * len(table)
        cells = [[_value(value) for value in line] for line in table.tolist()]
        dtype = str(found.tensor.dtype).removeprefix("torch.")
        yield Panel(
            library,
            f"{ATTENTIONS[found.attention]}: {found.argument}, {_of(row)}",
            keys,
            list(zip(labels, cells, strict=True)),
            shape=f"{shape_of(found.tensor.shape)}, {dtype}",
            legend="T = True, F = False" if table.dtype == torch.bool else "",
            notes=tuple(notes),
        )


def _part(tensor: Tensor, doubled: Sequence[int], pairs: int, row: int) -> Tensor:
    """What belongs to one pair. doubled: the shape for the batch twice, which tells which axis is
    the batch's, (B) or (B H); one without such an axis belongs to every pair."""
    for axis, (size, larger) in enumerate(zip(tensor.shape, doubled, strict=True)):
        if size != larger:
            rows = size // pairs
            return tensor.narrow(axis, row * rows, rows)
    return tensor


def _value(value: float | bool) -> str:
    if isinstance(value, bool):
        return str(value)[0]
    return str(value) if isinstance(value, int) else number(value)


def _of(row: int) -> str:
    return f"pair {row + 1}"


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
