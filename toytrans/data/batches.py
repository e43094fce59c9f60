"""Batches: how pairs become padded tensors, and which pairs share a batch.

    pairs -> pool -> sorted by length -> cut within a budget of padded tokens -> shuffled -> Batch

Training pairs come as an endless stream, which is cut into pools of some thousand pairs. The state
of the stream is one integer, the number of pairs used, so a resumed run goes on with the next
batch. Sequences are padded to few widths, and all batches of one width have the same number of
rows, a few of them empty: so few shapes occur, and each new shape costs time on any device.

All of it happens on the CPU. A batch is copied to the model's device when it is used.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.config.schema import Settings
from toytrans.data.hashing import Use, permutation
from toytrans.data.pairs import Dataset, Pairs, bucket, longest_of
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

# From pairs to a batch ------------------------------------------------------------------------


class Shape(NamedTuple):
    """The padded shape of a batch: B rows, sources (B, S) and targets (B, T), ends included."""

    rows: int
    src_width: int
    tgt_width: int


class TokenCounts(NamedTuple):
    """Real tokens of the sources and of the targets of a batch, ends included."""

    src: int
    tgt: int


@dataclass(frozen=True)
class Batch:
    """Ids of a padded batch: int64, PAD_ID after the end of each row.

    src: (B, S), the sources with EOS.
    tgt_in: (B, T), what the decoder reads: BOS and the target.
    tgt_out: (B, T), the labels: the target and EOS.
    counts: the numbers of real ids in src and in tgt_out, where they were counted already.
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    counts: TokenCounts | None = None

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.src, self.tgt_in, self.tgt_out))

    def named(self) -> dict[str, Tensor]:
        """The three tensors by their names."""
        return {"src": self.src, "tgt_in": self.tgt_in, "tgt_out": self.tgt_out}

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device. A GPU copies it from pinned memory while the CPU goes on, and
        the tokens are counted before, because to count on a GPU is to wait for it."""
        src, tgt_in, tgt_out = self
        if torch.device(device).type == "cuda" and src.device.type == "cpu":
            src, tgt_in, tgt_out = src.pin_memory(), tgt_in.pin_memory(), tgt_out.pin_memory()
        src, tgt_in, tgt_out = (ids.to(device, non_blocking=True) for ids in (src, tgt_in, tgt_out))
        return Batch(src, tgt_in, tgt_out, self.count())

    def take(self, rows: Tensor | slice) -> "Batch":
        """Some rows of the batch, in that order."""
        if isinstance(rows, slice):
            return Batch(self.src[rows], self.tgt_in[rows], self.tgt_out[rows])
        src, tgt_in, tgt_out = (ids.index_select(0, rows) for ids in self)  # quicker than brackets
        return Batch(src, tgt_in, tgt_out)

    def fit(self, shape: Shape) -> "Batch":
        """The batch in another shape: filled up with PAD, or without columns of PAD alone."""
        rows, src_width, tgt_width = shape
        missing = rows - len(self.src)

        def fit_ids(ids: Tensor, width: int) -> Tensor:
            return pad(ids, (0, width - ids.shape[1], 0, missing), value=PAD_ID)

        return Batch(
            fit_ids(self.src, src_width),
            fit_ids(self.tgt_in, tgt_width),
            fit_ids(self.tgt_out, tgt_width),
        )

    def shard(self, rank: int, size: int) -> "Batch":
        """The rows of the process `rank` of `size`. All shards have the same shape, so the last
        ones may hold rows of PAD alone."""
        rows = -(-len(self.src) // size)
        filled = self.fit(Shape(rows * size, self.src.shape[1], self.tgt_out.shape[1]))
        return filled.take(slice(rank * rows, (rank + 1) * rows))

    def count(self) -> TokenCounts:
        """The numbers of real tokens. A batch for training has them from the start."""
        if self.counts is not None:
            return self.counts
        return TokenCounts(int((self.src != PAD_ID).sum()), int((self.tgt_out != PAD_ID).sum()))

    @property
    def target_tokens(self) -> int:
        """Real target tokens, EOS included."""
        return self.count().tgt

    @property
    def real_tokens(self) -> int:
        """Real tokens of source and target."""
        return sum(self.count())

    @property
    def padded_tokens(self) -> int:
        """rows x (S + T)."""
        return self.src.numel() + self.tgt_out.numel()


def make_batch(pairs: Pairs, source_bos: bool, shape: Shape | None = None) -> Batch:
    """A batch of pairs.

    source_bos: whether sources start with BOS.
    shape: of the batch; None = no larger than the longest pair needs.
    """
    src = with_ends(pairs.src, pairs.src_length, bos=source_bos, eos=True)
    batch = Batch(src, *shift_target(pairs.tgt, pairs.tgt_length))
    return batch if shape is None else batch.fit(shape)


def shift_target(tgt: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Targets (N, T) -> tgt_in = BOS, target; tgt_out = target, EOS; both (N, T + 1).

    tgt_out[t] is what the decoder must predict after it has read tgt_in[0..t].
    """
    return with_ends(tgt, length, bos=True, eos=False), with_ends(tgt, length, bos=False, eos=True)


