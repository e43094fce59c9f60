"""A run directory: what it holds, and the model in it.

runs/name/config.yaml       every value of the config
runs/name/data.json         vocabulary, training lengths: what a run remembers of its data
runs/name/environment.json  versions, device, precision, what else can change numbers
runs/name/metrics.jsonl     one record a line
runs/name/checkpoints/      see checkpoint.py
runs/name/.toytrans-lock    held by the training that writes here
runs/name/.toytrans-HEX.draft  a file while it is written

The only files that toytrans deletes are checkpoints and drafts of its own: see owned.py.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, get_args, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toytrans.config.load import read_config, save_config
from toytrans.config.schema import Config
from toytrans.config.sealed import fault_remark, is_sealed
from toytrans.data.files import MOST_BYTES
from toytrans.data.pairs import MOST_TARGET_GROWTH, DataFacts
from toytrans.errors import UserError
from toytrans.evaluation import translate
from toytrans.files import append_line, json_text, open_regular, read_whole, write_file, write_json
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import Vocabulary
from toytrans.training.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    load_checkpoint,
    load_weights,
    most_bytes_of,
    pick_step,
    read_progress,
)
from toytrans.training.devices import Precision, choose_device
from toytrans.training.faults import build_model
from toytrans.training.owned import (
    CONFIG,
    DATA,
    ENVIRONMENT,
    METRICS,
    checkpoint_folder,
    delete_drafts,
    saved_steps,
    saying_what_failed,
)
from toytrans.user_code import trust

Record = dict[str, Any]
"""One line of metrics.jsonl. Of a record that is read, `step` is an int, and each of NUMBERS and
SHARES is a finite number, or None or missing where it was not measured."""

SHARES = ("valid_exact_match", "valid_token_accuracy")
NUMBERS = ("loss", "lr", "grad_norm", "padding", "target_tokens", "elapsed_s", "valid_loss")
LARGEST = 1e100
"""The magnitude of a number, so that its squares and quotients are finite."""

RANGES = {name: (-LARGEST, LARGEST) for name in NUMBERS} | dict.fromkeys(SHARES, (0, 1))
"""The least and the greatest value of each number of a record."""

RUNS = Path("runs")
"""The folder of runs without --out."""

LONGEST_RECORD, MOST_UNREAD = 10_000, 10_000
"""Bytes of a line of metrics.jsonl, and lines that are read after the first damaged one."""


def newest_run() -> Path:
    """The newest run under runs/ that has a checkpoint and is no sealed exercise.

    Raises UserError if there is none.
    """
    entries = list(RUNS.iterdir()) if RUNS.is_dir() else []
    runs = [path for path in entries if is_run(path) and saved_steps(path)]
    for path in sorted(runs, key=lambda run: (run / CONFIG).stat().st_mtime_ns, reverse=True):
        if not _is_exercise(path):
            return path
    if runs:
        raise UserError(f"{RUNS}: holds sealed exercises only; name the run directory to read")
    raise UserError(
        f"{RUNS}: no run here yet; train one with `toytrans train --config FILE`, "
        "or name a run directory"
    )


def _is_exercise(path: Path) -> bool:
    try:
        return is_sealed(read_run(path)[0].fault)
    except UserError:  # the command that opens it says what is wrong
        return False


def unfinished(path: Path) -> str:
    """The progress of an unfinished training as text; empty if it has finished."""
    try:
        train = read_run(path)[0].train
        progress = read_progress(path, saved_steps(path)[-1])
    except (UserError, IndexError):  # a training that writes there has just removed it
        return ""
    return "" if progress.is_finished(train) else f"step {progress.step} of {train.max_steps}"


def create_run(path: Path, config: Config, facts: DataFacts, environment: dict[str, Any]) -> None:
    """Make a run directory, or write its description again if it is resumed."""
    vocabulary = facts.vocabulary
    data = {
        "symbols": vocabulary.symbols,
        "separators": vocabulary.separators,
        "train_length": facts.train_length,
        "target_growth": facts.target_growth,
        "train_sha256": facts.train_sha256,
    }
    with saying_what_failed(path, "the run's description"):
        path.mkdir(parents=True, exist_ok=True)
        delete_drafts(path)
        write_file(path / DATA, (json.dumps(data, ensure_ascii=False) + "\n").encode())
        write_json(path / ENVIRONMENT, environment)
        write_file(path / CONFIG, save_config(config).encode())


def is_run(path: Path) -> bool:
    """Whether a path is a run directory."""
    return os.path.isfile(path / CONFIG) and os.path.isfile(path / DATA)  # of no name too long


def read_run(path: Path) -> tuple[Config, DataFacts]:
    """The config and the data facts of a run directory. Raises UserError."""
    if not os.path.exists(path):
        raise UserError(f"{path}: no such run directory; `toytrans train` makes one")
    if path.suffix in (".yaml", ".yml") and path.is_file():
        raise UserError(
            f"{path}: a config, not a run directory; `toytrans train {path}` makes one. "
            f"Commands that accept fresh weights take it as --config {path}"
        )
    if not is_run(path):
        missing = [name for name in (CONFIG, DATA) if not os.path.isfile(path / name)]
        raise UserError(f"{path}: not a run directory (it lacks {' and '.join(missing)})")
    try:
        facts = _SavedFacts.model_validate_json(read_whole(path / DATA, MOST_BYTES)).facts()
    except (OSError, ValidationError, UserError):
        raise UserError(f"{path / DATA}: damaged; the run cannot be read without it") from None
    return read_config(path / CONFIG), facts


class _SavedFacts(BaseModel):
    """data.json."""

    model_config = ConfigDict(extra="forbid", strict=True)

    symbols: tuple[str, ...]
    separators: tuple[str, ...]
    train_length: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(le=10**9)]]
    target_growth: Annotated[int, Field(ge=2, le=MOST_TARGET_GROWTH)]
    train_sha256: str

    def facts(self) -> DataFacts:
        """The facts. Raises UserError for values that training never writes."""
        low, high = self.train_length
        if low > high or any(symbol.split() != [symbol] for symbol in self.symbols):
            raise UserError("no training's data")
        vocabulary = Vocabulary(self.symbols, self.separators)
        return DataFacts(vocabulary, (low, high), self.target_growth, self.train_sha256)


def read_precision(path: Path) -> Precision | None:
    """The training precision of a run, from its environment.json."""
    precision = read_environment(path).get("precision")
    return precision if precision in get_args(Precision) else None


def is_of_launch(path: Path, launch: str | None) -> bool:
    """Whether a torchrun launch made or resumed a run. launch: `DistributedContext.launch`."""
    return launch is not None and read_environment(path).get("launch") == launch


def read_environment(path: Path) -> dict[str, Any]:
    """The contents of environment.json; empty if it cannot be read."""
    try:
        environment = json.loads(read_whole(path / ENVIRONMENT, MOST_BYTES))
    except (OSError, UserError, ValueError, RecursionError):
        return {}
    return environment if isinstance(environment, dict) else {}


def append_record(path: Path, record: Record) -> None:
    """Add a line to metrics.jsonl. NaN and infinity become null."""
    line = json_text(record)
    with saying_what_failed(path, METRICS):
        append_line(path / METRICS, f"{line}\n".encode())


def read_records(path: Path) -> list[Record]:
    """The records of a run up to the first damaged line. Raises UserError."""
    return [record for record, _ in record_lines(path) if record is not None]


def damaged_line(path: Path) -> str:
    """Which line of metrics.jsonl ends the reading, as a sentence; empty if none does.

    A last line without an end is none: a training writes it, or was killed in it.
    Raises UserError if the file cannot be read.
    """
    for number, (record, line) in enumerate(record_lines(path), 1):
        if record is None and line.endswith(b"\n"):
            where = f"{path / METRICS}:{number}"
            return f"{where}: no record of a training; what follows is left out"
    return ""


def record_lines(path: Path) -> Iterator[tuple[Record | None, bytes]]:
    """Each line of metrics.jsonl and its record.

    The record is None from the first damaged line on, for at most MOST_UNREAD lines. Raises
    UserError if the file cannot be read.
    """
    lines = _lines(path)
    for line in lines:
        if (record := _record(line)) is None:
            yield from ((None, rest) for rest in islice(chain([line], lines), MOST_UNREAD))
            return
        yield record, line


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of metrics.jsonl; longer ones than any record in pieces. Raises UserError."""
    try:
        with open_regular(path / METRICS) as file:
            yield from iter(lambda: file.readline(LONGEST_RECORD), b"")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path / METRICS}: cannot be read ({error.strerror})") from None


