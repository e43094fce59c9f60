"""Data-parallel training under torchrun: several processes train one model.

    global batch -> a shard of its rows -> forward, backward -> gradients summed -> the same update

torchrun starts, watches and restarts the processes. Rank 0 alone reads and writes the run
directory. All ranks decide together when to stop.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from toytrans.data.batches import Batch
from toytrans.data.hashing import key_of
from toytrans.data.pairs import DataFacts, Pairs
from toytrans.errors import UserError
from toytrans.evaluation import Scores, evaluate
from toytrans.model.seq2seq import Seq2Seq
from toytrans.training.signals import handled_by

T = TypeVar("T")

TIME_TO_CONNECT = timedelta(minutes=10)


@dataclass
class DistributedContext:
    """The processes of one training, as one of them sees it.

    rank, size: this process among all of them. local: its rank among those of its machine.
    restarts, max_restarts: how often torchrun has started the processes anew, and may do so.
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    restarts: int = 0
    max_restarts: int = 0

    # Data and gradients

    def shard(self, batch: Batch) -> Batch:
        """The rows of a global batch that this process trains on."""
        return batch if self.size == 1 else batch.shard(self.rank, self.size)

    def share(self, model: nn.Module) -> None:
        """Give the model of every process the weights of rank 0."""
        if self.size > 1:
            for weight in model.parameters():
                distributed.broadcast(weight.detach(), src=0)

    def sum(self, value: Tensor) -> Tensor:
        """A tensor summed over all processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of all processes, of which each has those of its shard."""
        gradients = [p.grad for p in parameters if p.grad is not None] if self.size > 1 else []
        if gradients:
            summed = self.sum(nn.utils.parameters_to_vector(gradients))
            nn.utils.vector_to_parameters(summed, gradients)

    def evaluate(self, model: Seq2Seq, pairs: Pairs, facts: DataFacts) -> Scores:
        """The scores of pairs, of which each process measures some."""
        own = pairs if self.size == 1 else pairs.take(slice(self.rank, None, self.size))
        first, *others = self.gather(evaluate(model, own, facts))
        return sum(others, first)

    def seed(self, seed: int, step: int) -> None:
        """Seed every rank except 0 differently for a step, so that a checkpoint need not hold its
        random state."""
        if self.rank:
            torch.manual_seed(key_of(seed, self.rank, step))

    # Agreement

    def gather(self, value: T) -> list[T]:
        """One value of each process, in the order of their ranks."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return values

    def agree(self, elapsed: float, interrupted: bool) -> tuple[float, bool]:
        """Seconds on the clock of rank 0, and whether any process is interrupted."""
        if self.size == 1:
            return elapsed, interrupted
        votes = torch.tensor([elapsed * (self.rank == 0), interrupted], dtype=torch.float64)
        distributed.all_reduce(votes, distributed.ReduceOp.MAX)
        return float(votes[0]), bool(votes[1])

    def on_all(self, make: Callable[[], T]) -> T:
        """The value that each rank makes. The UserError of the lowest rank is raised in all."""
        if self.size == 1:
            return make()
        value, problem = None, None
        try:
            value = make()
        except UserError as error:
            problem = str(error)
        for rank, theirs in enumerate(self.gather(problem)):
            if theirs is not None:
                raise UserError(f"rank {rank}: {theirs}" if rank else theirs)
        return value  # type: ignore[return-value]

    def on_main(self, make: Callable[[], T]) -> T:
        """The value that rank 0 makes, sent to all ranks. Its UserError is raised in all."""
        if self.size == 1:
            return make()
        value = self.on_all((lambda: None) if self.rank else make)
        return self.gather(value)[0]  # type: ignore[return-value]

    def require_equal(self, **values: Any) -> None:
        """Raise UserError in all ranks if a value differs between them. The error names it."""
        of_rank = self.gather(values)
        for name, value in of_rank[0].items():
            if any(theirs[name] != value for theirs in of_rank):
                raise UserError(
                    f"the processes do not have the same {name}; every machine needs the same "
                    "files and the same kind of device"
                )

    def device(self, name: str) -> str:
        """The device of this process: with GPUs, one for each process of a machine.

        name: the device of the config. Raises UserError if it is one for several processes.
        """
        if self.size == 1 or name == "cpu":
            return name
        if name not in ("auto", "cuda"):
            raise UserError(
                f"device {name} is one device for {self.size} processes; take cuda, cpu or auto"
            )
        return "cpu" if name == "auto" and not torch.cuda.is_available() else f"cuda:{self.local}"


SINGLE_PROCESS = DistributedContext()


@contextlib.contextmanager
def init_distributed(device: str) -> Iterator[DistributedContext]:
    """Connect the processes that torchrun has started. Yields SINGLE_PROCESS without torchrun.

    device: the device of the config.
    Raises UserError if the processes cannot connect, or if one ends early.
    """
    context = _context_of_environment()
    if context.size == 1:
        yield context
        return
    gpus = torch.cuda.is_available() and distributed.is_nccl_available() and device != "cpu"
    # torchrun's store outlives the processes: without a prefix of its own, a process that is
    # started again finds the addresses of those that have ended, and waits for them
    prefix = f"toytrans/{context.restarts}"
    try:
        with handled_by(signal.SIG_DFL):  # what waits in C calls no handler of Python
            rank, size = context.rank, context.size
            found = distributed.rendezvous("env://", rank, size, timeout=TIME_TO_CONNECT)  # type: ignore[attr-defined]
            store = distributed.PrefixStore(prefix, next(found)[0])  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
            distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{context.size} processes cannot connect at {place} ({reason}); start all of them "
            "with torchrun, or unset RANK and WORLD_SIZE to train in one"
        ) from None
    try:
        yield context
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors
        if not isinstance(error, distributed.DistError) and "gloo/transport" not in str(error):
            raise
        raise UserError(
            "another process of this training has ended; go on from the last checkpoint with "
            "--resume (torchrun --max-restarts 3 does so by itself)"
        ) from None
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _context_of_environment() -> DistributedContext:
    """The context in the variables of torchrun. Raises UserError if they are not."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return SINGLE_PROCESS
    restarts = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
    values = [os.environ.get(n, "0") for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *restarts)]
    if all(value.isdecimal() and len(value) < 10 for value in values):
        context = DistributedContext(*map(int, values))
        if context.rank < context.size:
            return context
    raise UserError(
        f"the environment is not torchrun's (RANK={values[0]}, WORLD_SIZE={values[1]}); unset "
        "RANK and WORLD_SIZE"
    )
