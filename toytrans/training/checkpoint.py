"""Save and load checkpoints.

    checkpoints/step-N/{weights,optimizer,random}.safetensors, checkpoint.json

A checkpoint is written under a temporary name, flushed and renamed. So a crash leaves older
checkpoints intact. Reading cannot execute code, and the SHA-256 of every file is checked.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from toytrans.config.schema import TrainConfig
from toytrans.errors import UserError
from toytrans.files import Unreadable, flush_folder, open_regular, read_whole, write_file
from toytrans.model.seq2seq import Seq2Seq
from toytrans.training.owned import (
    DESCRIPTION,
    MOST_BYTES,
    PARTS,
    checkpoint_folder,
    discard_draft,
    new_draft,
    place_checkpoint,
    prune,
    saved_steps,
    saying_what_failed,
)

FORMAT = 1

Count = Annotated[int, Field(ge=0, le=2**53)]


@dataclass
class Progress:
    """Everything except tensors that a training needs to continue.

    dealt: training pairs taken from the stream.
    elapsed_s: seconds of training, over all sessions.
    window: sums since the last record.
    """

    step: Count = 0
    dealt: Count = 0
    target_tokens: Count = 0
    elapsed_s: float = 0.0
    best_step: Count | None = None
    best_exact_match: float = -1.0
    best_loss: float | None = None
    evaluations_since_best: Count = 0
    window: dict[str, Count | Annotated[float, Field(ge=0, le=2**53)]] = field(default_factory=dict)

    def goal_reached(self, train: TrainConfig) -> Literal["stop_at_exact_match", "patience"] | None:
        """The reason to stop after the evaluations so far, if there is one."""
        goal = train.stop_at_exact_match
        if goal is not None and self.best_exact_match >= goal:
            return "stop_at_exact_match"
        if train.patience is not None and self.evaluations_since_best >= train.patience:
            return "patience"
        return None

    def is_finished(self, train: TrainConfig) -> bool:
        """Whether the training has reached a limit or its goal."""
        late = train.max_seconds is not None and self.elapsed_s >= train.max_seconds
        return late or self.step >= train.max_steps or self.goal_reached(train) is not None


@dataclass
class Checkpoint:
    """One checkpoint in memory.

    weights: by parameter name.
    optimizer: moments and step counts of AdamW, by "parameter/name".
    random: states of the generators, by type of device and rank.
    """

    progress: Progress
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]


# Writing -------------------------------------------------------------------------------------


def save_checkpoint(run: Path, checkpoint: Checkpoint, keep: int = 2) -> None:
    """Write a checkpoint, and delete older ones except the newest `keep` and the best.

    Raises UserError if a file cannot be written. Older checkpoints then stay as they were.
    """
    step = checkpoint.progress.step
    with saying_what_failed(run, f"the checkpoint of step {step}"):
        draft = new_draft(run, step)
        try:
            sums = {}
            for name in PARTS:
                raw = safetensors.torch.save(_contiguous(getattr(checkpoint, name)))
                sums[f"{name}.safetensors"] = hashlib.sha256(raw).hexdigest()
                write_file(draft / f"{name}.safetensors", raw)
            about = {"format": FORMAT, "sha256": sums, "progress": asdict(checkpoint.progress)}
            write_file(
                draft / DESCRIPTION, (json.dumps(about, indent=1, allow_nan=False) + "\n").encode()
            )
            flush_folder(draft)
            place_checkpoint(run, step, draft)
        except (OSError, UserError):
            discard_draft(draft)
            raise
    passed = [other for other in saved_steps(run) if other <= step]
    best = checkpoint.progress.best_step
    prune(run, [other for other in passed[:-keep] if other != best])


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


# Reading -------------------------------------------------------------------------------------


def most_bytes_of(model: Seq2Seq) -> int:
    """The most bytes of a file in a checkpoint of a model: two moments of each number, and what
    names and random states take."""
    return 2 * sum(tensor.nbytes for tensor in weights_of(model).values()) + 2**24


def load_checkpoint(
    run: Path, step: int, *, most_bytes: int | None = None, training: bool = True
) -> Checkpoint:
    """Read and verify a checkpoint.

    most_bytes: the size from which a file is refused unread, `most_bytes_of` its model; None = any.
    training: whether to read moments and random states too.
    Raises UserError for a file that is missing, cut short, changed, or not written by training.
    """
    about = _read_description(run, step)
    parts: dict[str, dict[str, Tensor]] = dict.fromkeys(PARTS, {})
    for name in PARTS if training else PARTS[:1]:
        parts[name] = _read_tensors(run, step, name, about.sha256, most_bytes)
    return Checkpoint(about.progress, **parts)


class _Description(BaseModel):
    """checkpoint.json."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    sha256: dict[str, str]
    progress: Progress


def read_progress(run: Path, step: int) -> Progress:
    """The progress of a checkpoint. Raises UserError."""
    return _read_description(run, step).progress


