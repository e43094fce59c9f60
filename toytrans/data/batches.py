"""Batches: the ends of sequences, padding, the target shift, and length buckets.

    pairs -> pool -> sorted by length, cut under a budget of padded tokens -> shuffled -> Batch

A pool is a stretch of the endless stream of training pairs. Every batch of a shape holds the same
number of rows (a few of them empty), so that few shapes ever occur: each new one costs a CPU a
freshly generated kernel. The state of the stream is one integer, the number of pairs dealt.

A pool is made on the device that trains. Its lengths come back to the host once; every number
that a batch is asked for follows from them, so that no step waits for a GPU.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.config import Config
from toytrans.data.pairs import Pairs, PairSource, permutation
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

SMALLEST_POOL = 4096
BATCHES_OF_A_POOL = 32
"""About so many, but no fewer than 4,096 pairs: the more there are to sort, the fewer pads."""


@dataclass(frozen=True)
class Batch:
    """src (B, S), tgt_in (B, T), tgt_out (B, T): int64 ids, PAD_ID after each row's end.

    known: how many ids of src and of tgt_out are real, where that was known when it was made.
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

    def shard(self, rank: int, size: int) -> "Batch":
        """The rows of the process `rank` of `size`. All shards have one shape: the last ones are
        filled up with PAD, and hold nothing else where there are too few rows."""
        rows = -(-len(self.src) // size)
        src, tgt_in, tgt_out = (
            _filled(ids, rows * size, ids.shape[1])[rank * rows : (rank + 1) * rows] for ids in self
        )
        return Batch(src, tgt_in, tgt_out)

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


def shift_target(tgt: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Targets (N, T) -> tgt_in = BOS, target; tgt_out = target, EOS; both (N, T + 1).

    tgt_out[t] is what the decoder should say having read tgt_in[0..t].
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
    """Pairs -> Batch. source_bos: sources start with BOS. shape (B, S, T): filled up with PAD."""
    src = with_ends(pairs.src, pairs.src_length, bos=source_bos, eos=True)
    tgt_in, tgt_out = shift_target(pairs.tgt, pairs.tgt_length)
    if shape is None:
        return Batch(src, tgt_in, tgt_out)
    rows, src_width, tgt_width = shape
    return Batch(
        _filled(src, rows, src_width),
        _filled(tgt_in, rows, tgt_width),
        _filled(tgt_out, rows, tgt_width),
    )


def _filled(ids: Tensor, rows: int, width: int) -> Tensor:
    """Ids filled up with PAD to (rows, width), or cut off there."""
    return pad(ids, (0, width - ids.shape[1], 0, rows - ids.shape[0]), value=PAD_ID)


def bucket(length: int) -> int:
    """The padded length: even up to 16, then in steps of a quarter of the power of two below."""
    step = max(2, 2 ** (length.bit_length() - 3)) if length > 16 else 2
    return -(-length // step) * step


def training_batches(
    source: PairSource, config: Config, dealt: int = 0, device: torch.device | str = "cpu"
) -> Iterator[tuple[Batch, int]]:
    """Endless batches, each with the number of pairs dealt so far; goes on after `dealt`.

    device: where they are made, the same ones on any.
    """
    device = torch.device(device)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    size = _pool_size(source, config)
    while True:
        number, past = divmod(dealt, size)
        indices = _stream(source, config.data_seed, number * size, size)
        with _aside(stream):
            pool = Pool.of(source.pairs("train", indices.to(device)), config)
        if stream is not None:
            for ids in pool.whole:  # else its memory is given away before the steps have read it
                ids.record_stream(torch.cuda.current_stream(device))
        passed = 0
        for chosen in permutation(len(pool.cuts), config.data_seed, 4, number).tolist():
            start, stop, _ = pool.cuts[chosen]
            passed += stop - start
            if passed <= past:
                continue
            dealt += stop - start
            yield pool.batch(chosen), dealt


def largest_batch(source: PairSource, config: Config, device: torch.device | str = "cpu") -> Batch:
    """The training batch that takes most memory: of a file, or of a task's first pool, which has
    its longest sources many times."""
    size = source.size("train") if config.data.files else None
    indices = _stream(source, config.data_seed, 0, size or _pool_size(source, config))
    pairs, source_bos = source.pairs("train", indices.to(device)), config.source_bos
    order, cuts = cut(
        pairs.lengths_on_host(),
        config.data.batch_tokens,
        source_bos,
        longest=config.model.max_positions,
    )
    start, stop, shape = max(cuts, key=lambda cut: cut[2][0] * sum(cut[2][1:]) ** 2)
    return make_batch(pairs.take(order[start:stop].to(device)), source_bos, shape)


def _pool_size(source: PairSource, config: Config) -> int:
    """Pairs of a pool: no more than there are, so that none is twice in a batch."""
    pair_tokens = sum(source.facts.train_length) + 3  # S + T of a middling source with its ends
    size = max(BATCHES_OF_A_POOL * config.data.batch_tokens // pair_tokens, SMALLEST_POOL)
    return min(size, source.size("train") or size)


@dataclass(frozen=True)
class Pool:
    """Pairs as one large batch, its rows in the order in which they are cut, on any device; on
    the host how many ids of each row's source and target are real, (2, N), and the cuts."""

    whole: Batch
    real: Tensor
    cuts: list["Cut"]

    @staticmethod
    def of(pairs: Pairs, config: Config) -> "Pool":
        """Sort pairs, cut them into batches and bring their lengths to the host, once."""
        source_bos, lengths = config.source_bos, pairs.lengths_on_host()
        longest = config.model.max_length
        order, cuts = cut(lengths, config.data.batch_tokens, source_bos, longest=longest)
        _, widths, heights = zip(*(shape for _, _, shape in cuts), strict=True)
        whole = make_batch(pairs, source_bos, (len(pairs), max(widths), max(heights)))
        there = order.to(pairs.src.device)
        src, tgt_in, tgt_out = (ids[there] for ids in whole)
        ends = torch.tensor([[1 + source_bos], [1]])
        return Pool(Batch(src, tgt_in, tgt_out), (lengths + ends)[:, order], cuts)

    def batch(self, number: int) -> Batch:
        """The batch of one cut: a slice, filled up with PAD to its bucket's shape."""
        start, stop, (rows, src_width, tgt_width) = self.cuts[number]
        src, tgt_in, tgt_out = (ids[start:stop] for ids in self.whole)
        sources, targets = self.real[:, start:stop].sum(1).tolist()
        return Batch(
            _filled(src, rows, src_width),
            _filled(tgt_in, rows, tgt_width),
            _filled(tgt_out, rows, tgt_width),
            (sources, targets),
        )


@contextlib.contextmanager
def _aside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """On a GPU, work on a stream of its own: what the host reads meanwhile (how wide, which
    sources to draw again) waits for that stream alone, while the steps in the queue go on."""
    with torch.cuda.stream(stream):
        yield
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)


def evaluation_batches(
    pairs: Pairs, batch_tokens: int, source_bos: bool, longest: int | None = None
) -> Iterator[tuple[Batch, Tensor]]:
    """Every pair once, in batches of like length, each with the rows (B,) it was made of."""
    if not len(pairs):
        return
    lengths = pairs.lengths_on_host()
    order, cuts = cut(lengths, batch_tokens, source_bos, even_rows=False, longest=longest)
    for start, stop, (_, src_width, tgt_width) in cuts:
        rows = order[start:stop]
        yield make_batch(pairs.take(rows), source_bos, (len(rows), src_width, tgt_width)), rows


def _stream(source: PairSource, seed: int, start: int, count: int) -> Tensor:
    """Indices of pairs start .. start + count - 1 of the stream: (count,).

    A split of limited size goes round in epochs, each in an order of its own.
    """
    size = source.size("train")
    if size is None:
        return torch.arange(start, start + count)
    first, last = start // size, (start + count - 1) // size
    epochs = [permutation(size, seed, 3, epoch) for epoch in range(first, last + 1)]
    return torch.cat(epochs)[start - first * size :][:count]


Cut = tuple[int, int, tuple[int, int, int]]
"""Rows start .. stop of the sorted pairs, and the shape (B, S, T) of their batch."""


def cut(
    lengths: Tensor,
    batch_tokens: int,
    source_bos: bool,
    even_rows: bool = True,
    longest: int | None = None,
) -> tuple[Tensor, list[Cut]]:
    """Sort pairs from long to short and cut them into batches of at most `batch_tokens`.

    lengths (2, N): of their sources and targets, on the host. even_rows: spread the rows that are
    left over at the end evenly, in place of one last small batch whose few tokens would weigh as
    much as all of another's. longest: buckets end there, where a position table does.
    """
    places = range(int(lengths.max()) + 3)  # BOS and EOS included
    table = torch.tensor([max(n, min(bucket(n), longest or bucket(n))) for n in places])
    src_width, tgt_width = table[lengths[0] + 1 + source_bos], table[lengths[1] + 1]
    order = (-(tgt_width * (int(src_width.max()) + 1) + src_width)).argsort(stable=True)
    src_widths, tgt_widths = src_width[order].tolist(), tgt_width[order].tolist()
    cuts = _cut(src_widths, tgt_widths, batch_tokens, 1.0)
    low, high = 0.5, 1.0
    for _ in range(6 if even_rows else 0):
        middle = (low + high) / 2
        thinner = _cut(src_widths, tgt_widths, batch_tokens, middle)
        if len(thinner) > len(cuts):
            low = middle
        else:
            cuts, high = thinner, middle
    return order, cuts


def _cut(src_widths: list[int], tgt_widths: list[int], batch_tokens: int, fill: float) -> list[Cut]:
    """Cuts of sorted pairs; `fill`: the share of each batch's rows that hold a pair."""
    cuts: list[Cut] = []
    start = 0
    while start < len(src_widths):
        tgt_width = tgt_widths[start]
        rows = _rows(src_widths[start] + tgt_width, batch_tokens)
        src_width = max(src_widths[start : start + rows])
        rows = _rows(src_width + tgt_width, batch_tokens)
        stop = min(start + max(1, int(rows * fill)), len(src_widths))
        cuts.append((start, stop, (rows, src_width, tgt_width)))
        start = stop
    return cuts


def _rows(tokens: int, batch_tokens: int) -> int:
    """Rows of so many tokens that fit the budget; in eights, which kernels like."""
    rows = max(1, batch_tokens // tokens)
    return rows - rows % 8 if rows > 8 else rows
