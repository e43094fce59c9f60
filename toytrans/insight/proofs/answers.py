"""How a model is asked, and what its answers are compared with."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.proofs.copies import NoDropout, Variant, state_kept
from toytrans.insight.proofs.model_under_test import ModelUnderTest
from toytrans.insight.proofs.report import CannotJudge, NotApplicable
from toytrans.user_code import RAISED


class NoAnswer(UserError):
    """A model raised an exception of its own, or answered with something that is no logits."""


def wider(ids: Tensor, places: int, value: int, left: bool = False) -> Tensor:
    """Rows of ids with pads behind them, or before."""
    return F.pad(ids, (places, 0) if left else (0, places), value=value)


@contextlib.contextmanager
def calm(variant: Variant) -> Iterator[None]:
    """A variant in train mode is asked without dropout, and keeps its buffers. Ours needs no such
    care: its rates of dropout are zero already."""
    module = variant.model.module
    if module is None or not variant.training or variant.model.ours is not None:
        yield
        return
    with state_kept(module), NoDropout(variant):
        yield


def answer(model: ModelUnderTest, src: Tensor, tgt_in: Tensor) -> Tensor:
    """What a model answers to src (B, S) and tgt_in (B, T), checked: logits (B, T, V). An encoder
    may pool them: its logits (B, C) then stand at every place. It is handed the ids themselves."""
    pools = model.kind == "encoder"
    size = None if pools else model.vocabulary_size
    rows, places = tgt_in.shape
    wanted = f"({rows}, {places}, {'C' if pools else size})"
    of = f"src {tuple(src.shape)} and tgt_in" if model.has_source else "ids"
    asked = f"{model.name}, asked with {of} {tuple(tgt_in.shape)},"
    try:
        logits = foreign(model, asked, model.call, src, tgt_in)
    except UserError as error:
        raise NoAnswer(str(error)) from error
    logits = logits_of(logits)
    if pools and isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == rows:
        logits = logits[:, None].expand(-1, places, -1)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        what = str(logits.dtype) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise NoAnswer(f"{asked} gave {what}; expected logits, a floating-point tensor {wanted}")
    if tuple(logits.shape[:-1]) != tuple(tgt_in.shape) or size not in (None, logits.shape[-1]):
        raise NoAnswer(
            f"{asked} gave shape {tuple(logits.shape)}; expected {wanted}: batch first, places, "
            + ("classes; or, of a pooled one, rows and classes" if pools else "vocabulary")
        )
    return logits.clone().cpu() if model.ours is None else logits


def logits_of(answer: Any) -> Any:
    """The logits in what a model returns: itself, `.logits`, ["logits"], or of a tuple the first
    tensor of numbers (B, T, V)."""
    if isinstance(answer, Tensor):
        return answer
    if isinstance(getattr(answer, "logits", None), Tensor):
        return answer.logits
    if isinstance(answer, dict) and isinstance(answer.get("logits"), Tensor):
        return answer["logits"]
    if isinstance(answer, tuple | list):
        for part in answer:
            if isinstance(part, Tensor) and part.is_floating_point() and part.dim() == 3:
                return part
    last = getattr(answer, "last_hidden_state", None)
    return last if isinstance(last, Tensor) else answer


def foreign(model: ModelUnderTest, what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function that may be somebody else's; what it raises becomes one line."""
    if model.ours is not None:
        return function(*given)
    try:
        return function(*given)
    except (NotApplicable, CannotJudge):  # raised by a hook of ours
        raise
    except RAISED as error:
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


def chosen(count: int, most: int) -> list[int]:
    """Of the places 0 .. count - 1 the ends and some between, `most` at most."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
