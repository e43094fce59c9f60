"""Code of the user's that a config names: `my_tasks.py:swap_pairs`, or `package.module:name`.

What runs is what was hashed: a file is read once, hashed and compiled from the same bytes. It runs
only where the user named it, on the command line or in their own config, or where they have
trained with exactly this code before. A run directory that somebody sends names code too; that is
refused unless the user trusts it.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from toytrans.choices import did_you_mean
from toytrans.errors import UserError
from toytrans.safe_io import read_named, read_whole

MOST_BYTES = 10_000_000
"""Of a file of code, or of the list of trusted code."""

TRUST_ALL = "TOYTRANS_TRUST_CODE"
"""The environment variable that is set by --trust-code, so that processes started later see it."""

RAISED = (Exception, SystemExit)
"""What the user's code may raise; an interruption is not its own."""

_FORM = "write it as FILE.py:NAME or package.module:NAME"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

_trusted: set[str] = set()
_files: dict[str, tuple[str, ModuleType]] = {}
"""Modules of files, with their sha256, by path."""

_loaded: set[str] = set()
"""Files whose code was loaded here."""


def is_reference(text: str | None) -> bool:
    """Whether a value of a config names code rather than something built in."""
    return text is not None and (":" in text or text.endswith(".py"))


def absolute(text: str) -> str:
    """A reference with the absolute path of its file. Raises ValueError with a remedy."""
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(f"{text!r} names no code; {_FORM}")
    if place.endswith(".py"):
        return f"{Path(place).absolute()}:{name}"
    if not _MODULE.fullmatch(place):
        raise ValueError(f"{text!r} names neither a .py file nor a module; {_FORM}")
    return text


def shown(reference: str) -> str:
    """A reference for messages: a file below the working directory by its relative path."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(reference).relative_to(Path.cwd()))
    return reference


def load(reference: str) -> Any:
    """What a reference names. Raises UserError."""
    place, _, name = reference.rpartition(":")
    _check_trust(reference)
    module = _load_file(place) if place.endswith(".py") else _import(place)
    if not hasattr(module, name):
        names = [known for known in vars(module) if not known.startswith("_")]
        hint = did_you_mean(name, names) if names else "it defines nothing"
        raise UserError(f"{shown(place)}: has no {name}; {hint}")
    return getattr(module, name)


def construct(reference: str, *arguments: Any) -> Any:
    """What the class that a reference names makes of some arguments. Raises UserError."""
    named = load(reference)
    if not callable(named) or isinstance(named, ModuleType):
        raise UserError(f"{shown(reference)}: is not a class")
    try:
        return named(*arguments)
    except UserError:
        raise
    except RAISED as error:
        raise UserError(f"{shown(reference)}: fails: {failure(error, reference)}") from None


def fault_in_user_code(error: BaseException) -> str | None:
    """An exception in one line if it came through a file of the user's that was loaded here.

    An exit that this package asks for, because of a signal, is none of the user's.
    """
    if isinstance(error, SystemExit) and _raised_here(error):
        return None
    places = [place for place in _loaded if _line_of(error, place)]
    return f"{failure(error, f'{places[-1]}:')}" if places else None


def digest(reference: str) -> str:
    """sha256 of the file that a reference names; empty if it has none. Raises UserError."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        return hashlib.sha256(read_named(place, MOST_BYTES, name=shown(place))).hexdigest()
    path = _file_of(place)
    return hashlib.sha256(read_named(path, MOST_BYTES)).hexdigest() if path else ""


def failure(error: BaseException, reference: str) -> str:
    """An exception in one line: its type, its message and its line in the user's file."""
    place = reference.rpartition(":")[0]
    path = place if place.endswith(".py") else _file_of(place)
    first = (str(error).splitlines() or [""])[0][:200]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    line = _line_of(error, path)
    return f"{what} ({shown(path)}:{line})" if path and line else what


# Trust ---------------------------------------------------------------------------------------


def trust(references: Iterable[str]) -> None:
    """Let this process load code that the user has named."""
    _trusted.update(references)


