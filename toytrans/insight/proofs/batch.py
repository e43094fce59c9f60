"""A padded batch of random symbols, and a model's answers to it, checked.

Differences are of logits, in the model's own precision: fp64 wherever it runs in it, so that a
leak of a thousandth in one layer stands far above rounding. The tolerance is a share of how large
logits are, by precision: the median over the vocabulary of each id's largest. Logits that are
ruled out, by -inf or a large negative number, count as one value; ids that never change do not
count.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.proofs.copies import NoDropout, Variant, state_kept
from toytrans.insight.proofs.report import CannotJudge, NotApplicable
from toytrans.insight.proofs.subject import Subject, Symbols

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Of how large logits are. Rounding in sound models stays below 6e-15 and 1e-6 of it, a leak of
a thousandth in one layer moves it by 3e-5 and more (scripts/fault_matrix.py, 20 shapes)."""

COARSE = 2e-2
"""The tolerance of half precision."""

SHORTEST = 4
"""Symbols that the longest sequence of the proofs has at least."""

MORE = 3
"""Pads that are appended."""

RULED_OUT = 5e3
"""Logits beyond it stand for -inf, where every place has smaller ones too."""

LARGEST_LOGITS, LARGEST_SCORES = 2**25, 2**22
"""Numbers in the logits, and in the scores of one head, of one call: longer ones are parted."""


class NoAnswer(UserError):
    """A model raised an exception of its own, or answered with something that is no logits."""


@dataclass(frozen=True)
class Setting:
    """What one batch is made of: symbols of its longest sequence, rows, and a seed."""

    length: int
    rows: int
    seed: int


