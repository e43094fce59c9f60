"""Running code of the user's. A file that `references` trusts runs once, as it was read when it was
named.

Each file is a module of its own and has helpers of its own: `import helpers` finds the file beside
it, whatever another file has imported by that name. Whatever the code raises becomes a UserError.
"""

import contextlib
import hashlib
import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from toytrans import references
from toytrans.errors import UserError, did_you_mean
from toytrans.references import is_shipped, path_of, shown, trust

_modules: dict[tuple[str, bytes], ModuleType] = {}
"""What trusted files define that have run, by the path and the bytes of each."""


def load(reference: str) -> Any:
    """What a reference names. Its file runs when it is first asked for.

    Raises UserError: code that is not trusted, a file that fails, a name that it does not define.
    """
    path, _, name = reference.rpartition(":")
    if path not in references.trusted:
        if not is_shipped(reference):
            raise UserError(
                f"{shown(reference)}: code that a run names runs with --trust-code alone "
                "(trust_code=True in Python); read it first"
            )
        trust([reference])
    code = path, references.trusted[path]
    if code not in _modules:
        _modules[code] = _run(*code)
    module = _modules[code]
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
    with refusing(f"{shown(reference)}: fails:", reference), _torch_as_it_was():
        return named(*arguments)


def _run(path: str, raw: bytes) -> ModuleType:
    """The module of a file. While it runs, it can import the modules beside it, after those that
    are installed. Raises UserError, whatever it raises, and leaves nothing behind then."""
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # where dataclasses and inspect look for it
    try:
        with _helpers_of(Path(path).parent), _torch_as_it_was():
            exec(compile(raw, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        line = _line_of(error, path)
        place = f"{shown(path)}:{line}" if line else shown(path)
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{place}: {error}; install it, or mend it") from None
        raise UserError(f"{place}: fails on import: {_summary(error)}") from None
    return module


@contextlib.contextmanager
def _helpers_of(folder: Path) -> Iterator[None]:
    """Let a file import the modules of its folder. They are forgotten afterwards, so that the next
    file gets its own; what has imported them keeps them."""
    before = set(sys.modules)
    sys.path.append(str(folder))
    importlib.invalidate_caches()  # a helper may be newer than what was seen of the folder
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        new = set(sys.modules) - before
        tops = {name for name in new if "." not in name and _lies_in(folder, sys.modules[name])}
        for name in new:
            if name.partition(".")[0] in tops:
                del sys.modules[name]


def _lies_in(folder: Path, module: ModuleType) -> bool:
    """Whether a module is a file of a folder, or a package in it."""
    file, places = getattr(module, "__file__", None), getattr(module, "__path__", ())
    if places:
        return any(Path(place).parent == folder for place in places)
    return file is not None and Path(file).parent == folder


@contextlib.contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Put back the default dtype and whether gradients are recorded, which code of the user's may
    change for itself. Whoever runs such code has imported torch; this module is read before."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    dtype, has_gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(has_gradients)


# What it raises ------------------------------------------------------------------------------


@contextlib.contextmanager
def refusing(what: str, reference: str) -> Iterator[None]:
    """Turn whatever the user's code raises in the block into a UserError that begins with `what`.

    It may raise anything, an exit or an exception of its own that is no Exception. Only an
    interruption is not its own.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(f"{what} {failure(error, reference)}") from None


def fault_in_user_code(error: BaseException) -> str | None:
    """An exception in one line if it came through a file of the user's that was run here.

    An exit that this package asks for, because of a signal, is none of the user's.
    """
    if isinstance(error, SystemExit):
        *_, last = traceback.walk_tb(error.__traceback__)
        if str(last[0].f_globals.get("__name__")).startswith(f"{__package__}."):
            return None
    places = [path for path in references.trusted if _line_of(error, path)]
    return failure(error, f"{places[-1]}:") if places else None


def failure(error: BaseException, reference: str) -> str:
    """An exception in one line: its type, its message and its line in the user's file."""
    path = path_of(reference)
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
