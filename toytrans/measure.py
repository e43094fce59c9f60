"""What is measured of a run, as a sweep file and the options of `eval` say it. What comes of it is
the business of measurement.py, which needs torch."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from toytrans.config.schema import LONGEST, Positive, Range, Section
from toytrans.errors import UserError


class Measure(Section):
    """What is measured of a run: which pairs, of which checkpoint, and how they are decoded.

    Everything is also scored teacher-forced. Where not all pairs are decoded, exact match is
    compared teacher-forced, which is the same number; the pairs that are decoded prove it.
    """

    split: Literal["valid", "test"] = "test"
    """Which data of the run."""
    files: tuple[str, ...] | None = None
    """A file of pairs in place of a split, or a file of sources and one of targets."""
    lengths: Range | None = None
    """The shortest and the longest sequence. null means those of the split."""
    length_of: Literal["src", "tgt"] = "src"
    """Whether lengths are of sources or of targets."""
    examples: Positive | None = None
    """Pairs in all. null means those of the split."""
    decode: Annotated[int, Field(ge=0)] | None = None
    """Pairs of each length that are decoded. null means all."""
    beam: Annotated[int, Field(ge=1, le=1000)] = 1
    """Width of the beam. 1 is greedy search."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""

    @model_validator(mode="before")
    @classmethod
    def _from_lists(cls, values: Any) -> Any:
        """JSON and YAML have lists."""
        if isinstance(values, dict) and isinstance(values.get("files"), list):
            return values | {"files": tuple(values["files"])}
        return values

    @property
    def main_metric(self) -> str:
        """What is compared where nothing else is asked for."""
        return "free_exact_match" if self.decode is None else "forced_exact_match"

    def in_words(self, lengths: str = "") -> str:
        """Which pairs, and what is unusual. lengths: those that were found, say "of length 3"."""
        pairs = "given pairs" if self.files else f"{self.split} pairs"
        pairs = f"{pairs} {lengths}".rstrip()
        more = [f"beam {self.beam}"] * (self.beam > 1)
        more += [f"checkpoint {self.checkpoint}"] * (self.checkpoint != "best")
        if self.decode is not None:
            more += [f"{self.decode} of each length decoded"]
        return ", ".join([pairs, *more])


def check_longest(lengths: tuple[int, int] | None) -> None:
    """Raise UserError for lengths that no sequence may have."""
    if lengths is not None and lengths[1] > LONGEST:
        raise UserError(f"lengths {lengths[0]}:{lengths[1]}: a length is at most {LONGEST}")
