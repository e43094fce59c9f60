"""A walk through one forward pass: every matrix of a tiny encoder-decoder, from query to loss.

Steps 7a to 7c are the decoder's self-attention. They come before cross-attention, and the causal
mask belongs to them. Notes name common mistakes at the step where they happen.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.config.schema import ModelSettings
from toytrans.data.batches import Batch
from toytrans.inspection import masks as mask_tables
from toytrans.inspection.panels import (
    CLOSED,
    distance,
    mask_cells,
    matrix,
    number,
    numbers,
    panel,
    shape_of,
    tiny,
)
from toytrans.inspection.record import recording
from toytrans.inspection.shown import InspectedBatch, batch_of_sequences, fresh
from toytrans.model.attention import AttentionSteps
from toytrans.model.masks import MaskMaker, padding_mask
from toytrans.model.transformer import Transformer
from toytrans.table import Table
from toytrans.tokens import vocabulary_of
from toytrans.training.optimization import summed_loss

Pairs = tuple[list[str], list[str]]
"""Sources and their targets."""

PAIRS: Pairs = ["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"]
"""The first pair has pads: 4 of 5 real places in the source, and 3 of 5 in tgt_in."""

WIDTH = 4
"""d_model, small enough for every matrix to fit into 80 columns."""

TINY = ModelSettings(
    d_model=WIDTH, n_heads=1, n_encoder_layers=1, n_decoder_layers=1, d_ff=2 * WIDTH, norm="pre"
)


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
    inspected = InspectedBatch(batch, vocabulary, model, "fresh weights, seed 0")
    row = inspected.most_padded
    with recording([model.output]) as calls, torch.no_grad():
        memory = model.encode(batch.src)
        logits = model.decode(batch.tgt_in, memory, batch.src)
    note = f"{origin}The model is tiny: width {WIDTH}, one head, one layer on each side, "
    notes = *mask_tables.notes_of_batch(inspected), f"{note}{inspected.weights}."
    yield replace(mask_tables.pair_table(inspected, row), panel="0", notes=notes)
    yield from _encoder(inspected, row)
    yield from _after_encoder(inspected, row, memory)
    yield from _decoder_self(inspected, row)
    yield from _cross(inspected, row)
    names, _ = inspected.tokens("cross", row)
    note = "After cross-attention, feed-forward and the last norm."
    output: Tensor = calls[model.output][0].args[0]
    yield matrix("14", "Decoder: output", output[row], names, None, note)
    every = [vocabulary.name(i) for i in range(len(vocabulary))]
    note = "A score for each symbol; pad places get scores too."
    yield matrix("15", "Logits", logits[row], names, every, note)
    yield _loss(inspected, row, logits)
    yield _conclusion(model, batch)


def _attention(inspected: InspectedBatch, name: str, row: int) -> AttentionSteps:
    """The intermediates of one attention for one pair, of its only head."""
    return AttentionSteps(*(each[row, 0] for each in inspected.calls[name].intermediates()))


def _encoder(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Steps 1 to 6: self-attention over the source."""
    names, _ = inspected.tokens("encoder_self", row)
    each, pads = _attention(inspected, "encoder_self", row), padding_mask(inspected.batch.src)
    q, k, scores = each.q, each.k, each.scores
    yield matrix("1", "Encoder: queries Q", q, names, None, "One row per place, pads included.")
    features = [f"d{i + 1}" for i in range(WIDTH)]
    yield matrix("2", "Encoder: keys, K^T", k.T, features, names, "One column per place.")
    note = "Row i: how well each key matches query i."
    yield matrix("3", "Encoder: Q K^T", q @ k.T, names, names, note)
    scaled, unscaled = (number(x.softmax(-1).max()) for x in (scores, q @ k.T))
    note = (
        "Trap: the missing scale. Products grow with the width of a head, and softmax puts all "
        f"weight on one key: here, before the mask, the largest weight would be {unscaled} instead "
        f"of {scaled}."
    )
    scale = f"{inspected.calls['encoder_self'].module.scale:g} = 1 / root of {WIDTH}"
    yield matrix("3", f"Scaled by {scale}", scores, names, names, note)
    swapped = pads.long().T @ pads.long()  # (S, S): summed over the batch
    note = (
        f"Trap: the mask times its own transpose. {shape_of(pads.shape)} gives "
        f"{shape_of(swapped.shape)}: batch and length are swapped. One square counts pairs (up to "
        f"{int(swapped.max())}) and serves them all, but each pair needs its own."
    )
    mask = mask_tables.source_pads(inspected, row)
    yield replace(mask, panel="4", title="Mask: source pads", notes=(note,))
    note = "Masked cells are finite, so no row can turn into NaN."
    yield matrix("4", "Scores + mask", each.masked, names, names, note)
    note = "Each row sums to 1"
    note += "." if pads[row].all() else "; the pad's column is 0, the pad's own row still attends."
    yield _weights("5", "Encoder: softmax", each.weights, names, names, note)
    yield matrix("6", "Encoder: values V", each.v, names)
    yield matrix("6", "Weights x V", each.outputs, names, None, "Averages of the real values.")


def _weights(
    step: str, name: str, weights: Tensor, names: list[str], keys: list[str], note: str
) -> Table:
    """Weights, with the sum of each row."""
    return matrix(step, name, weights, names, keys, note, summaries={"sum": weights.sum(-1)})


