"""A padded batch of random symbols: ids alone, of which nothing is asked yet.

Long pairs stand beside short ones, so every batch holds pads on both sides. No two neighbours of a
row are equal. All that is drawn comes from one generator of the batch's own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.ids import Ids, Symbols, wider
from toytrans.checks.model import Adapter
from toytrans.errors import UserError

SHORT = 12
"""Symbols up to which a batch counts as short."""

SHORTEST = 4
"""Symbols that the longest sequence of a check has at least."""


@dataclass(frozen=True)
class Setting:
    """What one batch is made of: symbols of its longest sequence, rows, and a seed. widest,
    most_rows: the batch is also asked in shapes up to that."""

    length: int
    rows: int
    seed: int
    widest: int = 0
    most_rows: int = 0


class Batch:
    """A padded batch of random symbols for a model.

    pairs: the symbols, as lists. ids: src (B, S), tgt_in (B, T); tgt_out (B, T), None where no
    labels are known. real_source (B, S), real (B, T): which places are no pads. numbers (B, T):
    each real output has one of its own, row * T + place; pads have -1.
    """

    def __init__(self, model: Adapter, setting: Setting) -> None:
        self.model, self.setting, self.facts = model, setting, model.facts
        self.random = torch.Generator().manual_seed(setting.seed)
        self.symbols = torch.tensor(self.facts.symbols())
        if len(self.symbols) < 2:
            raise UserError(
                f"{len(self.symbols)} symbols are left of a vocabulary of "
                f"{self.facts.vocabulary_size} beside pad, start and end; the checks need two"
            )
        # long beside short ones, each side once longest
        longest, more = setting.length, range(setting.rows - 4)
        lengths = [(longest, 2), (1, longest), (longest - 1, 1), (2, longest - 1)]
        lengths += [(1 + 7 * n % longest, 1 + (11 * n + 4) % longest) for n in more]
        self.pairs = [(self.row(s), self.row(t)) for s, t in lengths[: setting.rows]]
        self.ids, self.tgt_out = self.made_of(self.pairs)
        self.src, self.tgt_in, _ = self.ids
        self.real = self.facts.real_inputs(self.tgt_in)
        self.real_source = self.facts.real_source(self.src)
        numbers = torch.arange(self.real.numel()).view(self.real.shape)
        self.numbers = numbers.masked_fill(~self.real, -1)

    def made_of(self, pairs: Symbols) -> tuple[Ids, Tensor | None]:
        """What is asked of pairs, and the labels. A model of one stream has an empty source."""
        src, tgt_in, tgt_out = self.model.batch(pairs)
        return Ids(src if self.facts.has_source else src[:, :0], tgt_in), tgt_out

    def with_pads(
        self, source: int, target: int, rows: Tensor | slice = slice(None)
    ) -> tuple[Ids, Tensor]:
        """Some rows with so many pads more, and the numbers of the outputs that they repeat."""
        facts = self.facts
        src = wider(self.src[rows], source * facts.has_source, facts.source_pad)
        tgt_in = wider(self.tgt_in[rows], target, facts.pad_id)
        return Ids(src, tgt_in), F.pad(self.numbers[rows], (0, target), value=-1)

    def pair(self, source: int, target: int) -> Ids:
        """One pair of some symbols, without pads: (1, S), (1, T)."""
        (src, tgt_in, _), _ = self.made_of([(self.row(source), self.row(target))])
        real = self.facts.real_inputs(tgt_in)[0]
        return Ids(src[:, self.facts.real_source(src)[0]], tgt_in[:, real])

    def row(self, length: int) -> list[int]:
        """Symbols of which no two neighbours are equal."""
        start = torch.randint(len(self.symbols), (1,), generator=self.random)
        steps = torch.randint(1, len(self.symbols), (length,), generator=self.random)
        drawn: list[int] = self.symbols[(start + steps.cumsum(0)) % len(self.symbols)].tolist()
        return drawn

    def other(self, ids: Tensor) -> Tensor:
        """Other symbols than some ids, of any shape."""
        place = (self.symbols == ids[..., None]).int().argmax(-1)
        step = torch.randint(1, len(self.symbols), ids.shape, generator=self.random)
        return self.symbols[(place + step) % len(self.symbols)]

    def one_by_one(self, ids: Tensor, places: Tensor) -> Tensor:
        """(J, L) copies of ids (L,), each with another symbol at one place."""
        changed, rows = ids.repeat(len(places), 1), torch.arange(len(places))
        changed[rows, places] = self.other(changed[rows, places])
        return changed

    def noise(self, like: Tensor) -> Tensor:
        """Normal numbers of the shape, precision and device of a tensor."""
        return torch.randn(like.shape, generator=self.random, dtype=torch.float64).to(like)

    @property
    def is_short(self) -> bool:
        """Whether what costs much is asked of it."""
        return self.setting.length <= SHORT
