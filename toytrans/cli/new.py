"""`toytrans new`: a commented config to begin with."""

import shlex
from pathlib import Path

from toytrans.cli.new_files import write_new
from toytrans.cli.terminal import note
from toytrans.new_config import new_config


def new(
    task: str,
    out: Path | None,
) -> None:
    """Write a commented config that trains as it is."""
    text = new_config(task)
    if out is None:
        print(text, end="")
    else:
        write_new(out, text.encode())
        note(f"wrote {out}; train with: toytrans train {shlex.quote(str(out))}")