def _after_encoder(inspected: InspectedBatch, row: int, memory: Tensor) -> Iterator[Table]:
    """Step 7: the pad's row after the layer, with both pad masks."""
    src = inspected.batch.src
    names, _ = inspected.tokens("encoder_self", row)
    with torch.no_grad():
        other = _masking_queries(inspected.model).encode(src)
    note = "Pads are masked as keys."
    yield matrix("7", "After the layer, normed", memory[row], names, None, note)
    difference, real = (memory[row] - other[row]).abs(), padding_mask(src[row])
    note = "There are no pads to mask"
    if not real.all():
        note = (
            f"Largest difference: {number(difference[real].max())} in real rows, "
            f"{number(difference[~real].max())} in pad rows"
        )
    note = f"Pads are masked as keys and queries. {note}. A pad's row affects no other row."
    yield matrix("7", "The same, other mask", other[row], names, None, note)


def _masking_queries(model: Transformer) -> Transformer:
    """The same weights with pads masked as keys and as queries."""
    other = copy.deepcopy(model)
    other.masks = MaskMaker("keys_and_queries")
    return other


def _decoder_self(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Steps 7a to 7c: self-attention over tgt_in, with the causal mask."""
    names, _ = inspected.tokens("decoder_self", row)
    each = _attention(inspected, "decoder_self", row)
    note = "Before the mask: every place of the decoder's input asks every place."
    yield matrix("7a", "Decoder self-attention: scaled Q K^T", each.scores, names, names, note)
    for table in mask_tables.decoder_self(inspected, row):
        yield replace(table, panel="7b")
    note = (
        "Trap: leaving this attention out. The causal mask would then be applied to "
        "cross-attention, where it does not belong."
    )
    yield _weights("7c", "Decoder self-attention: softmax", each.weights, names, names, note)
    yield matrix("7c", "Weights x V", each.outputs, names)


def _cross(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Steps 8 to 13: queries from the decoder, keys and values from the encoder; the mask and two
    wrong masks."""
    names, keys = inspected.tokens("cross", row)
    each = _attention(inspected, "cross", row)
    note = "From the decoder: one row per place of tgt_in."
    yield matrix("8", "Decoder: queries Q", each.q, names, None, note)
    note = "From the encoder: one row per place of src."
    yield matrix("9", "Memory: keys K", each.k, keys, None, note)
    yield matrix("9", "Memory: values V", each.v, keys)
    note = "Before the mask. Target places down, source places across: not square in general."
    yield matrix("10", "Cross: scaled Q K^T", each.scores, names, keys, note)
    yield replace(mask_tables.cross(inspected, row), panel="11", title="Mask: source pads")
    right = inspected.full_mask("cross")[row]  # (T, S)
    larger = torch.ones_like(right)
    both = inspected.batch.src, inspected.batch.tgt_in
    larger[:, min(int(padding_mask(ids[row]).sum()) for ids in both) :] = False
    triangle = "the triangle on cross scores. The whole source is known before decoding starts"
    pads = "the larger of both pads. Pads of the target are queries here, not keys"
    for name, extra, trap in (
        ("Mask with a triangle", torch.ones_like(right).tril(), triangle),
        ("Mask of the larger pads", larger, pads),
    ):
        lost, cells = right & ~extra, mask_cells(right & extra)
        for i, j in lost.nonzero().tolist():
            cells[i][j] = "x"
        note = f"Trap: {trap}: {int(lost.sum())} of {int(right.sum())} cells would be lost."
        legend = f"x = a real source token masked by mistake, {CLOSED} = a pad"
        rows = list(zip(names, cells, strict=True))
        yield panel("11", name, keys, rows, shape_of(right.shape), legend, (note,), marks=True)
    yield _weights("12", "Cross: softmax", each.weights, names, keys, "The pad's column is 0.")
    yield matrix("13", "Cross: weights x V", each.outputs, names)


def _loss(inspected: InspectedBatch, row: int, logits: Tensor) -> Table:
    """Step 16: the loss of each label."""
    labels = inspected.batch.tgt_out
    losses = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]  # (B, T)
    counted = padding_mask(labels)
    total, tokens = float((losses * counted).sum()), int(counted.sum())
    of_pair = number((losses * counted)[row].sum())
    (cells,) = mask_cells(counted[[row]])
    return panel(
        "16",
        "Loss",
        [str(place) for place in range(labels.shape[1])],
        [
            ("tgt_in", inspected.names(inspected.batch.tgt_in[row])),
            ("tgt_out", inspected.names(labels[row])),
            ("-log p", numbers(losses[row])),
            ("counted", cells),
        ],
        legend="-log p of the label, in nats; labels that are pads are ignored",
        notes=(
            f"This pair: {of_pair} over {int(counted[row].sum())} labels. The batch: "
            f"{number(total)} / {tokens} = {number(total / tokens, 4)}, summed first and divided "
            "once. Here the pad rows of the target end.",
        ),
    )


def _conclusion(model: Transformer, batch: Batch) -> Table:
    """Step 17: loss and gradients with both pad masks, in fp64."""
    model = copy.deepcopy(model).double()
    loss, gradients = _loss_and_gradients(model, batch)
    other_loss, others = _loss_and_gradients(_masking_queries(model), batch)
    difference = max(map(distance, gradients, others))
    largest = [f"{max(float(g.abs().max()) for g in each):.10f}" for each in (gradients, others)]
    count = sum(gradient.numel() for gradient in gradients)
    return panel(
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