def with_ends(ids: Tensor, length: Tensor, *, bos: bool, eos: bool) -> Tensor:
    """Ids (N, W) -> (N, W + bos + eos), BOS before and EOS right after each row's symbols."""
    marked = pad(ids, (int(bos), int(eos)), value=PAD_ID)
    if bos:
        marked[:, 0] = BOS_ID
    if eos:
        marked.scatter_(1, length[:, None] + int(bos), EOS_ID)
    return marked


# Which pairs share a batch --------------------------------------------------------------------


class BatchPlan(NamedTuple):
    """The pairs of a batch by their indices, (N,) with N <= B, and the batch's shape."""

    pairs: Tensor
    shape: Shape


class Cut(NamedTuple):
    """The number of pairs that the next batch takes from a sorted pool, and the batch's shape."""

    pairs: int
    shape: Shape


FILLED = [k / 128 for k in range(65, 128)]
"""Shares of a batch's rows that may hold a pair, from just above one half to just below all."""


def plan_batches(
    pairs: Pairs,
    batch_tokens: int,
    source_bos: bool,
    even_rows: bool = True,
    longest: int | None = None,
) -> list[BatchPlan]:
    """Sort pairs from long to short and cut them into batches of at most `batch_tokens`.

    even_rows: fill all batches about equally. Otherwise each is filled up in turn, and the last
        one may be small, so that its few tokens would weigh as much as all of another batch.
    longest: the greatest width of a batch, say the size of a position table.
    """
    src_width, tgt_width = _padded_widths(pairs, source_bos, longest)
    by_target_then_source = tgt_width * (int(src_width.max()) + 1) + src_width
    order = by_target_then_source.argsort(descending=True, stable=True)
    src_widths, tgt_widths = src_width[order].tolist(), tgt_width[order].tolist()

    @cache
    def cuts_at(filled: float) -> list[Cut]:
        return _cut(src_widths, tgt_widths, batch_tokens, filled)

    cuts = cuts_at(1.0)
    if even_rows:  # the emptiest rows that need no more batches than full ones do
        fewest = len(cuts)
        k = bisect_left(FILLED, True, key=lambda filled: len(cuts_at(filled)) <= fewest)
        cuts = cuts_at(FILLED[k]) if k < len(FILLED) else cuts
    members = order.split([cut.pairs for cut in cuts])
    return [BatchPlan(rows, cut.shape) for rows, cut in zip(members, cuts, strict=True)]


def _padded_widths(pairs: Pairs, source_bos: bool, longest: int | None) -> tuple[Tensor, Tensor]:
    """Widths (N,) to which sources and targets are padded, ends included: their buckets, cut to
    `longest` where the sequence itself is not longer."""
    src, tgt = pairs.src_length + 1 + source_bos, pairs.tgt_length + 1
    lengths = range(max(longest_of(src), longest_of(tgt)) + 1)
    widths = torch.tensor([max(n, min(bucket(n), longest or bucket(n))) for n in lengths])
    return widths[src], widths[tgt]


def _cut(
    src_widths: list[int], tgt_widths: list[int], batch_tokens: int, filled: float
) -> list[Cut]:
    """Cut sorted pairs into batches. filled: the share of each batch's rows that hold a pair."""
    cuts: list[Cut] = []
    start = 0
    while start < len(src_widths):
        tgt_width = tgt_widths[start]
        rows = rows_within(batch_tokens, src_widths[start] + tgt_width)
        src_width = max(src_widths[start : start + rows])  # of all that may come along
        rows = rows_within(batch_tokens, src_width + tgt_width)
        pairs = min(max(1, int(rows * filled)), len(src_widths) - start)
        cuts.append(Cut(pairs, Shape(rows, src_width, tgt_width)))
        start += pairs
    return cuts


