"""Work that a GPU records once and then replays with one launch.

A recorder has two methods, so that whoever uses one can be tested without a GPU:

    warm_up(work)  runs work aside; afterwards every kernel and table that it needs is there
    record(work)   returns what repeats the work; recording itself computes nothing

Work obeys the rules of CUDA graphs. Its shapes are fixed, and it reads nothing back. It takes its
input from tensors that stay where they are, and leaves its results in such tensors. Where one piece
of work goes on from another, both are replayed in the order in which they were recorded.

A replay reads the weights where they are, so updates in place are seen. Dropout draws from the
default generator at its present state, and moves it on as the same work without a graph would
(torch, "Note [CUDA Graph-safe RNG states]"). So a checkpoint holds the state as usual.
"""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from toytrans.model.positions.base import Positions
from toytrans.model.transformer import Transformer

Work = Callable[[], Any]


class Recorder(Protocol):
    """What records work on a device."""

    def warm_up(self, work: Work) -> None:
        """Run work without a trace in the random states."""

    def record(self, work: Work) -> Callable[[], Any]:
        """What repeats the work, from its first call on."""


class CudaRecorder:
    """Records CUDA graphs; all of them share one pool of memory.

    Memory that a graph's work has freed is used by the next graph. That is safe, since a graph
    writes what it reads, or goes on from the one before it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_warm = device, False
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        """Run work on the stream that records: twice at first, then once."""
        outside = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(outside)
        random = torch.random.fork_rng([self.device], device_type="cuda")
        with random, torch.cuda.stream(self.stream):
            for _ in range(1 if self.is_warm else 2):
                work()
        outside.wait_stream(self.stream)
        self.is_warm = True

    def record(self, work: Work) -> Callable[[], None]:
        """A CUDA graph of the work. Raises what the work raises, say that memory ran out."""
        graph, raised = torch.cuda.CUDAGraph(), list[Exception]()
        try:
            with (
                _no_collector(),
                torch.cuda.device(self.device),
                torch.cuda.stream(self.stream),  # a broken capture would leave it current
                torch.cuda.graph(graph, pool=self.pool, stream=self.stream),
            ):
                try:
                    work()
                except Exception as error:
                    raised.append(error)
                    raise
        except RuntimeError as error:  # the end of a broken capture fails too
            raise (raised or [error])[0] from None
        replay: Callable[[], None] = graph.replay
        return replay


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Garbage collection is off inside: a CUDA graph that is freed breaks a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class RunAgain:
    """A recorder for tests without a GPU: a replay runs the work again."""

    def warm_up(self, work: Work) -> None:
        with torch.random.fork_rng([]):
            work()

    def record(self, work: Work) -> Callable[[], Any]:
        return work


class Tables:
    """The tables of a model's position schemes, which grow as longer sequences are met.

    A graph reads a table where it was, so tables get their final size before the first record.
    Should one be replaced all the same, the old one stays in `kept`, and graphs still read it.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.kept: list[Tensor] = []

    def make_room(self, places: int) -> None:
        """Let every table serve sequences of so many places."""
        for scheme in self._schemes():
            scheme.make_room(places, self.model.output.weight)

    @contextlib.contextmanager
    def fixed(self) -> Iterator[None]:
        """Inside, no table may be replaced: a graph would make it anew in each replay."""
        before = self.now()
        yield
        same = [a is b for a, b in zip(before, self.now(), strict=True)]
        assert all(same), "a table of positions was replaced while a graph was recorded"

    def keep(self) -> None:
        """Keep the tables as they are now."""
        known = {id(table) for table in self.kept}
        self.kept += [table for table in self.now() if id(table) not in known]

    def now(self) -> list[Tensor]:
        """Every table of the model."""
        return [
            value
            for scheme in self._schemes()
            for value in vars(scheme).values()
            if isinstance(value, Tensor)
        ]

    def _schemes(self) -> Iterable[Positions]:
        return (module for module in self.model.modules() if isinstance(module, Positions))
