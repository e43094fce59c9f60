"""A run directory: the one view of what it holds, and the model in it.

    config.yaml        the config as it was given
    resolved.yaml      the settings that followed: every key with its value
    data.json          vocabulary, training lengths: what a run remembers of its data
    environment.json   versions, device, precision, what else can change numbers
    metrics.jsonl      one record a line, only appended to; the training holds its lock
    checkpoints.json   checkpoints/step-N.safetensors: see checkpoint.py

Reading takes no lock and writes nothing. The lock of a training is that of the open metrics.jsonl,
which the system releases when the process ends. Linux has locks of open files (OFD), which can be
asked about without taking one. Other systems have flock. Windows and some network disks have none.
"""

import contextlib
import io
import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toytrans.config.hidden_fault import fault_remark, is_hidden
from toytrans.config.load import as_yaml, load_config, load_settings
from toytrans.config.schema import Config, Settings
from toytrans.data.files import MOST_BYTES
from toytrans.data.open import Selection, pairs_of_files, pairs_of_split, trained_lengths
from toytrans.data.pairs import MOST_TARGET_GROWTH, DataFacts, Split
from toytrans.errors import UserError
from toytrans.evaluation import Scores, evaluate, translate
from toytrans.files import (
    Unreadable,
    append_line,
    check_free,
    disk_errors,
    json_text,
    open_regular,
    read_whole,
    write_file,
    write_json,
)
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import Vocabulary
from toytrans.training.checkpoint import (
    CHECKPOINTS,
    LIST,
    Count,
    Progress,
    copy_into,
    load_checkpoint,
    most_bytes_of,
    pick_step,
    read_progress,
    refusing,
    saved_steps,
    weights_of,
)
from toytrans.training.devices import choose_device
from toytrans.training.faults import build_model
from toytrans.user_code import trust

CONFIG, RESOLVED = "config.yaml", "resolved.yaml"
DATA, ENVIRONMENT, METRICS = "data.json", "environment.json", "metrics.jsonl"

RUNS = Path("runs")
"""The folder of runs without --out."""

Record = dict[str, Any]
"""One line of metrics.jsonl. Of a record that is read, `step` is an int; a number that training
writes is finite, or None or missing where it was not measured."""

NOT_MEASURED = "not measured"
"""What is shown for a number that is None or missing."""

MOST_BYTES_OF_RECORDS, MOST_DAMAGED = 2**30, 10_000
"""Bytes of metrics.jsonl, and lines without a record after which no more are read."""

Sequences = TypeVar("Sequences", str, list[str])

State = Literal["finished", "unfinished", "being written", "damaged"]


@dataclass(frozen=True)
class RunState:
    """How far a run has come.

    step: of the newest checkpoint; None if there is none.
    max_steps: None if the config cannot be read.
    exact_match: the best on validation data; None before the first evaluation.
    fault: planted on purpose, as the config says it.
    problem: why the run is damaged.
    """

    state: State
    step: int | None = None
    max_steps: int | None = None
    exact_match: float | None = None
    fault: str | None = None
    problem: str = ""

    def __str__(self) -> str:
        if self.state in ("finished", "damaged"):
            return self.state
        so_far = f"step {self.step:,} of {self.max_steps:,}" if self.step else "no checkpoint"
        return f"{self.state}, {so_far}"