def rows_within(batch_tokens: int, width: int) -> int:
    """Rows of `width` tokens that fit the budget: a multiple of 8 if above 8, because kernels are
    faster then, and one row at least."""
    rows = max(1, batch_tokens // width)
    return rows - rows % 8 if rows > 8 else rows


# Training -------------------------------------------------------------------------------------

SMALLEST_POOL = 4096
BATCHES_OF_A_POOL = 32
"""A pool holds about 32 batches, and at least 4,096 pairs. A larger pool has fewer pads."""


class DealtBatch(NamedTuple):
    """A training batch, and the number of pairs that the stream has dealt up to its end."""

    batch: Batch
    pairs_used: int


def training_batches(
    dataset: Dataset, config: Settings, pairs_used: int = 0
) -> Generator[DealtBatch]:
    """Endless training batches on the CPU.

    pairs_used: where to start: 0, or the number that came with a batch; the batches that follow
        are then those that would have followed it.
    """
    seed, source_bos = config.data_seed, config.source_bos
    batch_tokens, longest = config.data.batch_tokens, config.model.max_length
    size = _pool_size(dataset, batch_tokens)
    for pool in count(pairs_used // size):
        pairs = dataset.pairs("train", _stream(dataset, seed, pool * size, size))
        plans = plan_batches(pairs, batch_tokens, source_bos, longest=longest)
        rows = make_batch(pairs, source_bos)
        used = pool * size
        for number in permutation(len(plans), seed, Use.POOL, pool).tolist():
            plan = plans[number]
            used += len(plan.pairs)
            if used > pairs_used:
                batch = rows.take(plan.pairs).fit(plan.shape)
                yield DealtBatch(replace(batch, counts=batch.count()), used)


def _pool_size(dataset: Dataset, batch_tokens: int) -> int:
    """Pairs of a pool, at most those of the training split. A pool may hold the end of one epoch
    and the start of the next, and then some pairs twice."""
    pair_tokens = sum(dataset.facts.train_length) + 3  # S + T of a mean source with its ends
    size = max(BATCHES_OF_A_POOL * batch_tokens // pair_tokens, SMALLEST_POOL)
    return min(size, dataset.size("train") or size)


def _stream(dataset: Dataset, seed: int, start: int, count: int) -> Tensor:
    """Indices (count,) of the pairs start .. start + count - 1 of the stream.

    A finite split is repeated in epochs, each with its own order.
    """
    size = dataset.size("train")
    if size is None:
        return torch.arange(start, start + count)
    first, last = start // size, (start + count - 1) // size
    epochs = torch.cat([_epoch(size, seed, epoch) for epoch in range(first, last + 1)])
    return epochs[start - first * size :][:count]


@lru_cache(maxsize=2)
def _epoch(size: int, seed: int, epoch: int) -> Tensor:
    """The order of the pairs in an epoch. Two are kept, since many pools are cut from each."""
    return permutation(size, seed, Use.EPOCH, epoch)


def largest_batch(dataset: Dataset, config: Settings) -> Batch:
    """The training batch that can need the most memory, filled with one pair over and over.

    A batch has the shape of the pair that it begins with, so each length that can occur is asked
    for its shape. Memory is taken to grow with the scores of attention, rows x (S + T)^2.
    """
    pairs, budget = dataset.pairs_of_every_length(), config.data.batch_tokens
    src_width, tgt_width = _padded_widths(pairs, config.source_bos, config.model.max_length)
    width = src_width + tgt_width

    def scores(width: int) -> int:
        return rows_within(budget, width) * width**2

    largest = max(width.unique().tolist(), key=scores)
    first = int((width == largest).int().argmax())
    rows = rows_within(budget, largest)
    shape = Shape(rows, int(src_width[first]), int(tgt_width[first]))
    return make_batch(pairs.take(torch.full((rows,), first)), config.source_bos, shape)


# Evaluation -----------------------------------------------------------------------------------

MOST_SCORES = 2**22
"""Scores of one attention in an evaluation: rows x heads x T x S, 16 MiB of them."""


def evaluation_batches(
    pairs: Pairs, batch_tokens: int, source_bos: bool, longest: int | None = None, heads: int = 1
) -> Iterator[tuple[Batch, Tensor]]:
    """Every pair once, in batches of similar length, each with the indices (B,) of its pairs.

    longest: the greatest width of a batch. heads: of each attention. A batch has as few rows as
    MOST_SCORES asks for, but at least one.
    """
    if not len(pairs):
        return
    for plan in plan_batches(pairs, batch_tokens, source_bos, even_rows=False, longest=longest):
        _, src_width, tgt_width = plan.shape
        most = max(1, MOST_SCORES // (heads * max(src_width, tgt_width) ** 2))
        for rows in plan.pairs.split(most):
            shape = Shape(len(rows), src_width, tgt_width)
            yield make_batch(pairs.take(rows), source_bos, shape), rows
