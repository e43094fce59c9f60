"""The files that training writes into a run directory, and when they may go.

    config.yaml  data.json  environment.json  metrics.jsonl
    checkpoints.json              SHA-256 of the checkpoints that this run wrote
    checkpoints/step-N/           a checkpoint
    checkpoints/.step-N/          a checkpoint while it is written
    checkpoints/.old-step-N/      a checkpoint while it is deleted
    .replaced/                    the old run, until the new one saves its first checkpoint
    logs/                         what loggers wrote; nothing deletes it

Only this module deletes anything in a run directory. It deletes files with the names above, and
folders that are then empty. It never deletes a tree, and never anything through a link.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from toytrans.errors import UserError
from toytrans.safe_io import Unreadable, json_text, read_whole
from toytrans.training.failpoint import failpoint
from toytrans.training.writing import drafts_in, flush_folder, write_file

CONFIG, DATA, ENVIRONMENT, METRICS, LOCK, CHECKPOINTS, MANIFEST, REPLACED, LOGS = (
    "config.yaml",
    "data.json",
    "environment.json",
    "metrics.jsonl",
    ".toytrans-lock",
    "checkpoints",
    "checkpoints.json",
    ".replaced",
    "logs",
)
PARTS = ("weights", "optimizer", "random")
DESCRIPTION = "checkpoint.json"

RUN_FILES = (METRICS, DATA, ENVIRONMENT, MANIFEST, CONFIG)
"""Files of a run. The config is moved last: its place shows whether a move was completed."""

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


# Checkpoints ---------------------------------------------------------------------------------


def saved_steps(run: Path) -> list[int]:
    """Steps of the finished checkpoints, in ascending order."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(run / CHECKPOINTS)
    return sorted(step for step in map(_step, names) if step is not None)


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
    draft.mkdir()
    return draft


def place_checkpoint(run: Path, step: int, draft: Path) -> None:
    """Rename a complete checkpoint to its final name, and record it in the manifest.

    Raises UserError if something that this run did not write has that name.
    """
    final, manifest = checkpoint_folder(run, step), read_manifest(run)
    old = None
    if os.path.lexists(final):
        if not _is_own(final, manifest):
            raise UserError(f"{final}: not written by this run; move it away, then resume")
        old = _hide(final)
    manifest[step] = _sha256(draft)
    there = set(saved_steps(run)) | {step}
    sums = {str(step): digest for step, digest in sorted(manifest.items()) if step in there}
    write_file(run / MANIFEST, f"{json_text({'format': 1, 'sha256': sums})}\n".encode())
    draft.rename(final)
    failpoint("renamed")
    flush_folder(final.parent)
    if old is not None:
        _delete(old, CHECKPOINT_FILES)


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
                failpoint("pruning")
                _delete(doomed, CHECKPOINT_FILES)
    for name in _names(folder):
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
    failpoint("set-aside")
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
    """The SHA-256 of each checkpoint's description, by step.

    Without a readable manifest, all checkpoints count whose description names their own step.
    """
    try:
        read = _Manifest.model_validate_json(read_whole(run / MANIFEST, MOST_BYTES))
    except (OSError, Unreadable, ValidationError):
        folders = {step: checkpoint_folder(run, step) for step in saved_steps(run)}
        return {step: _sha256(path) for step, path in folders.items() if _describes(path, step)}
    numbers = ((_number(name), digest) for name, digest in read.sha256.items())
    return {step: digest for step, digest in numbers if step is not None}


def _describes(folder: Path, step: int) -> bool:
    """Whether the description in a folder is that of a checkpoint of a step."""
    with contextlib.suppress(OSError, Unreadable, ValueError, RecursionError):
        about = json.loads(read_whole(folder / DESCRIPTION, MOST_BYTES))
        progress = about.get("progress") if isinstance(about, dict) else None
        return isinstance(progress, dict) and progress.get("step") == step
    return False


def _is_own(folder: Path, manifest: dict[int, str]) -> bool:
    """Whether a folder is a checkpoint that the manifest lists, without other files."""
    step = _step(folder.name)
    if step not in manifest or not _is_real(folder):
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


def _is_real(folder: Path) -> bool:
    """Whether a path is a folder, and not a link to one."""
    return folder.is_dir() and not folder.is_symlink()


def _hide(folder: Path) -> Path:
    """Rename a checkpoint before it is deleted, so that nobody reads it as a damaged one."""
    hidden = folder.with_name(f".old-{folder.name}")
    discard_draft(hidden)
    return folder.rename(hidden)


def _delete(folder: Path, names: Iterable[str]) -> None:
    """Delete files of a folder by name, then the folder.

    Raises OSError if the folder is a link or holds other files.
    """
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    for name in names:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


# A run that is replaced ------------------------------------------------------------------------


