"""Save and load checkpoints, safely.

    checkpoints/step-N/{weights,optimizer,random}.safetensors, checkpoint.json

A checkpoint is written under another name, flushed and renamed, so a crash leaves the ones before
it whole. Nothing that is read can run code; every file's SHA-256 is checked.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from toytrans.errors import UserError
from toytrans.model.transformer import Transformer
from toytrans.reading import Unreadable, open_regular, read_whole
from toytrans.training.failpoint import failpoint

FORMAT = 1
CHECKPOINTS, DESCRIPTION = "checkpoints", "checkpoint.json"
MOST_BYTES = 1_000_000
"""Of a description."""

Count = Annotated[int, Field(ge=0, le=2**53)]


@dataclass
class Progress:
    """Everything but tensors that a training run needs to go on."""

    step: Count = 0
    dealt: Count = 0
    """training pairs taken from the stream"""
    target_tokens: Count = 0
    elapsed_s: float = 0.0
    best_step: Count | None = None
    best_exact_match: float = -1.0
    best_loss: float | None = None
    evaluations_since_best: Count = 0
    window: dict[str, Count | Annotated[float, Field(ge=0, le=2**53)]] = field(default_factory=dict)
    """sums since the last record"""


@dataclass
class Checkpoint:
    """progress; weights, optimizer moments and random states by name."""

    progress: Progress
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]


# Writing -------------------------------------------------------------------------------------


def save_checkpoint(run: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint under a temporary name, flush it, rename it, drop those not needed.

    Kept are the newest two and the best. Raises UserError where the disk refuses; what was
    there before is then untouched.
    """
    step = checkpoint.progress.step
    folder = run / CHECKPOINTS
    draft, final = folder / f".step-{step}", folder / f"step-{step}"
    with saying_what_failed(run, f"the checkpoint of step {step}"):
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            sums = {}
            for name in ("weights", "optimizer", "random"):
                raw = safetensors.torch.save(_contiguous(getattr(checkpoint, name)))
                sums[f"{name}.safetensors"] = hashlib.sha256(raw).hexdigest()
                write_file(draft / f"{name}.safetensors", raw)
                failpoint(f"whole-{name}.safetensors")
            about = {"format": FORMAT, "sha256": sums, "progress": asdict(checkpoint.progress)}
            write_file(
                draft / DESCRIPTION, (json.dumps(about, indent=1, allow_nan=False) + "\n").encode()
            )
            failpoint(f"whole-{DESCRIPTION}")
            _flush_folder(draft)
            if final.exists():  # a damaged one that training has now passed again
                _set_aside(final)
                failpoint("set-aside")
            draft.rename(final)
            failpoint("renamed")
            _flush_folder(folder)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    passed = [other for other in saved_steps(run) if other <= step]  # later ones were damaged
    keep = {*passed[-2:], checkpoint.progress.best_step}
    for entry in list(folder.iterdir()):
        known = entry.name.removeprefix("step-")
        if not (known.isascii() and known.isdigit()) or int(known) not in keep:
            with contextlib.suppress(OSError):
                doomed = _set_aside(entry) if entry.name.startswith("step-") else entry
                failpoint("pruning")
                shutil.rmtree(doomed)


