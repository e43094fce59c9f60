"""The walk: every matrix of one small encoder-decoder pass, from the first query to the loss.

Sixteen steps and a conclusion. Steps 7a to 7c are the decoder's self-attention: it comes before
cross-attention, and the triangle belongs to it. Common mistakes are named where they would happen.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from toytrans.config import ModelConfig
from toytrans.data.batches import Batch
from toytrans.insight.masks import mask_tables
from toytrans.insight.tables import CLOSED, Panel, View, fresh, number, numbers, shape_of
from toytrans.model.attention import Intermediates
from toytrans.model.masks import MaskMaker, padding_mask
from toytrans.model.transformer import Transformer
from toytrans.tokens import vocabulary_of
from toytrans.training.objective import summed_loss

Pair = tuple[list[str], list[str]]

PAIRS: list[Pair] = [(["5", "7", "9"], ["9", "7"]), (["4", "6", "8", "3"], ["3", "8", "6", "4"])]
"""The first has 4 of 5 real places in the source, EOS included, and 3 of 5 in tgt_in, with BOS."""

WIDTH = 4
"""d_model, so that every matrix fits 80 columns."""


TINY = ModelConfig(
    d_model=WIDTH,
    n_heads=1,
    n_encoder_layers=1,
    n_decoder_layers=1,
    d_ff=2 * WIDTH,
    positions="sinusoidal",
)


@dataclass(frozen=True)
class Scene:
    """The pair walked through, in its batch, and what the tiny model makes of it."""

    view: View
    row: int
    memory: Tensor
    """(B, S, D)"""
    output: Tensor
    """(B, T, D), what the logits are made from"""
    logits: Tensor

    def inside(self, name: str) -> Intermediates:
        return self.view.passes[name].intermediates()

    @property
    def padded(self) -> bool:
        """Whether the source that is walked through has pads."""
        return not bool(padding_mask(self.view.batch.src[self.row]).all())

    def tokens(self, name: str) -> tuple[list[str], list[str]]:
        return self.view.tokens(name, self.row)


def pairs_of(view: View) -> list[Pair]:
    """The symbols of a batch."""
    decode = view.vocabulary.decode
    src, tgt_out = view.batch.src.tolist(), view.batch.tgt_out.tolist()
    return [(decode(s), decode(t)) for s, t in zip(src, tgt_out, strict=True)]


def steps(pairs: list[Pair], origin: str = "") -> Iterator[Panel]:
    """The panels of the walk in order; those of one step have the same number.

    origin: words on where the pairs come from. The pair with the most pads is walked through.
    """
    batch, vocabulary = mask_tables.batch_of_sequences(
        [" ".join(src) for src, _ in pairs],
        [" ".join(tgt) for _, tgt in pairs],
        vocabulary_of([side for pair in pairs for side in pair]),
    )
    model = fresh(lambda: Transformer(TINY, vocabulary), 0)
    pads = (~padding_mask(batch.src)).sum(1) + (~padding_mask(batch.tgt_in)).sum(1)
    view = View(batch, vocabulary, model, "fresh weights, seed 0")
    scene = _run(view, int(pads.argmax()))
    yield _start(scene, origin)
    for part in (_encoder, _after_encoder, _decoder_self, _cross, _mask_of_cross, _end):
        yield from part(scene)
    yield _conclusion(scene)


def _run(view: View, row: int) -> Scene:
    model, (src, tgt_in, _) = view.model, view.batch
    read: list[Tensor] = []
    hook = model.output.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    with torch.no_grad():
        memory = model.encode(src)
        logits = model.decode(tgt_in, memory, src)
    hook.remove()
    return Scene(view, row, memory, read[0], logits)


def _matrix(
    step: str,
    name: str,
    values: Tensor,
    rows: list[str],
    columns: list[str],
    *notes: str,
    total: bool = False,
) -> Panel:
    """Numbers (rows, columns); total: with each row's sum."""
    cells = [numbers(line) for line in values]
    if total:
        columns = [*columns, "| sum"]
        cells = [
            [*line, f"| {number(float(row.sum()), 2)}"]
            for line, row in zip(cells, values, strict=True)
        ]
    table = list(zip(rows, cells, strict=True))
    return Panel(step, name, columns, table, shape=shape_of(values.shape), notes=notes)


def _start(scene: Scene, origin: str) -> Panel:
    batch = mask_tables.batch_panels(scene.view)[scene.row]
    return replace(
        batch,
        number="0",
        notes=(
            *mask_tables.notes_of_batch(scene.view.batch),
            f"{origin}The model is a tiny one: width {WIDTH}, one head, one layer on either side, "
            f"{scene.view.weights}.",
        ),
    )


FEATURES = [f"d{k + 1}" for k in range(WIDTH)]


