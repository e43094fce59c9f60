"""Save, load and delete checkpoints.

    checkpoints/step-N.safetensors   tensors weights/NAME; optimizer/NAME/KEY, the moments and step
                                     counts of AdamW; random/DEVICE, states of the generators of
                                     rank 0; progress as metadata
    checkpoints.json                 the SHA-256 of each checkpoint that this run wrote, by step
    model.safetensors                of a model that was saved: weights by their names alone, and
                                     what `export` writes of it as metadata

A checkpoint is written under another name, flushed, listed and renamed. So a crash leaves older
checkpoints intact. Reading cannot execute code. Only a listed checkpoint is ever deleted.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from toytrans.config.schema import TrainConfig
from toytrans.errors import UserError
from toytrans.files import (
    Unreadable,
    discarded,
    drafted,
    flush_folder,
    open_regular,
    read_whole,
    write_json,
    write_new,
)
from toytrans.model.seq2seq import Seq2Seq
from toytrans.training.folder import MODEL, is_saved_model
from toytrans.training.provenance import TrainedWith

CHECKPOINTS, LIST = "checkpoints", "checkpoints.json"

FORMAT = "2"

MOST_BYTES, MOST_BYTES_OF_HEADER = 2**36, 2**24
"""The largest checkpoint that is read, and the largest part of it with names and progress. The
latter bounds checkpoints.json, too."""

StopReason = Literal[
    "max_steps", "max_seconds", "stop_at_exact_match", "patience", "interrupted", "diverged"
]

Count = Annotated[int, Field(ge=0, le=2**53)]


class Saved(BaseModel):
    """What a checkpoint says of its training, checked when it is read."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Window(Saved):
    """Sums over the steps since the last record.

    tokens: what the loss is divided by. padded, real: tokens of the batches, with pads and without.
    loss: nats; 0 while training goes on, because the trainer adds it up on the device and puts it
        here when it saves.
    """

    tokens: Count
    padded: Count
    real: Count
    loss: Annotated[float, Field(ge=0, le=2**53)]


def new_window() -> Window:
    """The sums before the first step."""
    return Window(tokens=0, padded=0, real=0, loss=0.0)


class Progress(Saved):
    """Everything except tensors that a training needs to continue.

    pairs_used: training pairs taken from the stream.
    elapsed_s, evaluation_s: seconds of training, and of evaluations beside it, over all sessions.
    """

    step: Count = 0
    pairs_used: Count = 0
    target_tokens: Count = 0
    elapsed_s: float = 0.0
    evaluation_s: float = 0.0
    best_step: Count | None = None
    best_exact_match: float = -1.0
    best_loss: float | None = None
    evaluations_since_best: Count = 0
    window: Window = Field(default_factory=new_window)

    def note_evaluation(self, exact_match: float, loss: float) -> None:
        """Note whether this step is the best so far: by exact match, then by loss."""
        self.evaluations_since_best += 1
        best_loss = math.inf if self.best_loss is None else self.best_loss
        if (exact_match, -loss) > (self.best_exact_match, -best_loss):
            self.best_step, self.evaluations_since_best = self.step, 0
            self.best_exact_match, self.best_loss = exact_match, loss

    def reached_limit(self, train: TrainConfig) -> StopReason | None:
        """The limit or the goal that the training has reached, if there is one."""
        if self.step >= train.max_steps:
            return "max_steps"
        if train.max_seconds is not None and self.elapsed_s >= train.max_seconds:
            return "max_seconds"
        goal = train.stop_at_exact_match
        if goal is not None and self.best_exact_match >= goal:
            return "stop_at_exact_match"
        if train.patience is not None and self.evaluations_since_best >= train.patience:
            return "patience"
        return None


Tensors = dict[str, Tensor]

_SUMS = TypeAdapter(dict[int, str])


# Which there are -------------------------------------------------------------------------------