def set_aside(run: Path) -> list[str]:
    """Move the files of a run, if there is one, to .replaced.

    Returns the entries that training did not write; they stay. Raises UserError if a folder among
    the checkpoints was not written by this run.
    """
    if not os.path.lexists(run / CONFIG):
        return []
    put_back(run)
    if os.path.lexists(run / REPLACED):
        raise UserError(
            f"{run / REPLACED}: not written by this run; move it away, or name another --out"
        )
    if target := leaves(run):
        raise UserError(
            f"{run / CHECKPOINTS}: a link to {target}, and nothing behind a link is "
            "deleted; remove the link, or name another --out"
        )
    manifest = read_manifest(run)
    folders = [checkpoint_folder(run, step) for step in saved_steps(run)]
    for folder in folders:
        if not _is_own(folder, manifest):
            raise UserError(
                f"{folder}: not written by this run; move it away, or name another --out"
            )
    with saying_what_failed(run, "the new run"):
        (run / REPLACED).mkdir()
        (run / REPLACED / CHECKPOINTS).mkdir()
        _move(run, run / REPLACED, [*(f.relative_to(run) for f in folders), *map(Path, RUN_FILES)])
    return _others(run)


def put_back(run: Path) -> bool:
    """Undo `set_aside`, unless the new run has saved a checkpoint.

    Returns whether anything was moved back.
    """
    aside = run / REPLACED
    if not _is_real(aside) or leaves(run):
        return False
    if (aside / CONFIG).exists():  # the whole run was moved, so files outside are the new run's
        if saved_steps(run):
            return False
        with saying_what_failed(run, "the run before"):
            for name in RUN_FILES:
                (run / name).unlink(missing_ok=True)
    folders = aside.glob(f"{CHECKPOINTS}/step-*") if _is_real(aside / CHECKPOINTS) else ()
    with saying_what_failed(run, "the run before"):
        _move(aside, run, map(Path, reversed(RUN_FILES)))
        (run / CHECKPOINTS).mkdir(exist_ok=True)
        _move(aside, run, [folder.relative_to(aside) for folder in folders])
    _remove_empty(aside / CHECKPOINTS, aside)
    return True


def recover(run: Path) -> None:
    """Finish a replacement after a crash.

    A move that was not completed is undone. If the new run has saved a checkpoint, the old run is
    deleted.
    """
    if not (run / REPLACED / CONFIG).exists():
        put_back(run)
    elif saved_steps(run):
        drop_replaced(run)


def drop_replaced(run: Path) -> None:
    """Delete the run in .replaced, its config last."""
    aside = run / REPLACED
    if not _is_real(aside):
        return
    with contextlib.suppress(OSError):
        if _is_real(aside / CHECKPOINTS):
            for folder in (aside / CHECKPOINTS).iterdir():
                _delete(folder, CHECKPOINT_FILES)
        _remove_empty(aside / CHECKPOINTS)
        _delete(aside, RUN_FILES)


def delete_files(run: Path) -> list[str]:
    """Delete what training wrote into a locked run directory; returns the entries that are kept.

    Checkpoints that are not this run's stay, with the config and the data that they need. A run
    that another replaces without a checkpoint yet comes back. Raises UserError.
    """
    if put_back(run):
        return ["the run before it, which is back"]
    if target := leaves(run):
        raise UserError(f"{run / CHECKPOINTS}: a link to {target}; nothing behind it is deleted")
    drop_replaced(run)
    prune(run, saved_steps(run))
    try:
        _remove_empty(run / CHECKPOINTS)
        needed = {DATA, CONFIG} if os.path.lexists(run / CHECKPOINTS) else set()
        delete_drafts(run)
        for name in (*RUN_FILES, LOCK):
            if name not in needed and (run / name).is_file() and not (run / name).is_symlink():
                (run / name).unlink()
    except OSError as error:
        raise UserError(f"{run}: cannot be deleted ({error.strerror})") from None
    _remove_empty(run)
    inside = [f"{CHECKPOINTS}/{name}" for name in _names(run / CHECKPOINTS)]
    return sorted({*_names(run), *inside} - {CHECKPOINTS})


def delete_drafts(run: Path) -> None:
    """Delete what a crash left of the files of a locked run directory."""
    for draft in drafts_in(run):
        draft.unlink()


def is_unfinished(run: Path) -> bool:
    """Whether a training locked a folder but ended before it wrote a config."""
    return (run / LOCK).exists() and not os.path.lexists(run / CONFIG)


def forget_claim(run: Path, *, made: bool) -> None:
    """Clean up after a training that wrote nothing: remove its lock from the folder, and the folder
    where it was made for that training."""
    with contextlib.suppress(OSError):
        if set(os.listdir(run)) <= {LOCK, CHECKPOINTS}:
            _remove_empty(run / CHECKPOINTS)  # of a disk that was full at once
        if set(os.listdir(run)) <= {LOCK}:
            (run / LOCK).unlink(missing_ok=True)
            if made:
                run.rmdir()


def _others(run: Path) -> list[str]:
    """Entries of a run directory that training does not write."""
    drafts = (draft.name for draft in drafts_in(run))
    known = {*RUN_FILES, *drafts, LOCK, CHECKPOINTS, REPLACED, LOGS}
    inside = [name for name in _names(run / CHECKPOINTS) if not _is_draft(name)]
    return [
        *sorted(set(_names(run)) - known),
        *sorted(f"{CHECKPOINTS}/{name}" for name in inside),
    ]


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _move(source: Path, target: Path, names: Iterable[Path]) -> None:
    for name in names:
        if os.path.lexists(source / name):
            (source / name).rename(target / name)


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
