"""The data section of a config: a synthetic task or files, lengths, numbers of pairs."""

from typing import Annotated, Any, NamedTuple

from pydantic import Field

from toytrans.choices import FormatName, TaskName
from toytrans.config_section import (
    AbsolutePaths,
    Examples,
    OrOwn,
    Range,
    Section,
    Seed,
    Symbols,
    refusal,
)
from toytrans.user_code import is_reference


class TaskLimits(NamedTuple):
    """What a config must know of a task.

    growth: most target symbols per source symbol. shortest: symbols of the shortest source.
    fewest_symbols: least data.symbols; there are no numbers in base 1. symbols: its default.
    """

    growth: int = 1
    shortest: int = 0
    fewest_symbols: int = 1
    symbols: int | None = 10


LIMITS: dict[str, TaskLimits] = {
    "addition": TaskLimits(shortest=3, fewest_symbols=2),
    "multiplication": TaskLimits(shortest=3, fewest_symbols=2),
    "parity": TaskLimits(shortest=1, fewest_symbols=2, symbols=2),
    "stack": TaskLimits(fewest_symbols=2, symbols=2),
    "reverse_nlplike": TaskLimits(symbols=8000),
    "duplicate": TaskLimits(growth=2),
    "lexicon": TaskLimits(growth=2),
}
"""Of the tasks whose limits are not all usual."""

MOST_IDS = 2**27
"""Ids of a validation or test split, padded to its longest sequence; less than fills a machine."""


MOST_TOKENS = 2**24
"""Padded tokens of a batch, and of all batches of one step."""


class FilesConfig(Section):
    """Pairs read from files."""

    train: AbsolutePaths = Field(description="Training file. Format text takes [SOURCE, TARGET].")
    valid: AbsolutePaths | None = Field(
        None, description="Validation file. null holds out 5% of train, chosen by the seed."
    )
    test: AbsolutePaths | None = Field(None, description="Test file. null means no test data.")
    format: FormatName | None = Field(
        None, description="File format. null takes it from the name of the training file."
    )


class DataConfig(Section):
    """Which pairs, how long, how many."""

    task: OrOwn[TaskName] | None = Field(
        None,
        description="Synthetic task, or your own: FILE.py:NAME. Do not set data.files too.",
    )
    files: FilesConfig | None = Field(
        None, description="Pairs read from files. Do not set data.task too."
    )
    symbols: Symbols | None = Field(
        None,
        description="Number of symbols of the task. null means 10; 2 for parity and stack; 8000 "
        "for reverse_nlplike; what your own task says.",
    )
    train_length: Range | None = Field(
        None, description="Shortest and longest training source, in symbols. null means [1, 20]."
    )
    valid_length: Range | None = Field(
        None, description="Lengths of validation sources. null means train_length."
    )
    test_length: Range | None = Field(
        None, description="Lengths of test sources. null means train_length and 5 symbols beyond."
    )
    train_examples: Examples | None = Field(
        None,
        description="Number of training pairs. null means new pairs without end for a task, all "
        "pairs of a file.",
    )
    valid_examples: Examples | None = Field(
        None,
        description="Number of validation pairs. null means 1000 for a task, all pairs of a file.",
    )
    test_examples: Examples | None = Field(
        None, description="Number of test pairs. null means 1000 for a task, all pairs of a file."
    )
    batch_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        4096, description="Size of a batch in padded tokens: rows times (S + T)."
    )
    seed: Seed | None = Field(
        None,
        description="Seed of pairs, splits and batches alone. null means the seed of the run.",
    )
    disjoint: bool = Field(
        True, description="Keep validation and test sources out of the training data."
    )

    def _derived(self) -> dict[str, Any]:
        if self.task is None:
            return {}
        return self._defaults(
            train_length=(1, 20),
            valid_length=self.train_length or (1, 20),
            valid_examples=1000,
            test_examples=1000,
            symbols=self.limits.symbols,
        )

    @property
    def limits(self) -> TaskLimits:
        """Those of the task. Of the user's, its code alone knows them; `data` checks them then."""
        if is_reference(self.task):
            return TaskLimits(symbols=None)
        return LIMITS.get(self.task or "", TaskLimits())

    def _check(self) -> None:
        if (self.task is None) == (self.files is None):
            problem = "task and files exclude each other" if self.task else "nothing to learn from"
            raise refusal("", f"{problem}; name data.task or data.files")
        if self.task is None:
            of_tasks = ("symbols", "train_length", "valid_length", "test_length")
            self._refuse(of_tasks, "belongs to data.task, not to data.files")
            return
        shortest, fewest = self.limits.shortest, self.limits.fewest_symbols
        if self.symbols is not None and self.symbols < fewest:
            raise refusal("symbols", f"{self.task} needs at least {fewest}")
        for name in ("train_length", "valid_length", "test_length"):
            if (span := getattr(self, name)) is None:
                continue
            if span[0] > span[1]:
                raise refusal(name, f"{list(span)} starts above its end; swap the two")
            if span[1] < shortest:
                raise refusal(name, f"{self.task} needs a source length of {shortest} or more")

    def longest(self) -> int:
        """The largest source length that a task is asked for in any split."""
        return max((span[1] for span in self._spans()), default=0)

    def shortest(self) -> int:
        """The smallest one."""
        return min((span[0] for span in self._spans()), default=0)

    def _spans(self) -> list[tuple[int, int]]:
        return [span for span in (self.train_length, self.valid_length, self.test_length) if span]
