"""What a training has written beside its weights, read back: data.json and metrics.jsonl.

A run directory may have come from anybody, and a training may have been killed as it wrote, so that
every value is checked. RunWriter writes both files.
"""

import io
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toytrans.data.pairs import MOST_TARGET_GROWTH, DataFacts
from toytrans.errors import UserError
from toytrans.files import read_whole
from toytrans.tokens import Vocabulary
from toytrans.training.checkpoint import Count
from toytrans.training.folder import MOST_BYTES, Record

MOST_BYTES_OF_RECORDS, MOST_DAMAGED = 2**30, 10_000
"""Bytes of metrics.jsonl, and lines without a record after which no more are read."""

# data.json ------------------------------------------------------------------------------------


def read_facts(file: Path) -> DataFacts:
    """What a run remembers of its data. Raises UserError if the file is missing or damaged."""
    try:
        return _SavedFacts.model_validate_json(read_whole(file, MOST_BYTES)).facts()
    except (OSError, ValidationError, UserError):
        raise UserError(f"{file}: damaged; the run cannot be read without it") from None


class _SavedFacts(BaseModel):
    """data.json."""

    model_config = ConfigDict(extra="forbid", strict=True)

    symbols: tuple[str, ...]
    separators: tuple[str, ...]
    train_length: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(le=10**9)]]
    target_growth: Annotated[int, Field(ge=2, le=MOST_TARGET_GROWTH)]
    train_sha256: str
    unknown: str = ""

    def facts(self) -> DataFacts:
        """The facts. Raises UserError for values that training never writes."""
        low, high = self.train_length
        if low > high or any(symbol.split() != [symbol] for symbol in self.symbols):
            raise UserError("no training's data")
        vocabulary = Vocabulary(self.symbols, self.separators, self.unknown)
        return DataFacts(vocabulary, (low, high), self.target_growth, self.train_sha256)


# metrics.jsonl --------------------------------------------------------------------------------


def read_records(file: Path) -> tuple[list[Record], int]:
    """The records in a metrics.jsonl, and the number of its damaged lines. Raises UserError if it
    cannot be read."""
    records, damaged = list[Record](), 0
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
    evaluation_s: Number = None
    valid_exact_match: Share = None
    valid_token_accuracy: Share = None
    valid_loss: Number = None
    diverged: str = ""