@contextlib.contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Until the block ends, let this process and those that it starts load any code."""
    before = os.environ.get(TRUST_ALL)
    if everything:
        os.environ[TRUST_ALL] = "1"
    try:
        yield
    finally:
        if everything and before is None:
            os.environ.pop(TRUST_ALL, None)


def remember(references: Iterable[str]) -> None:
    """Note that the user has trained with this code: its sha256 and its reference, one a line.

    Where the list cannot be written, --trust-code is asked for later.
    """
    path, known = _list_of_trusted(), _remembered()
    lines = [f"{digest(reference)}  {reference}" for reference in sorted(set(references))]
    new = [line for line in lines if line not in known and line.isprintable()]
    if path is None or not new:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in new).encode())


def _check_trust(reference: str) -> None:
    """Raise UserError for code that only a run directory names."""
    if reference in _trusted or os.environ.get(TRUST_ALL):
        return
    if f"{digest(reference)}  {reference}" not in _remembered():
        raise UserError(
            f"{shown(reference)}: code that a run names, and that you have not trained with in "
            "this form; read it, then give --trust-code (trust_code=True in Python)"
        )


def _remembered() -> set[str]:
    path = _list_of_trusted()
    if path is None:
        return set()
    try:
        return set(read_whole(path, MOST_BYTES).decode(errors="replace").splitlines())
    except (OSError, UserError):
        return set()


def _list_of_trusted() -> Path | None:
    """The file that lists code the user has trained with; None without a home folder."""
    state = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))
    return state / "toytrans" / "trusted" if state.is_absolute() else None


# Loading -------------------------------------------------------------------------------------


def _load_file(path: str) -> ModuleType:
    """The module of a file: the one of before, unless the file has changed."""
    raw = read_named(path, MOST_BYTES, name=shown(path))
    sha256 = hashlib.sha256(raw).hexdigest()
    known = _files.get(path)
    if known is not None and known[0] == sha256:
        return known[1]
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = path
    before = sys.modules.get(name)
    sys.modules[name] = module  # where dataclasses and inspect look for it
    try:
        with _importing(path, str(Path(path).parent), path):
            exec(compile(raw, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise
    _files[path] = (sha256, module)
    return module


def _import(module: str) -> ModuleType:
    """An installed module, or one of the working directory."""
    path = _file_of(module)
    with _importing(module, os.getcwd(), path):
        return importlib.import_module(module)


@contextlib.contextmanager
def _importing(what: str, folder: str, path: str | None) -> Iterator[None]:
    """While code is imported, the modules of a folder can be imported too, after those that are
    installed. Whatever the code raises becomes a UserError."""
    sys.path.append(folder)
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{_place(what, error, path)}: {error}; install it, or mend it") from None
    except RAISED as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(
            f"{_place(what, error, path)}: fails on import: {type(error).__name__}: {first}"
        ) from None
    finally:
        if path:
            _loaded.add(path)
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _place(what: str, error: BaseException, path: str | None) -> str:
    line = _line_of(error, path)
    return f"{shown(path)}:{line}" if path and line else shown(what)


def _line_of(error: BaseException, path: str | None) -> int | None:
    """The last line of a file that an exception came through."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _raised_here(error: BaseException) -> bool:
    """Whether code of this package raised an exception."""
    *_, last = traceback.walk_tb(error.__traceback__)
    return str(last[0].f_globals.get("__name__")).startswith(f"{__package__}.")


def _file_of(module: str) -> str | None:
    """The source file of a module, found without running the packages around it."""
    sys.path.append(os.getcwd())
    try:
        parts = module.split(".")
        spec = importlib.util.find_spec(parts[0])
        for depth in range(2, len(parts) + 1):
            if spec is None:
                return None
            inside = spec.submodule_search_locations
            spec = None if inside is None else PathFinder.find_spec(".".join(parts[:depth]), inside)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.pop()
    origin = spec.origin if spec is not None else None
    return origin if origin is not None and origin.endswith(".py") else None
