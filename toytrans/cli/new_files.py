"""Files that an option names, for a command to write: checked before anything is computed, so that
nobody waits for numbers that then have nowhere to go, and written completely or not at all."""

import itertools
import os
from pathlib import Path

from toytrans.errors import UserError
from toytrans.figures import check_matplotlib
from toytrans.files import check_free, disk_errors, write_file


def check_new(path: Path | None) -> None:
    """Raise UserError if a new file cannot be written, before anything is computed."""
    if path is not None:
        with disk_errors(path, "the file"):
            check_free(path, replace=False)
        if not os.path.isdir(path.parent):
            raise UserError(f"{path}: there is no folder {path.parent}; make it first")


def check_plot(path: Path | None) -> None:
    """Raise UserError if nothing can be drawn into the file that --plot names."""
    if path is not None:
        if path.suffix.lower() not in (".png", ".svg"):
            raise UserError(f"{path}: end the name with .png or .svg")
        check_new(path)
        check_matplotlib()


def write_new(path: Path, raw: bytes, *, replace: bool = False) -> None:
    """Write the file that an option names. Raises UserError. replace: as in `write_file`."""
    with disk_errors(path, "the file"):
        write_file(path, raw, replace=replace)


def free_name(stem: str, suffix: str) -> Path:
    """The first of STEM.SUFFIX, STEM-2.SUFFIX and so on that is not taken."""
    names = (Path(f"{stem}{f'-{n}' if n > 1 else ''}{suffix}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