def _record(line: bytes) -> Record | None:
    """The record in a line: a step and plain values. None if the line holds none."""
    try:
        record = json.loads(line.decode(errors="replace"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    if not is_within(step, 0, 2**53) or not isinstance(step, int):
        return None
    plain = not any(isinstance(value, list | dict) for value in record.values())
    typed = all(
        record.get(name) is None or is_within(record[name], *ends) for name, ends in RANGES.items()
    )
    return record if plain and typed else None


def is_within(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number from low to high; NaN is not, nor is true."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and low <= value <= high


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def cut_records(path: Path, step: int) -> None:
    """Drop the records after a step, and damaged lines: a crash cuts the last one short. Behind
    MOST_UNREAD damaged lines nothing is read."""
    if not os.path.lexists(path / METRICS):
        return
    kept, newest, unread = [], -1, 0
    for line in _lines(path):
        record = _record(line)
        unread += record is None
        if unread > MOST_UNREAD:
            break
        if record and newest <= record["step"] <= step:
            kept.append(line.removesuffix(b"\n") + b"\n")
            newest = record["step"]
    with saying_what_failed(path, METRICS):
        write_file(path / METRICS, b"".join(kept))


@dataclass(frozen=True)
class Run:
    """A trained model with what it takes to use it."""

    path: Path
    config: Config
    facts: DataFacts
    model: Seq2Seq
    step: int

    @property
    def vocabulary(self) -> Vocabulary:
        return self.facts.vocabulary

    @property
    def title(self) -> str:
        """Path, step and fault."""
        return "; ".join(
            filter(None, (f"{self.path}, step {self.step}", fault_remark(self.config.fault)))
        )

    @overload
    def translate(self, sequences: str, beam: int = 1) -> str: ...

    @overload
    def translate(self, sequences: list[str], beam: int = 1) -> list[str]: ...

    def translate(self, sequences: str | list[str], beam: int = 1) -> str | list[str]:
        """The translation of one sequence such as "5 7 9", or those of several.

        Raises UnseenSymbol, a UserError.
        """
        if isinstance(sequences, str):
            return self.translate([sequences], beam)[0]
        output = translate(
            self.model,
            [sequence.split() for sequence in sequences],
            self.facts,
            source_bos=self.config.source_bos,
            beam=beam,
        )
        return [" ".join(symbols) for symbols in output]


def load_run(
    path: str | Path, checkpoint: str = "best", device: str = "auto", trust_code: bool = False
) -> Run:
    """The model of a run directory, in eval mode, in fp32 (fp64 where it was trained so).

    checkpoint: best, last or a step. device: as in a config. trust_code: whether code that the run
    names may be run, its task's say, until the process ends. Raises UserError.
    """
    path = Path(path)
    config, facts = read_run(path)
    if trust_code:
        trust(config.references.values())
    model = build_model(config, facts.vocabulary)
    step, loaded = _chosen(path, checkpoint, most_bytes_of(model))
    load_weights(model, loaded.weights, str(checkpoint_folder(path, step)))
    return Run(path, config, facts, model.eval().to(choose_device(device)), step)


def _chosen(path: Path, which: str, most_bytes: int) -> tuple[int, Checkpoint]:
    """The step and the checkpoint of a choice: best, last or a step.

    If a training removes the checkpoint before it is read, the choice is made again.
    """
    while True:
        step = pick_step(path, which)
        try:
            return step, load_checkpoint(path, step, most_bytes=most_bytes, training=False)
        except DamagedCheckpoint:
            if step in saved_steps(path):
                raise