def _set_aside(folder: Path) -> Path:
    """Take its name from a checkpoint at once: half deleted it is none, not a damaged one."""
    aside = folder.with_name(f".old-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def write_file(path: Path, raw: bytes) -> None:
    """Write a file so that it is either old or new, never half."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        write_out(file, raw, path.name)
    draft.replace(path)


def write_out(file: BinaryIO, raw: bytes, name: str) -> None:
    """Write bytes and see them through to the disk. name: of the failpoint halfway."""
    half = len(raw) // 2
    file.write(memoryview(raw)[:half])
    file.flush()
    failpoint(f"half-{name}")
    file.write(memoryview(raw)[half:])
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


@contextlib.contextmanager
def saying_what_failed(run: Path, what: str) -> Iterator[None]:
    """Turn the disk's refusal into a UserError that names the checkpoint to go on from."""
    try:
        yield
    except OSError as error:
        steps = saved_steps(run)
        intact = f"; step {steps[-1]} is intact, go on from it with --resume" if steps else ""
        reason = error.strerror or error
        raise UserError(f"{run}: {what} cannot be written ({reason}){intact}") from None


# Reading -------------------------------------------------------------------------------------


def saved_steps(run: Path) -> list[int]:
    """Steps of the finished checkpoints, in order."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        entries = os.listdir(run / CHECKPOINTS)
        names = [name.removeprefix("step-") for name in entries if name.startswith("step-")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def load_checkpoint(run: Path, step: int, *, training: bool = True) -> Checkpoint:
    """Read and verify a checkpoint. training: moments and random states too.

    Raises UserError for a file that is missing, cut short, changed, or not what training writes.
    """
    about = _read_description(run, step)
    weights = _read_tensors(run, step, "weights", about.sha256)
    if not training:
        return Checkpoint(about.progress, weights, {}, {})
    optimizer = _read_tensors(run, step, "optimizer", about.sha256)
    random = _read_tensors(run, step, "random", about.sha256)
    return Checkpoint(about.progress, weights, optimizer, random)


class _Description(BaseModel):
    """checkpoint.json."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    sha256: dict[str, str]
    progress: Progress


def _read_description(run: Path, step: int) -> _Description:
    folder = run / CHECKPOINTS / f"step-{step}"
    try:
        raw = read_whole(folder / DESCRIPTION, MOST_BYTES)
        format = _ANY_FORMAT.validate_json(raw).get("format")
        if isinstance(format, int) and format > FORMAT:
            raise UserError(
                f"{folder}: format {format} is newer than this toytrans reads ({FORMAT}); "
                "update toytrans"
            )
        about = _Description.model_validate_json(raw)
    except (OSError, Unreadable):
        raise _damaged(run, step, DESCRIPTION, "missing or unreadable") from None
    except ValidationError as error:
        raise _damaged(run, step, DESCRIPTION, f"damaged ({_first_problem(error)})") from None
    if about.progress.step != step:
        raise _damaged(run, step, DESCRIPTION, f"damaged (it is of step {about.progress.step})")
    return about


_ANY_FORMAT = TypeAdapter(dict[str, Any])


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"])))


def _read_tensors(run: Path, step: int, name: str, sums: dict[str, str]) -> dict[str, Tensor]:
    """One file's tensors. It is held in memory only if its checksum is right."""
    file = f"{name}.safetensors"
    try:
        with open_regular(run / CHECKPOINTS / f"step-{step}" / file) as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != sums.get(file):
                raise _damaged(run, step, file, "cut short or changed (wrong checksum)")
            opened.seek(0)
            tensors = safetensors.torch.load(opened.read())
    except (OSError, Unreadable):
        raise _damaged(run, step, file, "missing or unreadable") from None
    except (SafetensorError, ValueError, KeyError):
        raise _damaged(run, step, file, "not a safetensors file") from None
    for key, tensor in tensors.items():
        if tensor.dtype in (torch.float32, torch.float64) and not bool(tensor.isfinite().all()):
            raise _damaged(run, step, file, f"{key} holds NaN or infinity")
    return tensors


class DamagedCheckpoint(UserError):
    """A checkpoint that cannot be used; the message names the previous one."""


def _damaged(run: Path, step: int, file: str, how: str) -> DamagedCheckpoint:
    before = [other for other in saved_steps(run) if other < step]
    remedy = (
        f"the previous checkpoint is step {before[-1]}: take it with --checkpoint {before[-1]}"
        if before
        else "there is no earlier checkpoint; train again"
    )
    return DamagedCheckpoint(f"{run / CHECKPOINTS / f'step-{step}' / file}: {how}; {remedy}")


def pick_step(run: Path, which: str) -> int:
    """The step of `best`, `last` or a number. Raises UserError naming those that exist."""
    steps = saved_steps(run)
    if not steps:
        raise UserError(f"{run}: no checkpoint yet; let `toytrans train` finish, or --resume it")
    if which == "last":
        return steps[-1]
    if which == "best":
        for step in reversed(steps):
            with contextlib.suppress(DamagedCheckpoint):
                best = _read_description(run, step).progress.best_step
                return best if best in steps else step
        return steps[-1]
    if not (which.isascii() and which.isdigit()) or int(which) not in steps:
        raise UserError(
            f"{run}: no checkpoint {which}; there are best, last and the steps "
            f"{', '.join(map(str, steps))}"
        )
    return int(which)


def load_weights(model: Transformer, weights: dict[str, Tensor], place: str) -> None:
    """Copy weights into a model of the same tensors. Raises UserError naming the first misfit."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    if words := misfit(parameters, weights):
        raise UserError(f"{place}: {words}; the two do not belong together")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def misfit(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str | None:
    """The first tensor, by name, that only one side has, or whose shape or dtype differs."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            return f"tensor {name} is missing"
        if name not in ours:
            return f"tensor {name} is none of the model of config.yaml"
        have, want = theirs[name], ours[name]
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            return (
                f"tensor {name} has shape {tuple(have.shape)} ({_dtype(have)}), the model of "
                f"config.yaml {tuple(want.shape)} ({_dtype(want)})"
            )
    return None


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
