"""What `check` leaves as it was: the modules that it meets, with their weights, buffers and modes,
and the state of random numbers."""

import contextlib
import functools
import inspect
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.torch_modes import restored

MOST_FOLLOWED = 1000
"""Values that are followed from a function to the modules that it runs."""


@contextlib.contextmanager
def caller_unchanged(*given: Any) -> Iterator[None]:
    """Modules that were given, or that functions which were given run, are afterwards what they
    were, whatever is asked of them and however that ends; so is the state of random numbers."""
    parts = {part for module in modules_behind(*given) for part in module.modules()}
    attributes = {part: _attributes(part) for part in parts}
    tensors = {x for part in parts for x in (*part.parameters(False), *part.buffers(False))}
    try:
        with _random_state_kept(), restored(filter(_has_numbers, tensors)):
            yield
    finally:
        for part, before in attributes.items():
            _give_back(part, before)


def modules_behind(*given: Any) -> list[nn.Module]:
    """The modules among some values, and those that functions among them hold: in their closures,
    defaults and names, as methods, or as attributes of a callable object."""
    found, waiting, followed = list[nn.Module](), list(given), set[int]()
    while waiting and len(followed) < MOST_FOLLOWED:
        value = waiting.pop()
        if id(value) in followed:
            continue
        followed.add(id(value))
        if isinstance(value, nn.Module):
            found.append(value)
        else:
            waiting += _held_by(value)
    return found


def _held_by(value: Any) -> list[Any]:
    """What a function may run."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        inside = inspect.getclosurevars(value)
        globals_ = [x for x in inside.globals.values() if isinstance(x, nn.Module) or callable(x)]
        return [*inside.nonlocals.values(), *globals_, *(value.__defaults__ or ())]
    if callable(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        return list(vars(value).values())
    return []


def _has_numbers(tensor: Tensor) -> bool:
    return not tensor.is_meta and not nn.parameter.is_lazy(tensor)


def _attributes(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module, and the parameters and buffers that it holds, by their names."""
    kept: dict[str, Any] = {"training": part.training}
    if not isinstance(part, torch.jit.ScriptModule):  # which keeps them elsewhere
        kept |= vars(part)
        kept |= {name: dict(vars(part)[name]) for name in ("_parameters", "_buffers")}
    return kept


def _give_back(part: nn.Module, before: dict[str, Any]) -> None:
    """Give a module the attributes that it had."""
    if isinstance(part, torch.jit.ScriptModule):
        part.training = before["training"]
        return
    now = vars(part)
    for name in ("_parameters", "_buffers"):
        now[name].clear()
        now[name].update(before.pop(name))
    for name in now.keys() - before.keys() - {"_parameters", "_buffers"}:
        del now[name]
    now.update(before)


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """Random numbers of Python, NumPy and torch go on afterwards as if none had been drawn."""
    numpy = sys.modules.get("numpy")
    plain = random.getstate()
    of_numpy = None if numpy is None else numpy.random.get_state()
    is_running = torch.cuda.is_available() and torch.cuda.is_initialized()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if is_running else ()):
            yield
    finally:
        random.setstate(plain)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
