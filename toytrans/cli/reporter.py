"""Which process of a training prints: rank 0. The others are silent.

Before the processes are connected, local rank 0 of each machine prints.
"""

import contextlib
import os
import sys
import time
from typing import TextIO

SECONDS_FOR_REPORTER = 5.0
"""torchrun ends all processes as soon as one fails. Silent processes fail last, so that the
reporting one has printed its error."""


class Reporter:
    """Whether this process prints, and whether it trains with others. stderr: for errors that this
    process alone has."""

    active, one_of_several = True, False
    stderr: TextIO

    def start(self) -> None:
        """Before anything is printed."""
        self.active, self.one_of_several, self.stderr = True, False, sys.stderr
        if "WORLD_SIZE" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
            self.fall_silent()

    def fall_silent(self) -> None:
        """Print nothing more. Libraries that write to descriptors 1 and 2 fall silent too."""
        if not self.active:
            return
        self.active = False
        with contextlib.suppress(OSError):  # a descriptor that the shell has closed
            self.stderr = open(os.dup(2), "w")  # noqa: SIM115  (to the process's end)
            null = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(null, stream)
            os.close(null)

    def leave_last(self) -> None:
        """Let the reporting process fail first."""
        if not self.active:
            time.sleep(SECONDS_FOR_REPORTER)


reporter = Reporter()
