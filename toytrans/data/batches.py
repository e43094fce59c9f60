"""Batches: how pairs become padded tensors, and which pairs share a batch.

    pairs -> pool -> sorted by length -> cut within a budget of padded tokens -> shuffled -> Batch

Training pairs come as an endless stream, which is cut into pools of some thousand pairs. The state
of the stream is one integer, the number of pairs used, so a resumed run goes on with the next
batch. Sequences are padded to few widths, and all batches of one width have the same number of
rows, a few of them empty: so few shapes occur, and each new shape costs time on any device.

All of it happens on the CPU. A batch is copied to the model's device when it is used.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
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

    n_rows: int
    src_width: int
    tgt_width: int


@dataclass(frozen=True)
class Batch:
    """Ids of a padded batch: int64, PAD_ID after the end of each row.

    src: (B, S), the sources with EOS.
    tgt_in: (B, T), what the decoder reads: BOS and the target.
    tgt_out: (B, T), the labels: the target and EOS.
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor

    def named(self) -> dict[str, Tensor]:
        """The three tensors by their names."""
        return {"src": self.src, "tgt_in": self.tgt_in, "tgt_out": self.tgt_out}

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device. A GPU copies it from pinned memory, while the CPU goes on."""
        pinned = torch.device(device).type == "cuda" and self.src.device.type == "cpu"

        def move(ids: Tensor) -> Tensor:
            return (ids.pin_memory() if pinned else ids).to(device, non_blocking=True)

        return Batch(move(self.src), move(self.tgt_in), move(self.tgt_out))

    def take(self, rows: Tensor) -> "Batch":
        """The rows of the batch at some indices (N,), in that order."""

        def pick(ids: Tensor) -> Tensor:
            return ids.index_select(0, rows)  # four times as quick as ids[rows]

        return Batch(pick(self.src), pick(self.tgt_in), pick(self.tgt_out))

    def split(self, sizes: list[int]) -> list["Batch"]:
        """Batches of so many rows each, in order, which are views of this one."""
        split = [ids.split(sizes) for ids in (self.src, self.tgt_in, self.tgt_out)]
        parts = zip(*split, strict=True)
        return [Batch(src, tgt_in, tgt_out) for src, tgt_in, tgt_out in parts]

    def fit(self, shape: Shape) -> "Batch":
        """The batch in another shape: filled up with PAD, or without columns of PAD alone."""
        missing = shape.n_rows - len(self.src)

        def fit_ids(ids: Tensor, width: int) -> Tensor:
            return pad(ids, (0, width - ids.shape[1], 0, missing), value=PAD_ID)

        return Batch(
            fit_ids(self.src, shape.src_width),
            fit_ids(self.tgt_in, shape.tgt_width),
            fit_ids(self.tgt_out, shape.tgt_width),
        )

    def shard(self, rank: int, size: int) -> "Batch":
        """The rows of the process `rank` of `size`. All shards have the same shape, so the last
        ones may hold rows of PAD alone."""
        if size == 1:
            return self
        n_rows = -(-len(self.src) // size)
        filled = self.fit(Shape(n_rows * size, self.src.shape[1], self.tgt_out.shape[1]))
        return filled.take(torch.arange(rank * n_rows, (rank + 1) * n_rows))

    @cached_property
    def target_tokens(self) -> int:
        """Real target tokens, EOS included. They are counted when they are first asked for: before
        the batch is moved to a GPU, which would have to be waited for."""
        return int((self.tgt_out != PAD_ID).sum())

    @cached_property
    def real_tokens(self) -> int:
        """Real tokens of source and target, ends included; counted as `target_tokens` are."""
        return int((self.src != PAD_ID).sum()) + self.target_tokens

    @property
    def padded_tokens(self) -> int:
        """B (S + T), the tokens that the model computes."""
        return self.src.numel() + self.tgt_out.numel()


def make_batch(pairs: Pairs, source_bos: bool) -> Batch:
    """A batch of pairs, no larger than the longest one needs. source_bos: whether sources start
    with BOS."""
    src = with_ends(pairs.src, pairs.src_length, bos=source_bos, eos=True)
    tgt_in, tgt_out = shift_target(pairs.tgt, pairs.tgt_length)
    return Batch(src, tgt_in, tgt_out)


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

    pair_indices: Tensor
    shape: Shape


class Cut(NamedTuple):
    """The number of pairs that the next batch takes from a sorted pool, and the batch's shape."""

    n_pairs: int
    shape: Shape


FILLED_SHARES = [k / 128 for k in range(65, 128)]
"""Shares of a batch's rows that may hold a pair, from just above one half to just below all."""


def plan_batches(
    pairs: Pairs,
    batch_tokens: int,
    source_bos: bool,
    even_rows: bool = True,
    longest: int | None = None,
) -> list[BatchPlan]:
    """Sort pairs from long to short and cut them into batches of at most `batch_tokens`.

    A batch has at least one row, so a single pair may be larger than that.
    even_rows: fill all batches about equally. Otherwise each is filled up in turn, and the last
        one may be small, so that its few tokens would weigh as much as all of another batch.
    longest: the greatest width of a batch, say the size of a position table.
    """
    src_width, tgt_width = _padded_widths(pairs, source_bos, longest)
    by_target_then_source = tgt_width * (int(src_width.max()) + 1) + src_width
    order = by_target_then_source.argsort(descending=True, stable=True)
    src_widths, tgt_widths = src_width[order].tolist(), tgt_width[order].tolist()
    cut = _cut_evenly if even_rows else _cut
    cuts = cut(src_widths, tgt_widths, batch_tokens)
    members = order.split([n_pairs for n_pairs, _ in cuts])
    return [BatchPlan(indices, shape) for indices, (_, shape) in zip(members, cuts, strict=True)]


