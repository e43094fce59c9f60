"""Several processes, which torchrun has started, train one model: each takes its rows of a batch,
and gradients are summed once a step. The first alone evaluates and writes. One process does all."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from toytrans.errors import UserError
from toytrans.training.signals import handled_by

LONGEST_WAIT = timedelta(hours=1)  # for another process, to start or to evaluate


def rank_and_processes() -> tuple[int, int]:
    """The rank of this process, and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def sum_over_processes(loss: Tensor, parameters: Iterable[nn.Parameter]) -> None:
    """Sum the loss and the gradients of all processes, in place."""
    if distributed.is_initialized():
        tensors = [loss, *(each.grad for each in parameters if each.grad is not None)]
        distributed.all_reduce(summed := nn.utils.parameters_to_vector(tensors))
        nn.utils.vector_to_parameters(summed, tensors)


def gather(value: Any) -> list[Any]:
    """The values that all processes have, by rank. Each waits here for the others."""
    values = [value] * rank_and_processes()[1]
    if distributed.is_initialized():
        distributed.all_gather_object(values, value)
    return values


@contextmanager
def connect(device: str) -> Iterator[str]:
    """Connect the processes, and yield the device of this one. Raises UserError if one is lost."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield device
        return
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    try:
        with handled_by(signal.SIG_DFL):  # what waits in C calls no handler of Python's
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            distributed.init_process_group(backend, timeout=LONGEST_WAIT)
        yield f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if on_gpu else device
        distributed.destroy_process_group()
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise  # an error of the training itself
        lost = "another process of this training has ended, or cannot be reached"
        raise UserError(f"{lost}; go on from the last checkpoint with --resume") from None
