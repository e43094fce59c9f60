"""The whole step of a small model as a CUDA graph, captured once for each shape of a batch.

    batch -> fixed tensors of its shape -> forward, loss, backward, clip, AdamW -> loss and norm

A small step keeps a GPU waiting for hundreds of launches, and a graph has one. The first batch of a
shape takes an eager step, which also warms up what a graph needs; the second one is captured, and
from then on batches of that shape are copied into the memory that the graph reads, and replayed.
Eager and captured steps have the same bits, because both read the learning rate and the number of
tokens from the same scalars on the device, and because a replay moves dropout's generator on as an
eager step does. So a checkpoint holds nothing of graphs.
"""

import gc
import os
from collections.abc import Callable

import torch
from torch import Tensor

from toytrans.config.schema import Settings
from toytrans.data.batches import Batch, Shape
from toytrans.errors import ran_out_of_memory
from toytrans.training.devices import Precision, generators

EAGER = "TOYTRANS_EAGER"
"""The environment variable that switches graphs off, for whoever looks for an error."""

WIDEST = 256
"""The largest d_model whose steps are captured. Wider models keep a GPU busy anyway, and graphs
would take the memory that they need."""

Work = Callable[[], object]

Capture = Callable[[Work], Work]
"""Captures some work without doing it, and returns what replays it."""

Step = Callable[[list[Batch], int | Tensor, float | Tensor], tuple[Tensor, Tensor]]
"""A step of training: (parts of the batch, divisor of the loss, learning rate) -> summed loss, norm
of the gradient. It reads nothing back from the device."""


class CudaSteps:
    """Takes the steps of a training, and captures those whose shape comes again.

    why_eager: why no step is captured, in a few words; empty if steps are.
    """

    def __init__(
        self,
        device: torch.device,
        capture: Capture | None,
        report: Callable[[str], object],
        why_eager: str = "",
    ) -> None:
        """capture: None captures nothing. report: gets a sentence for the user."""
        self.device, self.capture, self.report = device, capture, report
        self.why_eager = why_eager
        self.met = set[Shape]()
        self.graphs: dict[Shape, tuple[Batch, Work]] = {}
        self.divisor, self.lr, self.loss, self.norm = (
            torch.zeros((), device=device) for _ in range(4)
        )
        self.generator = generators()[str(device)]  # CUDA has none before the first tensor

    def take(
        self, step: Step, parts: list[Batch], divisor: int, lr: float
    ) -> tuple[Tensor, Tensor]:
        """Take a step. Returns its summed loss and the norm of its gradient, which the next call
        may overwrite."""
        self.divisor.fill_(divisor)
        self.lr.fill_(lr)
        if self.capture is None:
            return step(parts, self.divisor, self.lr)
        (batch,) = parts
        shape = Shape(len(batch.src), batch.src.shape[1], batch.tgt_in.shape[1])
        if shape in self.graphs:
            return self._replay(shape, batch)
        before = self.generator.get_state()
        try:
            if shape not in self.met:
                self.met.add(shape)
                return step(parts, self.divisor, self.lr)
            self.graphs[shape] = self._capture(step, batch)
            return self._replay(shape, batch)
        except Exception as error:
            # what ends a failed capture may raise an error of its own
            if not any(map(ran_out_of_memory, filter(None, (error, error.__context__)))):
                raise
        self._give_up()
        self.generator.set_state(before)
        return step(parts, self.divisor, self.lr)

    def _replay(self, shape: Shape, batch: Batch) -> tuple[Tensor, Tensor]:
        fixed, replay = self.graphs[shape]
        kept = fixed.named()
        for name, ids in batch.to(self.device).named().items():
            kept[name].copy_(ids)
        replay()
        return self.loss, self.norm

    def _capture(self, step: Step, batch: Batch) -> tuple[Batch, Work]:
        """The batch that a graph reads, and what replays it."""
        ids = {name: ids.to(self.device, copy=True) for name, ids in batch.named().items()}
        fixed = Batch(**ids)

        def work() -> None:
            loss, norm = step([fixed], self.divisor, self.lr)
            self.loss.copy_(loss)
            self.norm.copy_(norm)

        assert self.capture is not None
        return fixed, self.capture(work)

    def _give_up(self) -> None:
        """Give back the memory of all graphs, and capture no more."""
        self.capture = None
        self.graphs.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.report(
            "out of memory with CUDA graphs: all graphs are dropped; this step and later "
            "ones are eager, which gives the same numbers"
        )


def graphs_on_cuda(
    settings: Settings,
    device: torch.device,
    precision: Precision,
    processes: int,
    report: Callable[[str], object],
) -> CudaSteps:
    """What takes the steps of a run on a CUDA device, and captures them where that is of use."""
    why = why_eager(settings, precision, processes)
    return CudaSteps(device, None if why else cuda_capture(device), report, why)


def why_eager(settings: Settings, precision: Precision, processes: int) -> str:
    """Why the steps of a run are not captured, in a few words; empty if they are."""
    reasons = {
        f"{EAGER} is set": bool(os.environ.get(EAGER)),
        f"d_model above {WIDEST}": settings.model.d_model > WIDEST,
        "several processes": processes > 1,
        "train.accumulate": settings.train.accumulate > 1,
        "train.precision fp64": precision == "fp64",
        "a fault": settings.fault is not None,
        "code of your own": any(key.startswith("model.") for key in settings.references),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def cuda_capture(device: torch.device) -> Capture:
    """What captures CUDA graphs, which share one pool of memory.

    A graph writes all that it reads there, so it may use what the one before it has freed.
    """
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def capture(work: Work) -> Work:
        """Capture some work on the stream of all graphs. Returns what replays it."""
        outside = torch.cuda.current_stream(device)
        graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.disable()  # a CUDA graph that is freed breaks a capture
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                work()
        finally:
            torch.cuda.set_stream(outside)  # a capture that fails may leave its own in its place
            if collects:
                gc.enable()
        replay: Work = graph.replay
        return replay

    return capture
