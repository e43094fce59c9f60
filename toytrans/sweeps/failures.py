"""Why a trial has no result: NAME.failed.json, beside the folder NAME of its run.

The process of the trial writes it, even where it has made no run, or where the folder is of
something else.
"""

import contextlib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from toytrans.errors import UserError, shortened
from toytrans.files import Unreadable, read_json, write_json


def _written(text: str) -> str:
    """Text that a file of JSON can hold: a path that is no UTF-8 with escape codes."""
    return text.encode(errors="backslashreplace").decode()


Text = Annotated[str, AfterValidator(_written)]
Short = Annotated[Text, AfterValidator(shortened)]


class Failure(BaseModel):
    """Why a trial has no result. final: it would fail again. traceback: of an internal error."""

    model_config = ConfigDict(frozen=True)

    reason: Short
    final: bool = False
    traceback: Text = ""

    def error(self) -> Exception:
        """What stops a command that cannot go on without the trial."""
        if self.traceback:
            return RuntimeError(f"{self.reason}\n{self.traceback}")
        return UserError(self.reason)


def keep_failure(run: Path, failure: Failure | None) -> None:
    """Write why a trial failed; None: forget it. A full disk stops no sweep, nor does
    something else of that name."""
    with contextlib.suppress(OSError, UserError):
        if failure is None:
            _path(run).unlink(missing_ok=True)
        else:
            run.parent.mkdir(parents=True, exist_ok=True)
            write_json(_path(run), failure.model_dump())


def read_failure(run: Path) -> Failure | None:
    """Why a trial failed when it was last tried, as far as that can be read."""
    with contextlib.suppress(Unreadable):
        return read_json(_path(run), Failure, "not a failure")
    return None


def _path(run: Path) -> Path:
    return run.with_name(f"{run.name}.failed.json")
