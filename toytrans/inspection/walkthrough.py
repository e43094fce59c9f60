"""A walk through one forward pass: every matrix of a tiny encoder-decoder, from query to loss.

Steps 7a to 7c are the decoder's self-attention. They come before cross-attention, and the causal
mask belongs to them. Notes name common mistakes at the step where they happen.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from toytrans.config.schema import ModelConfig
from toytrans.data.batches import Batch
from toytrans.inspection import masks as mask_tables
from toytrans.inspection.record import recording
from toytrans.inspection.shown import InspectedBatch, batch_of_sequences, fresh
from toytrans.inspection.table import (
    CLOSED,
    Table,
    mask_cells,
    matrix,
    number,
    numbers,
    shape_of,
    tiny,
)
from toytrans.model.attention import Intermediates
from toytrans.model.masks import MaskMaker, padding_mask
from toytrans.model.transformer import Transformer
from toytrans.tokens import vocabulary_of
from toytrans.training.step import summed_loss

Pairs = tuple[list[str], list[str]]
"""Sources and their targets."""

PAIRS: Pairs = ["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"]
"""The first pair has pads: 4 of 5 real places in the source, and 3 of 5 in tgt_in."""

WIDTH = 4
"""d_model, small enough for every matrix to fit into 80 columns."""

TINY = ModelConfig(
    d_model=WIDTH,
    n_heads=1,
    n_encoder_layers=1,
    n_decoder_layers=1,
    d_ff=2 * WIDTH,
    norm="pre",
)


@dataclass(frozen=True)
class Walk:
    """The pair that is shown, in its batch, and the results of the tiny model.

    memory: (B, S, D), the output of the encoder.
    output: (B, T, D), the output of the decoder.
    """

    inspected: InspectedBatch
    row: int
    memory: Tensor
    output: Tensor
    logits: Tensor

    def steps(self, name: str) -> Intermediates:
        """The intermediates of one attention for the pair that is shown, of its only head."""
        steps = self.inspected.calls[name].intermediates()
        return Intermediates(*(tensor[self.row, 0] for tensor in steps))

    @property
    def padded(self) -> bool:
        """Whether the source that is shown has pads."""
        return not bool(padding_mask(self.inspected.batch.src[self.row]).all())

    def tokens(self, name: str) -> tuple[list[str], list[str]]:
        return self.inspected.tokens(name, self.row)


def pairs_of(inspected: InspectedBatch) -> Pairs:
    """The sequences of a batch."""
    batch, decode = inspected.batch, inspected.vocabulary.decode
    src, tgt = ([" ".join(decode(row)) for row in x.tolist()] for x in (batch.src, batch.tgt_out))
    return src, tgt


def steps(pairs: Pairs, origin: str = "") -> Iterator[Table]:
    """The tables of the walk in order. The tables of one step have the same number.

    origin: where the pairs come from. The pair with the most pads is shown.
    """
    src, tgt = pairs
    symbols = vocabulary_of([sequence.split() for sequence in (*src, *tgt)])
    batch, vocabulary = batch_of_sequences(src, tgt, symbols)
    model = fresh(lambda: Transformer(TINY, vocabulary), 0)
    walk = _walk(InspectedBatch(batch, vocabulary, model, "fresh weights, seed 0"))
    yield _start(walk, origin)
    for part in (_encoder, _after_encoder, _decoder_self, _cross, _mask_of_cross, _end):
        yield from part(walk)
    yield _conclusion(walk)


def _walk(inspected: InspectedBatch) -> Walk:
    model, (src, tgt_in, _) = inspected.model, inspected.batch
    with recording({"output": model.output}) as calls, torch.no_grad():
        memory = model.encode(src)
        logits = model.decode(tgt_in, memory, src)
    return Walk(inspected, inspected.most_padded, memory, calls["output"][0].args[0], logits)


def _matrix(
    step: str,
    name: str,
    values: Tensor,
    rows: list[str],
    columns: list[str] | None = None,
    *notes: str,
    total: bool = False,
) -> Table:
    """All values (rows, columns); total: with the sum of each row."""
    summaries = {"sum": values.sum(-1)} if total else None
    return matrix(step, name, values, rows, columns, *notes, summaries=summaries, cut=False)


def _start(walk: Walk, origin: str) -> Table:
    model = (
        f"{origin}The model is tiny: width {WIDTH}, one head, one layer on each side, "
        f"{walk.inspected.weights}."
    )
    notes = (*mask_tables.notes_of_batch(walk.inspected.batch), model)
    return replace(mask_tables.batch_tables(walk.inspected)[walk.row], number="0", notes=notes)


FEATURES = [f"d{k + 1}" for k in range(WIDTH)]


def _encoder(walk: Walk) -> Iterator[Table]:
    """Steps 1 to 6: self-attention over the source."""
    names, keys = walk.tokens("encoder_self")
    each = walk.steps("encoder_self")
    q, k, scores = each.q, each.k, each.scores
    yield _matrix("1", "Encoder: queries Q", q, names, None, "One row per place, pads included.")
    yield _matrix("2", "Encoder: keys, K^T", k.T, FEATURES, keys, "One column per place.")
    note = "Row i: how well each key matches query i."
    yield _matrix("3", "Encoder: Q K^T", q @ k.T, names, keys, note)
    scale = f"{walk.inspected.calls['encoder_self'].module.scale:g} = 1 / root of {WIDTH}"
    yield _matrix("3", f"Scaled by {scale}", scores, names, keys, _trap_scale(q, k, scores))
    mask = mask_tables.source_pads(walk.inspected, walk.row)
    yield replace(mask, number="4", name="Mask: source pads", notes=(_trap_transpose(walk),))
    note = "Masked cells are finite, so no row can turn into NaN."
    yield _matrix("4", "Scores + mask", each.masked, names, keys, note)
    note = "Each row sums to 1"
    note += "; the pad's column is 0, the pad's own row still attends." if walk.padded else "."
    yield _matrix("5", "Encoder: softmax", each.weights, names, keys, note, total=True)
    yield _matrix("6", "Encoder: values V", each.v, names)
    yield _matrix("6", "Weights x V", each.outputs, names, None, "Averages of the real values.")


def _trap_scale(q: Tensor, k: Tensor, scores: Tensor) -> str:
    scaled, unscaled = (number(float(x.softmax(-1).max())) for x in (scores, q @ k.T))
    return (
        "Trap: the missing scale. Products grow with the width of a head, and softmax puts all "
        f"weight on one key: here, before the mask, the largest weight would be {unscaled} instead "
        f"of {scaled}."
    )


def _trap_transpose(walk: Walk) -> str:
    mask = padding_mask(walk.inspected.batch.src).long()
    swapped = mask.T @ mask  # (S, S): summed over the batch
    return (
        f"Trap: the mask times its own transpose. {shape_of(mask.shape)} gives "
        f"{shape_of(swapped.shape)}: batch and length are swapped. One square counts pairs (up to "
        f"{int(swapped.max())}) and serves them all, but each pair needs its own."
    )


def _after_encoder(walk: Walk) -> Iterator[Table]:
    """Step 7: the pad's row after the layer, with both pad masks."""
    row, src = walk.row, walk.inspected.batch.src
    names, _ = walk.tokens("encoder_self")
    with torch.no_grad():
        other = _masking_queries(walk.inspected.model).encode(src)
    real = padding_mask(src[row])
    difference = (walk.memory[row] - other[row]).abs()
    note = "Pads are masked as keys."
    yield _matrix("7", "After the layer, normed", walk.memory[row], names, None, note)
    note = "There are no pads to mask"
    if walk.padded:
        note = (
            f"Largest difference: {number(float(difference[real].max()))} in real rows, "
            f"{number(float(difference[~real].max()))} in pad rows"
        )
    note = f"Pads are masked as keys and queries. {note}. A pad's row affects no other row."
    yield _matrix("7", "The same, other mask", other[row], names, None, note)


