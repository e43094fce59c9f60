"""Places where a test lets a process die, to see what a crash just there leaves behind.

TOYTRANS_FAILPOINT=renamed      kill -9 where a checkpoint has just got its name
TOYTRANS_FAILPOINT=renamed:3    where that happens for the third time
"""

import os
import signal

VARIABLE = "TOYTRANS_FAILPOINT"

FILES = ("weights.safetensors", "optimizer.safetensors", "random.safetensors", "checkpoint.json")
IN_A_SAVE = (
    *(f"{how}-{file}" for file in FILES for how in ("half", "whole")),
    "half-checkpoints.json",  # the manifest, which names the checkpoint before it has its name
    "set-aside",  # a resumed run has renamed a checkpoint that cannot be read
    "renamed",
    "pruning",  # one that is not needed has lost its name, its files are still there
)
OF_A_RUN = (
    *(f"half-{file}" for file in ("data.json", "environment.json", "config.yaml")),
    "half-metrics.jsonl",  # a resumed run drops the records past its checkpoint
    "half-record",
)
PLACES = IN_A_SAVE + OF_A_RUN

_place, _, _number = os.environ.get(VARIABLE, "").partition(":")
_left = int(_number) if _number.isdigit() else 1


def failpoint(name: str) -> None:
    """Kill this process if this is its place to die; else do nothing."""
    global _left
    if name == _place:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
