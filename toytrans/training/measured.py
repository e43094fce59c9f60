"""The measurement of a run: what `toytrans eval` prints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toytrans.data.pairs import Split
from toytrans.data.selection import Selection, pairs_of_files, pairs_of_split, trained_lengths
from toytrans.evaluation import PARTS, Scores, Summary, evaluate, spans
from toytrans.html import html_table

if TYPE_CHECKING:
    from toytrans.training.run import Run


class Measured(NamedTuple):
    """A run and its measurement.

    train_length: the range of training lengths.
    data: name of the pairs: valid, test or files.
    side: whose length counts.
    """

    run: "Run"
    scores: Scores
    train_length: tuple[int, int]
    data: str
    side: str

    @property
    def exact_match(self) -> float:
        """The proportion of outputs that equal their target, over all lengths."""
        return float(self.scores.summary()["exact_match"])

    def to_dict(self) -> Summary:
        """Everything as plain values."""
        run = self.run
        return {
            "run": str(run.path),
            "seed": run.config.seed,
            "split": self.data,
            "checkpoint": run.step,
            "fault": run.config.fault,
            "length_of": self.side,
            "train_length": list(self.train_length),
        } | self.scores.to_dict(self.train_length)

    def parts(self) -> Iterator[tuple[str, Summary]]:
        """Summaries below, in range, beyond and of all, where they have pairs and differ."""
        parts = self.scores.parts(self.train_length)
        yield from ((PARTS[part], summary) for part, summary in parts.items())
        if len(parts) > 1:
            yield "all", self.scores.summary()

    def __repr__(self) -> str:
        lines = [self._title()]
        for name, row in self.parts():
            interval = f"{row['low']:.3f}..{row['high']:.3f}"
            lines.append(
                f"  {name}: exact match {row['exact_match']:.3f} ({interval}), token accuracy "
                f"{row['token_accuracy']:.3f}, loss {row['loss']:.4f}, {row['examples']:,} pairs"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(name, _cells(row)) for name, row in self.parts()]
        for low, high, _ in spans(self.scores.lengths, self.train_length):
            label = f"{low} to {high}" if low < high else f"length {low}"
            rows.append((label, _cells(self.scores.summary(low, high))))
        columns = ("pairs", "exact match", "95%", "token acc.", "loss")
        return html_table(self._title(), columns, rows)

    def _title(self) -> str:
        return f"{self.run.title}: {self.data}"


def _cells(row: Summary) -> list[str]:
    return [
        f"{row['examples']:,}",
        f"{row['exact_match']:.3f}",
        f"{row['low']:.3f}..{row['high']:.3f}",
        f"{row['token_accuracy']:.3f}",
        f"{row['loss']:.4f}",
    ]


def measure(
    run: "Run",
    pairs_of: Split | Path | tuple[Path, Path],
    wanted: Selection,
    decode: int | None = None,
    beam: int = 1,
    follow: Callable[[int, int], None] | None = None,
) -> Measured:
    """Measure a run on a split, a file of pairs, or two files of parallel text. Raises UserError.

    decode: pairs of each length to decode; None = all. follow: as in `evaluate`.
    """
    trained = trained_lengths(run.config, run.facts, wanted.side)
    if not isinstance(pairs_of, str):
        files = run.config.data.files
        named = isinstance(pairs_of, tuple) or pairs_of.suffix.lower() in (".tsv", ".jsonl")
        kind = files.format if files and not named and files.format != "text" else None
        pairs, data = pairs_of_files(pairs_of, kind, run.facts, wanted), "files"
    else:
        pairs, data = pairs_of_split(run.config, run.facts, pairs_of, wanted), str(pairs_of)
    scores = evaluate(
        run.model,
        pairs,
        run.facts,
        source_bos=run.config.source_bos,
        beam=beam,
        decode=decode,
        side=wanted.side,
        follow=follow,
    )
    return Measured(run, scores, trained, data, wanted.side)
