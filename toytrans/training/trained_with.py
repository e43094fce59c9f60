"""What the weights of a checkpoint were trained with, so that nobody takes them for something else.

A checkpoint holds the settings that weights depend on, and a fingerprint of each file of data and
of the user's own code. Whoever opens the run is told which of these files have changed since.
Settings that have changed are refused, because the weights mean nothing under them.
"""

import contextlib
from typing import Any

from toytrans.config.load import MAY_DIFFER, flatten
from toytrans.config.schema import Settings
from toytrans.errors import UserError
from toytrans.named import import_named
from toytrans.user_code import digests

TrainedWith = dict[str, dict[str, Any]]
"""settings: values by key. code, data: SHA-256 of files by the key that names them."""

FOLLOWS_FROM_LIMITS = ("train.warmup_steps", "train.eval_every")


def trained_with(settings: Settings) -> TrainedWith:
    """What a training with these settings trains with now. A file that cannot be read is left
    out: whoever needs it says so."""
    code, data = dict[str, str](), dict[str, str]()
    for key, reference in settings.references.items():
        with contextlib.suppress(UserError):
            (code[key],) = digests([reference])
    if (files := settings.data.files) is not None:
        sha256_of = import_named("toytrans.data.files:sha256_of")
        for split in ("train", "valid", "test"):
            paths = getattr(files, split)
            with contextlib.suppress(UserError):
                if paths is not None:
                    data[f"data.files.{split}"] = sha256_of(paths)
    free = {*MAY_DIFFER, *FOLLOWS_FROM_LIMITS, *settings.references}
    values = {
        key: value
        for key, value in flatten(settings.model_dump(mode="json")).items()
        if key not in free and not key.startswith("data.files.")
    }
    return {"settings": values, "code": code, "data": data}


def unlike_settings(before: TrainedWith, now: TrainedWith) -> list[str]:
    """The settings that are not those of the weights: `key (was -> is)`."""
    old, new = before["settings"], now["settings"]
    both = [key for key in old if key in new]  # a key that came later says nothing
    return [f"{key} ({old[key]} -> {new[key]})" for key in both if old[key] != new[key]]


def changed_files(before: TrainedWith, now: TrainedWith) -> list[str]:
    """The keys of files whose contents are not those of the training."""
    return [
        key
        for kind in ("code", "data")
        for key, digest in before[kind].items()
        if now[kind].get(key, digest) != digest
    ]
