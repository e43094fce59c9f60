"""The whole update as a CUDA graph: recorded once for each shape of a batch, then replayed.

    batch -> fixed tensors of its shape -> forward, loss, backward, clip, AdamW -> loss and norm

A small step on a GPU waits for hundreds of launches; a graph has one. It reads and writes fixed
memory: the ids of a batch, the learning rate and the number of tokens; the summed loss and the
norm of the gradient. Weights are updated in place. Dropout draws from the default generator, which
a replay moves on as the eager step does, so a checkpoint holds the random state as usual.
"""

import gc
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from toytrans.config.schema import Settings
from toytrans.data.batches import Batch
from toytrans.errors import UserError
from toytrans.training.devices import Precision
from toytrans.training.optimizer import AdamW

Work = Callable[[], object]

Capture = Callable[[Work, Work], Work]
"""(warm-up, work) -> what repeats the work. The warm-up leaves no trace in the random states."""


def cuda_capture(device: torch.device) -> Capture:
    """What records CUDA graphs, which share one pool of memory.

    A graph writes all that it reads there, so it may use what the one before it has freed.
    """
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def capture(warm_up: Work, work: Work) -> Work:
        outside = torch.cuda.current_stream(device)
        stream.wait_stream(outside)
        with torch.random.fork_rng([device], device_type="cuda"), torch.cuda.stream(stream):
            warm_up()
        outside.wait_stream(stream)
        graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.disable()  # a CUDA graph that is freed breaks a capture
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                work()
        finally:
            if collects:
                gc.enable()
        replay: Work = graph.replay
        return replay

    return capture


class EagerStep(Protocol):
    """What a graph records: the trainer's step."""

    device: torch.device
    optimizer: AdamW

    def update(
        self, parts: list[Batch], tokens: int | Tensor, lr: float | Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def backward(self, parts: list[Batch], tokens: int | Tensor) -> Tensor: ...


class GraphedUpdate:
    """The trainer's `update` of one batch with the same numbers, recorded once for each shape.

    graphs: by shape, the fixed batch that a graph reads, and what replays it.
    """

    def __init__(self, capture: Capture, eager: EagerStep) -> None:
        self.capture, self.eager, device = capture, eager, eager.device
        self.graphs: dict[tuple[int, ...], tuple[Batch, Work]] = {}
        # AdamW's kernel for a GPU reads an fp32 rate; that for a CPU takes a number as fp64
        rate = torch.float32 if device.type == "cuda" else torch.float64
        self.lr = torch.zeros((), dtype=rate, device=device)
        self.tokens, self.loss, self.norm = (torch.zeros((), device=device) for _ in range(3))

    def __call__(self, parts: list[Batch], tokens: int, lr: float) -> tuple[Tensor, Tensor]:
        """As `update`; the next call overwrites the summed loss and the norm."""
        (batch,) = parts
        self.lr.fill_(lr)
        self.tokens.fill_(tokens)
        shape = (*batch.src.shape, batch.tgt_in.shape[1])
        if shape not in self.graphs:
            src, tgt_in, tgt_out = (ids.to(self.eager.device, copy=True) for ids in batch)
            fixed = Batch(src, tgt_in, tgt_out, batch.count())  # no graph can count
            self.graphs[shape] = fixed, self._record(fixed)
        fixed, replay = self.graphs[shape]
        for kept, ids in zip(fixed, batch.to(self.eager.device), strict=True):
            kept.copy_(ids)
        replay()
        return self.loss, self.norm

    def _record(self, fixed: Batch) -> Work:
        zero_grad = self.eager.optimizer.zero_grad

        def warm_up() -> None:
            zero_grad()
            self.eager.backward([fixed], self.tokens)
            zero_grad()  # so that they are made anew, in the graph's memory

        def work() -> None:
            loss, norm = self.eager.update([fixed], self.tokens, self.lr)
            self.loss.copy_(loss)
            self.norm.copy_(norm)

        replay = self.capture(warm_up, work)
        zero_grad()
        return replay


def choose_capture(
    config: Settings, device: torch.device, precision: Precision, processes: int
) -> Capture | None:
    """What records the updates of a run; None = nothing does. Raises UserError for those that no
    graph can hold."""
    if not config.train.cuda_graphs:
        return None
    own = config.fault or any(key.startswith("model.") for key in config.references)
    several = processes > 1 or config.train.accumulate > 1
    if device.type != "cuda" or precision == "fp64" or own or several:
        raise UserError(
            "train.cuda_graphs needs a CUDA device, one process, accumulate: 1, no fault, "
            "no code of your own, and fp32 or bf16; leave it out"
        )
    return cuda_capture(device)
