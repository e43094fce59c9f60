"""What torch does while a model is asked: dropout left out, work counted, products rounded once
more, tensors restored afterwards. This module knows torch alone."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
}

PRODUCTS = re.compile("linear|mm|matmul|einsum|attention|encoder_layer|lstm|gru|rnn")
"""Functions that sum many products, by their names."""

CALL = 50_000
"""Multiplications that take about as long as calling a function."""


class NoDropout(TorchFunctionMode):
    """Dropout that a model calls as a function, with a rate that no attribute holds, does nothing.
    drops_masked: whether it is handed scores of which some are masked."""

    drops_masked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in DROPOUTS:
            given = args[0] if args else named["input"]
            if given.numel() and bool(given.detach().min() < -1e4):
                self.drops_masked = True
            return given
        if func is F.scaled_dot_product_attention and "dropout_p" in named:
            named = named | {"dropout_p": 0.0}
        return func(*args, **named)


class Watched(TorchFunctionMode):
    """The work of an answer: multiplications in its products, and its calls of functions. It is the
    same on any machine. rounds: whether something in fp64 is rounded to fewer digits."""

    work, rounds = 0, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.work += CALL
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, Tensor) or first.is_nested:
            return result
        given = [t for a in args for t in (a if isinstance(a, tuple | list) else (a,))]
        given = [t for t in given if isinstance(t, Tensor) and not t.is_nested]
        if first.is_floating_point() and first.dtype != torch.float64:
            self.rounds |= any(t.dtype == torch.float64 for t in given)
        if PRODUCTS.search(getattr(func, "__name__", "")) and given and given[0].dim():
            self.work += first.numel() * given[0].shape[-1]
        return result


class RoundedAgain(TorchFunctionMode):
    """Products that are not in fp64 differ in their last bit, as if they were summed in another
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not PRODUCTS.search(getattr(func, "__name__", "")) or not isinstance(result, Tensor):
            return result
        if not result.is_floating_point() or result.dtype == torch.float64 or result.is_nested:
            return result
        way = 2 * torch.rand(result.shape, generator=self.random) - 1
        return (result.double() * (1 + way * torch.finfo(result.dtype).eps / 2)).to(result.dtype)


@contextlib.contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors, which are afterwards what they were."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield [tensor for tensor, _ in kept]
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                if tensor.shape == value.shape and not torch.equal(tensor, value):
                    tensor.data.copy_(value)


@contextlib.contextmanager
def zeroed(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Parameters are all zero meanwhile."""
    with restored(tensors) as kept:
        for tensor in kept:
            tensor.data.zero_()
        yield


@contextlib.contextmanager
def in_eval_mode(module: nn.Module | None) -> Iterator[None]:
    """A module and its parts, which are then as they were."""
    before = {} if module is None else {part: part.training for part in module.modules()}
    try:
        if module is not None:
            module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training


@contextlib.contextmanager
def on_one_thread(module: nn.Module | None) -> Iterator[None]:
    """Small models gain nothing by several threads, which wait for each other at every step."""
    before = torch.get_num_threads()
    weights = () if module is None else module.parameters()
    count = sum(p.numel() for p in weights)
    torch.set_num_threads(1 if count < 2_000_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
