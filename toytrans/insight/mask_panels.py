"""What may look at what: the masks of a batch as panels, and as plain data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toytrans.config import Config, PadMask
from toytrans.data import open_source
from toytrans.data.batches import Batch, make_batch
from toytrans.data.files import TextPair, encode_pairs
from toytrans.model.masks import causal_mask, make_masks, padding_mask
from toytrans.tokens import Vocabulary, vocabulary_of


@dataclass(frozen=True)
class Panel:
    """One mask of one pair: query tokens down, key tokens across, True = may look."""

    name: str
    says: str
    shape: str
    """before and after broadcasting"""
    queries: list[str]
    keys: list[str]
    mask: list[list[bool]]


def batch_of_config(config: Config, rows: int) -> tuple[Batch, Vocabulary]:
    """The first training pairs of a config, padded to one batch."""
    source = open_source(config)
    size = source.size("train")
    count = rows if size is None else min(rows, size)
    pairs = source.pairs("train", torch.arange(count))
    return make_batch(pairs, config.marks_both_ends), source.facts.vocabulary


def batch_of_sequences(
    src: Sequence[str],
    tgt: Sequence[str],
    vocabulary: Vocabulary | None = None,
    both_ends: bool = False,
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
    return make_batch(encode_pairs(text, vocabulary), both_ends), vocabulary


def _vocabulary(sequences: list[list[str]]) -> Vocabulary:
    found = vocabulary_of(sequences)
    symbols = found.symbols
    if all(symbol.isascii() and symbol.isdigit() and len(symbol) < 5 for symbol in symbols):
        largest = max((int(symbol) for symbol in symbols), default=-1)
        numbers = tuple(str(k) for k in range(largest + 1))
        if set(symbols) <= set(numbers):
            return Vocabulary(numbers)
    return found


def masks_as_data(batch: Batch, pad_mask: PadMask = "keys") -> dict[str, Any]:
    """Ids and masks of a batch; masks as (B, Tq, Tk) lists of 0 and 1."""
    masks = make_masks(batch.src, batch.tgt_in, pad_mask)
    rows, width = batch.src.shape
    height = batch.tgt_in.shape[1]
    shapes = {
        "encoder_self": (rows, width, width),
        "decoder_self": (rows, height, height),
        "cross": (rows, height, width),
    }
    whole = {
        name: getattr(masks, name)[:, 0].expand(shape).int().tolist()
        for name, shape in shapes.items()
    }
    return {name: ids.tolist() for name, ids in batch.named().items()} | whole


def panels(batch: Batch, row: int, vocabulary: Vocabulary, pad_mask: PadMask) -> list[Panel]:
    """The five panels of one pair of a batch, made from the masks that attention uses."""
    masks = make_masks(batch.src, batch.tgt_in, pad_mask)
    src = [vocabulary.name(i) for i in batch.src[row].tolist()]
    tgt = [vocabulary.name(i) for i in batch.tgt_in[row].tolist()]
    target_pads = padding_mask(batch.tgt_in)[:, None, None, :]  # (B, 1, 1, T)
    triangle = causal_mask(len(tgt))[None, None]  # (1, 1, T, T)

    def panel(name: str, says: str, mask: Tensor, queries: list[str], keys: list[str]) -> Panel:
        rows, shape = len(batch.src), (len(queries), len(keys))
        seen = mask[min(row, len(mask) - 1), 0].expand(shape).tolist()
        before, after = tuple(mask.shape), (rows, 1, *shape)
        return Panel(name, says, f"shape {before} -> {after}", queries, keys, seen)

    return [
        panel("Encoder self-attention", "source pads closed", masks.encoder_self, src, src),
        panel("Decoder self-attention: pads", "pads of tgt_in closed", target_pads, tgt, tgt),
        panel("Decoder self-attention: triangle", "the future closed", triangle, tgt, tgt),
        panel(
            "Decoder self-attention: combined",
            "pads and future closed",
            masks.decoder_self,
            tgt,
            tgt,
        ),
        panel("Cross-attention", "source pads closed, no triangle", masks.cross, tgt, src),
    ]