def _encoder(scene: Scene) -> Iterator[Panel]:
    """Steps 1 to 6: self-attention over the source."""
    found, row = scene.inside("encoder_self"), scene.row
    names, keys = scene.tokens("encoder_self")
    q, k, v = (part[row, 0] for part in found[:3])  # (S, Dh)
    scores, weights = found.scores[row, 0], found.weights[row, 0]
    yield _matrix("1", "Encoder: queries Q", q, names, FEATURES, "One row a place, pads included.")
    yield _matrix("2", "Encoder: keys, K^T", k.T, FEATURES, keys, "One column a place.")
    note = "Row i: how well each key answers query i."
    yield _matrix("3", "Encoder: Q K^T", q @ k.T, names, keys, note)
    yield _matrix("3", f"Scaled by {_scale(scene)}", scores, names, keys, _trap_scale(q, k, scores))
    mask = mask_tables.source_pads(scene.view, row)
    yield replace(mask, number="4", name="Mask: source pads", notes=(_trap_transpose(scene),))
    masked = found.masked[row, 0]
    yield _matrix("4", "Scores + mask", masked, names, keys, "Finite, so no row can turn into NaN.")
    sums = "Each row sums to 1"
    sums += "; the pad's column is 0, the pad's own row is alive." if scene.padded else "."
    yield _matrix("5", "Encoder: softmax", weights, names, keys, sums, total=True)
    yield _matrix("6", "Encoder: values V", v, names, FEATURES)
    context = found.context[row, 0]
    note = "Averages of the real values alone."
    yield _matrix("6", "Weights x V", context, names, FEATURES, note)


def _scale(scene: Scene) -> str:
    return f"{scene.view.passes['encoder_self'].module.scale:g} = 1 / root of {WIDTH}"


def _trap_scale(q: Tensor, k: Tensor, scores: Tensor) -> str:
    largest = [number(float(x.softmax(-1).max())) for x in (scores, q @ k.T)]
    return (
        "Trap: the missing scale. Products grow with the width of a head, and softmax falls onto "
        f"one key: here the largest weight would be {largest[1]} in place of {largest[0]}."
    )


def _trap_transpose(scene: Scene) -> str:
    mask = padding_mask(scene.view.batch.src).long()
    swapped = mask.T @ mask  # (S, S): summed over the batch
    return (
        f"Trap: the mask times its own transpose. {shape_of(mask.shape)} gives "
        f"{shape_of(swapped.shape)}: batch and length are swapped, and one square that counts "
        f"pairs (up to {int(swapped.max())}) serves them all. A mask has a square for each pair."
    )


def _after_encoder(scene: Scene) -> Iterator[Panel]:
    """Step 7: the pad's row after the layer, under either way to close pads."""
    row, src = scene.row, scene.view.batch.src
    names, _ = scene.tokens("encoder_self")
    both = _other_setting(scene.view.model)
    with torch.no_grad():
        other = both.encode(src)
    real = padding_mask(src[row])
    apart = (scene.memory[row] - other[row]).abs()
    yield _matrix(
        "7", "After the layer, normed", scene.memory[row], names, FEATURES, "Pads as keys closed."
    )
    note = "there are no pads to close"
    if scene.padded:
        note = (
            f"largest difference: {number(float(apart[real].max()))} in real rows, "
            f"{number(float(apart[~real].max()))} in pad rows"
        )
    says = f"Pads as keys and queries closed; {note}. A pad's row stays in its own row."
    yield _matrix("7", "The same, other mask", other[row], names, FEATURES, says)


def _other_setting(model: Transformer) -> Transformer:
    """The same weights with pads closed as keys and as queries."""
    other = copy.deepcopy(model)
    other.masks = MaskMaker("keys_and_queries")
    return other


def _decoder_self(scene: Scene) -> Iterator[Panel]:
    """Steps 7a to 7c: self-attention over tgt_in, where the triangle belongs."""
    found, row = scene.inside("decoder_self"), scene.row
    names, keys = scene.tokens("decoder_self")
    scores, weights = found.scores[row, 0], found.weights[row, 0]
    note = "The decoder's input, in one pass; every place asks every place."
    yield _matrix("7a", "Decoder self-attention: scaled Q K^T", scores, names, keys, note)
    for panel in mask_tables.decoder_self(scene.view, row):
        yield replace(panel, number="7b")
    yield _matrix(
        "7c",
        "Decoder self-attention: softmax",
        weights,
        names,
        keys,
        "Trap: leaving this attention out. Then nothing but cross-attention is left for the "
        "triangle, where it does not belong.",
        total=True,
    )
    yield _matrix("7c", "Weights x V", found.context[row, 0], names, FEATURES)


def _cross(scene: Scene) -> Iterator[Panel]:
    """Steps 8 to 10: the decoder asks, the encoder answers."""
    found, row = scene.inside("cross"), scene.row
    names, keys = scene.tokens("cross")
    note = "From the decoder: a row for each place of tgt_in."
    yield _matrix("8", "Decoder: queries Q", found.q[row, 0], names, FEATURES, note)
    note = "From the encoder: a row for each place of src."
    yield _matrix("9", "Memory: keys K", found.k[row, 0], keys, FEATURES, note)
    yield _matrix("9", "Memory: values V", found.v[row, 0], keys, FEATURES)
    note = "Target places down, source places across: not square in general."
    yield _matrix("10", "Cross: scaled Q K^T", found.scores[row, 0], names, keys, note)