class Examples:
    """A padded batch of random symbols for a variant of a subject, and how to ask it."""

    def __init__(self, variant: Variant, setting: Setting) -> None:
        self.variant, self.setting = variant, setting
        self.subject = subject = variant.subject
        self.random = torch.Generator().manual_seed(setting.seed)
        symbols = torch.tensor(subject.symbols())
        if len(symbols) < 2:
            raise UserError(
                f"{len(symbols)} symbols are left of a vocabulary of {subject.vocabulary_size} "
                "beside pad, start and end; the proofs need two"
            )
        self.symbols = symbols
        self.pairs: Symbols = [
            (self._row(s), self._row(t)) for s, t in lengths(setting.length, setting.rows)
        ]
        if subject.equal_lengths:
            self.pairs = [(s, self._row(len(s))) for s, _ in self.pairs]
        self.src, self.tgt_in, self.tgt_out = self.make_batch(self.pairs)
        if not subject.has_source:
            self.src = self.src[:, :0]
        elif subject.equal_lengths:
            self.src, self.tgt_in, self.tgt_out = self._made_equal()
        self.real = subject.real_inputs(self.tgt_in)
        self.real_source = subject.real_source(self.src)
        self.needs = max(self.src.shape[1], self.tgt_in.shape[1]) + MORE
        self.logits = self._first_answer()
        self._measure()

    def _row(self, length: int) -> list[int]:
        """Symbols of which no two neighbours are equal."""
        start = torch.randint(len(self.symbols), (1,), generator=self.random)
        steps = torch.randint(1, len(self.symbols), (length,), generator=self.random)
        found: list[int] = self.symbols[(start + steps.cumsum(0)) % len(self.symbols)].tolist()
        return found

    def _made_equal(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The batch with source and target padded to one width."""
        width = max(self.src.shape[1], self.tgt_in.shape[1])
        tgt_out = self.tgt_out
        if tgt_out is not None:
            tgt_out = wider(tgt_out, width - tgt_out.shape[1], self.subject.pad_id)
        return (
            wider(self.src, width - self.src.shape[1], self.subject.source_pad),
            wider(self.tgt_in, width - self.tgt_in.shape[1], self.subject.pad_id),
            tgt_out,
        )

    def make_batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """src, tgt_in and tgt_out or None. Raises UserError for a batch maker that makes others."""
        made = foreign(self.subject, "the batch maker", self.subject.make_batch, pairs)
        parts = made if isinstance(made, tuple | list) else ()
        ids = [part for part in parts if isinstance(part, Tensor) and part.dtype == torch.int64]
        fits = len(parts) == 3 and len(ids) == (2 if parts[2] is None else 3)
        if not fits or any(part.dim() != 2 or len(part) != len(pairs) for part in ids):
            raise UserError(
                "the batch maker gave something else than src (B, S), tgt_in (B, T) and tgt_out "
                f"(B, T) of int64 ids, a row for each of {len(pairs)} pairs"
            )
        if parts[2] is not None and ids[1].shape != ids[2].shape:
            raise UserError(
                f"the batch maker gave tgt_in {tuple(ids[1].shape)} and tgt_out "
                f"{tuple(ids[2].shape)}; expected one label for each decoder input"
            )
        src, tgt_in, tgt_out = parts
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
        each = LARGEST_LOGITS // max(1, tgt_in.shape[1] * self.subject.vocabulary_size)
        rows = max(1, min(each, LARGEST_SCORES // width**2))
        answers = [
            self._ask(s, t) for s, t in zip(src.split(rows), tgt_in.split(rows), strict=True)
        ]
        return answers[0] if len(answers) == 1 else torch.cat(answers)

    @torch.no_grad()
    def _ask(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        with calm(self.variant):
            return answer(self.subject, src, tgt_in)

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
        self.dtype = self._true_precision()
        self.tolerance = TOLERANCE.get(self.dtype, COARSE) * self.size
        if self.dtype == torch.float32:
            self.tolerance = max(self.tolerance, min(10 * self._rounding(), 1e-4 * self.size))

    def _rounding(self) -> float:
        """What rounding of the weights, or another number of rows, does to the logits."""
        if self.subject.module is not None:
            new = self._nudged(6e-8)
        else:
            twice = [torch.cat((ids, ids)) for ids in (self.src, self.tgt_in)]
            try:
                new = self.ask(twice[0], twice[1])[: len(self.src)]
            except NoAnswer:
                return 0.0
        found = self.differ(new, self.logits, self.real)
        return found if math.isfinite(found) else 0.0

    def _true_precision(self) -> torch.dtype:
        """The dtype of the logits, or fp32 where something inside is rounded to it: where fp32
        holds the logits without loss, or where they do not follow the weights smoothly."""
        logits = self.logits
        if logits.dtype != torch.float64:
            return logits.dtype
        if torch.equal(logits.float().double().nan_to_num(), logits.nan_to_num()):
            return torch.float32
        if self.subject.module is None:
            return logits.dtype
        first, second = (self._nudged(step) for step in (1e-8, 2e-8))
        steps = [self.tame(x) for x in (second, first, logits)]
        bent = apart(steps[0], steps[1]) - apart(steps[1], steps[2])  # 1e-16 where nothing rounds
        bent = (bent * self.weight)[..., self.kept][self.real].nan_to_num(0.0, 0.0, 0.0)
        rounds = largest(bent) > TOLERANCE[torch.float64] / 100 * self.size
        return torch.float32 if rounds else logits.dtype

    def _nudged(self, step: float) -> Tensor:
        """Logits with each weight moved by about `step` of itself, always the same way."""
        assert self.subject.module is not None
        parameters = [p for p in self.subject.module.parameters() if p.is_floating_point()]
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
        assert self.subject.loss is not None
        value = foreign(self.subject, "the loss function", self.subject.loss, logits, tgt_out)
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"the loss function gave {what}; expected a scalar tensor, the mean")
        return value.reshape(())

    def own_loss(self, rows: slice) -> float | None:
        """What the model itself calls its loss on some rows of the batch, if it does."""
        if not self.subject.has_own_loss or self.tgt_out is None:
            return None
        of: Any = self.subject.call
        given = (self.src[rows], self.tgt_in[rows], self.tgt_out[rows])
        try:
            with torch.no_grad():
                return float(foreign(self.subject, "the model's own loss", of.loss_of, *given))
        except UserError:  # it has none
            return None

    def own_loss_of(self, row: int, labels: Tensor) -> float | None:
        """The model's own loss of one row with some labels (1, T'); None where it gives none."""
        of: Any = self.subject.call
        given = (self.src[row][None], self.tgt_in[row][None, : labels.shape[1]], labels)
        try:
            with torch.no_grad():
                return float(foreign(self.subject, "the model's own loss", of.loss_of, *given))
        except UserError:
            return None

    def loss_tolerance(self, loss: Tensor | float) -> float:
        """Of losses and their gradients, as `tolerance` is of logits, in the loss's precision."""
        return TOLERANCE.get(self._loss_precision(), COARSE) * max(abs(float(loss)), 1.0)

    def _loss_precision(self) -> torch.dtype:
        """The dtype of the loss, or fp32 where the loss rounds the logits to it."""
        if self.tgt_out is None or self.subject.loss is None:
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
        """Logits of the batch, asked for twice."""
        name = self.subject.name
        try:
            first, again = (self.ask(self.src, self.tgt_in) for _ in range(2))
        except NoAnswer as error:
            ids = self.subject.vocabulary_size - 1
            hint = f"; does it take {self.needs} places, and ids up to {ids}?"
            raise NoAnswer(f"{error}{hint if 'IndexError' in str(error) else ''}") from error
        if bool(first[self.real].isnan().flatten(1).any(1).all()):
            raise UserError(
                f"{name} answers an ordinary padded batch with NaN in every row; the proofs need "
                "numbers (a diverged checkpoint, or a mask that closes every key?)"
            )
        by = largest(apart(first, again).nan_to_num())
        if by > 0:
            raise UserError(
                f"{name} answers the same input twice with logits that differ by {by:.2g}; "
                "is dropout left on? call model.eval() first"
            )
        return first

    def wider_is_taken(self) -> None:
        """Raises UserError where a batch with a few more pads is not taken."""
        pads = (self.subject.source_pad, self.subject.pad_id)
        try:
            src = wider(self.src, MORE, pads[0]) if self.subject.has_source else self.src
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


