"""A recorder that holds on to memory as CUDA graphs do, without a GPU."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from toytrans.model import context
from toytrans.model.backends import cpu, dropout
from toytrans.model.recorder import RunAgain, Work


class Tape(RunAgain):
    """Notes every operation with its very tensors. A replay computes them again from the same
    memory into the same memory, and runs no Python of the work.

    As on a GPU, recording computes nothing: what it wrote outside is put back, and what it made is
    spoilt. So is what a later record made, in each replay: both may have the same memory, if the
    earlier one had freed it. To read a number back is an error.
    """

    def __init__(self) -> None:
        self.records: list[_Notes] = []

    def record(self, work: Work) -> Callable[[], Any]:
        notes = _Notes()
        with torch.random.fork_rng([]), notes:
            work()
        notes.undo()
        self.records.append(notes)
        number = len(self.records)

        def replay() -> None:
            for later in self.records[number:]:
                later.spoil()
            notes.replay()

        return replay


class Lifetimes(RunAgain):
    """Fails where a CUDA graph would read memory that is gone. A replay runs the work again."""

    def record(self, work: Work) -> Callable[[], Any]:
        notes = _Notes()
        with torch.random.fork_rng([]), notes:
            work()
        notes.undo()
        outside = notes.outside()

        def replay() -> None:
            assert all(memory() is not None for memory in outside), "what the work read is gone"
            work()

        return replay


class _Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.made: dict[int, Tensor] = {}
        self.spoilt = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert "local_scalar" not in str(func) and "nonzero" not in str(func), f"{func} reads"
        taken = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        for tensor in _written(func, args, kwargs):
            if _memory(tensor) not in self.made:
                whole = _whole(tensor)
                self.before.setdefault(_memory(tensor), (whole, whole.clone()))
        found = func(*args, **kwargs)
        for tensor in _tensors(found):
            if _memory(tensor) not in taken:
                self.made[_memory(tensor)] = tensor
        self.calls.append((func, args, kwargs, found))
        return found

    def outside(self) -> list[weakref.ref[Any]]:
        """The memory that was there before, and that the work has read or written."""
        every = {_memory(t): t for call in self.calls for t in _tensors(call[1:3])}
        there = [tensor for number, tensor in every.items() if number not in self.made]
        return [weakref.ref(tensor.untyped_storage()) for tensor in there]

    @torch.no_grad()
    def undo(self) -> None:
        for tensor, value in self.before.values():
            tensor.copy_(value)
        self.spoil()

    @torch.no_grad()
    def spoil(self) -> None:
        """Spoil what was made, once until it is made again."""
        for tensor in () if self.spoilt else self.made.values():
            _whole(tensor).fill_(torch.nan if tensor.is_floating_point() else -(2**40))
        self.spoilt = True

    @torch.no_grad()
    def replay(self) -> None:
        self.spoilt = False
        for func, args, kwargs, found in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(found), _tensors(again), strict=True):
                if _memory(old) != _memory(new):
                    old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for part in tree for tensor in _tensors(part)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor's memory, flat."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from _tensors(given)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the CPU's path reads on the host, it leaves as a GPU's path does."""

    def of(mask: Tensor, distances: Any, dtype: torch.dtype) -> context.AttentionContext:
        visible = context.has_visible_key(mask)
        numbers = context.for_kernel(mask, visible, torch.promote_types(dtype, torch.float32))
        return context.AttentionContext(mask, numbers, visible, distances)

    def keep_mask(x: Tensor, rate: float) -> Tensor:
        return F.dropout(torch.ones_like(x), rate)

    monkeypatch.setattr(context.AttentionContext, "of", staticmethod(of))
    for module in (cpu, dropout):
        monkeypatch.setattr(module, "keep_mask", keep_mask)
