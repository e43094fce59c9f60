"""A padded batch of random symbols, and a model's answers to it, checked.

Differences are of logits, in the model's own precision: fp64 wherever it runs in it, so that a
leak of a thousandth in one layer stands far above rounding. The tolerance is a share of how large
logits are, by precision: the median over the vocabulary of each id's largest. Logits that are
ruled out, by -inf or a large negative number, count as one value; ids that never change do not
count.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.insight.proofs.answers import NoAnswer, answer, apart, calm, foreign, largest, wider
from toytrans.insight.proofs.copies import Counted, RoundedAgain, Variant
from toytrans.insight.proofs.model_under_test import Symbols, described
from toytrans.insight.proofs.report import CannotJudge

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Of how large logits are. Rounding in sound models stays below 6e-15 and 1e-6 of it, a leak of
a thousandth in one layer moves it by 3e-5 and more (20 shapes)."""

COARSE, MOST_ROUNDING = 2e-2, 1e-1
"""The tolerance of half precision, and what it may grow to where the model's rounding is larger."""

SHORT = 12
"""Symbols up to which a batch counts as short: what costs much is asked of such ones alone."""

SHORTEST = 4
"""Symbols that the longest sequence of the proofs has at least."""

MORE = 3
"""Pads that are appended."""

POLARITY = "is True = block what your layer expects?"

RULED_OUT = 5e3
"""Logits beyond it stand for -inf, where every place has smaller ones too."""

LARGEST_LOGITS, LARGEST_SCORES = 2**25, 2**22
"""Numbers in the logits, and in the scores of one head, of one call: longer ones are parted."""


@dataclass(frozen=True)
class Setting:
    """What one batch is made of: symbols of its longest sequence, rows, and a seed. widest,
    most_rows: the batch is also asked in shapes up to that (`shapes`)."""

    length: int
    rows: int
    seed: int
    widest: int = 0
    most_rows: int = 0


class Unsteady(UserError):
    """A model gives different answers to the same input. drawn: by torch's random numbers."""

    def __init__(self, message: str, batch: "ProofBatch", drawn: bool) -> None:
        super().__init__(message)
        self.batch, self.drawn = batch, drawn


