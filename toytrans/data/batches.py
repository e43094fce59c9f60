"""Batches: the ends of sequences, padding, the target shift, and length buckets.

    pairs -> pool -> sorted by length, planned under a budget of padded tokens -> shuffled -> Batch

A pool is a part of the endless stream of training pairs. Batches of the same width have the same
number of rows, of which a few may be empty. So few shapes occur; a CPU generates kernels for each
new one. The state of the stream is one integer, the number of pairs dealt.

A pool is made on the training device. Its lengths are copied to the host once. All counts of a
batch follow from them, so no step but a pool's first waits for a GPU.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.config.schema import Config
from toytrans.data.hashing import Use, permutation
from toytrans.data.pairs import Dataset, Pairs, bucket
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

SMALLEST_POOL = 4096
BATCHES_OF_A_POOL = 32
"""A pool holds about 32 batches, and at least 4,096 pairs. A larger pool has fewer pads."""

MOST_SCORES = 2**22
"""Scores of one attention in an evaluation: rows x heads x T x S, 16 MiB of them."""


@dataclass(frozen=True)
class Batch:
    """Ids of a padded batch: int64, PAD_ID after the end of each row.

    src: (B, S), the sources with EOS.
    tgt_in: (B, T), what the decoder reads: BOS and the target.
    tgt_out: (B, T), the labels: the target and EOS.
    known: the numbers of real ids in src and in tgt_out, if they were known in advance.
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    known: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.src, self.tgt_in, self.tgt_out))

    def named(self) -> dict[str, Tensor]:
        return {"src": self.src, "tgt_in": self.tgt_in, "tgt_out": self.tgt_out}

    def to(self, device: torch.device | str) -> "Batch":
        src, tgt_in, tgt_out = (ids.to(device, non_blocking=True) for ids in self)
        return Batch(src, tgt_in, tgt_out, self.known)

    def take(self, rows: Tensor | slice) -> "Batch":
        """Some rows of the batch, in that order."""
        src, tgt_in, tgt_out = (ids[rows] for ids in self)
        return Batch(src, tgt_in, tgt_out)

    def filled(self, rows: int, src_width: int, tgt_width: int) -> "Batch":
        """The batch with the shapes (rows, src_width) and (rows, tgt_width): PAD is added, and
        columns beyond the width are cut off."""
        widths = (src_width, tgt_width, tgt_width)
        src, tgt_in, tgt_out = (
            pad(ids, (0, width - ids.shape[1], 0, rows - ids.shape[0]), value=PAD_ID)
            for ids, width in zip(self, widths, strict=True)
        )
        return Batch(src, tgt_in, tgt_out, self.known)

    def shard(self, rank: int, size: int) -> "Batch":
        """The rows of the process `rank` of `size`.

        All shards have the same shape. PAD fills up the last shards; a shard may hold only PAD.
        """
        rows = -(-len(self.src) // size)
        whole = self.filled(rows * size, self.src.shape[1], self.tgt_in.shape[1])
        return whole.take(slice(rank * rows, (rank + 1) * rows))

    @property
    def target_tokens(self) -> int:
        """Real target tokens, EOS included."""
        return self._real()[1]

    @property
    def real_tokens(self) -> int:
        """Real tokens of source and target."""
        return sum(self._real())

    @property
    def padded_tokens(self) -> int:
        """rows x (S + T)."""
        return self.src.numel() + self.tgt_out.numel()

    def _real(self) -> tuple[int, int]:
        return self.known or (
            int((self.src != PAD_ID).sum()),
            int((self.tgt_out != PAD_ID).sum()),
        )


class BatchPlan(NamedTuple):
    """Rows start .. stop of the sorted pairs, and the shape (B, S, T) of their batch."""

    start: int
    stop: int
    shape: tuple[int, int, int]


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


def make_batch(pairs: Pairs, source_bos: bool, shape: tuple[int, int, int] | None = None) -> Batch:
    """A batch of pairs.

    source_bos: whether sources start with BOS.
    shape: (B, S, T) of the batch; None = as small as the pairs allow.
    """
    src = with_ends(pairs.src, pairs.src_length, bos=source_bos, eos=True)
    batch = Batch(src, *shift_target(pairs.tgt, pairs.tgt_length))
    return batch if shape is None else batch.filled(*shape)


def training_batches(
    dataset: Dataset, config: Config, dealt: int = 0, device: torch.device | str = "cpu"
) -> Generator[tuple[Batch, int]]:
    """Endless batches, each with the number of pairs dealt so far.

    dealt: the number of pairs after which to start.
    device: where batches are made. They are the same on every device.
    """
    size = _pool_size(dataset, config)
    first, past = divmod(dealt, size)
    for number in count(first):
        indices = _stream(dataset, config.data_seed, number * size, size)
        pool, real, plans = _pool(dataset.pairs("train", indices.to(device)), config)
        passed = 0
        for chosen in permutation(len(plans), config.data_seed, Use.POOL, number).tolist():
            start, stop, shape = plans[chosen]
            passed += stop - start
            if passed <= past:
                continue
            dealt += stop - start
            sources, targets = real[:, start:stop].sum(1).tolist()
            batch = pool.take(slice(start, stop)).filled(*shape)
            yield replace(batch, known=(sources, targets)), dealt
        past = 0


def _pool(pairs: Pairs, config: Config) -> tuple[Batch, Tensor, list[BatchPlan]]:
    """All rows of a pool, sorted; the real ids (2, N) of their sources and targets, on the host;
    and the plans of its batches. The lengths are copied to the host once."""
    source_bos, lengths = config.source_bos, pairs.lengths_on_host()
    order, plans = _planned(lengths, config)
    _, widths, heights = zip(*(plan.shape for plan in plans), strict=True)
    rows = make_batch(pairs, source_bos, (len(pairs), max(widths), max(heights)))
    ends = torch.tensor([[1 + source_bos], [1]])
    return rows.take(order.to(pairs.src.device)), (lengths + ends)[:, order], plans


def largest_batch(dataset: Dataset, config: Config, device: torch.device | str = "cpu") -> Batch:
    """The training batch that needs the most memory, from a file or from a task's first pool.

    That pool holds the longest sources of the task many times.
    """
    size = dataset.size("train") if config.data.files else None
    indices = _stream(dataset, config.data_seed, 0, size or _pool_size(dataset, config))
    pairs = dataset.pairs("train", indices.to(device))
    order, plans = _planned(pairs.lengths_on_host(), config)
    start, stop, shape = max(plans, key=lambda plan: plan.shape[0] * sum(plan.shape[1:]) ** 2)
    return make_batch(pairs.take(order[start:stop].to(device)), config.source_bos, shape)


def _planned(lengths: Tensor, config: Config) -> tuple[Tensor, list[BatchPlan]]:
    """The order of training pairs and the plans of their batches. lengths: (2, N), on the host."""
    tokens, longest = config.data.batch_tokens, config.model.max_length
    return plan_batches(lengths, tokens, config.source_bos, longest=longest)


def _pool_size(dataset: Dataset, config: Config) -> int:
    """Pairs of a pool. It is at most the number of training pairs, so no batch repeats a pair."""
    pair_tokens = sum(dataset.facts.train_length) + 3  # S + T of a mean source with its ends
    size = max(BATCHES_OF_A_POOL * config.data.batch_tokens // pair_tokens, SMALLEST_POOL)
    return min(size, dataset.size("train") or size)


def evaluation_batches(
    pairs: Pairs, batch_tokens: int, source_bos: bool, longest: int | None = None, heads: int = 1
) -> Iterator[tuple[Batch, Tensor]]:
    """Every pair once, in batches of similar length, each with the indices (B,) of its pairs.

    heads: of each attention. A batch has as few rows as MOST_SCORES asks for, but at least one.
    """
    if not len(pairs):
        return
    order, plans = plan_batches(
        pairs.lengths_on_host(), batch_tokens, source_bos, even_rows=False, longest=longest
    )
    for start, stop, (_, src_width, tgt_width) in plans:
        most = max(1, MOST_SCORES // (heads * max(src_width, tgt_width) ** 2))
        for rows in order[start:stop].split(most):
            yield make_batch(pairs.take(rows), source_bos, (len(rows), src_width, tgt_width)), rows


def _stream(dataset: Dataset, seed: int, start: int, count: int) -> Tensor:
    """Indices (count,) of the pairs start .. start + count - 1 of the stream.

    A finite split is repeated in epochs, each with its own order.
    """
    size = dataset.size("train")
    if size is None:
        return torch.arange(start, start + count)
    first, last = start // size, (start + count - 1) // size
    epochs = [permutation(size, seed, Use.EPOCH, epoch) for epoch in range(first, last + 1)]
    return torch.cat(epochs)[start - first * size :][:count]


def plan_batches(
    lengths: Tensor,
    batch_tokens: int,
    source_bos: bool,
    even_rows: bool = True,
    longest: int | None = None,
) -> tuple[Tensor, list[BatchPlan]]:
    """Sort pairs from long to short and plan batches of at most `batch_tokens`.

    lengths: (2, N) of sources and targets, on the host.
    even_rows: make the batches of a pool about equally full. Otherwise the last one may be small,
    and its few tokens would weigh as much as all tokens of another batch.
    longest: the greatest width of a batch, say the size of a position table.
    Returns the order (N,) of the pairs, and the plans.
    """
    places = range(int(lengths.max()) + 3)  # BOS and EOS included
    table = torch.tensor([max(n, min(bucket(n), longest or bucket(n))) for n in places])
    src_width, tgt_width = table[lengths[0] + 1 + source_bos], table[lengths[1] + 1]
    order = (-(tgt_width * (int(src_width.max()) + 1) + src_width)).argsort(stable=True)
    widths = src_width[order].tolist(), tgt_width[order].tolist()
    plans = _plans(*widths, batch_tokens, 1.0)
    low, high = 0.5, 1.0
    for _ in range(6 if even_rows else 0):
        middle = (low + high) / 2
        thinner = _plans(*widths, batch_tokens, middle)
        if len(thinner) > len(plans):
            low = middle
        else:
            plans, high = thinner, middle
    return order, plans


def _plans(
    src_widths: list[int], tgt_widths: list[int], batch_tokens: int, fill: float
) -> list[BatchPlan]:
    """Plans of sorted pairs. fill: the share of each batch's rows that hold a pair."""
    plans: list[BatchPlan] = []
    start = 0
    while start < len(src_widths):
        tgt_width = tgt_widths[start]
        rows = _rows(src_widths[start] + tgt_width, batch_tokens)
        src_width = max(src_widths[start : start + rows])
        rows = _rows(src_width + tgt_width, batch_tokens)
        stop = min(start + max(1, int(rows * fill)), len(src_widths))
        plans.append(BatchPlan(start, stop, (rows, src_width, tgt_width)))
        start = stop
    return plans


def _rows(tokens: int, batch_tokens: int) -> int:
    """The number of rows that fit the budget, a multiple of 8 if above 8: kernels are faster."""
    rows = max(1, batch_tokens // tokens)
    return rows - rows % 8 if rows > 8 else rows