@dataclass(frozen=True)
class RunFolder:
    """A run directory as it is read. Settings and data facts are validated where it is opened."""

    path: Path
    config: Settings
    facts: DataFacts

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """The run of a directory. Raises UserError: no run, one of toytrans 0.3, a damaged one."""
        if missing := [name for name in (RESOLVED, DATA) if not os.path.isfile(path / name)]:
            what = f"not a run directory (it lacks {' and '.join(missing)})"
            what = what if os.path.exists(path) else "no such run directory"
            raise UserError(f"{path}: {what}; `toytrans train CONFIG` makes one")
        if any(old.is_dir() for old in (path / CHECKPOINTS).glob("step-*[0-9]")):
            raise UserError(
                f"{path}: a run of toytrans 0.3, whose checkpoints are folders; train again, or "
                "use 0.3"
            )
        try:
            facts = _SavedFacts.model_validate_json(read_whole(path / DATA, MOST_BYTES)).facts()
        except (OSError, ValidationError, UserError):
            raise UserError(f"{path / DATA}: damaged; the run cannot be read without it") from None
        return RunFolder(path, load_settings(path / RESOLVED), facts)

    @property
    def given(self) -> Config:
        """The config as it was given. Raises UserError."""
        return load_config(self.path / CONFIG, saved=True)

    @property
    def environment(self) -> dict[str, Any]:
        """The contents of environment.json; empty if it cannot be read."""
        return read_environment(self.path)

    @property
    def records(self) -> list[Record]:
        """The records in the order of their steps, read once. Raises UserError.

        A resumed training writes some steps again: its records replace those of before from the
        first such step on. Lines that hold no record are skipped.
        """
        return self._read[0]

    @property
    def damaged_lines(self) -> int:
        """Lines of metrics.jsonl that hold no record. Raises UserError.

        A last line without an end is none: a training writes it, or was killed in it.
        """
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[list[Record], int]:
        file, records, damaged = self.path / METRICS, list[Record](), 0
        try:
            raw = read_whole(file, MOST_BYTES_OF_RECORDS)
        except FileNotFoundError:
            raw = b""
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from None
        for line in io.BytesIO(raw):
            try:
                record = _SavedRecord.model_validate_json(line).model_dump(exclude_unset=True)
            except ValidationError:
                damaged += line.endswith(b"\n")
                if damaged > MOST_DAMAGED:
                    break
                continue
            while records and records[-1]["step"] >= record["step"]:
                records.pop()
            records.append(record)
        return records, damaged

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in ascending order."""
        return saved_steps(self.path)

    def progress(self) -> Progress | None:
        """The progress of the newest checkpoint; None if there is none. Raises UserError."""
        steps = self.steps
        return read_progress(self.path, steps[-1]) if steps else None

    @property
    def unfinished(self) -> str:
        """The progress of an unfinished training, say "step 3 of 200"; empty at its end."""
        train = self.config.train
        with contextlib.suppress(UserError):  # the command that reads the checkpoint raises it
            progress = self.progress()
            if progress is not None and not progress.stop_reason(train):
                return f"step {progress.step} of {train.max_steps}"
        return ""

    def load(
        self, checkpoint: str = "best", device: str = "auto", trust_code: bool = False
    ) -> "Run":
        """The model of a checkpoint, in eval mode, in fp32 (fp64 where it was trained so).

        checkpoint: best, last or a step. device: as in a config. trust_code: whether code that the
        run names may be run, its task's say, until the process ends. Raises UserError.
        """
        if trust_code:
            trust(self.config.references.values())
        model = build_model(self.config, self.facts.vocabulary)
        step = pick_step(self.path, checkpoint)
        _, saved = load_checkpoint(self.path, step, most_bytes_of(model))
        of_training = ("optimizer/", "random/")
        theirs = {name: x for name, x in saved.items() if not name.startswith(of_training)}
        with refusing(self.path, step):
            copy_into(weights_of(model), theirs)
        on_device = model.eval().to(choose_device(device))
        return Run(self.path, self.config, self.facts, on_device, step)


@dataclass(frozen=True)
class Run(RunFolder):
    """A run directory, and the model of one of its checkpoints."""

    model: Seq2Seq
    step: int

    @property
    def vocabulary(self) -> Vocabulary:
        return self.facts.vocabulary

    @property
    def title(self) -> str:
        """Path, step and fault."""
        remark = fault_remark(self.config.fault)
        return f"{self.path}, step {self.step}" + (f"; {remark}" if remark else "")

    def translate(self, sequences: Sequences, beam: int = 1) -> Sequences:
        """The translation of one sequence such as "5 7 9", or those of several.

        Raises UnseenSymbol, a UserError.
        """
        if isinstance(sequences, str):
            return self.translate([sequences], beam)[0]
        symbols = [sequence.split() for sequence in sequences]
        output = translate(self.model, symbols, self.facts, beam)
        return [" ".join(each) for each in output]

    def measure(
        self,
        pairs_of: Split | Path | tuple[Path, Path],
        wanted: Selection,
        decode: int | None = None,
        beam: int = 1,
        follow: Callable[[int, int], object] = lambda done, total: None,
    ) -> Scores:
        """What `toytrans eval` prints, of a split, a file of pairs, or two files of parallel text.

        decode: pairs of each length to decode; None = all. follow: as in `evaluate`. Raises
        UserError.
        """
        config, facts = self.config, self.facts
        trained = trained_lengths(config, facts, wanted.side)
        if isinstance(pairs_of, str):
            pairs = pairs_of_split(config, facts, pairs_of, wanted)
        else:
            files = config.data.files
            named = isinstance(pairs_of, tuple) or pairs_of.suffix.lower() in (".tsv", ".jsonl")
            kind = files.format if files and not named and files.format != "text" else None
            pairs = pairs_of_files(pairs_of, kind, facts, wanted)
        scores = evaluate(
            self.model, pairs, facts, beam=beam, decode=decode, side=wanted.side, follow=follow
        )
        split = pairs_of if isinstance(pairs_of, str) else "files"
        about = {"run": str(self.path), "seed": config.seed, "split": split}
        about |= {"checkpoint": self.step, "fault": config.fault}
        return replace(scores, train_length=trained, about=about)


# Which runs there are ----------------------------------------------------------------------------


def is_run(path: Path) -> bool:
    """Whether a path is a run directory."""
    return os.path.isfile(path / RESOLVED) and os.path.isfile(path / DATA)  # of no name too long


def state_of(path: Path) -> RunState:
    """How far a run has come, now. Damage is a state, not an error."""
    state: State = "being written" if is_locked(path / METRICS) else "unfinished"
    try:
        run = RunFolder.open(path)
        progress = run.progress()
    except UserError as error:
        return RunState(state) if state != "unfinished" else RunState("damaged", problem=str(error))
    step = best = None
    if progress is not None:
        step, match = progress.step, progress.best_exact_match
        best = match if match >= 0 else None
        if state == "unfinished" and progress.stop_reason(run.config.train):
            state = "finished"
    return RunState(state, step, run.config.train.max_steps, best, run.config.fault)


def newest_run() -> Path:
    """The newest run under runs/ that has a checkpoint and is no exercise.

    Raises UserError if there is none.
    """
    entries = RUNS.iterdir() if RUNS.is_dir() else ()
    runs = [path for path in entries if is_run(path) and saved_steps(path)]
    for path in sorted(runs, key=lambda run: (run / RESOLVED).stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(UserError):  # the command that opens it raises it again
            if is_hidden(RunFolder.open(path).config.fault):
                continue
        return path
    raise UserError(
        f"{RUNS}: no run here yet; train one, say `toytrans train textbook`, or name a run "
        "directory"
    )


def list_runs(
    folder: Path, follow: Callable[[str], None] = lambda _: None
) -> list[tuple[Path, RunState, float, int]]:
    """The runs in a folder and in the folders below it, the newest first.

    Of each: its path, its state, seconds since it was last written to, and bytes of its files.
    follow: called with the path of each folder that is looked at.
    """
    runs = []
    for root, names, files in os.walk(folder):
        follow(root)
        if METRICS in files or {RESOLVED, DATA} <= set(files):
            names.clear()
            sizes, times = [0], [0.0]
            for inner, _, inside in os.walk(root):
                for name in inside:
                    with contextlib.suppress(OSError):  # a training has just removed it
                        about = os.lstat(os.path.join(inner, name))
                        sizes.append(about.st_size)
                        times.append(about.st_mtime)
            age = max(0.0, time.time() - max(times))
            runs.append((Path(root), state_of(Path(root)), age, sum(sizes)))
    return sorted(runs, key=lambda run: run[2])


# Its files ---------------------------------------------------------------------------------------


def create_run(
    path: Path,
    given: Config,
    settings: Settings,
    facts: DataFacts,
    environment: dict[str, Any],
) -> None:
    """Write the description of a run, or write it again if the run is resumed.

    Raises UserError, before it writes, if a link or a folder has the name of one of its files.
    """
    vocabulary = facts.vocabulary
    data = {
        "symbols": vocabulary.symbols,
        "separators": vocabulary.separators,
        "train_length": facts.train_length,
        "target_growth": facts.target_growth,
        "train_sha256": facts.train_sha256,
    }
    with disk_errors(path, "the run's description"):
        path.mkdir(parents=True, exist_ok=True)
        for name in (DATA, ENVIRONMENT, CONFIG, RESOLVED, LIST):
            check_free(path / name, replace=True)
        write_file(path / DATA, (json.dumps(data, ensure_ascii=False) + "\n").encode())
        write_json(path / ENVIRONMENT, environment)
        write_file(path / CONFIG, as_yaml(given).encode())
        write_file(path / RESOLVED, as_yaml(settings).encode())


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


def read_environment(path: Path) -> dict[str, Any]:
    """The contents of environment.json; empty if it cannot be read."""
    try:
        environment = json.loads(read_whole(path / ENVIRONMENT, MOST_BYTES))
    except (OSError, UserError, ValueError, RecursionError):
        return {}
    return environment if isinstance(environment, dict) else {}


def append_record(path: Path, record: Record) -> None:
    """Add a line to metrics.jsonl. NaN and infinity become null."""
    with disk_errors(path, METRICS):
        append_line(path / METRICS, f"{json_text(record)}\n".encode())


Number = Annotated[float, Field(ge=-1e100, le=1e100)] | None
"""Squares and quotients of such numbers are finite."""

Share = Annotated[float, Field(ge=0, le=1)] | None


class _SavedRecord(BaseModel):
    """A line of metrics.jsonl."""

    model_config = ConfigDict(extra="allow", strict=True)

    step: Count
    loss: Number = None
    lr: Number = None
    grad_norm: Number = None
    padding: Number = None
    target_tokens: Count | None = None
    elapsed_s: Number = None
    valid_exact_match: Share = None
    valid_token_accuracy: Share = None
    valid_loss: Number = None


# The lock ----------------------------------------------------------------------------------------


def lock(file: BinaryIO) -> bool:
    """Take the lock of an open file; whether there are locks here. Raises BlockingIOError if
    another process holds it."""
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _request())
        elif fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some systems say the latter
        raise BlockingIOError from None
    except OSError:
        return False
    return fcntl is not None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. False where that cannot be asked without taking
    the lock."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        with open_regular(path) as file:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _request())
    except (OSError, Unreadable):
        return False
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _request() -> bytes:
    """A `struct flock` that asks for an exclusive lock of the whole file."""
    return struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