def _read_description(run: Path, step: int) -> _Description:
    folder = checkpoint_folder(run, step)
    try:
        raw = read_whole(folder / DESCRIPTION, MOST_BYTES)
        format = _ANY_FORMAT.validate_json(raw).get("format")
        if isinstance(format, int) and format > FORMAT:
            raise UserError(
                f"{folder}: format {format} is newer than this toytrans reads ({FORMAT}); "
                "update toytrans"
            )
        about = _Description.model_validate_json(raw)
    except (OSError, Unreadable) as error:
        raise _damaged(run, step, DESCRIPTION, _why(error)) from None
    except ValidationError as error:
        raise _damaged(run, step, DESCRIPTION, f"damaged ({_first_problem(error)})") from None
    if about.progress.step != step:
        raise _damaged(run, step, DESCRIPTION, f"damaged (it is of step {about.progress.step})")
    return about


_ANY_FORMAT = TypeAdapter(dict[str, Any])


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"])))


def _read_tensors(
    run: Path, step: int, name: str, sums: dict[str, str], most_bytes: int | None
) -> dict[str, Tensor]:
    """The tensors of one file. The file is read into memory only if its checksum is right."""
    file = f"{name}.safetensors"
    try:
        with open_regular(checkpoint_folder(run, step) / file) as opened:
            size = os.fstat(opened.fileno()).st_size
            if most_bytes is not None and size > most_bytes:
                raise _damaged(run, step, file, f"{size:,} bytes are too many for its model")
            if hashlib.file_digest(opened, "sha256").hexdigest() != sums.get(file):
                raise _damaged(run, step, file, "cut short or changed (wrong checksum)")
            opened.seek(0)
            tensors = safetensors.torch.load(opened.read())
    except (OSError, Unreadable) as error:
        raise _damaged(run, step, file, _why(error)) from None
    except (SafetensorError, ValueError, KeyError):
        raise _damaged(run, step, file, "not a safetensors file") from None
    for key, tensor in tensors.items():
        if tensor.dtype in (torch.float32, torch.float64) and not bool(tensor.isfinite().all()):
            raise _damaged(run, step, file, f"{key} holds NaN or infinity")
    return tensors


def _why(error: OSError | Unreadable) -> str:
    """Why a file could not be read."""
    if isinstance(error, Unreadable):
        return "a pipe, a device, or too large"
    missing = isinstance(error, FileNotFoundError)
    return "missing" if missing else f"cannot be read ({error.strerror})"


class DamagedCheckpoint(UserError):
    """A checkpoint cannot be used. The message names the previous one."""


def _damaged(run: Path, step: int, file: str, how: str) -> DamagedCheckpoint:
    others = [other for other in saved_steps(run) if other != step]
    if before := [other for other in others if other < step]:
        remedy = (
            f"the previous checkpoint is step {before[-1]}: take it with --checkpoint {before[-1]}"
        )
    elif others:
        remedy = f"the last checkpoint is step {others[-1]}: take it with --checkpoint {others[-1]}"
    else:
        remedy = "there is no other checkpoint; train again"
    return DamagedCheckpoint(f"{checkpoint_folder(run, step) / file}: {how}; {remedy}")


def pick_step(run: Path, which: str) -> int:
    """The step of the checkpoint `best`, `last` or of a number.

    Raises UserError with the steps that exist.
    """
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
    if which not in map(str, steps):
        raise UserError(
            f"{run}: no checkpoint {which}; there are best, last and the steps "
            f"{', '.join(map(str, steps))}"
        )
    return int(which)


def load_weights(model: Seq2Seq, weights: dict[str, Tensor], place: str) -> None:
    """Copy weights by name into a model. Raises UserError with the first tensor that misfits.

    place: where the weights come from, for the error.
    """
    ours = weights_of(model)
    if problem := misfit(ours, weights):
        raise UserError(f"{place}: {problem}; the two do not belong together")
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(weights[name])


def weights_of(model: Seq2Seq) -> dict[str, Tensor]:
    """What a checkpoint keeps of a model: its parameters, tied ones once, and persistent buffers.
    Those of models of the user's that hold infinities are masks, made anew with the model."""
    weights: dict[str, Tensor] = dict(model.named_parameters())
    known = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        if name not in known and bool(tensor.isfinite().all()):
            weights[name] = tensor
    return weights


def misfit(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str | None:
    """A description of the first tensor that only one side has, or whose shape or dtype differs."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            return f"tensor {name} is missing"
        if name not in ours:
            return f"the model of config.yaml has no tensor {name}"
        have, want = theirs[name], ours[name]
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            return (
                f"tensor {name} has shape {tuple(have.shape)} ({_dtype(have)}), the model of "
                f"config.yaml {tuple(want.shape)} ({_dtype(want)})"
            )
    return None


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
