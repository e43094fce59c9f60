"""The data section of a config: a synthetic task or files, lengths, numbers of pairs."""

from typing import Annotated, Any

from pydantic import Field

from toytrans.choices import FormatName, TaskName
from toytrans.config_section import AbsolutePaths, Examples, Range, Section, Seed, Symbols, refusal

TARGET_GROWTH = {"duplicate": 2, "lexicon": 2}
"""Most target symbols per source symbol, where it is not 1."""

SHORTEST_SOURCE = {"addition": 3, "multiplication": 3, "parity": 1}
"""Shortest possible source of a task, where it is not 0."""

FEWEST_SYMBOLS = {"addition": 2, "multiplication": 2, "parity": 2, "stack": 2}
"""Smallest data.symbols of a task, where it is not 1: there are no numbers in base 1."""

USUAL_SYMBOLS = {"parity": 2, "stack": 2, "reverse_nlplike": 8000}
"""Default of data.symbols, where it is not 10."""

MOST_IDS = 2**27
"""Ids of a validation or test split, padded to its longest sequence; less than fills a machine."""


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

    task: TaskName | None = Field(None, description="Synthetic task. Excludes files.")
    files: FilesConfig | None = Field(None, description="Pairs read from files. Excludes task.")
    symbols: Symbols | None = Field(
        None,
        description="Number of symbols of the task. null means 10; 2 for parity and stack; 8000 "
        "for reverse_nlplike.",
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
    batch_tokens: Annotated[int, Field(ge=1, le=2**24)] = Field(
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
            symbols=USUAL_SYMBOLS.get(self.task, 10),
        )

    def _check(self) -> None:
        if (self.task is None) == (self.files is None):
            problem = "task and files exclude each other" if self.task else "nothing to learn from"
            raise refusal("", f"{problem}; name data.task or data.files")
        if self.task is None:
            of_tasks = ("symbols", "train_length", "valid_length", "test_length")
            self._refuse(of_tasks, "belongs to data.task, not to data.files")
            return
        if self.symbols is not None and self.symbols < FEWEST_SYMBOLS.get(self.task, 1):
            raise refusal("symbols", f"{self.task} needs at least {FEWEST_SYMBOLS[self.task]}")
        shortest = SHORTEST_SOURCE.get(self.task, 0)
        for name in ("train_length", "valid_length", "test_length"):
            if (span := getattr(self, name)) is None:
                continue
            if span[0] > span[1]:
                raise refusal(name, f"{list(span)} starts above its end; swap the two")
            if span[1] < shortest:
                raise refusal(name, f"{self.task} needs a source length of {shortest} or more")

    def longest(self) -> int:
        """The largest source length that a task is asked for in any split."""
        spans = (self.train_length, self.valid_length, self.test_length)
        return max((span[1] for span in spans if span), default=0)