def wider(ids: Tensor, places: int, value: int, left: bool = False) -> Tensor:
    """Rows of ids with pads behind them, or before."""
    return F.pad(ids, (places, 0) if left else (0, places), value=value)


@contextlib.contextmanager
def calm(variant: Variant) -> Iterator[None]:
    """A variant in train mode is asked without dropout, and keeps its buffers."""
    module = variant.subject.module
    if module is None or not variant.training:
        yield
        return
    with state_kept(module), NoDropout():
        yield


def answer(subject: Subject, src: Tensor, tgt_in: Tensor) -> Tensor:
    """What a subject answers to src (B, S) and tgt_in (B, T), checked: logits (B, T, V)."""
    size = None if subject.kind == "encoder" else subject.vocabulary_size
    wanted = (*tgt_in.shape, subject.vocabulary_size)
    of = f"src {tuple(src.shape)} and tgt_in" if subject.has_source else "ids"
    asked = f"{subject.name}, asked with {of} {tuple(tgt_in.shape)},"
    try:
        logits = foreign(subject, asked, subject.call, src.clone(), tgt_in.clone())
    except UserError as error:
        raise NoAnswer(str(error)) from error
    logits = logits_of(logits, tuple(tgt_in.shape))
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        what = str(logits.dtype) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise NoAnswer(f"{asked} gave {what}; expected logits, a floating-point tensor {wanted}")
    if tuple(logits.shape[:-1]) != tuple(tgt_in.shape) or size not in (None, logits.shape[-1]):
        raise NoAnswer(
            f"{asked} gave shape {tuple(logits.shape)}; expected {wanted}: batch first, places, "
            "vocabulary"
        )
    return logits.clone().cpu() if subject.ours is None else logits


def logits_of(found: Any, shape: tuple[int, ...]) -> Any:
    """The logits in what a model returns: itself, `.logits`, ["logits"], or of a tuple the first
    tensor of numbers (B, T, V)."""
    if isinstance(found, Tensor):
        return found
    if isinstance(getattr(found, "logits", None), Tensor):
        return found.logits
    if isinstance(found, dict) and isinstance(found.get("logits"), Tensor):
        return found["logits"]
    if isinstance(found, tuple | list):
        for part in found:
            if isinstance(part, Tensor) and part.is_floating_point() and part.dim() == 3:
                return part
    last = getattr(found, "last_hidden_state", None)
    return last if isinstance(last, Tensor) else found


def foreign(subject: Subject, what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function that may be somebody else's; what it raises is told in one line."""
    if subject.ours is not None:
        return function(*given)
    try:
        return function(*given)
    except (NotApplicable, CannotJudge):  # raised by a hook of ours
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"{what} raised {type(error).__name__}: {first}") from error


def apart(a: Tensor, b: Tensor) -> Tensor:
    """a - b, where equal infinities are 0 apart."""
    return torch.where(a == b, torch.zeros_like(a), a - b)


def largest(difference: Tensor) -> float:
    """The largest absolute number; NaN if there is one, 0 of nothing."""
    return float(difference.detach().abs().max()) if difference.numel() else 0.0


def worst(differences: Iterable[float]) -> float:
    """The largest of some differences; NaN is larger than any."""
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value)