def _padded_widths(pairs: Pairs, source_bos: bool, longest: int | None) -> tuple[Tensor, Tensor]:
    """Widths (N,) to which sources and targets are padded, ends included: their buckets, cut to
    `longest` where the sequence itself is not longer."""
    src, tgt = pairs.src_length + 1 + source_bos, pairs.tgt_length + 1
    lengths = range(max(longest_of(src), longest_of(tgt)) + 1)
    widths = torch.tensor([max(n, min(bucket(n), longest or bucket(n))) for n in lengths])
    return widths[src], widths[tgt]


def _cut_evenly(src_widths: list[int], tgt_widths: list[int], batch_tokens: int) -> list[Cut]:
    """Cut sorted pairs into as few batches as full ones would be, all of them about equally full.

    If each batch holds pairs in a smaller share of its rows, the last one is fuller. How small the
    share may be without one batch more is searched for by halving.
    """
    cuts = _cut(src_widths, tgt_widths, batch_tokens)
    fewest = len(cuts)
    low, high = 0, len(FILLED_SHARES)  # the shares from high on do, and those before low do not
    while low < high:
        middle = (low + high) // 2
        tried = _cut(src_widths, tgt_widths, batch_tokens, FILLED_SHARES[middle])
        if len(tried) <= fewest:
            cuts, high = tried, middle
        else:
            low = middle + 1
    return cuts


def _cut(
    src_widths: list[int], tgt_widths: list[int], batch_tokens: int, filled: float = 1.0
) -> list[Cut]:
    """Cut sorted pairs into batches.

    The first pair of a batch has its widest target, but a later one may have a wider source.
    filled: the share of each batch's rows that hold a pair.
    """
    cuts: list[Cut] = []
    start = 0
    while start < len(src_widths):
        tgt_width = tgt_widths[start]
        most_rows = rows_within(batch_tokens, src_widths[start] + tgt_width)
        src_width = max(src_widths[start : start + most_rows])  # of all that may come along
        n_rows = rows_within(batch_tokens, src_width + tgt_width)
        n_pairs = min(max(1, int(n_rows * filled)), len(src_widths) - start)
        cuts.append(Cut(n_pairs, Shape(n_rows, src_width, tgt_width)))
        start += n_pairs
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
    dataset: Dataset, settings: Settings, pairs_used: int = 0
) -> Generator[DealtBatch]:
    """Endless training batches on the CPU.

    pairs_used: where to start: 0, or the number that came with a batch; the batches that follow
        are then those that would have followed it.
    """
    seed, source_bos = settings.data_seed, settings.model.source_bos
    batch_tokens, longest = settings.data.batch_tokens, settings.model.max_length
    size = _pool_size(dataset, batch_tokens)
    for pool in count(pairs_used // size):
        pairs = dataset.pairs("train", _stream(dataset, seed, pool * size, size))
        plans = plan_batches(pairs, batch_tokens, source_bos, longest=longest)
        # one copy of the whole pool, of which each batch is a slice, is quicker than one for each
        ordered = pairs.take(torch.cat([plan.pair_indices for plan in plans]))
        slices = make_batch(ordered, source_bos).split([len(plan.pair_indices) for plan in plans])
        used = pool * size
        for number in permutation(len(plans), seed, Use.POOL, pool).tolist():
            plan = plans[number]
            used += len(plan.pair_indices)
            if used > pairs_used:  # else it was dealt before the resume
                yield DealtBatch(slices[number].fit(plan.shape), used)


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


def largest_batch(dataset: Dataset, settings: Settings) -> Batch:
    """A batch that needs at least as much memory as any batch of training.

    A batch is as wide as its widest source and its widest target, which may be of different pairs;
    every such shape is asked for. Its rows hold that source and that target over and over. Memory
    is taken to grow with the scores of attention, B (S + T)^2. All of it holds for the pairs of
    `Dataset.pairs_of_every_length`: those of a file are all, but a task may once draw a source
    with a longer target than any of them has.
    """
    pairs, budget = dataset.pairs_of_every_length(), settings.data.batch_tokens
    source_bos, longest = settings.model.source_bos, settings.model.max_length
    src_widths, tgt_widths = _padded_widths(pairs, source_bos, longest)

    def scores(shape: Shape) -> int:
        return shape.n_rows * (shape.src_width + shape.tgt_width) ** 2

    largest = max(_possible_shapes(src_widths, tgt_widths, budget), key=scores)
    src = pairs.take((src_widths == largest.src_width).nonzero()[:1, 0])
    tgt = pairs.take((tgt_widths == largest.tgt_width).nonzero()[:1, 0])
    widest = Pairs(src.src, src.src_length, tgt.tgt, tgt.tgt_length)
    rows = widest.take(torch.zeros(largest.n_rows, dtype=torch.long))
    return make_batch(rows, source_bos).fit(largest)


def _possible_shapes(src_widths: Tensor, tgt_widths: Tensor, batch_tokens: int) -> Iterator[Shape]:
    """The shapes that batches of pairs of these widths (N,) can have. The pair that a batch begins
    with has its widest target, and another one may have its widest source."""
    for tgt_width in tgt_widths.unique().tolist():
        least = int(src_widths[tgt_widths == tgt_width].min())
        for src_width in src_widths[tgt_widths <= tgt_width].unique().tolist():
            if src_width >= least:
                yield Shape(rows_within(batch_tokens, src_width + tgt_width), src_width, tgt_width)


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
        most_rows = max(1, MOST_SCORES // (heads * max(src_width, tgt_width) ** 2))
        for indices in plan.pair_indices.split(most_rows):
            shape = Shape(len(indices), src_width, tgt_width)
            yield make_batch(pairs.take(indices), source_bos).fit(shape), indices
