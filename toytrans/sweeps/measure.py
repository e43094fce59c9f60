"""The exact match of a run on test pairs: of its test split, or of some lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toytrans.config import Config
from toytrans.data.pairs import DatasetInfo, Pairs, Split
from toytrans.data.selection import Selection, pairs_of_split
from toytrans.evaluation import Counts, evaluate
from toytrans.model.transformer import Transformer
from toytrans.sweeps.trial import Taken


@dataclass(frozen=True)
class ExactMatch:
    """The pairs that `toytrans eval` measures with the same --lengths and --examples.

    Without lengths every pair is decoded. With lengths the exact match is teacher-forced, which is
    the same number, and one pair of each length is decoded too, to prove it.
    """

    lengths: tuple[int, int] | None = None
    examples: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the options that it was given by."""
        return {"lengths": self.lengths, "examples": self.examples}

    def asked(self) -> dict[str, Any]:
        """The keys that its numbers depend on, as JSON."""
        lengths = None if self.lengths is None else list(self.lengths)
        return {"lengths": lengths, "pairs": self.examples, "decode": self._decode}

    @property
    def _decode(self) -> int | None:
        return None if self.lengths is None else 1

    def pairs(self, config: Config, facts: DatasetInfo) -> Pairs:
        """The pairs that are measured. Raises UserError where there are none."""
        return pairs_of_split(
            config, facts, split_of(config), Selection(self.lengths, self.examples)
        )

    def take(
        self,
        model: Transformer,
        config: Config,
        facts: DatasetInfo,
        taken: Mapping[str, Taken] | None = None,
    ) -> Taken:
        """The summary of an evaluation, the exact match in range and beyond, and of each length."""
        report = evaluate(
            model,
            self.pairs(config, facts),
            facts,
            source_bos=config.source_bos,
            decode=self._decode,
        )
        total, trained = report.total(), facts.train_length
        return total.summary() | {
            "by_length": report.curve(),
            "pairs_by_length": {n: counts.examples for n, counts in report.by_length.items()},
            "in_range": self._value(report.in_range(trained)),
            "beyond": self._value(report.out_of_range(trained)),
            "asked": self.asked(),
            "value": self._value(total),
        }

    def _value(self, counts: Counts) -> float | None:
        if not counts.examples:
            return None
        free = self._decode is None
        return float(counts.summary()["exact_match" if free else "forced_exact_match"])


def split_of(config: Config) -> Split:
    """The test split; validation pairs where a config names no test file."""
    files = config.data.files
    return "valid" if files is not None and files.test is None else "test"
