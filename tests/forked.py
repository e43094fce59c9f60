"""Programs in processes of their own, which start at once.

They are forks of a process that has imported torch: a new interpreter takes seconds for that. What
is tested of an interpreter's own start or end (a signal in an import, a closed stream) needs a new
one.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.forkserver import _forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import NamedTuple

from toytrans.sweeps.here import main_hidden

COMMAND = "from toytrans.cli import main; main()"
"""The program `toytrans`."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["toytrans.sweeps.trial", "toytrans.cli.app", "forked"])


class Ended(NamedTuple):
    """Exit code, negative after a signal, and what a program printed."""

    code: int
    out: str
    err: str


class Forked:
    """`python -P -c CODE WORDS` in a process that has started.

    folder: its working directory
    environment: its environment; None = that of this process
    stderr: where its standard error goes; None = where `ended` reads it
    """

    def __init__(
        self,
        code: str,
        *words: str,
        folder: Path | str = "",
        environment: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> None:
        self._printed = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in "12"]  # noqa: SIM115
        out, err = (file.fileno() for file in self._printed)
        streams = [DupFd(number) for number in (out, err if stderr is None else stderr)]
        place = str(Path(folder).resolve())
        given = (code, words, place, dict(environment or os.environ), streams)
        self.process = _CONTEXT.Process(target=_run, args=given)
        with main_hidden():
            self.process.start()

    def ended(self) -> Ended:
        """Wait for its end, 15 minutes at most."""
        self.process.join(900)
        assert self.process.exitcode is not None, "it has not ended"
        texts = []
        for file in self._printed:
            with file:
                file.seek(0)
                texts.append(file.read())
        return Ended(self.process.exitcode, *texts)


def _run(
    code: str, words: tuple[str, ...], folder: str, environment: dict[str, str], streams: list
) -> None:
    _forkserver.ensure_running = lambda: None  # what is started here is forked from it as well
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a sweep may have started the fork server
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.detach(), number)
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    sys.stdout = os.fdopen(1, "w", encoding=encoding)
    sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", buffering=1)
    sys.argv = ["-c", *words]
    exec(code, {"__name__": "__main__"})
