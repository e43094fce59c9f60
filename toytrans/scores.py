"""What was measured of some pairs: whole numbers for each pair, and their sums by length.

Numbers stay those of single pairs until somebody asks for a summary of some lengths. Everything is
summed then, and divided once at the end, so that summaries of any lengths fit together.
"""

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from toytrans.data.pairs import Side

if TYPE_CHECKING:
    from toytrans.html import Shown

FORCED_COLUMNS = ("tokens", "forced_tokens", "forced_exact")
FREE_COLUMNS = ("free_tokens", "free_exact", "surplus", "ended", "first_error")

PARTS = {"below": "below", "in_range": "in range", "beyond": "beyond"}
"""Where lengths lie beside the training lengths: key and label."""

Z_975 = 1.959963984540054
"""The 97.5% point of the normal distribution."""

Summary = dict[str, Any]
Columns = dict[str, Tensor]


@dataclass
class Scores:
    """What was measured of some pairs.

    columns: one whole number a pair, (N,) each. losses: nats, summed over the pairs of each length.
    train_length: the shortest and the longest training sequence. side: whose length counts.
    about: run, seed, split, checkpoint and fault, where a run was measured.

    Every pair has these columns:
    length: symbols of its source, or of its target.
    tokens: real target tokens, EOS included.
    forced_tokens: those that were predicted teacher-forced.
    forced_exact: whether all of them were, PAD and BOS not being allowed.
    decoded: whether it was decoded too.

    These are measured where a pair was decoded, and 0 elsewhere:
    free_tokens: output tokens that equal the target's at the same place.
    free_exact: whether the output equals the target.
    surplus: how many tokens longer the output is. ended: whether it has an EOS.
    first_error: the place of its first wrong token, counted from 1; 0 = none.
    """

    columns: Columns
    losses: dict[int, float]
    train_length: tuple[int, int]
    side: Side = "src"
    about: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: "Scores") -> "Scores":
        columns = {key: torch.cat([own, other.columns[key]]) for key, own in self.columns.items()}
        losses = dict(self.losses)
        for length, loss in other.losses.items():
            losses[length] = losses.get(length, 0.0) + loss
        return replace(self, columns=columns, losses=losses)

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured."""
        return sorted(self.losses)

    def lengths_of(self, part: str) -> list[int]:
        """The lengths of a part, which is a key of PARTS."""
        return [n for n in self.lengths if part_of(n, self.train_length) == part]

    @property
    def exact_match(self) -> float:
        """The proportion of outputs that equal their target, over all lengths."""
        return float(self.summary()["exact_match"])

    def summary(self, low: int = 0, high: int | None = None) -> Summary:
        """Shares, loss in nats per real token, and errors of the pairs of lengths low .. high.

        exact_match has its 95% interval. A difference is free-running less teacher-forced, both
        over the decoded pairs. Places of first errors are None where nothing is wrong. Where no
        pair has such a length, every share is 0.
        """
        lengths = self.columns["length"]
        if high is None:
            high = int(lengths.max()) if len(lengths) else 0
        chosen = (lengths >= low) & (lengths <= high)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        sums = {name: int(column.sum()) for name, column in columns.items()}
        n_pairs, n_decoded, n_right = int(chosen.sum()), sums["decoded"], sums["free_exact"]
        loss = sum(self.losses[n] for n in self.lengths if low <= n <= high)
        interval = wilson_interval(n_right, n_decoded)

        # Teacher-forced sums over the decoded pairs alone, to compare with what was decoded.
        forced = {name: int((columns[name] * columns["decoded"]).sum()) for name in FORCED_COLUMNS}
        errors = columns["first_error"][columns["first_error"] > 0].tolist()
        ended, surplus = columns["ended"], columns["surplus"]
        return {
            "examples": n_pairs,
            "exact_match": _share(n_right, n_decoded),
            "low": interval[0],
            "high": interval[1],
            "token_accuracy": _share(sums["forced_tokens"], sums["tokens"]),
            "loss": _share(loss, sums["tokens"]),
            "decoded": n_decoded,
            "forced_exact_match": _share(sums["forced_exact"], n_pairs),
            "exact_match_difference": _share(n_right - forced["forced_exact"], n_decoded),
            "free_token_accuracy": _share(sums["free_tokens"], forced["tokens"]),
            "token_accuracy_difference": _share(
                sums["free_tokens"] - forced["forced_tokens"], forced["tokens"]
            ),
            "wrong": n_decoded - n_right,
            "first_error_median": median(errors) if errors else None,
            "first_error_earliest": min(errors, default=None),
            "eos_early": int((ended * (surplus < 0)).sum()),
            "eos_late": int((ended * (surplus > 0)).sum()),
            "eos_never": n_decoded - sums["ended"],
        }

    def parts(self) -> dict[str, Summary]:
        """Summaries of the lengths below, in and beyond the training lengths. A part without pairs
        is absent."""
        low, high = self.train_length
        summaries = {
            "below": self.summary(0, low - 1),
            "in_range": self.summary(low, high),
            "beyond": self.summary(high + 1),
        }
        return {part: summary for part, summary in summaries.items() if summary["examples"]}

    def labelled(self) -> list[tuple[str, Summary]]:
        """The parts by label, and all of them together if there are several."""
        rows = [(PARTS[part], summary) for part, summary in self.parts().items()]
        return rows if len(rows) == 1 else [*rows, ("all", self.summary())]

    def to_dict(self) -> Summary:
        """Plain values: what was measured, the total, its parts, per length."""
        rows = [{"length": n} | self.summary(n, n) for n in self.lengths]
        for row in rows:
            del row["loss"]
        measured = {"length_of": self.side, "train_length": list(self.train_length)}
        return self.about | measured | self.summary() | self.parts() | {"by_length": rows}

    def table(self) -> "Shown":
        """The parts, and every group of lengths."""
        from toytrans.score_tables import table_of

        return table_of(self)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()


def part_of(length: int, train_length: tuple[int, int]) -> str:
    """The key of PARTS for a length."""
    low, high = train_length
    if length < low:
        return "below"
    return "beyond" if length > high else "in_range"


def _share(part: float, whole: int) -> float:
    """part / whole, and 0 where nothing was counted."""
    return part / whole if whole else 0.0


def wilson_interval(right: float, total: float) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927); (0, 1) where nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    z = Z_975
    share = right / total
    middle = share + z * z / (2 * total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