def checkpoint_file(run: Path, step: int) -> Path:
    """The file of a checkpoint."""
    if is_saved_model(run):
        return run / MODEL
    return run / CHECKPOINTS / f"step-{step}.safetensors"


def saved_steps(run: Path) -> list[int]:
    """Steps of the checkpoints, in ascending order."""
    if is_saved_model(run):
        return [_step_of_saved_model(run)]
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(run / CHECKPOINTS)
    found = (re.fullmatch(r"step-(0|[1-9][0-9]{0,18})\.safetensors", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def _step_of_saved_model(run: Path) -> int:
    """The step that a saved model says; 0 where it says none, which is an error when it is read."""
    with contextlib.suppress(OSError, Unreadable), open_regular(run / MODEL) as file:
        said = _about_of_export(_metadata_of(file)).get("step")
        return said if isinstance(said, int) else 0
    return 0


def listed_checkpoints(run: Path) -> dict[int, str]:
    """The SHA-256 of each checkpoint that a run wrote, by step; empty if it cannot be read."""
    try:
        return _SUMS.validate_json(read_whole(run / LIST, MOST_BYTES_OF_HEADER))
    except (OSError, Unreadable, ValidationError):
        return {}


def pick_steps(run: Path, which: str) -> list[int]:
    """The step of the checkpoint `best`, `last` or of a number; of `average:N` the last N, whose
    mean is meant.

    Raises UserError with the steps that exist, or if the newest, which knows the best, cannot be
    read.
    """
    steps = saved_steps(run)
    if not steps:
        raise UserError(f"{run}: no checkpoint yet; let `toytrans train` finish, or --resume it")
    if which == "best":
        best = read_progress(run, steps[-1]).best_step
        return [best] if best in steps else steps[-1:]
    if which == "last":
        return steps[-1:]
    if averaged := re.fullmatch(r"average:([1-9]\d{0,8})", which):
        number = int(averaged[1])
        if number > len(steps):
            raise UserError(
                f"{run}: no {number} checkpoints to average, but {len(steps)}; train with a larger "
                "train.keep_checkpoints"
            )
        return steps[-number:]
    if which not in map(str, steps):
        listed = ", ".join(map(str, steps))
        raise UserError(
            f"{run}: no checkpoint {which}; there are best, last, average:N and the steps {listed}"
        )
    return [int(which)]


# Writing and deleting ----------------------------------------------------------------------------


def save_checkpoint(
    run: Path,
    progress: Progress,
    tensors: Tensors,
    keep: int = 2,
    trained_with: TrainedWith | None = None,
) -> None:
    """Write a checkpoint, and delete older ones except the newest `keep` and the best.

    Raises UserError if a file cannot be written. Older checkpoints then stay as they were.
    """
    step, before = progress.step, saved_steps(run)
    file, sums = checkpoint_file(run, step), listed_checkpoints(run)
    raw = _bytes_of(progress, tensors, trained_with)
    if os.path.lexists(file):
        raise UserError(f"{file}: not written by this training; move it away, then resume")
    sums = {other: sums[other] for other in before if other in sums}
    sums[step] = hashlib.sha256(raw).hexdigest()
    with _disk_errors(run, step):
        file.parent.mkdir(exist_ok=True)
        with drafted(file) as draft:
            write_new(draft, raw)
            write_json(run / LIST, dict(sorted(sums.items())))
        flush_folder(file.parent)
    _delete_older(run, progress, keep, sums)


def _delete_older(run: Path, progress: Progress, keep: int, sums: dict[int, str]) -> None:
    """Delete checkpoints except the newest `keep` up to this step, the best, and those that this
    run did not write as they are now. sums: the SHA-256 of each that it wrote."""
    passed = [step for step in saved_steps(run) if step <= progress.step]
    for step in passed[:-keep]:
        old = checkpoint_file(run, step)
        if step == progress.best_step or step not in sums or old.is_symlink():
            continue
        with contextlib.suppress(OSError, Unreadable):
            if hashlib.sha256(read_whole(old, MOST_BYTES)).hexdigest() == sums[step]:
                old.unlink()


def try_to_save(run: Path, progress: Progress, tensors: Tensors) -> None:
    """Write a checkpoint as a draft, and remove it. Raises UserError if it cannot be written."""
    with _disk_errors(run, progress.step), discarded(run / CHECKPOINTS) as draft:
        write_new(draft, _bytes_of(progress, tensors))


def _bytes_of(
    progress: Progress, tensors: Tensors, trained_with: TrainedWith | None = None
) -> bytes:
    """The file of a checkpoint. Tensors that share memory are written one by one."""
    about = {"format": FORMAT, "progress": json.dumps(progress.model_dump(), allow_nan=False)}
    if trained_with is not None:
        about["trained_with"] = json.dumps(trained_with.model_dump())
    apart = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return safetensors.torch.save(apart, about)


@contextlib.contextmanager
def _disk_errors(run: Path, step: int) -> Iterator[None]:
    """Turn an OSError into a UserError, which names the checkpoint that is left."""
    try:
        yield
    except OSError as error:
        saved = saved_steps(run)
        intact = f"; step {saved[-1]} is intact: resume from it" if saved else ""
        raise UserError(
            f"{run}: the checkpoint of step {step} cannot be written "
            f"({error.strerror or error}){intact}"
        ) from None


# Reading -----------------------------------------------------------------------------------------


def load_checkpoint(run: Path, step: int) -> tuple[Progress, Tensors]:
    """Read and verify a checkpoint.

    Raises UserError if it is missing, cut short, changed, or not written by training. Its
    SHA-256 is compared if checkpoints.json lists it.
    """
    with checkpoint_errors(run, step):
        raw = read_whole(checkpoint_file(run, step), MOST_BYTES)
        if listed_checkpoints(run).get(step) not in (None, hashlib.sha256(raw).hexdigest()):
            raise ValueError("cut short or changed (wrong checksum)")
        progress, tensors = _progress_in(io.BytesIO(raw), step), safetensors.torch.load(raw)
        if is_saved_model(run):
            tensors.pop("positions.fixed", None)  # places that a model draws anew
            tensors = {f"weights/{name}": tensor for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinity")
    return progress, tensors


def load_newest(run: Path) -> tuple[Progress, Tensors] | None:
    """The newest checkpoint of a run; None if it has saved none yet.

    Raises UserError if it cannot be read, or if all checkpoints are gone.
    """
    steps, listed = saved_steps(run), len(listed_checkpoints(run))
    if not steps and listed > 1:  # one may be of a training that was killed as it saved it
        raise UserError(
            f"{run / CHECKPOINTS}: holds none of the {listed} checkpoints of the run; put it back, "
            "or train again with another --out"
        )
    return load_checkpoint(run, steps[-1]) if steps else None


def read_progress(run: Path, step: int) -> Progress:
    """The progress of a checkpoint, from its first bytes alone. Raises UserError."""
    with checkpoint_errors(run, step), open_regular(checkpoint_file(run, step)) as file:
        return _progress_in(file, step)


def checkpoint_sha256(run: Path, step: int) -> str:
    """The SHA-256 of the file of a checkpoint, as it is now. Raises UserError."""
    with checkpoint_errors(run, step):
        return hashlib.sha256(read_whole(checkpoint_file(run, step), MOST_BYTES)).hexdigest()


def read_trained_with(run: Path, step: int) -> TrainedWith | None:
    """What the weights of a checkpoint were trained with; None if it does not say. Raises
    UserError."""
    with checkpoint_errors(run, step), open_regular(checkpoint_file(run, step)) as file:
        text = _metadata_of(file).get("trained_with", "")
    try:
        return TrainedWith.model_validate_json(text)
    except ValidationError:
        return None


def _progress_in(file: BinaryIO, step: int) -> Progress:
    """The progress of a checkpoint. Raises ValueError if it is not that of this step."""
    metadata = _metadata_of(file)
    about = _about_of_export(metadata)
    try:
        if "progress" in metadata:
            progress = Progress.model_validate_json(metadata["progress"])
        else:
            progress = Progress(step=about["step"], pairs_used=about.get("pairs_used", 0))
        is_ours = metadata["format"] in (FORMAT, "pt") and progress.step == step
    except (ValueError, KeyError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise ValueError("damaged, or not written by a training for this step")
    return progress


def _metadata_of(file: BinaryIO) -> dict[str, str]:
    """The metadata of a safetensors file, whose header is JSON that follows 8 bytes with its size;
    empty if there is none."""
    size = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(min(size, MOST_BYTES_OF_HEADER)))
        return dict(header["__metadata__"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _about_of_export(metadata: dict[str, str]) -> dict[str, Any]:
    """What an exported model says of itself; empty for a checkpoint of a training."""
    try:
        return dict(json.loads(metadata["toytrans"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


@contextlib.contextmanager
def checkpoint_errors(run: Path, step: int) -> Iterator[None]:
    """Raise a ValueError, or an error of reading, as a UserError: what is wrong with a checkpoint,
    and which one is used without it."""
    try:
        yield
        return
    except FileNotFoundError:
        how = "missing"
    except OSError as error:
        how = f"cannot be read ({error.strerror})"
    except Unreadable:
        how = "a pipe, a device, or too large"
    except (SafetensorError, KeyError):
        how = "not a safetensors file"
    except ValueError as error:
        how = str(error)
    others = [other for other in saved_steps(run) if other != step]
    remedy = "there is no other checkpoint; train again"
    if others:
        remedy = f"move it away, then step {others[-1]} is used"
    raise UserError(f"{checkpoint_file(run, step)}: {how}; {remedy}")


# Weights -----------------------------------------------------------------------------------------


def weights_of(model: Seq2Seq) -> Tensors:
    """What a checkpoint keeps of a model: its parameters, tied ones once, and persistent buffers.
    Those of models of the user's that hold infinities are masks, made anew with the model."""
    weights: Tensors = dict(model.named_parameters())
    known = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        if name not in known and bool(tensor.isfinite().all()):
            weights[name] = tensor
    return {f"weights/{name}": tensor for name, tensor in weights.items()}


def load_weights(model: Seq2Seq, run: Path, *steps: int) -> None:
    """Give a model the weights of a checkpoint, or the mean of those of several, which is taken in
    fp64. Raises UserError if one cannot be read, or is of another model."""
    weights = weights_of(model)
    sums = dict[str, Tensor]()
    for step in steps:
        _, tensors = load_checkpoint(run, step)
        of_training = ("optimizer/", "random/")
        saved = {name: x for name, x in tensors.items() if not name.startswith(of_training)}
        with checkpoint_errors(run, step):
            copy_into(weights, saved)
        for name, tensor in saved.items() if len(steps) > 1 else ():
            if tensor.is_floating_point():  # a count, say, stays that of the last step
                sums[name] = sums.get(name, 0) + tensor.double()
    with torch.no_grad():
        for name, total in sums.items():
            weights[name].copy_(total / len(steps))


def copy_into(ours: Tensors, theirs: Tensors) -> None:
    """Copy tensors by name, into those of a model.

    Raises ValueError with the first that only one side has, or whose shape or dtype differs.
    """
    for name in sorted(ours.keys() | theirs.keys()):
        have, want = (
            f"{tuple(side[name].shape)} ({side[name].dtype})" if name in side else "missing"
            for side in (theirs, ours)
        )
        if have != want:
            raise ValueError(
                f"tensor {name} is {have}, in the model of the config {want}: the two do not "
                "belong together"
            )
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(theirs[name])
