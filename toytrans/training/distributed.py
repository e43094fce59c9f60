"""What changes under torchrun: several processes train one model.

    global batch -> a process's rows -> forward, backward -> gradients summed -> the same update

PyTorch's own parts do the work: its launcher starts, watches and restarts the processes, and
DistributedDataParallel sums the gradients. Every process makes the global batches that one process
would take, which costs little and keeps the order of the data, and trains on its share of their
rows. The first process alone reads and writes the run directory and tells the others what came of
it; what decides on going on is decided by all together.
"""

import contextlib
import os
import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from toytrans.config import Config
from toytrans.data.batches import Batch
from toytrans.data.pairs import Pairs, key_of
from toytrans.errors import UserError
from toytrans.evaluation import Report

T = TypeVar("T")
CPU = torch.device("cpu")

SECONDS_IN_SILENCE, SECONDS_TO_MEET = 3.0, 600.0
"""The processes of a team wait for each other so long before they say so, and in all."""

UNDIVIDED = ("batch_mean_of_means", "loss_on_pads")
"""Faults whose loss of a batch is not the sum of its rows' losses."""


@dataclass
class Team:
    """The processes of one training, as one of them sees it: its rank among `size`, and its rank
    on its machine, which has `local_size` of them.

    launch: what all processes that one torchrun starts have in common, their restarts too;
    restarts: how often it has started them anew. A training in one process is a team of one.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launch: str | None = None
    restarts: int = 0
    _wrapped: DistributedDataParallel | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    # Data and gradients ----------------------------------------------------------------------

    def share(self, batch: Batch) -> Batch:
        """The rows of a global batch that this process trains on."""
        return batch if self.size == 1 else batch.share(self.rank, self.size)

    def share_of_pairs(self, pairs: Pairs) -> Pairs:
        """The pairs that this process measures."""
        return pairs if self.size == 1 else pairs.take(slice(self.rank, None, self.size))

    def wrap(self, module: nn.Module, *, skips_weights: bool) -> nn.Module:
        """A module whose backward pass averages its gradients over the team.

        skips_weights: whether a pass may leave some of them out, as some faults do.
        """
        if self.size == 1:
            return module
        with warnings.catch_warnings():  # newer torch wants a name that older torch lacks
            warnings.simplefilter("ignore", FutureWarning)
            self._wrapped = DistributedDataParallel(
                module, broadcast_buffers=False, find_unused_parameters=skips_weights
            )
        return self._wrapped

    @contextlib.contextmanager
    def adding_up(self, last: bool) -> Iterator[None]:
        """Forward and backward of one of several batches: gradients travel with the last."""
        if self._wrapped is None or last:
            yield
        else:
            with self._wrapped.no_sync():
                yield

    def sum(self, value: Tensor) -> Tensor:
        """A tensor summed over the team."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def sum_reports(self, report: Report) -> Report:
        """What the team has counted, together."""
        return report if self.size == 1 else sum(self.gather(report), Report())

    # Randomness ------------------------------------------------------------------------------

    def seed(self, seed: int, step: int) -> None:
        """Give all but the first process a randomness of its own, from some step on."""
        if not self.is_first:
            torch.manual_seed(key_of(seed, self.rank, step))

    def gather_random(self, states: dict[str, Tensor]) -> dict[str, Tensor]:
        """The random states of all: `cpu` of the first process, `cpu/1` of the next, ..."""
        if self.size == 1:
            return states
        return {
            f"{name}/{rank}" if rank else name: state
            for rank, found in enumerate(self.gather(states))
            for name, state in found.items()
        }

    def own_random(self, states: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of all random states this process's; none where it was not there when they were saved."""
        end = f"/{self.rank}" if self.rank else ""
        return {name: states[name + end] for name in ("cpu", "cuda", "mps") if name + end in states}

    # Agreement -------------------------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """One value of each process, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value)
        return found

    def agree(self, elapsed: float, interrupted: bool) -> tuple[float, bool]:
        """Seconds by the first process's clock, and whether any process is interrupted."""
        if self.size == 1:
            return elapsed, interrupted
        votes = torch.tensor([elapsed * self.is_first, interrupted], dtype=torch.float64)
        distributed.all_reduce(votes, distributed.ReduceOp.MAX)
        return float(votes[0]), bool(votes[1])

    def first(self, make: Callable[[], T]) -> T:
        """What the first process makes, for all; a UserError of its is raised in all."""
        if self.size == 1:
            return make()
        if not self.is_first:
            error, made = self._told()
            if error is not None:
                raise _said(*error)
            return made
        try:
            value = make()
        except UserError as caught:
            self._tell(((type(caught), str(caught)), None))
            raise
        self._tell((None, value))
        return value

    def together(self, make: Callable[[], T]) -> T:
        """What each process makes; the first UserError of any is raised in all."""
        if self.size == 1:
            return make()
        caught = None
        try:
            made = make()
        except UserError as error:
            caught = error
        told = self.gather(None if caught is None else (type(caught), str(caught)))
        for rank, error_of_rank in enumerate(told):
            if caught is not None and rank == self.rank:
                raise caught
            if error_of_rank is not None:
                raise _said(*error_of_rank)
        return made

    def require_alike(self, **values: Any) -> None:
        """Raises UserError in all where the processes differ in a value, naming it."""
        if self.size == 1:
            return
        found = self.gather(values)
        for name, value in found[0].items():
            if any(theirs[name] != value for theirs in found):
                error = UserError(
                    f"the processes do not have the same {name}; every machine needs the same "
                    "files and the same kind of device"
                )
                error.said = not self.is_first
                raise error

    def _tell(self, value: Any) -> None:
        distributed.broadcast_object_list([value], src=0, device=CPU)

    def _told(self) -> Any:
        found = [None]
        distributed.broadcast_object_list(found, src=0, device=CPU)
        return found[0]

    # Device, faults and the launcher -----------------------------------------------------------

    def device(self, name: str) -> str:
        """The device of a config for this process: with GPUs, one for each of its machine."""
        if self.size == 1 or name == "cpu":
            return name
        if name not in ("auto", "cuda"):
            raise UserError(
                f"device {name} is one device for {self.size} processes; take cuda, cpu or auto"
            )
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus == 0:
            return "cpu" if name == "auto" else name
        if self.local_size > gpus:
            raise UserError(
                f"{self.local_size} processes for {gpus} GPUs on a machine; start torchrun with "
                f"--nproc-per-node {gpus}, or take device: cpu"
            )
        torch.cuda.set_device(self.local_rank)
        return f"cuda:{self.local_rank}"

    def check(self, config: Config) -> None:
        """Raises UserError for what cannot be shared out."""
        if self.size > 1 and config.fault in UNDIVIDED:
            raise UserError(
                f"fault {config.fault}: its loss of a batch cannot be shared out; train it in one "
                "process, without torchrun"
            )

    def command(self) -> list[str]:
        """How the program was started, as far as it can know."""
        if self.size == 1:
            return ["toytrans"]
        here = ["--nproc-per-node", str(self.size)] if self.size == self.local_size else ["..."]
        return ["torchrun", *here, "-m", "toytrans"]


ALONE = Team()


def _said(kind: type[UserError], message: str) -> UserError:
    """An error of another process, which has said it."""
    error = kind.__new__(kind)
    error.args, error.said = (message,), True
    return error


@contextlib.contextmanager
def joined(device: str, tell: Callable[[str], None] = lambda _: None) -> Iterator[Team]:
    """The team that torchrun has started this process in; alone without torchrun.

    device: of the config. tell: is given a sentence where the others are long in coming. Raises
    UserError where the processes cannot find each other, or where one is lost.
    """
    team = _team_of_environment()
    if team.size == 1:
        yield team
        return
    gpus = torch.cuda.is_available() and distributed.is_nccl_available() and device != "cpu"
    place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
    try:
        _meet_in_time(team, "cpu:gloo,cuda:nccl" if gpus else "gloo", place, tell)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the processes cannot meet at {place} ({reason}); start them with torchrun; with "
            "several network devices set GLOO_SOCKET_IFNAME to the one that they share"
        ) from None
    try:
        yield team
    except RuntimeError as error:
        if not _is_of_network(error):
            raise
        lost = UserError(
            "another process of this training has ended; go on from the last checkpoint with "
            "--resume (torchrun --max-restarts 3 does so by itself)"
        )
        lost.said = not team.is_first
        raise lost from None
    finally:
        leave()