class ProofBatch:
    """A padded batch of random symbols for a variant of a model, and how to ask it."""

    def __init__(self, variant: Variant, setting: Setting) -> None:
        self.variant, self.setting = variant, setting
        self.model = model = variant.model
        self.random = torch.Generator().manual_seed(setting.seed)
        symbols = torch.tensor(model.symbols())
        if len(symbols) < 2:
            raise UserError(
                f"{len(symbols)} symbols are left of a vocabulary of {model.vocabulary_size} "
                "beside pad, start and end; the proofs need two"
            )
        self.symbols = symbols
        self.pairs: Symbols = [
            (self._row(s), self._row(t)) for s, t in lengths(setting.length, setting.rows)
        ]
        if model.equal_lengths:
            self.pairs = [(s, self._row(len(s))) for s, _ in self.pairs]
        self.src, self.tgt_in, self.tgt_out = self.make_batch(self.pairs)
        if not model.has_source:
            self.src = self.src[:, :0]
        self.real = model.real_inputs(self.tgt_in)
        self.real_source = model.real_source(self.src)
        self.needs = max(self.src.shape[1], self.tgt_in.shape[1]) + MORE
        self.shapes: Any = None  # kept by `in_many_shapes`
        self.logits = self._first_answer()
        self._measure()

    def _row(self, length: int) -> list[int]:
        """Symbols of which no two neighbours are equal."""
        start = torch.randint(len(self.symbols), (1,), generator=self.random)
        steps = torch.randint(1, len(self.symbols), (length,), generator=self.random)
        drawn: list[int] = self.symbols[(start + steps.cumsum(0)) % len(self.symbols)].tolist()
        return drawn

    def make_batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """src, tgt_in and tgt_out or None. Raises UserError for a batch maker that makes others."""
        made = foreign(self.model, "the batch maker", self.model.make_batch, pairs)
        parts = made if isinstance(made, tuple | list) else ()
        ids = [part for part in parts if isinstance(part, Tensor) and part.dtype == torch.int64]
        fits = len(parts) == 3 and len(ids) == (2 if parts[2] is None else 3)
        if not fits or any(part.dim() != 2 or len(part) != len(pairs) for part in ids):
            raise UserError(
                f"the batch maker gave {described(made)}; expected src (B, S), tgt_in (B, T) and "
                f"tgt_out (B, T), tensors of int64 ids, a row for each of {len(pairs)} pairs"
            )
        if parts[2] is not None and ids[1].shape != ids[2].shape:
            raise UserError(
                f"the batch maker gave tgt_in {tuple(ids[1].shape)} and tgt_out "
                f"{tuple(ids[2].shape)}; expected one label for each decoder input"
            )
        src, tgt_in, tgt_out = parts
        if self.model.equal_lengths:
            width = max(src.shape[1], tgt_in.shape[1])
            src = wider(src, width - src.shape[1], self.model.source_pad)
            if tgt_out is not None:
                tgt_out = wider(tgt_out, width - tgt_in.shape[1], self.model.pad_id)
            tgt_in = wider(tgt_in, width - tgt_in.shape[1], self.model.pad_id)
        return src, tgt_in, tgt_out

    def other(self, ids: Tensor) -> Tensor:
        """Other symbols than some ids, of any shape."""
        place = (self.symbols == ids[..., None]).int().argmax(-1)
        step = torch.randint(1, len(self.symbols), ids.shape, generator=self.random)
        return self.symbols[(place + step) % len(self.symbols)]

    def noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.random, dtype=torch.float64).to(like.dtype)

    # Answers -----------------------------------------------------------------------------------

    def ask(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits (B, T, V), asked for a few rows at a time where they are many and long."""
        width = max(src.shape[1], tgt_in.shape[1])
        each = LARGEST_LOGITS // max(1, tgt_in.shape[1] * self.model.vocabulary_size)
        rows = max(1, min(each, LARGEST_SCORES // width**2))
        answers = [
            self._ask(s, t) for s, t in zip(src.split(rows), tgt_in.split(rows), strict=True)
        ]
        return answers[0] if len(answers) == 1 else torch.cat(answers)

    @torch.no_grad()
    def _ask(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """The answer to copies of the ids, which are compared with the ids afterwards."""
        handed = {"src": src.clone(), "tgt_in": tgt_in.clone()}
        with calm(self.variant):
            logits = answer(self.model, *handed.values())
        for (name, left), ids in zip(handed.items(), (src, tgt_in), strict=True):
            if not torch.equal(left, ids):
                self.variant.overwritten.add(name)
        return logits

    def moved(self, new: Tensor, old: Tensor) -> Tensor:
        """How far logits moved, (B, T): the largest over the ids that count."""
        by = apart(self.tame(new), self.tame(old)).abs() * self.weight
        return by[..., self.kept].amax(-1) if bool(self.kept.any()) else by.amax(-1)

    def differ(self, new: Tensor, old: Tensor, where: Tensor) -> float:
        """The largest of `moved` at some places (B, T)."""
        return largest(self.moved(new, old)[where])

    def tame(self, logits: Tensor) -> Tensor:
        """Logits of which those that are ruled out are infinite."""
        return torch.where(logits.abs() >= self.huge, logits.sign() * math.inf, logits)

    def _measure(self) -> None:
        """How large logits are, which ids count, and what rounding may do."""
        logits = self.logits[self.real]  # (N, V)
        logits = logits[~logits.isnan().any(-1)]
        sane = bool((logits.abs() < RULED_OUT).any(-1).all())
        self.huge = RULED_OUT if sane else math.inf
        tame = self.tame(logits)
        finite = torch.where(tame.isfinite(), tame, 0.0)
        each = finite.abs().amax(0)
        spread = finite.amax(0) - finite.amin(0)
        self.kept = (spread > 1e-12 * each) | (tame.isfinite().any(0) & ~tame.isfinite().all(0))
        of = each[self.kept & (each > 0)]
        self.sees_nothing = not len(of)
        self.size = max(float(of.median() if len(of) else each.median()), 1e-30)
        self.weight = (self.size / each.clamp(min=self.size)).to(self.logits.dtype)
        if self.variant.true_precision is None:
            self.variant.true_precision = self._true_precision()
        self.dtype = self.variant.true_precision
        self.tolerance = TOLERANCE.get(self.dtype, COARSE) * self.size
        if self.dtype == torch.float32:
            self.tolerance = max(self.tolerance, min(10 * self._rounding(), 1e-4 * self.size))
        elif self.dtype not in TOLERANCE:
            with RoundedAgain():
                by = self.differ(self.ask(self.src, self.tgt_in), self.logits, self.real)
            self.tolerance = max(self.tolerance, min(by, MOST_ROUNDING * self.size))
        if self.jitter > self.tolerance:
            raise self._unsteady()
        self.tolerance = max(self.tolerance, 10 * self.jitter)

    def _rounding(self) -> float:
        """What rounding of the weights, or another number of rows, does to the logits."""
        if self.model.module is not None:
            new = self._nudged(6e-8)
        else:
            twice = [torch.cat((ids, ids)) for ids in (self.src, self.tgt_in)]
            try:
                new = self.ask(twice[0], twice[1])[: len(self.src)]
            except NoAnswer:
                return 0.0
        change = self.differ(new, self.logits, self.real)
        return change if math.isfinite(change) else 0.0

    def _true_precision(self) -> torch.dtype:
        """The dtype of the logits, or fp32 where something inside is rounded to it: where fp32
        holds the logits without loss, or where they do not follow the weights smoothly."""
        logits = self.logits
        if logits.dtype != torch.float64:
            return logits.dtype
        if torch.equal(logits.float().double().nan_to_num(), logits.nan_to_num()):
            return torch.float32
        if self.model.module is None:
            return logits.dtype
        first, second = (self._nudged(step) for step in (1e-8, 2e-8))
        steps = [self.tame(x) for x in (second, first, logits)]
        bent = apart(steps[0], steps[1]) - apart(steps[1], steps[2])  # 1e-16 where nothing rounds
        bent = (bent * self.weight)[..., self.kept][self.real].nan_to_num(0.0, 0.0, 0.0)
        rounds = largest(bent) > TOLERANCE[torch.float64] / 100 * self.size
        return torch.float32 if rounds else logits.dtype

    def _nudged(self, step: float) -> Tensor:
        """Logits with each weight moved by about `step` of itself, always the same way."""
        assert self.model.module is not None
        parameters = [p for p in self.model.module.parameters() if p.is_floating_point()]
        kept = [parameter.detach().clone() for parameter in parameters]
        random = torch.Generator().manual_seed(0)
        for parameter in parameters:
            way = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.data += step * way.to(parameter.dtype) * parameter.data
        try:
            return self.ask(self.src, self.tgt_in)
        finally:
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.data.copy_(value)

    # The loss ----------------------------------------------------------------------------------

    def loss(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The mean loss, a scalar. Raises UserError where it is none."""
        assert self.model.loss is not None
        value = foreign(self.model, "the loss function", self.model.loss, logits, tgt_out)
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"the loss function gave {what}; expected a scalar tensor, the mean")
        return value.reshape(())

    def own_loss(self, rows: slice) -> float | None:
        """What the model itself calls its loss on some rows of the batch, if it does."""
        if not self.model.has_own_loss or self.tgt_out is None:
            return None
        of: Any = self.model.call
        given = (self.src[rows].clone(), self.tgt_in[rows].clone(), self.tgt_out[rows].clone())
        try:
            with torch.no_grad():
                return float(foreign(self.model, "the model's own loss", of.loss_of, *given))
        except UserError:  # it has none
            return None

    def own_loss_of(self, row: int, labels: Tensor) -> float | None:
        """The model's own loss of one row with some labels (1, T'); None where it gives none."""
        of: Any = self.model.call
        target = self.tgt_in[row, : labels.shape[1]]
        given = (self.src[row][None].clone(), target[None].clone(), labels.clone())
        try:
            with torch.no_grad():
                return float(foreign(self.model, "the model's own loss", of.loss_of, *given))
        except UserError:
            return None

    def loss_tolerance(self, loss: Tensor | float) -> float:
        """Of losses and their gradients, as `tolerance` is of logits, in the loss's precision."""
        return TOLERANCE.get(self._loss_precision(), COARSE) * max(abs(float(loss)), 1.0)

    def _loss_precision(self) -> torch.dtype:
        """The dtype of the loss, or fp32 where the loss rounds the logits to it."""
        if self.tgt_out is None or self.model.loss is None:
            return self.dtype
        with torch.no_grad():
            value = self.loss(self.logits, self.tgt_out)
            if self.dtype == torch.float64 == value.dtype:
                rounded = float(value) == float(value.float())
                coarse = float(self.loss(self.logits.float().double(), self.tgt_out))
                return torch.float32 if rounded or coarse == float(value) else value.dtype
        coarser = (torch.float32, torch.float16, torch.bfloat16)
        return next((d for d in reversed(coarser) if d in (value.dtype, self.dtype)), self.dtype)

    def loss_gradient(self, tgt_out: Tensor) -> Tensor:
        """Of the loss with respect to the logits (B, T, V)."""
        logits = self.logits.detach().requires_grad_()
        value = self.loss(logits, tgt_out)
        if not value.requires_grad:
            raise UserError(
                "the loss function gave a scalar without a gradient; is it detached, or .item()?"
            )
        return torch.autograd.grad(value, logits)[0]

    def _first_answer(self) -> Tensor:
        """Logits of the batch, asked for twice: how far the answers are apart, and how much work
        one is, is kept."""
        try:
            first = self.ask(self.src, self.tgt_in)
            with Counted() as counted:
                again = self.ask(self.src, self.tgt_in)
            self.work = counted.work
        except NoAnswer as error:
            hint = self._too_large() if "IndexError" in str(error) else ""
            raise NoAnswer(f"{error}{hint}") from error
        if bool(first[self.real].isnan().flatten(1).any(1).all()):
            raise UserError(
                f"{self.model.name} answers an ordinary padded batch with NaN in every row; the "
                "proofs need numbers (a diverged checkpoint, or a mask that closes every key?)"
            )
        self.jitter = largest(apart(first, again).nan_to_num())
        return first

    def _too_large(self) -> str:
        """What an index is too large for: the answers without large ids on one side show it."""
        low = self.symbols[0]
        few_src, few_tgt = (
            torch.where(torch.isin(ids, self.symbols), low, ids) for ids in (self.src, self.tgt_in)
        )
        last = int(self.symbols[-1])
        if self._is_answered(few_src, self.tgt_in):
            return f"; the source has fewer ids than {last + 1}: give source_size=..."
        if self._is_answered(self.src, few_tgt):
            return f"; the target has fewer ids than {last + 1}: give a smaller vocabulary_size"
        return f"; does it take {self.needs} places (max_length=...), and ids up to {last}?"

    def _is_answered(self, src: Tensor, tgt_in: Tensor) -> bool:
        try:
            self.ask(src, tgt_in)
        except NoAnswer:
            return False
        return True

    def _unsteady(self) -> Unsteady:
        """Why the same input is answered differently: with one seed of torch's for each call, what
        is drawn is the same."""
        seeded = []
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                state = torch.manual_seed(0).get_state()
                seeded.append(self.ask(self.src, self.tgt_in))
            draws = not torch.equal(state, torch.get_rng_state())
        drawn = draws and largest(apart(*seeded).nan_to_num()) <= self.tolerance
        cause = (
            "it draws random numbers in eval mode: functional dropout without "
            "training=self.training, or sampling"
            if drawn
            else "it keeps something from call to call, or draws random numbers of its own"
        )
        module = self.model.module
        if drawn and (module is None or module.training):
            cause = "is dropout left on? call model.eval() first"
        return Unsteady(
            f"{self.model.name} answers the same input twice with logits that differ by "
            f"{self.jitter:.2g}; {cause}",
            self,
            drawn,
        )

    def wider_is_taken(self) -> None:
        """Raises UserError where a batch with a few more pads is not taken."""
        pads = (self.model.source_pad, self.model.pad_id)
        try:
            src = wider(self.src, MORE, pads[0]) if self.model.has_source else self.src
            self.ask(src, wider(self.tgt_in, MORE, pads[1]))
        except NoAnswer as error:
            raise UserError(
                f"{error}; with {MORE} places fewer it answers: if that is its limit, give it as "
                "max_length, or a smaller length"
            ) from error


def lengths(longest: int, rows: int) -> list[tuple[int, int]]:
    """Symbols of source and target of each row: long beside short ones, each side once longest."""
    first = [(longest, 2), (1, longest), (longest - 1, 1), (2, longest - 1)]
    more = [
        (1 + (7 * row) % longest, 1 + (11 * row + 4) % longest) for row in range(max(0, rows - 4))
    ]
    return [*first, *more][:rows]


def needs_sight(batch: ProofBatch) -> None:
    """Raises CannotJudge where the logits are the same whatever is asked."""
    if batch.sees_nothing:
        raise CannotJudge(
            "the logits never change, so nothing can be seen through them; is the output layer "
            "zero? train a step, or give it other weights"
        )