def _masking_queries(model: Transformer) -> Transformer:
    """The same weights with pads masked as keys and as queries."""
    other = copy.deepcopy(model)
    other.masks = MaskMaker("keys_and_queries")
    return other


def _decoder_self(walk: Walk) -> Iterator[Table]:
    """Steps 7a to 7c: self-attention over tgt_in, with the causal mask."""
    names, keys = walk.tokens("decoder_self")
    each = walk.steps("decoder_self")
    note = "Before the mask: every place of the decoder's input asks every place."
    yield _matrix("7a", "Decoder self-attention: scaled Q K^T", each.scores, names, keys, note)
    for table in mask_tables.decoder_self(walk.inspected, walk.row):
        yield replace(table, number="7b")
    note = (
        "Trap: leaving this attention out. The causal mask would then be applied to "
        "cross-attention, where it does not belong."
    )
    name = "Decoder self-attention: softmax"
    yield _matrix("7c", name, each.weights, names, keys, note, total=True)
    yield _matrix("7c", "Weights x V", each.outputs, names)


def _cross(walk: Walk) -> Iterator[Table]:
    """Steps 8 to 10: queries from the decoder, keys and values from the encoder."""
    names, keys = walk.tokens("cross")
    each = walk.steps("cross")
    note = "From the decoder: one row per place of tgt_in."
    yield _matrix("8", "Decoder: queries Q", each.q, names, None, note)
    note = "From the encoder: one row per place of src."
    yield _matrix("9", "Memory: keys K", each.k, keys, None, note)
    yield _matrix("9", "Memory: values V", each.v, keys)
    note = "Before the mask. Target places down, source places across: not square in general."
    yield _matrix("10", "Cross: scaled Q K^T", each.scores, names, keys, note)


