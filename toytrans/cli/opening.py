"""The run that a command reads: one that is named, or the newest, which every command finds in the
same way and names on standard error."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from toytrans.cli.common import warn_of_fault
from toytrans.cli.terminal import note
from toytrans.errors import UserError
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


def path_and_sequences(words: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """The run or the config, which may be the first word, and the sequences after it.

    The first word is one if it is a directory with a config.yaml, a file of YAML, or written as a
    path, with a slash and no space. Raises UserError for words that form no sequence.
    """
    sequences, path = list(words or ()), None
    first = sequences[0] if sequences else ""
    is_path = os.path.basename(first) != first and not re.search(r"\s", first)
    is_yaml = first.endswith((".yaml", ".yml")) and os.path.isfile(first)
    if is_path or is_yaml or os.path.isfile(os.path.join(first or os.devnull, "config.yaml")):
        path, sequences = Path(first), sequences[1:]
    if len(sequences) > 1 and not any(re.search(r"\s", sequence.strip()) for sequence in sequences):
        one = " ".join(sequences)
        raise UserError(f'{one}: each word is one sequence; put quotes around it: "{one}"')
    return path, sequences
