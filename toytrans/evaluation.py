"""Evaluation: every pair is scored, some are decoded, and what `metrics` counts is counted in each.

Free-running: the model reads its own greedy (or beam) output. Exact match is the proportion of
outputs that equal the target through EOS.
Teacher-forced: every token is predicted from the true tokens before it, as for the loss.

The symbol <unk>, which stands for symbols that training lacks, is never right: neither in an output
nor as a prediction, whatever the target is.

A greedy output is right exactly if every teacher-forced token is. Both ways therefore give the same
exact match, up to rounding and to targets beyond the decoding limit.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.data.batches import Batch, evaluation_batches
from toytrans.data.pairs import DataFacts, Pairs, Side, pad_rows
from toytrans.metrics import COLUMNS_FORCED, COLUMNS_FREE, Answers, Count
from toytrans.model.decoding import search
from toytrans.model.seq2seq import Seq2Seq
from toytrans.scores import Columns, Scores
from toytrans.tokens import EOS_ID, PAD_ID

BATCH_TOKENS = 16_384
"""Padded tokens of a batch, at most."""

Follow = Callable[[int, int], object]
"""Told of progress: steps that are done, and steps in all. A pair is one step when it is scored,
and another when it is decoded."""


@torch.no_grad()
def evaluate(
    model: Seq2Seq,
    pairs: Pairs,
    facts: DataFacts,
    *,
    beam: int = 1,
    decode: int | None = None,
    side: Side = "src",
    follow: Follow | None = None,
    keep: Callable[[Tensor, Batch, Tensor, Tensor], object] | None = None,
) -> Scores:
    """Score every pair teacher-forced, and decode some. The model is left as it was.

    decode: number of pairs of each length to decode; None = all.
    side: whose length counts.
    follow: called after each batch.
    keep: given the indices (B,) of each batch that was decoded, the batch, the outputs (B, L), and
        which of them are right (B,).
    """
    lengths = pairs.length(side)
    chosen = first_of_each(lengths, decode)
    columns = {
        name: torch.zeros(len(pairs), dtype=torch.float64)
        for name in (*COLUMNS_FORCED, *COLUMNS_FREE)
    }
    losses: dict[int, float] = {}
    unknown = facts.vocabulary.unknown_id
    done, total = 0, len(pairs) + len(chosen)
    with _in_eval_mode(model):
        for batch, rows in _batches(model, pairs):
            logits = model(batch.src, batch.tgt_in)
            _fill(columns, rows, COLUMNS_FORCED, forced_answers(logits, batch.tgt_out, unknown))
            _add_by_length(losses, lengths[rows], nats(logits, batch.tgt_out))
            done += len(rows)
            if follow:
                follow(done, total)
        for batch, rows in _batches(model, pairs.take(chosen)):
            tokens = search(model, batch.src, beam=beam, target_growth=facts.target_growth).tokens
            free = free_answers(tokens, batch.tgt_out, unknown)
            _fill(columns, chosen[rows], COLUMNS_FREE, free)
            if keep:
                keep(chosen[rows], batch, tokens, free.right)
            done += len(rows)
            if follow:
                follow(done, total)
    return Scores({"length": lengths} | columns, losses, facts.train_length, side)


def _fill(columns: Columns, rows: Tensor, counts: Mapping[str, Count], answers: Answers) -> None:
    """Put what is counted of a batch into the rows (B,) of its pairs."""
    for name, count in counts.items():
        columns[name][rows] = count(answers).cpu().double()


def forced_answers(logits: Tensor, target: Tensor, unknown: int) -> Answers:
    """Of logits (B, T, V), the tokens that greedy search would take after the true ones before
    them: neither PAD nor BOS. target: (B, T)."""
    greedy = logits[..., EOS_ID:].argmax(-1) + EOS_ID
    return Answers(greedy.masked_fill(target == PAD_ID, PAD_ID), target, unknown)


def free_answers(tokens: Tensor, target: Tensor, unknown: int) -> Answers:
    """Tokens (B, L) that the model has written itself, and targets (B, T), on the CPU and padded to
    one width."""
    tokens, target = tokens.cpu(), target.cpu()
    width = max(tokens.shape[1], target.shape[1])
    tokens = F.pad(tokens, (0, width - tokens.shape[1]), value=PAD_ID)
    return Answers(tokens, F.pad(target, (0, width - target.shape[1]), value=PAD_ID), unknown)


def nats(logits: Tensor, target: Tensor) -> Tensor:
    """The negative log-probability (B,) of each target (B, T) in nats, in fp64."""
    losses = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD_ID, reduction="none")
    return losses.cpu().double().sum(1)


def first_of_each(lengths: Tensor, count: int | None) -> Tensor:
    """The indices (M,) of the first pairs of each length.

    lengths: (N,), of all pairs.
    count: the greatest number of pairs of one length; None = all.
    """
    if count is None:
        return torch.arange(len(lengths))
    order = lengths.argsort(stable=True)
    ordered = lengths[order]
    starts = torch.searchsorted(ordered, ordered)  # where each one's length begins
    return order[torch.arange(len(order)) - starts < count].sort().values


def _add_by_length(losses: dict[int, float], lengths: Tensor, row_losses: Tensor) -> None:
    """Add the losses (B,) of some rows to those of their lengths (B,)."""
    different, group = lengths.unique(return_inverse=True)
    sums = torch.zeros(len(different), dtype=torch.float64).index_add_(0, group, row_losses)
    for length, loss in zip(different.tolist(), sums.tolist(), strict=True):
        losses[length] = losses.get(length, 0.0) + loss


@contextlib.contextmanager
def _in_eval_mode(model: Seq2Seq) -> Iterator[None]:
    """Evaluation mode until the block ends."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _batches(model: Seq2Seq, pairs: Pairs) -> Iterator[tuple[Batch, Tensor]]:
    """Batches of pairs on the model's device, each with the indices (B,) of its pairs."""
    device = next(model.parameters()).device
    settings = model.settings
    batches = evaluation_batches(
        pairs, BATCH_TOKENS, settings.source_bos, settings.max_length, settings.n_heads
    )
    for batch, rows in batches:
        yield batch.to(device), rows


@torch.no_grad()
def translate(
    model: Seq2Seq, sequences: list[list[str]], facts: DataFacts, beam: int = 1
) -> list[list[str]]:
    """Translations of sequences of symbols, in their order. Raises UnseenSymbol."""
    rows = [facts.vocabulary.encode(sequence) for sequence in sequences]
    if not rows:
        return []
    pairs = Pairs(*pad_rows(rows), *pad_rows([[]] * len(rows)))
    output: list[list[str]] = [[]] * len(rows)
    with _in_eval_mode(model):
        for batch, order in _batches(model, pairs):
            decoded = search(model, batch.src, beam=beam, target_growth=facts.target_growth)
            for row, ids in zip(order.tolist(), decoded.tokens.tolist(), strict=True):
                output[row] = facts.vocabulary.decode(ids)
    return output
