"""The run that a command reads: one that is named, or the newest, which every command finds in the
same way and names on standard error."""

from pathlib import Path

from toytrans.cli.common import warn_of_fault
from toytrans.cli.terminal import note
from toytrans.training.devices import tune_process
from toytrans.training.listing import newest_run
from toytrans.training.run import Run


def open_run(
    path: Path | None, trust_code: bool, checkpoint: str = "best", device: str = "cpu"
) -> Run:
    """The run of a path, or the newest one, whose fault is noted. Raises UserError.

    trust_code: whether code that the run names may run
    """
    tune_process()
    run = Run.open(path or newest(), trust_code, checkpoint, device)
    assert run.model, "errors of a checkpoint come before anything else is said"
    warn_of_fault(run.settings.fault)
    for sentence in run.notes:
        note(sentence)
    return run


def newest() -> Path:
    """The newest run, named in a note. Raises UserError."""
    path = newest_run()
    rest = Run.open(path).unfinished
    note(f"run: {path}, the newest" + (f"; training is unfinished: {rest}" if rest else ""))
    return path
