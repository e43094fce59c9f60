"""The exact match of a run on test pairs: of its test split, or of some lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toytrans.config.schema import Config
from toytrans.data.pairs import DataFacts, Pairs, Split
from toytrans.data.selection import Selection, pairs_of_split
from toytrans.evaluation import PARTS, Summary, evaluate
from toytrans.model.seq2seq import Seq2Seq
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
        asked = {"lengths": lengths, "pairs": self.examples, "decode": self._decode}
        return asked | {"parts": list(PARTS)}

    @property
    def _decode(self) -> int | None:
        return None if self.lengths is None else 1

    @property
    def decoding(self) -> str:
        """How the exact match is decoded."""
        return "free-running" if self._decode is None else "teacher-forced"

    def pairs(self, config: Config, facts: DataFacts) -> Pairs:
        """The pairs that are measured. Raises UserError where there are none."""
        return pairs_of_split(
            config, facts, split_of(config), Selection(self.lengths, self.examples)
        )

    def take(
        self,
        model: Seq2Seq,
        config: Config,
        facts: DataFacts,
        taken: Mapping[str, Taken] | None = None,
    ) -> Taken:
        """The summary of an evaluation, the exact match of its parts, and of each length."""
        scores = evaluate(
            model,
            self.pairs(config, facts),
            facts,
            source_bos=config.source_bos,
            decode=self._decode,
        )
        total, parts = scores.summary(), scores.parts()
        each = scores.by_length()
        return total | {
            "by_length": {n: summary["forced_exact_match"] for n, summary in each.items()},
            "pairs_by_length": {n: summary["examples"] for n, summary in each.items()},
            "train_length": facts.train_length,
            **{part: self._value(summary) for part, summary in parts.items()},
            "asked": self.asked(),
            "value": self._value(total),
        }

    def _value(self, summary: Summary) -> float:
        return float(summary["exact_match" if self._decode is None else "forced_exact_match"])


def split_of(config: Config) -> Split:
    """The test split; validation pairs where a config names no test file."""
    files = config.data.files
    return "valid" if files is not None and files.test is None else "test"
