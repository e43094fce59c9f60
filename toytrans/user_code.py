"""Code of the user's that a config names: `my_tasks.py:swap_pairs`.

    named -> read once -> hashed, run, or handed to another process

It runs where the user names it: on the command line, or in a config that they give to a command. A
run directory that somebody sends names code too; that runs if the user trusts it, each time anew.
What was read is what runs and what is hashed, until the user names the file again.
"""

import contextlib
import hashlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from toytrans.errors import UserError, did_you_mean
from toytrans.files import read_named

SHIPPED = Path(__file__).parent / "configs"
SHIPPED = SHIPPED if SHIPPED.is_dir() else SHIPPED.parent.parent / "configs"
"""The configs that come with the package, and `examples/`, code that they name: in its wheel, or in
a checkout beside it."""

MOST_BYTES = 10_000_000
"""Of a file of code."""

RAISED = (Exception, SystemExit)
"""What the user's code may raise; an interruption is not its own."""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


_files: dict[str, bytes] = {}
_modules: dict[str, ModuleType] = {}  # what the files define, once they have run
_trusted: set[str] = set()
_trusts_all = False


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


def shown(reference: str) -> str:
    """A reference for messages: a file below the working directory by its relative path."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(reference).relative_to(Path.cwd()))
    return reference


# Trust ---------------------------------------------------------------------------------------


def trust(references: Iterable[str]) -> None:
    """Read code that the user names, and let this process run it. Raises UserError."""
    trust_as_read({reference: _read(reference) for reference in references})


def trust_as_read(code: Mapping[str, bytes]) -> None:
    """Let this process run code that another one has read. code: the file of each reference."""
    for reference, raw in code.items():
        path = _path_of(reference)
        if _files.get(path) != raw:
            _files[path] = raw
            _modules.pop(path, None)
        _trusted.add(reference)


@contextlib.contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Until the block ends, let this process run any code that is named."""
    global _trusts_all
    before, _trusts_all = _trusts_all, everything
    try:
        yield
    finally:
        _trusts_all = before


def is_shipped(reference: str) -> bool:
    """Whether a file came with the package: it is trusted as the package is."""
    return Path(_path_of(reference)).resolve().is_relative_to((SHIPPED / "examples").resolve())


def as_read(references: Iterable[str]) -> dict[str, bytes]:
    """The file of each reference as it was read when it was named: what runs. Raises UserError."""
    found = {}
    for reference in references:
        path = _path_of(reference)
        if path not in _files:
            _files[path] = _read(reference)
        found[reference] = _files[path]
    return found


def digests(references: Iterable[str]) -> list[str]:
    """sha256 of the file of each reference as it was read. Raises UserError."""
    named = list(references)
    code = as_read(named)
    return [hashlib.sha256(code[reference]).hexdigest() for reference in named]


def _path_of(reference: str) -> str:
    return reference.rpartition(":")[0]


def _read(reference: str) -> bytes:
    return read_named(shown(_path_of(reference)), MOST_BYTES)


# Running -------------------------------------------------------------------------------------


def load(reference: str) -> Any:
    """What a reference names. Raises UserError."""
    if not (reference in _trusted or _trusts_all or is_shipped(reference)):
        raise UserError(
            f"{shown(reference)}: code that a run names runs with --trust-code alone "
            "(trust_code=True in Python); read it first"
        )
    path, _, name = reference.rpartition(":")
    raw = as_read([reference])[reference]
    if path not in _modules:
        _modules[path] = _run(path, raw)
    module = _modules[path]
    if not hasattr(module, name):
        public = ((n, x) for n, x in vars(module).items() if not n.startswith("_"))
        names = [n for n, x in public if getattr(x, "__module__", "") == module.__name__]
        hint = did_you_mean(name, names) if names else "it defines nothing"
        raise UserError(f"{shown(path)}: has no {name}; {hint}")
    return getattr(module, name)


def construct(reference: str, *arguments: Any) -> Any:
    """What the class that a reference names makes of some arguments. Raises UserError."""
    named = load(reference)
    if not callable(named):
        raise UserError(f"{shown(reference)}: is not a class")
    try:
        return named(*arguments)
    except UserError:
        raise
    except RAISED as error:
        raise UserError(f"{shown(reference)}: fails: {failure(error, reference)}") from None


def _run(path: str, raw: bytes) -> ModuleType:
    """The module of a file. While it runs, it can import the modules beside it, after those that
    are installed. Whatever it raises becomes a UserError."""
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # where dataclasses and inspect look for it
    folder = str(Path(path).parent)
    sys.path.append(folder)
    try:
        exec(compile(raw, path, "exec", dont_inherit=True), module.__dict__)
    except RAISED as error:
        line = _line_of(error, path)
        place = f"{shown(path)}:{line}" if line else shown(path)
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{place}: {error}; install it, or mend it") from None
        raise UserError(f"{place}: fails on import: {_summary(error)}") from None
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module


# What it raises ------------------------------------------------------------------------------


def fault_in_user_code(error: BaseException) -> str | None:
    """An exception in one line if it came through a file of the user's that was run here.

    An exit that this package asks for, because of a signal, is none of the user's.
    """
    if isinstance(error, SystemExit):
        *_, last = traceback.walk_tb(error.__traceback__)
        if str(last[0].f_globals.get("__name__")).startswith(f"{__package__}."):
            return None
    places = [path for path in _files if _line_of(error, path)]
    return failure(error, f"{places[-1]}:") if places else None


def failure(error: BaseException, reference: str) -> str:
    """An exception in one line: its type, its message and its line in the user's file."""
    path = _path_of(reference)
    line = _line_of(error, path)
    return f"{_summary(error)} ({shown(path)}:{line})" if line else _summary(error)


def _summary(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    first = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _line_of(error: BaseException, path: str) -> int | None:
    """The last line of a file that an exception came through."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == path]
    return lines[-1] if lines else None
