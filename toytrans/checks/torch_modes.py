"""What torch does while a model is asked: dropout that does nothing, work that is counted, products
that are rounded once more, and tensors that are afterwards what they were."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout}
DROPOUTS |= {F.alpha_dropout, F.feature_alpha_dropout}

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
        if func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            named = named | {"dropout_p": 0.0} if len(args) <= 4 else named
        return func(*args, **named)


def set_dropout_to_zero(module: nn.Module) -> None:
    """Set every rate of dropout or of skipped layers to zero."""
    configs = {id(c): c for part in module.modules() if (c := getattr(part, "config", None))}
    for owner in (*module.modules(), *configs.values()):
        is_dropout = isinstance(owner, nn.Module) and "drop" in type(owner).__name__.lower()
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            is_named = "drop" in name.lower() or "jitter" in name.lower()
            is_named = is_named or (is_dropout and name in ("p", "rate", "prob"))
            if is_named and isinstance(value, float) and 0 < value <= 1:
                with contextlib.suppress(Exception):
                    setattr(owner, name, 0.0)


class CountWork(TorchFunctionMode):
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


class RoundProducts(TorchFunctionMode):
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
        way = 2 * torch.rand(result.shape, generator=self.random).to(result.device) - 1
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
                if tensor.shape == value.shape and not _are_equal(tensor, value):
                    tensor.data.copy_(value)


def _are_equal(a: Tensor, b: Tensor) -> bool:
    """Whether tensors hold the same numbers; False where torch cannot tell, as of sparse ones."""
    try:
        return torch.equal(a, b)
    except (RuntimeError, NotImplementedError):
        return False


@contextlib.contextmanager
def zeroed(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Parameters are all zero meanwhile."""
    with restored(tensors) as kept:
        for tensor in kept:
            tensor.data.zero_()
        yield


@contextlib.contextmanager
def outputs_of(module: nn.Module) -> Iterator[dict[str, Any]]:
    """What each part of a module gives meanwhile, by its name, in the order in which the parts end;
    of a part that runs more than once the last."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for name, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):  # which takes no hooks

                def keep(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
                    found[name] = output

                stack.callback(part.register_forward_hook(keep).remove)
        yield found


@contextlib.contextmanager
def undisturbed(module: nn.Module | None) -> Iterator[None]:
    """A module in eval mode, whose parts are afterwards as they were; gradients may be taken,
    whatever the program has set; and a small model has one thread, for several would wait for each
    other."""
    before = {} if module is None else {part: part.training for part in module.modules()}
    weights, threads = () if module is None else module.parameters(), torch.get_num_threads()
    is_small = sum(weight.numel() for weight in weights) < 2_000_000
    try:
        torch.set_num_threads(1 if is_small else threads)
        if module is not None:
            module.eval()
        with torch.inference_mode(False):
            yield
    finally:
        torch.set_num_threads(threads)
        for part, training in before.items():
            part.training = training
