"""A padded batch of random symbols, and a model's answers to it, checked.

Differences are of logits, in the model's own precision: fp64 wherever it runs in it, so that a
leak of a thousandth in one layer stands far above rounding. The tolerance is a share of the
largest logit, by precision.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.adapters import Subject, Symbols

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Of the largest logit. Rounding in sound models stays below 3e-15 and 5e-7 of it, a leak of a
thousandth in one layer moves it by 1e-5 and more (scripts/fault_matrix.py, 20 shapes)."""

COARSE = 2e-2
"""The tolerance of half precision."""


class NoAnswer(UserError):
    """A model raised an exception of its own, or answered with something that is no logits."""


class Examples:
    """A padded batch of random symbols for a subject, and how to ask it."""

    def __init__(self, subject: Subject, length: int, seed: int) -> None:
        self.subject = subject
        self.random = torch.Generator().manual_seed(seed)
        symbols = torch.tensor(subject.symbols())
        if len(symbols) < 3:
            raise UserError(
                f"{len(symbols)} symbols are left of a vocabulary of {subject.vocabulary_size} "
                "beside pad, start and end; the proofs need three"
            )
        self.symbols = symbols
        lengths = ((length, 2), (1, length), (length - 1, 1), (2, length - 1))
        self.pairs: Symbols = [(self._row(s), self._row(t)) for s, t in lengths]
        self.src, self.tgt_in, self.tgt_out = self.make_batch(self.pairs)
        self.real = subject.real_inputs(self.tgt_in)
        self.needs = max(self.src.shape[1], self.tgt_in.shape[1]) + 3
        if subject.limit is not None and self.needs > subject.limit:
            raise UserError(
                f"{subject.name} takes {subject.limit} places and the proofs need {self.needs}; "
                "give a smaller length, or build the model with more"
            )
        self.logits = self._first_answer()
        self.size = float(self.logits[self.real].nan_to_num().abs().max())
        self.tolerance = TOLERANCE.get(self.logits.dtype, COARSE) * max(self.size, 1e-30)

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

    def loss_tolerance(self, loss: Tensor | float) -> float:
        """Of losses and their gradients, as `tolerance` is of logits."""
        return TOLERANCE.get(self.logits.dtype, COARSE) * max(abs(float(loss)), 1.0)

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
        first, again = (self.ask(self.src, self.tgt_in) for _ in range(2))
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
        if not torch.equal(first.nan_to_num(), again.nan_to_num()):
            by = float((first - again).nan_to_num().abs().max())
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
    return logits.cpu()


def foreign(subject: Subject, what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function that may be somebody else's; whatever it raises is told in one line."""
    if subject.ours is not None:
        return function(*given)
    try:
        return function(*given)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"{what} raised {type(error).__name__}: {first}") from error


def largest(difference: Tensor) -> float:
    """The largest absolute number; NaN if there is one, 0 of nothing."""
    return float(difference.detach().abs().max()) if difference.numel() else 0.0


def worst(differences: Iterable[float]) -> float:
    """The largest of some differences; NaN is larger than any."""
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value)
