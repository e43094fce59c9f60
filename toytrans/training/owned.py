"""The files of a run directory. toytrans deletes checkpoints and drafts of its own alone.

    config.yaml  data.json  environment.json  metrics.jsonl
    .toytrans-lock                held by the training that writes here
    .toytrans-HEX.draft           a file while it is written
    checkpoints.json              SHA-256 of the checkpoints that this run wrote
    checkpoints/step-N/           a checkpoint
    checkpoints/.step-N/          a checkpoint while it is written
    checkpoints/.old-step-N/      a checkpoint while it is deleted
    checkpoints/step-N-unreadable a checkpoint that a resume could not read
    logs/                         what loggers wrote

A checkpoint is deleted if checkpoints.json lists it and a newer one was saved. No tree is deleted,
and nothing through a link.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from toytrans.errors import UserError
from toytrans.files import Unreadable, drafts_in, flush_folder, json_text, read_whole, write_file

CONFIG, DATA, ENVIRONMENT, METRICS, LOCK, CHECKPOINTS, MANIFEST, LOGS = (
    "config.yaml",
    "data.json",
    "environment.json",
    "metrics.jsonl",
    ".toytrans-lock",
    "checkpoints",
    "checkpoints.json",
    "logs",
)
PARTS = ("weights", "optimizer", "random")
DESCRIPTION = "checkpoint.json"

CHECKPOINT_FILES = (*(f"{part}.safetensors" for part in PARTS), DESCRIPTION)

MOST_BYTES = 1_000_000
"""The largest description of a checkpoint, and the largest manifest, that are read."""


@contextlib.contextmanager
def saying_what_failed(run: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a UserError that names the last intact checkpoint.

    what: the file or step that is written.
    """
    try:
        yield
    except OSError as error:
        steps = saved_steps(run)
        intact = f"; step {steps[-1]} is intact: resume from it" if steps else ""
        reason = error.strerror or error
        raise UserError(f"{run}: {what} cannot be written ({reason}){intact}") from None


def saved_steps(run: Path) -> list[int]:
    """Steps of the finished checkpoints, in ascending order."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(run / CHECKPOINTS)
    return sorted(step for step in map(_step, names) if step is not None)


def check_none_lost(run: Path) -> None:
    """Raise UserError where a run without a checkpoint has had some: their folder cannot be read,
    or it lies on a disk that is not there."""
    folder = run / CHECKPOINTS
    back = "put it back, or train again with another --out"
    if os.path.lexists(folder):
        try:
            os.listdir(folder)
        except OSError as error:
            raise UserError(f"{folder}: cannot be read ({error.strerror}); {back}") from None
    steps = sorted(read_manifest(run))
    if len(steps) > 1:  # one alone may be of a training that was killed as it saved it
        raise UserError(f"{folder}: holds none of the {len(steps)} checkpoints of the run; {back}")


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step}"


def new_draft(run: Path, step: int) -> Path:
    """Make an empty folder for a checkpoint that is being written.

    A draft that a crash left is deleted. Raises UserError if something else has its name.
    """
    draft = run / CHECKPOINTS / f".step-{step}"
    discard_draft(draft)
    if os.path.lexists(draft):
        raise UserError(f"{draft}: not a draft of this run; move it away, then resume")
    draft.mkdir(parents=True)
    return draft


def place_checkpoint(run: Path, step: int, draft: Path) -> None:
    """Rename a complete checkpoint to its final name, and record it in the manifest.

    Raises UserError if something has that name.
    """
    final, manifest = checkpoint_folder(run, step), read_manifest(run)
    if os.path.lexists(final):
        raise UserError(f"{final}: not written by this training; move it away, then resume")
    manifest[step] = _sha256(draft)
    there = set(saved_steps(run)) | {step}
    sums = {str(step): digest for step, digest in sorted(manifest.items()) if step in there}
    write_file(run / MANIFEST, f"{json_text({'format': 1, 'sha256': sums})}\n".encode())
    draft.rename(final)
    flush_folder(final.parent)


def prune(run: Path, steps: Iterable[int]) -> None:
    """Delete some checkpoints of this run, and remains of others after a crash.

    A checkpoint is deleted only if the manifest lists it and it holds no other files. Nothing is
    deleted if the folder of checkpoints is a link out of the run.
    """
    folder = run / CHECKPOINTS
    if leaves(run):
        return
    manifest = read_manifest(run)
    for step in steps:
        if _is_own(checkpoint_folder(run, step), manifest):
            with contextlib.suppress(OSError):
                doomed = _hide(checkpoint_folder(run, step))
                _delete(doomed, CHECKPOINT_FILES)
    for name in os.listdir(folder):
        if _is_draft(name):
            discard_draft(folder / name)


def discard_draft(folder: Path) -> None:
    """Delete a half-written or half-deleted checkpoint, if it holds no other files."""
    with contextlib.suppress(OSError):
        _delete(folder, (*CHECKPOINT_FILES, *(draft.name for draft in drafts_in(folder))))


def keep_unreadable(run: Path, step: int) -> Path:
    """Rename a checkpoint that cannot be read, so that training can write its step again.

    Returns its new path.
    """
    folder = checkpoint_folder(run, step)
    names = (f"step-{step}-unreadable{end}" for end in ("", *(f"-{n}" for n in range(2, 10_000))))
    free = next(p for name in names if not os.path.lexists(p := folder.with_name(name)))
    with saying_what_failed(run, free.name):
        folder.rename(free)
    return free


def leaves(run: Path) -> Path | None:
    """The target of the folder of checkpoints if it is a link out of the run directory."""
    target = (run / CHECKPOINTS).resolve()
    return None if target.is_relative_to(run.resolve()) else target


class _Manifest(BaseModel):
    """checkpoints.json: SHA-256 of each checkpoint's description, by step."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    sha256: dict[str, str]


