"""A padded batch of random symbols, and a model's answers to it, checked.

Differences are of logits, in the model's own precision: fp64 wherever it runs in it, so that a
leak of a thousandth in one layer stands far above rounding. The tolerance is a share of how large
logits are, by precision: the median over the vocabulary of each id's largest, so that an id that is
ruled out by -1e9 does not count.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.adapters import Subject, Symbols
from toytrans.insight.findings import NotApplicable

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Of how large logits are. Rounding in sound models stays below 6e-15 and 1e-6 of it, a leak of
a thousandth in one layer moves it by 3e-5 and more (scripts/fault_matrix.py, 20 shapes)."""

COARSE = 2e-2
"""The tolerance of half precision."""

SHORTEST = 4
"""Symbols that the longest sequence of the proofs has at least."""


class NoAnswer(UserError):
    """A model raised an exception of its own, or answered with something that is no logits."""


class Examples:
    """A padded batch of random symbols for a subject, and how to ask it."""

    def __init__(self, subject: Subject, length: int, seed: int) -> None:
        self.subject = subject
        self.random = torch.Generator().manual_seed(seed)
        symbols = torch.tensor(subject.symbols())
        if len(symbols) < 2:
            raise UserError(
                f"{len(symbols)} symbols are left of a vocabulary of {subject.vocabulary_size} "
                "beside pad, start and end; the proofs need two"
            )
        self.symbols = symbols
        lengths = ((length, 2), (1, length), (length - 1, 1), (2, length - 1))
        self.pairs: Symbols = [(self._row(s), self._row(t)) for s, t in lengths]
        self.src, self.tgt_in, self.tgt_out = self.make_batch(self.pairs)
        self.real = subject.real_inputs(self.tgt_in)
        self.needs = max(self.src.shape[1], self.tgt_in.shape[1]) + 3
        if subject.limit is not None and self.needs > subject.limit:
            smaller = "give a smaller length, or " if length > SHORTEST else ""
            raise UserError(
                f"{subject.name} takes {subject.limit} places and the proofs need {self.needs}; "
                f"{smaller}build the model with more"
            )
        self.logits = self._first_answer()
        finite = self.logits[self.real].nan_to_num(0.0, 0.0, 0.0).abs()
        self.size = max(float(finite.amax(0).median()), 1e-30)
        self.dtype = self._true_precision()
        self.tolerance = TOLERANCE.get(self.dtype, COARSE) * self.size

    def _row(self, length: int) -> list[int]:
        """Symbols of which no two neighbours are equal."""
        start = torch.randint(len(self.symbols), (1,), generator=self.random)
        steps = torch.randint(1, len(self.symbols), (length,), generator=self.random)
        found: list[int] = self.symbols[(start + steps.cumsum(0)) % len(self.symbols)].tolist()
        return found

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

    def loss(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The mean loss, a scalar. Raises UserError where it is none."""
        assert self.subject.loss is not None
        value = foreign(self.subject, "the loss function", self.subject.loss, logits, tgt_out)
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"the loss function gave {what}; expected a scalar tensor, the mean")
        return value.reshape(())

    def other(self, ids: Tensor) -> Tensor:
        """Other symbols than some ids, of any shape."""
        place = (self.symbols == ids[..., None]).int().argmax(-1)
        step = torch.randint(1, len(self.symbols), ids.shape, generator=self.random)
        return self.symbols[(place + step) % len(self.symbols)]

    def noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.random, dtype=torch.float64).to(like.dtype)

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

    def loss_tolerance(self, loss: Tensor | float) -> float:
        """Of losses and their gradients, as `tolerance` is of logits."""
        return TOLERANCE.get(self.dtype, COARSE) * max(abs(float(loss)), 1.0)

    def ask_again(self) -> None:
        """Raises UserError where the first batch is now answered otherwise."""
        by = largest(apart(self.ask(self.src, self.tgt_in), self.logits))
        if by > 0:
            raise UserError(
                f"{self.subject.name} answers the same input otherwise after some more calls, by "
                f"{by:.2g}; what does it keep from call to call?"
            )

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
        bent = apart(second, first) - apart(first, logits)  # 1e-16 of it where nothing rounds
        rounds = largest(bent[self.real].nan_to_num()) > TOLERANCE[torch.float64] / 100 * self.size
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

    @torch.no_grad()
    def ask(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits (B, T, V). Raises UserError where the subject answers with something else."""
        return answer(self.subject, src, tgt_in)

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
        """Logits of the batch, asked for twice, after the widest batch that any proof asks for."""
        name, pad = self.subject.name, self.subject.pad_id
        try:
            first, again = (self.ask(self.src, self.tgt_in) for _ in range(2))
        except NoAnswer as error:
            hint = f"; does it take {self.needs} places?" if "IndexError" in str(error) else ""
            raise UserError(f"{error}{hint}") from error
        try:
            self.ask(F.pad(self.src, (0, 3), value=pad), F.pad(self.tgt_in, (0, 2), value=pad))
        except NoAnswer as error:
            raise UserError(
                f"{error}; with 3 places fewer it answers: if that is its limit, give a smaller "
                "length"
            ) from error
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


def answer(subject: Subject, src: Tensor, tgt_in: Tensor) -> Tensor:
    """What a subject says to src (B, S) and tgt_in (B, T), checked: logits (B, T, V)."""
    wanted = (*tgt_in.shape, subject.vocabulary_size)
    asked = f"{subject.name}, asked with src {tuple(src.shape)} and tgt_in {tuple(tgt_in.shape)},"
    try:
        logits = foreign(subject, asked, subject.call, src, tgt_in)
    except UserError as error:
        raise NoAnswer(str(error)) from error
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        what = str(logits.dtype) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise NoAnswer(f"{asked} gave {what}; expected logits, a floating-point tensor {wanted}")
    if tuple(logits.shape) != wanted:
        raise NoAnswer(
            f"{asked} gave shape {tuple(logits.shape)}; expected {wanted}: batch first, places, "
            "vocabulary"
        )
    logits = logits.clone() if logits.is_inference() else logits
    return logits.cpu()


def foreign(subject: Subject, what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function that may be somebody else's; whatever it raises is told in one line."""
    if subject.ours is not None:
        return function(*given)
    try:
        return function(*given)
    except NotApplicable:  # said by a hook of ours
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
