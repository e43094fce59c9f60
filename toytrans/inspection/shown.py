"""The batch that tables show, the model that reads it, and why its masks close a cell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from toytrans.config.faults import fault_remark
from toytrans.config.schema import Config, ModelSettings, Settings
from toytrans.data.batches import Batch, make_batch
from toytrans.data.files import encode_pairs
from toytrans.data.formats import TextPair
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, Dataset
from toytrans.html import STYLE, beside_html
from toytrans.inspection.panels import CLOSED, mark
from toytrans.inspection.record import AttentionCall, Part, capture
from toytrans.model.build import as_transformer, build_model
from toytrans.model.decoding import search
from toytrans.model.masks import causal_mask, padding_mask
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.resolve import resolve
from toytrans.table import Cell, Table
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary, vocabulary_of
from toytrans.training.optimization import objective_of
from toytrans.training.run import Run

ATTENTIONS = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "cross": "Cross-attention",
}
"""Titles of the attentions by the names of `Masks`."""

NAMES: dict[Part, str] = {"encoder": "encoder_self", "decoder": "decoder_self", "cross": "cross"}

REASONS = {
    "p": "pad key",
    "t": "future",
    "b": "both",
    "q": "pad query",
    "?": "none of these",
    "!": "visible, but a pad key or the future",
}
"""Why a cell is masked; the last one is wrongly visible."""


class Masks(NamedTuple):
    """The three masks of a batch."""

    encoder_self: Tensor  # (B, 1, S or 1, S)
    decoder_self: Tensor  # (B, 1, T, T)
    cross: Tensor  # (B, 1, T or 1, S)


@dataclass(frozen=True, repr=False)
class InspectedBatch:
    """A batch, and the model in eval mode that reads it.

    weights: where the model's weights come from, for titles.
    fault: the fault that was planted into the model.
    device: where the model reads the batch; None = where it is. Tables are computed on the CPU.
    run: the run whose model it is; None for fresh weights.
    """

    batch: Batch
    vocabulary: Vocabulary
    model: Transformer
    weights: str
    fault: str | None = None
    device: torch.device | None = None
    run: Run | None = None

    @cached_property
    def calls(self) -> dict[str, AttentionCall]:
        """The attention calls of the first layers, by the names of ATTENTIONS."""
        captured = capture(self.model, self.batch, self.device)
        return {name: captured[part, 1] for part, name in NAMES.items()}

    @cached_property
    def masks(self) -> Masks:
        """The masks that the first layers received: each (B, 1, Tq or 1, Tk)."""
        masks = []
        for name in ATTENTIONS:
            mask = self.calls[name].context.mask
            every = torch.ones_like(self.ids(name)[1]).bool()[:, None, None]
            masks.append(every if mask is None else mask)
        return Masks(*masks)

    @property
    def most_padded(self) -> int:
        """The index of the pair with the most pads, in src and tgt_in together."""
        src, tgt_in = self.batch.src, self.batch.tgt_in
        return int(((src == PAD_ID).sum(1) + (tgt_in == PAD_ID).sum(1)).argmax())

    def ids(self, name: str) -> tuple[Tensor, Tensor]:
        """Ids of an attention's queries (B, Tq) and keys (B, Tk)."""
        src, tgt_in = self.batch.src, self.batch.tgt_in
        return (
            src if name == "encoder_self" else tgt_in,
            tgt_in if name == "decoder_self" else src,
        )

    def full_mask(self, name: str) -> Tensor:
        """A mask broadcast to (B, Tq, Tk)."""
        mask: Tensor = getattr(self.masks, name)[:, 0]
        return mask.expand(-1, self.ids(name)[0].shape[1], -1)

    def tokens(self, name: str, row: int) -> tuple[list[str], list[str]]:
        """Queries and keys of one pair as text."""
        queries, keys = self.ids(name)
        return self.names(queries[row]), self.names(keys[row])

    def names(self, ids: Tensor) -> list[str]:
        """Ids (L,) as text."""
        return [self.vocabulary.name(i) for i in ids.tolist()]

    def reasons(self, name: str) -> list[list[list[str]]]:
        """Why each cell (B, Tq, Tk) is masked: a letter of REASONS, or "1" if rightly visible.

        The reasons follow from the ids, and are compared with the mask that the model used.
        """
        queries, keys = self.ids(name)
        mask = self.full_mask(name)
        pad_key = ~padding_mask(keys)[:, None, :].expand_as(mask)
        pad_query = ~padding_mask(queries)[:, :, None].expand_as(mask)
        future = torch.zeros_like(mask)
        if name == "decoder_self":
            future = ~causal_mask(mask.shape[1]).expand_as(mask)
        letters = "?qptb1!"  # later letters take precedence
        cases = (pad_query, pad_key, future, pad_key & future, mask, mask & (pad_key | future))
        code = torch.zeros(mask.shape, dtype=torch.long)
        for value, cells in enumerate(cases, start=1):
            code[cells] = value
        return [[[letters[i] for i in line] for line in grid] for grid in code.tolist()]

    def table(self, name: str, row: int) -> Table:
        """The mask of one pair: queries down, keys across."""
        queries, keys = self.tokens(name, row)
        lines = zip(queries, self.cells(name, row), strict=True)
        rows = [[query, *cells] for query, cells in lines]
        return Table(ATTENTIONS[name], ["", *keys], rows, kind="mask")

    def cells(self, name: str, row: int) -> list[list[Cell]]:
        """Of one pair, each cell: 1 is open, CLOSED masked, ! and ? are wrong."""
        queries, keys = self.tokens(name, row)
        lines = []
        for q, line in enumerate(self.reasons(name)[row]):
            cells = []
            for k, letter in enumerate(line):
                state = "open" if letter in "1!" else "closed"
                why = f": {REASONS[letter]}" if letter != "1" else ""
                says = f"query {q} {queries[q]}, key {k} {keys[k]}: {state}{why}"
                cells.append(mark(letter if letter in "1!?" else CLOSED, says))
            lines.append(cells)
        return lines

    @cached_property
    def counted(self) -> Tensor:
        """The labels (B, T) that the loss counts: those whose logits have a gradient."""
        tgt_out = self.batch.tgt_out
        logits = torch.zeros(*tgt_out.shape, len(self.vocabulary), requires_grad=True)
        with torch.enable_grad():
            objective_of(self.fault).loss(logits, tgt_out).backward()
        assert logits.grad is not None
        return logits.grad.abs().sum(-1) > 0

    def loss_marks(self, row: int) -> list[str]:
        """Of one pair, whether each label counts: 1 does, CLOSED is a pad that the loss ignores; !
        and ? are wrong: a pad that counts, and a label that does not."""
        marks = {(True, True): "1", (False, False): CLOSED, (True, False): "!", (False, True): "?"}
        real = padding_mask(self.batch.tgt_out[row])
        pairs = zip(self.counted[row].tolist(), real.tolist(), strict=True)
        return [marks[pair] for pair in pairs]

    @staticmethod
    def pads(ids: Tensor) -> int:
        """How many of some ids are pads."""
        return int((~padding_mask(ids)).sum())

    def to_dict(self) -> dict[str, Any]:
        """Ids and masks as plain values; masks are lists (B, Tq, Tk) of 0 and 1."""
        ids = {name: tensor.tolist() for name, tensor in self.batch.named().items()}
        return ids | {name: self.full_mask(name).int().tolist() for name in ATTENTIONS}

    def __repr__(self) -> str:
        lines = [f"masks of {len(self.batch.src)} pairs, {self.weights}"]
        for name, title in ATTENTIONS.items():
            mask = self.full_mask(name)
            masked = int((~mask).sum())
            lines.append(f"  {title}: {masked} of {mask.numel()} cells masked, {tuple(mask.shape)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The three masks of each pair: queries down, keys across."""
        about = f"{self.weights}; queries down, keys across"
        return STYLE + Markup("").join(
            beside_html(f"pair {row + 1}, {about}", (self.table(name, row) for name in ATTENTIONS))
            for row in range(len(self.batch.src))
        )


def fresh(make: Callable[[], Transformer], seed: int) -> Transformer:
    """A new model in eval mode. The seed decides its weights; torch's generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def batch_of_run(run: Run, src: Sequence[str] = (), tgt: Sequence[str] = ()) -> InspectedBatch:
    """Sources as a run reads them, with their targets, or else with what the model makes of them;
    none: its first training pairs. Raises UserError."""
    model, config = as_transformer(run.model), run.settings
    dataset = None if src else open_dataset(config, run.facts)
    batch = _batch(config, model, run.facts, dataset, src, tgt)
    weights = f"weights of {run.title}"
    return InspectedBatch(batch, run.vocabulary, model, weights, config.fault, run=run)


def batch_of_config(
    config: Config, src: Sequence[str] = (), tgt: Sequence[str] = ()
) -> InspectedBatch:
    """The same for the fresh model of a config."""
    settings = resolve(config)
    dataset = open_dataset(settings)
    vocabulary = dataset.facts.vocabulary
    model = fresh(lambda: as_transformer(build_model(settings, vocabulary)), config.seed)
    batch = _batch(settings, model, dataset.facts, None if src else dataset, src, tgt)
    remarks = filter(None, (f"fresh weights, seed {config.seed}", fault_remark(config.fault)))
    return InspectedBatch(batch, vocabulary, model, "; ".join(remarks), config.fault)


def _batch(
    config: Settings,
    model: Transformer,
    facts: DataFacts,
    dataset: Dataset | None,
    src: Sequence[str],
    tgt: Sequence[str],
) -> Batch:
    """Sequences, or the first two training pairs, padded to one batch as training receives them."""
    if dataset is not None:
        size = dataset.size("train")
        chosen = torch.arange(2 if size is None else min(2, size))
        batch = make_batch(dataset.pairs("train", chosen), config.model.source_bos)
        return objective_of(config.fault).prepare(batch)
    given = tgt or [""] * len(src)
    batch = batch_of_sequences(src, given, facts.vocabulary, config.model.source_bos)[0]
    return batch if tgt else translated(model, batch.src, facts.target_growth)


def batch_of_pairs(src: Sequence[str], tgt: Sequence[str]) -> InspectedBatch:
    """Pairs of sequences, and a small fresh model that reads them."""
    batch, vocabulary = batch_of_sequences(src, tgt)
    small = ModelSettings(norm="pre", n_encoder_layers=1, n_decoder_layers=1)
    model = fresh(lambda: Transformer(small, vocabulary), 0)
    return InspectedBatch(batch, vocabulary, model, "fresh weights")


def batch_of_sequences(
    src: Sequence[str],
    tgt: Sequence[str],
    vocabulary: Vocabulary | None = None,
    source_bos: bool = False,
) -> tuple[Batch, Vocabulary]:
    """Sequences such as "5 7 9", padded to one batch.

    Without a vocabulary, whole numbers k get the id k + 3, as in a task. Other symbols get ids in
    their order. Raises UserError for a symbol that a given vocabulary lacks.
    """
    pairs = [
        TextPair(s.split(), t.split(), f"src {s!r}", f"tgt {t!r}")
        for s, t in zip(src, tgt, strict=True)
    ]
    if vocabulary is None:
        vocabulary = vocabulary_of([side for pair in pairs for side in (pair.src, pair.tgt)])
        numbers = tuple(map(str, range(10_000)))
        if {*vocabulary.symbols} <= {*numbers}:
            highest = max(map(int, vocabulary.symbols), default=-1)
            vocabulary = Vocabulary(numbers[: highest + 1])
    return make_batch(encode_pairs(pairs, vocabulary), source_bos), vocabulary


@torch.no_grad()
def translated(model: Seq2Seq, src: Tensor, target_growth: int) -> Batch:
    """Source ids (B, S) with their greedy translations.

    A row of tgt_out without EOS was cut off at the limit of decoding.
    """
    tgt_out = search(model, src, target_growth).tokens
    start = tgt_out.new_full((len(tgt_out), 1), BOS_ID)
    tgt_in = torch.cat((start, tgt_out[:, :-1].masked_fill(tgt_out[:, :-1] == EOS_ID, PAD_ID)), 1)
    return Batch(src, tgt_in.masked_fill(tgt_out == PAD_ID, PAD_ID), tgt_out)