def read_manifest(run: Path) -> dict[int, str]:
    """The SHA-256 of each checkpoint's description, by step; empty if it cannot be read."""
    try:
        read = _Manifest.model_validate_json(read_whole(run / MANIFEST, MOST_BYTES))
    except (OSError, Unreadable, ValidationError):
        return {}
    numbers = ((_number(name), digest) for name, digest in read.sha256.items())
    return {step: digest for step, digest in numbers if step is not None}


def _is_own(folder: Path, manifest: dict[int, str]) -> bool:
    """Whether a folder is a checkpoint that the manifest lists, without other files."""
    step = _step(folder.name)
    if step not in manifest or folder.is_symlink():
        return False
    with contextlib.suppress(OSError, Unreadable):
        return set(os.listdir(folder)) <= set(CHECKPOINT_FILES) and manifest[step] == _sha256(
            folder
        )
    return False


def _sha256(folder: Path) -> str:
    return hashlib.sha256(read_whole(folder / DESCRIPTION, MOST_BYTES)).hexdigest()


def _number(text: str) -> int | None:
    """The number in a text, if training would write it in this form."""
    plain = text.isascii() and text.isdigit() and len(text) < 20 and str(int(text)) == text
    return int(text) if plain else None


def _step(name: str) -> int | None:
    """The step of a checkpoint's name."""
    return _number(name.removeprefix("step-")) if name.startswith("step-") else None


def _is_draft(name: str) -> bool:
    return name.startswith(".") and _step(name[1:].removeprefix("old-")) is not None


def _hide(folder: Path) -> Path:
    """Rename a checkpoint before it is deleted, so that nobody reads it as a damaged one."""
    hidden = folder.with_name(f".old-{folder.name}")
    discard_draft(hidden)
    return folder.rename(hidden)


def _delete(folder: Path, names: Sequence[str]) -> None:
    """Delete files of a folder by name, then the folder.

    Raises OSError if the folder is a link or holds other files.
    """
    if folder.is_symlink() or not set(os.listdir(folder)) <= set(names):
        raise OSError(f"{folder} is a link or holds other files")
    for name in names:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def delete_drafts(run: Path) -> None:
    """Delete what a crash left of the files of a locked run directory."""
    for draft in drafts_in(run):
        draft.unlink()
