"""A training within a program of the user's: while it computes, the settings and random numbers of
the process are its own; in between they are the program's."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

from toytrans.model.backends.cpu import leave_products_to_onednn, products_as_they_are
from toytrans.training.devices import choose_arithmetic, keep_freed_memory


class Isolation:
    """`with isolation.inside():` switches to the settings of a training, and back at the end."""

    def __init__(self) -> None:
        self._resume: Callable[[], None] = _start

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        put_back = _settings()
        self._resume()
        try:
            yield
        finally:
            self._resume = _settings()
            put_back()


def _start() -> None:
    """The settings of a process that trains and does nothing else."""
    keep_freed_memory()
    leave_products_to_onednn(False)
    choose_arithmetic()


def _settings() -> Callable[[], None]:
    """What puts random states and arithmetic back as they are now."""
    put_products_back, state = products_as_they_are(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    on_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    flushed = sys.float_info.min / 2 == 0

    def put_back() -> None:
        put_products_back()
        torch.set_flush_denormal(flushed)
        torch.set_rng_state(state)
        if on_gpu:
            torch.cuda.set_rng_state_all(on_gpu)
        if on_mps is not None:
            torch.mps.set_rng_state(on_mps)

    return put_back
