"""A measurement: which pairs of a run are measured and how, and what came of it.

A `Measure` says the one, and a `Result` is the other: one document. `eval --json` prints it, a
sweep keeps it in eval.json of the run, and all tables, pictures and comparisons are made of it. One
that was kept is taken in place of measuring again exactly where its measure is the one asked for
and its fingerprint that of the run as it lies there.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from toytrans.config.faults import fault_remark
from toytrans.config.schema import Config
from toytrans.data.selection import SIDE_NAMES, Selection
from toytrans.documents import read_json
from toytrans.errors import share
from toytrans.files import disk_errors, write_json
from toytrans.measure import Measure
from toytrans.metrics import COUNTS, OF_PAIRS, OF_RUN
from toytrans.score_tables import lengths_tables, parts_table, rows_of_parts
from toytrans.scores import Numbers, Scores, Span, spans_of
from toytrans.table import Table

EVAL = "eval.json"

Place = str | Span
"""Pairs that have numbers of their own: a part of the lengths (a key of PARTS), "all", or a span of
lengths."""


def selection_of(measure: Measure) -> Selection:
    """Which pairs of a split are measured."""
    return Selection(measure.lengths, measure.examples, measure.length_of)


def split_of(config: Config) -> Literal["valid", "test"]:
    """The test split; validation pairs where a config names no test file."""
    files = config.data.files
    return "valid" if files is not None and files.test is None else "test"


class SpanNumbers(BaseModel):
    """The numbers of some lengths, shortest to longest, which are all of one part."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    shortest: int
    longest: int
    part: str
    numbers: Numbers

    @property
    def span(self) -> Span:
        """The lengths and their part, without the numbers."""
        return Span(self.shortest, self.longest, self.part)


class Result(BaseModel):
    """What a measure gave of a run.

    run: the path of the run. fingerprint: of all that the numbers follow from, as `Run.fingerprint`
    makes it. step, checkpoint: of the model, as a number and in words. seed, data_seed, fault: of
    the run's config. of_files: whether its pairs are those of files, which every seed shares.
    trained_on: how many of the pairs have a source that training has too; None where that is not
    known. train_length: the training lengths of the side that the measure says. steps, seconds,
    parameters: of the whole run. parts: the numbers of all pairs, and below, in and beyond the
    training lengths. by_length: those of each length, or of short spans.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    run: str
    measure: Measure
    fingerprint: str
    step: int
    checkpoint: str
    seed: int
    data_seed: int
    fault: str | None
    of_files: bool
    trained_on: int | None
    train_length: Annotated[tuple[int, int], Field(strict=False)]
    steps: int
    seconds: float
    parameters: int
    parts: dict[str, Numbers]
    by_length: list[SpanNumbers]

    @model_validator(mode="after")
    def _holds_numbers(self) -> Self:
        if "all" not in self.parts:
            raise ValueError("the numbers of all pairs are missing")
        for numbers in (*self.parts.values(), *(each.numbers for each in self.by_length)):
            for name, metric in OF_PAIRS.items():
                value = numbers.get(name)
                if value is not None and not 0 <= value <= (1 if metric.is_share else math.inf):
                    raise ValueError(f"{name} is out of range")
        return self

    def __getitem__(self, name: str) -> Any:
        """A number of all pairs, by its name."""
        return self.parts["all"][name]

    def number(self, metric: str, place: Place = "all") -> float | None:
        """A metric at a place; None where it has none."""
        if metric in OF_RUN:
            return float(getattr(self, metric)) if place == "all" else None
        value = self.at(place).get(metric)
        return None if value is None else float(value)

    def rests_on(self, metric: str, place: Place = "all") -> int:
        """How many pairs a metric at a place rests on: those that were decoded, or all."""
        if metric in OF_RUN:
            return 0
        return int(self.at(place).get("decoded" if metric.startswith("free_") else "pairs", 0))

    def at(self, place: Place) -> Mapping[str, Any]:
        """The numbers of a place; empty where there are no such pairs."""
        return self.parts.get(place, {}) if isinstance(place, str) else self._by_span.get(place, {})

    @cached_property
    def _by_span(self) -> dict[Span, Numbers]:
        return {each.span: each.numbers for each in self.by_length}

    @property
    def is_of_this_version(self) -> bool:
        """Whether it has all numbers that are measured now: another version may have had others."""
        return {*COUNTS, *OF_PAIRS} <= self.parts["all"].keys()

    @property
    def title(self) -> str:
        """The run, its checkpoint, how it was decoded, and its fault if it has one."""
        beam = self.measure.beam
        search = "greedy search" if beam == 1 else f"beam {beam}"
        title = f"{self.run}, {self.checkpoint}, {search}"
        remark = fault_remark(self.fault)
        return f"{title}; {remark}" if remark else title

    def tables(self) -> Iterator[Table]:
        """Its parts, each length, and the errors."""
        spans = [(each.span, each.numbers) for each in self.by_length]
        data = "given" if self.measure.files else self.measure.split
        rows = rows_of_parts(data, self.parts, [span for span, _ in spans], whole=True)
        table = parts_table(self.title, rows)
        yield replace(table, notes=[*table.notes, *self.remarks()])
        yield from lengths_tables(SIDE_NAMES[self.measure.length_of], spans, self.parts)

    def remarks(self) -> list[str]:
        """What no number says."""
        pairs, closed = self["pairs"], self["with_unknown"]
        told = []
        if self.trained_on:
            told.append(f"{self.trained_on:,} of {pairs:,} sources are trained on too")
        if closed:
            told.append(
                f"{closed:,} of {pairs:,} targets have symbols that training lacks and can never "
                f"match, so exact match is at most {share(1 - closed / pairs)}"
            )
        return told

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())

    def to_dict(self) -> dict[str, Any]:
        """The document, as plain values."""
        return self.model_dump(mode="json")


def result_of(scores: Scores, measure: Measure, **about: Any) -> Result:
    """The result of the pairs of a measure. about: the other fields."""
    ends = measure.lengths or (min(scores.lengths), max(scores.lengths))
    by_length = []
    for span in spans_of(range(ends[0], ends[1] + 1), scores.train_length):
        numbers = _finite(scores.numbers(span.low, span.high))
        if numbers["pairs"]:
            low, high, part = span
            by_length.append(SpanNumbers(shortest=low, longest=high, part=part, numbers=numbers))
    parts = {part: _finite(numbers) for part, numbers in scores.parts().items()}
    return Result(
        measure=measure,
        train_length=scores.train_length,
        parts=parts,
        by_length=by_length,
        **about,
    )


def _finite(numbers: Numbers) -> Numbers:
    """Numbers as JSON can have them: one that is not finite is None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in numbers.items()
    }


# Kept results ----------------------------------------------------------------------------------


def read_results(run: Path) -> list[Result]:
    """What eval.json of a run holds; empty without it. Raises UserError."""
    otherwise = "not what a sweep writes; remove it, and the trained model is measured again"
    found = read_json(run / EVAL, RootModel[list[Result]], otherwise)
    return [each for each in found.root if each.is_of_this_version] if found else []


def write_result(run: Path, result: Result) -> None:
    """Keep a result in eval.json of a run, in the place of an older one of the same measure. Raises
    UserError."""
    others = [each for each in read_results(run) if each.measure != result.measure]
    with disk_errors(run, EVAL):
        write_json(run / EVAL, [each.to_dict() for each in [*others, result]])
