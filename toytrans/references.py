"""Code of the user's that a config names, `my_tasks.py:swap_pairs`: what such a reference is, and
which files this process may run.

    named -> read once -> hashed, run, or handed over to another process

The rule of trust: what the command line or a config of the user's names may run, and what a run
directory names, which somebody may have sent, runs where the user says --trust-code. `trust` lets
code run: it is called where the user's config is read, and where a run is opened with trust_code.
What was read when it was named is what runs and what is hashed, even if the file has changed since.
`user_code` runs it, and is imported when there is something to run.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from toytrans.files import read_named

SHIPPED = Path(__file__).parent / "configs"
SHIPPED = SHIPPED if SHIPPED.is_dir() else SHIPPED.parent.parent / "configs"
"""The configs that come with the package, and `examples/`, code that they name: in its wheel, or in
a checkout beside it."""

MOST_BYTES = 10_000_000
"""Of a file of code."""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

trusted: dict[str, bytes] = {}
"""The files that this process may run, as they were read when they were named."""


def is_reference(text: str | None) -> bool:
    """Whether a value of a config names code rather than something built in."""
    return text is not None and (":" in text or text.endswith(".py"))


def absolute(text: str) -> str:
    """A reference with the absolute path of its file. Raises ValueError with a remedy."""
    place, _, name = text.rpartition(":")
    if place.endswith(".py") and name.isidentifier():
        return f"{Path(place).absolute()}:{name}"
    if _MODULE.fullmatch(place) and name.isidentifier():
        raise ValueError(
            f"{text!r} names a module, not a file; name a file whose one line is "
            f"`from {place} import {name}`: FILE.py:{name}"
        )
    raise ValueError(f"{text!r} names no code; write it as FILE.py:NAME")


def shipped_names() -> list[str]:
    """The names of the configs that come with the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def shown(reference: str) -> str:
    """A reference for messages: a file below the working directory by its relative path."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(reference).relative_to(Path.cwd()))
    return reference


# Trust ---------------------------------------------------------------------------------------


def trust(references: Iterable[str]) -> None:
    """Let this process run the code that some references name, as it is on the disk now.

    Raises UserError if a file cannot be read.
    """
    take_over({path_of(reference): _read(path_of(reference)) for reference in references})


def hand_over(references: Iterable[str]) -> dict[str, bytes]:
    """The files of references that are trusted here, for `take_over` in another process. A file
    that is edited meanwhile runs there as it was read here."""
    return {path: trusted[path] for path in map(path_of, references) if path in trusted}


def take_over(files: Mapping[str, bytes]) -> None:
    """Let this process run files as another one has read them."""
    for path, raw in files.items():
        trusted[path] = raw


def is_shipped(reference: str) -> bool:
    """Whether a file came with the package: it is trusted as the package is."""
    return Path(path_of(reference)).resolve().is_relative_to((SHIPPED / "examples").resolve())


def digests(references: Iterable[str]) -> list[str]:
    """The sha256 of the file of each reference: as it was read, or else as it is. Nothing runs.

    Raises UserError if a file cannot be read.
    """
    paths = list(map(path_of, references))
    return [hashlib.sha256(trusted.get(path) or _read(path)).hexdigest() for path in paths]


def path_of(reference: str) -> str:
    """The file of a reference."""
    return reference.rpartition(":")[0]


def _read(path: str) -> bytes:
    return read_named(shown(path), MOST_BYTES)