def _mask_of_cross(walk: Walk) -> Iterator[Table]:
    """Steps 11 to 13: the mask, two wrong masks, softmax, and values."""
    row, inspected = walk.row, walk.inspected
    names, keys = walk.tokens("cross")
    each = walk.steps("cross")
    yield replace(mask_tables.cross(inspected, row), number="11", name="Mask: source pads")
    right = inspected.full_mask("cross")[row]  # (T, S)
    triangle = torch.ones_like(right).tril()
    trap = "Trap: the triangle on cross scores. The whole source is known before decoding starts"
    yield _wrong_mask("Mask with a triangle", right, triangle, names, keys, trap)
    src, tgt_in, _ = inspected.batch
    shorter = min(int(padding_mask(ids[row]).sum()) for ids in (src, tgt_in))
    larger = torch.ones_like(right)
    larger[:, shorter:] = False
    trap = "Trap: the larger of both pads. Pads of the target are queries here, not keys"
    yield _wrong_mask("Mask of the larger pads", right, larger, names, keys, trap)
    note = "The pad's column is 0."
    yield _matrix("12", "Cross: softmax", each.weights, names, keys, note, total=True)
    yield _matrix("13", "Cross: weights x V", each.outputs, names)


def _wrong_mask(
    name: str, right: Tensor, extra: Tensor, names: list[str], keys: list[str], trap: str
) -> Table:
    """The right mask with more cells masked; x marks a real source token that is lost."""
    cells = mask_cells(right & extra)
    for i, j in (right & ~extra).nonzero().tolist():
        cells[i][j] = "x"
    return Table(
        "11",
        name,
        keys,
        list(zip(names, cells, strict=True)),
        shape=shape_of(right.shape),
        legend=f"x = a real source token masked by mistake, {CLOSED} = a pad",
        notes=(
            f"{trap}: {int((right & ~extra).sum())} of {int(right.sum())} cells would be lost.",
        ),
        marks=True,
    )


def _end(walk: Walk) -> Iterator[Table]:
    """Steps 14 to 16: output, logits, loss."""
    inspected, row = walk.inspected, walk.row
    names, _ = walk.tokens("cross")
    note = "After cross-attention, feed-forward and the last norm."
    yield _matrix("14", "Decoder: output", walk.output[row], names, None, note)
    symbols = [inspected.vocabulary.name(i) for i in range(len(inspected.vocabulary))]
    note = "A score for each symbol; pad places get scores too."
    yield _matrix("15", "Logits", walk.logits[row], names, symbols, note)
    labels = inspected.batch.tgt_out
    losses = -walk.logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]  # (B, T)
    counted = padding_mask(labels)
    total, tokens = float((losses * counted).sum()), int(counted.sum())
    of_pair = float((losses * counted)[row].sum())
    yield Table(
        "16",
        "Loss",
        [str(place) for place in range(labels.shape[1])],
        [
            ("tgt_in", names),
            ("tgt_out", inspected.names(labels[row])),
            ("-log p", numbers(losses[row])),
            *(("counted", cells) for cells in mask_cells(counted[[row]])),
        ],
        legend="-log p of the label, in nats; labels that are pads are ignored",
        notes=(
            f"This pair: {number(of_pair)} over {int(counted[row].sum())} labels. The batch: "
            f"{number(total)} / {tokens} = {number(total / tokens, 4)}, summed first and divided "
            "once. Here the pad rows of the target end.",
        ),
    )


def _conclusion(walk: Walk) -> Table:
    """Loss and gradients with both pad masks, in fp64."""
    model, batch = copy.deepcopy(walk.inspected.model).double(), walk.inspected.batch
    loss, gradients = _loss_and_gradients(model, batch)
    other_loss, others = _loss_and_gradients(_masking_queries(model), batch)
    difference = max(float((a - b).abs().max()) for a, b in zip(gradients, others, strict=True))
    largest = [f"{max(float(g.abs().max()) for g in each):.10f}" for each in (gradients, others)]
    count = sum(gradient.numel() for gradient in gradients)
    return Table(
        "17",
        "Conclusion: pad rows do no harm",
        ["keys", "keys and queries", "difference"],
        [
            ("loss", [f"{loss:.10f}", f"{other_loss:.10f}", tiny(abs(loss - other_loss))]),
            ("largest gradient", [*largest, tiny(difference)]),
        ],
        legend=f"one pass and its gradients in fp64, all {count} parameters; the last cell is the "
        "largest difference of any of them",
        notes=(
            "Masking pads as keys is enough. A pad row affects no other row, cross-attention "
            "masks the source's pads, and the loss ignores rows whose label is a pad.",
        ),
    )


def _loss_and_gradients(model: Transformer, batch: Batch) -> tuple[float, list[Tensor]]:
    """The loss in nats per token, and the gradient of every parameter."""
    loss = summed_loss(model(batch.src, batch.tgt_in), batch.tgt_out) / batch.target_tokens
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return float(loss.detach()), list(gradients)
