"""Snapshots: the weights of a few steps of a training, in half precision, for `toytrans live`.

    snapshots/step-N.safetensors   the parameters by name, in fp16

They are kept at step 0 and at steps each twice the one before, up to half of the last step: most is
learned early. They are no part of what a resume promises. Nothing but the live page reads them, and
a training does not fail where one cannot be written.
"""

import contextlib
import re
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from toytrans.errors import UserError
from toytrans.files import drafted, read_whole
from toytrans.model.seq2seq import Seq2Seq, count_parameters

SNAPSHOTS = "snapshots"

MOST_PARAMETERS = 2_000_000
"""Of a model that runs in a page; of a larger one no snapshot is kept."""

HALVINGS = 6
"""Of 400 steps, those of 200, 100, 50, 25, 12 and 6 are kept, and step 0."""

MOST_BYTES = 2**23
"""The largest snapshot that is read: twice what one of the largest model has."""


def keep_snapshot(run: Path, model: Seq2Seq, step: int, max_steps: int) -> None:
    """Keep the weights of this step, if it is one of those that are kept."""
    kept = {0, *(max_steps >> halvings for halvings in range(1, HALVINGS + 1))}
    is_ours = model.settings.class_ is None  # the page runs no other
    if step not in kept or not is_ours or count_parameters(model) > MOST_PARAMETERS:
        return
    weights = {
        name: values.detach().to("cpu", torch.float16, copy=True).contiguous()
        for name, values in model.named_parameters()
    }
    file = _file_of(run, step)
    with contextlib.suppress(OSError, UserError):
        file.parent.mkdir(exist_ok=True)
        with drafted(file, replace=True) as draft:  # not flushed: a training waits for no disk
            draft.write_bytes(safetensors.torch.save(weights))


def snapshot_steps(run: Path) -> list[int]:
    """The steps of the snapshots of a run, in ascending order."""
    names = [file.stem for file in (run / SNAPSHOTS).glob("step-*.safetensors")]
    found = (re.fullmatch(r"step-(0|[1-9][0-9]{0,18})", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def read_snapshot(run: Path, step: int) -> dict[str, Tensor] | None:
    """The weights of a snapshot in fp16; None if it cannot be read, or is of a training that had
    diverged."""
    try:
        weights = safetensors.torch.load(read_whole(_file_of(run, step), MOST_BYTES))
    except (OSError, UserError, SafetensorError):
        return None
    is_sound = all(
        values.dtype == torch.float16 and bool(values.isfinite().all())
        for values in weights.values()
    )
    return weights if is_sound else None


def _file_of(run: Path, step: int) -> Path:
    return run / SNAPSHOTS / f"step-{step}.safetensors"
