"""Which run a command reads, and which file it writes."""

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toytrans.cli.terminal import note
from toytrans.config.sealed import fault_remark, is_sealed
from toytrans.errors import UserError
from toytrans.files import check_free, write_file

if TYPE_CHECKING:
    from toytrans.training.run import Run


def open_run(path: Path | None, checkpoint: str = "best", device: str = "cpu") -> "Run":
    """The run of a path, or the newest one, whose fault is noted. Raises UserError."""
    from toytrans import load
    from toytrans.training.devices import tune_process

    tune_process()
    run: Run = load(path or newest(), checkpoint, device)
    warn_of_fault(run.config.fault)
    return run


def newest() -> Path:
    """The newest run, named in a note. Raises UserError."""
    from toytrans.training.run import RunFolder, newest_run

    path = newest_run()
    rest = RunFolder.open(path).unfinished
    note(f"run: {path}, the newest" + (f"; training is unfinished: {rest}" if rest else ""))
    return path


def warn_of_fault(fault: str | None) -> None:
    """Note that a model has a fault, or may have one."""
    if fault is not None:
        more = "" if is_sealed(fault) else f" (what that does: toytrans explain {fault})"
        note(fault_remark(fault) + more)


def argument(path: Path) -> str:
    """A path as a shell and a command take it; one that begins with a dash is no option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def check_new(option: str, path: Path, endings: Sequence[str] = ()) -> None:
    """Raise UserError if what an option names cannot be written, before anything is computed.

    endings: of the name, one of which it needs.
    """
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{option} {path}: end the name with {' or '.join(endings)}")
    with _written_for(option, path):
        check_free(path, replace=False)
    if not os.path.isdir(path.parent):
        raise UserError(f"{option} {path}: there is no folder {path.parent}; make it first")


def check_plot(path: Path, endings: Sequence[str] = (".png", ".svg")) -> None:
    """Raise UserError if nothing can be drawn into the file that --plot names."""
    from toytrans.figures import check_matplotlib

    check_new("--plot", path, endings)
    if path.suffix.lower() != ".html":
        check_matplotlib()


def write_new(option: str, path: Path, raw: bytes, *, replace: bool = False) -> None:
    """Write the file that an option names. Raises UserError. replace: as in `write_file`."""
    with _written_for(option, path):
        write_file(path, raw, replace=replace)


@contextlib.contextmanager
def _written_for(option: str, path: Path) -> Iterator[None]:
    """Name the option in errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{option} {error}") from None
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written ({error.strerror})") from None