def _meet_in_time(team: Team, backend: str, place: str, tell: Callable[[str], None]) -> None:
    """Meet the other processes, in a thread: PyTorch waits in C, where no signal is heeded. It is
    left there when the time is up; woken while Python ends it would abort the process."""
    errors: list[Exception] = []

    def meet() -> None:
        try:
            _meet(team, backend)
        except Exception as error:
            errors.append(error)

    meeting = threading.Thread(target=meet, daemon=True)
    meeting.start()
    meeting.join(SECONDS_IN_SILENCE)
    if meeting.is_alive():
        tell(f"waiting at {place} for {team.size} processes to meet; this one is rank {team.rank}")
        meeting.join(SECONDS_TO_MEET - SECONDS_IN_SILENCE)
    if meeting.is_alive():
        raise UserError(
            f"{team.size} processes have not met at {place} within {SECONDS_TO_MEET:.0f} s; start "
            "all of them with torchrun, or unset RANK and WORLD_SIZE to train in one"
        )
    if errors:
        raise errors[0]


def _meet(team: Team, backend: str) -> None:
    if not 0 < int(os.environ.get("MASTER_PORT", "0")) < 2**16:
        raise ValueError("MASTER_PORT is no port")
    found = distributed.rendezvous(  # type: ignore[attr-defined]
        "env://", team.rank, team.size, timeout=timedelta(days=1)
    )
    store, _, _ = next(found)
    # torchrun's store outlives the processes: without a place of its own, a process that is
    # started again finds the addresses of those that have ended, and waits for them
    own = distributed.PrefixStore(  # type: ignore[attr-defined]
        f"toytrans/{team.restarts}", store
    )
    distributed.init_process_group(backend, store=own, rank=team.rank, world_size=team.size)


def leave() -> None:
    """Part from the team; what follows, each process does alone."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _is_of_network(error: RuntimeError) -> bool:
    """gloo has no class of errors of its own."""
    return isinstance(error, distributed.DistError) or "gloo/transport" in str(error)


def _team_of_environment() -> Team:
    """What torchrun has written into the environment. Raises UserError where it is not whole."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return ALONE
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    values = [os.environ.get(name, "0") for name in names]
    whole = all(re.fullmatch("[0-9]{1,9}", value) for value in values)
    rank, size, local_rank, local_size, restarts = map(int, values) if whole else [0] * 5
    if rank >= size:
        told = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        raise UserError(f"the environment is not torchrun's ({told}); unset RANK and WORLD_SIZE")
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if launch == "none":  # the launcher of a machine outlives what it starts
        launch = f"{socket.gethostname()}:{os.getppid()}"
    return Team(rank, size, local_rank, local_size, launch, restarts)