def _mask_of_cross(scene: Scene) -> Iterator[Panel]:
    """Steps 11 to 13: the mask, beside two that are wrong; softmax; values."""
    found, row, view = scene.inside("cross"), scene.row, scene.view
    names, keys = scene.tokens("cross")
    yield replace(mask_tables.cross(view, row), number="11", name="Mask: source pads")
    right = view.whole("cross")[row]  # (T, S)
    triangle = torch.ones_like(right).tril()
    says = "Trap: the triangle on cross scores. The whole source is known before decoding starts"
    yield _wrong_mask("Mask with a triangle", right, triangle, names, keys, says)
    shorter = min(int(padding_mask(ids[row]).sum()) for ids in (view.batch.src, view.batch.tgt_in))
    larger = torch.ones_like(right)
    larger[:, shorter:] = False
    says = "Trap: the larger of both pads. Pads of the target are queries here, not keys"
    yield _wrong_mask("Mask of the larger pads", right, larger, names, keys, says)
    weights = found.weights[row, 0]
    yield _matrix(
        "12", "Cross: softmax", weights, names, keys, "The pad's column is 0.", total=True
    )
    yield _matrix("13", "Cross: weights x V", found.context[row, 0], names, FEATURES)


def _wrong_mask(
    name: str, right: Tensor, extra: Tensor, names: list[str], keys: list[str], says: str
) -> Panel:
    """The right mask with more closed; x where that costs a real source token."""
    cells = [
        ["1" if b else "x" if a else CLOSED for a, b in zip(*lines, strict=True)]
        for lines in zip(right.tolist(), (right & extra).tolist(), strict=True)
    ]
    lost = int((right & ~extra).sum())
    return Panel(
        "11",
        name,
        keys,
        list(zip(names, cells, strict=True)),
        shape=shape_of(right.shape),
        legend=f"x = a real source token closed by mistake, {CLOSED} = a pad",
        notes=(f"{says}: {lost} of {int(right.sum())} open cells would be lost.",),
        marks=True,
    )


def _end(scene: Scene) -> Iterator[Panel]:
    """Steps 14 to 16: output, logits, loss."""
    view, row = scene.view, scene.row
    names, _ = scene.tokens("cross")
    note = "After cross-attention, feed-forward and the last norm."
    yield _matrix("14", "Decoder: output", scene.output[row], names, FEATURES, note)
    logits, labels = scene.logits[row], view.batch.tgt_out
    symbols = [view.vocabulary.name(i) for i in range(len(view.vocabulary))]
    note = "A score for each symbol; pad places get theirs too."
    yield _matrix("15", "Logits", logits, names, symbols, note)
    losses = -scene.logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]  # (B, T)
    counted = padding_mask(labels)
    total, tokens = float((losses * counted).sum()), int(counted.sum())
    of_pair = float((losses * counted)[row].sum())
    yield Panel(
        "16",
        "Loss",
        [str(place) for place in range(labels.shape[1])],
        [
            ("tgt_in", names),
            ("tgt_out", view.names(labels[row])),
            ("-log p", numbers(losses[row])),
            ("counted", ["1" if counts else CLOSED for counts in counted[row].tolist()]),
        ],
        legend="-log p of the label, in nats; labels that are pads are ignored",
        notes=(
            f"This pair: {number(of_pair)} over {int(counted[row].sum())} labels. The batch: "
            f"{number(total)} / {tokens} = {number(total / tokens, 4)}, summed first and divided "
            "once. Here the pad rows of the target end.",
        ),
    )


def _conclusion(scene: Scene) -> Panel:
    """Loss and gradients under either mask, in fp64."""
    model, batch = copy.deepcopy(scene.view.model).double(), scene.view.batch
    loss, gradients = _learn(model, batch)
    other, others = _learn(_other_setting(model), batch)
    apart = max(float((a - b).abs().max()) for a, b in zip(gradients, others, strict=True))
    largest = [max(float(g.abs().max()) for g in found) for found in (gradients, others)]
    count = sum(gradient.numel() for gradient in gradients)
    return Panel(
        "17",
        "Conclusion: pad rows do no harm",
        ["keys", "keys and queries", "difference"],
        [
            ("loss", [f"{loss:.10f}", f"{other:.10f}", _apart(abs(loss - other))]),
            ("largest gradient", [*(f"{value:.10f}" for value in largest), _apart(apart)]),
        ],
        legend=f"one pass and its gradients in fp64, all {count} parameters; the last cell is the "
        "largest difference of any of them",
        notes=(
            "Closing pads as keys is enough: a pad row stays in its own row, cross-attention "
            "closes the source's pads, and the loss ignores rows whose label is a pad.",
        ),
    )


def _apart(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _learn(model: Transformer, batch: Batch) -> tuple[float, list[Tensor]]:
    """The loss in nats per token, and the gradient of every parameter."""
    loss = summed_loss(model(batch.src, batch.tgt_in), batch.tgt_out) / batch.target_tokens
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return float(loss.detach()), list(gradients)
