"""What comes of a question to a model: an `Outcome`, and where it is no pass, its `Cause`.

A failure, or a doubt for which there is no verdict, carries evidence, which is what was measured
and seen, by names, and rows of the table of causes. The first row that fits the evidence is the
cause. A part gives the evidence that its own rows go by. Whatever looks closer afterwards adds
more: the mode that fails alone, the precision, and where the difference begins, with what is seen
there (`causes_by_kind.evidence_of`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from toytrans.checks.ids import Ids

Verdict = Literal["FAIL", "PASS", "cannot judge", "not asked", "does not apply"]
"""From the one that counts most to the one that counts least."""

MAY_BE_EMPTY = "<(at|where|others|meant|behind|at_every_place)>"
"""What stands in words of causes beside the evidence that they are about."""

Evidence = Mapping[str, Any]
"""What was measured and seen, by names."""


def fits_always(evidence: Evidence) -> bool:
    """The last row of a list of causes fits whatever was seen."""
    return True


@dataclass(frozen=True)
class Cause:
    """A row in the table of causes: why a check fails, or why it cannot be judged, and what to do
    about it.

    code: the check and a name, "future.off_by_one", which stays the same from release to release.
    when: the evidence that selects this row, in words; fits: the same as a function of the
    evidence. words: what was seen, a format string over the evidence. remedy: what to look at or to
    write, a format string too. read: the page of docs/ on this mistake, if there is one. explains:
    whether other checks may fail because of it. is_doubt: whether it is why a check cannot be
    judged; counts: whether that counts more than what passes in other batches and parts.
    """

    code: str
    when: str
    words: str
    remedy: str = ""
    fits: Callable[[Evidence], bool] = fits_always
    read: str = ""
    explains: bool = True
    is_doubt: bool = False
    counts: bool = False

    @property
    def pattern(self) -> tuple[str, str]:
        """Its words and its remedy with <names> in place of what is filled in; what is filled in
        with nothing at most places is left out."""
        named = (re.sub(r"{(\w+)[^}]*}", r"<\1>", text) for text in (self.words, self.remedy))
        words, remedy = (re.sub(MAY_BE_EMPTY, "", text) for text in named)
        return words, remedy

    def text(self, evidence: Evidence) -> str:
        """What was seen and what to do, in one line."""
        parts = (self.words.format(**evidence), self.remedy.format(**evidence))
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class Counterexample:
    """The smallest pair that was found in which an output moves though it must not. How far it
    moves there is a number of this pair; the difference of the failure is the largest of the whole
    batch, so the two are seldom equal.

    before, after: the ids (1, S) and (1, T) that are asked. place: of the output that moves. by:
    how far it moves, NaN where it becomes NaN. tolerance: how far it may move. precision, mode: of
    the model that is asked. text: all of it in words. is_whole: whether the ids are all that
    changes; not where embeddings hold noise, or where other calls come between.
    """

    before: Ids
    after: Ids
    place: int
    by: float
    tolerance: float
    precision: str
    mode: str
    text: str
    is_whole: bool


@dataclass(frozen=True)
class Outcome:
    """What came of a part of a check.

    said: the evidence of a pass, or why nothing was asked. give: the arguments of `check` that
    would allow one. difference: what was measured; it passes up to the tolerance or, where
    something `must_change`, beyond it; both are None where nothing was measured. NaN never passes.
    Of a failure or a doubt, causes: rows of the table, of which the first that fits the evidence is
    the cause. Of a failure, circumstances: the mode and the batch in which it fails, in words.
    length: the `length=` of `check` that is enough to see it again. where: the module in which it
    first shows; line: the line of the model's own code that computes it there. example: the
    smallest one. follows: checks that explain it where they fail too, the likelier first.
    """

    verdict: Verdict
    said: str = ""
    give: tuple[str, ...] = ()
    difference: float | None = None
    tolerance: float | None = None
    must_change: bool = False
    causes: tuple[Cause, ...] = ()
    evidence: Evidence = field(default_factory=dict)
    circumstances: str = ""
    length: int | None = None
    where: str = ""
    line: str = ""
    example: Counterexample | None = None
    follows: tuple[str, ...] = ()

    @cached_property
    def cause(self) -> Cause | None:
        """Why it fails, or cannot be judged; None for other verdicts."""
        return next((cause for cause in self.causes if cause.fits(self.evidence)), None)

    @property
    def message(self) -> str:
        """The evidence of a pass, the cause of a failure or a doubt, or why nothing was asked."""
        if self.cause is None:
            return self.said
        return self.cause.text(self.evidence) + self.circumstances

    @property
    def weight(self) -> tuple[float, float]:
        """Which of several outcomes counts: a failure, else a doubt that counts, else a pass, the
        one nearest to failing.
        All failures weigh the same, and `max` keeps the first of equals: so it is the first part
        that fails, in the first batch in which it does."""
        strain = 0.0 if self.must_change else (self.difference or 0.0) / (self.tolerance or 1.0)
        rank: float = -get_args(Verdict).index(self.verdict)
        if self.cause is not None and self.cause.counts:
            rank = -0.5
        return rank, strain if self.verdict == "PASS" else 0.0

    def with_evidence(self, **more: Any) -> "Outcome":
        """The same outcome with more that was seen, from which another cause may follow."""
        return replace(self, evidence={**self.evidence, **more})

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values: dict[str, Any] = {
            "verdict": self.verdict,
            "difference": self.difference,
            "tolerance": self.tolerance,
            "words": self.message,
        }
        if self.cause is not None:
            values["cause"] = self.cause.code
        if self.give:
            values["give"] = list(self.give)
        return values


class Judged(Exception):
    """Ends a part of a check early, with its outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


def passes(said: str) -> Outcome:
    """A pass for which nothing was measured; said: its evidence."""
    return Outcome("PASS", said)


def fails(*causes: Cause, **evidence: Any) -> Outcome:
    """A failure for which nothing was measured."""
    return Outcome("FAIL", causes=causes, evidence=evidence)


def measured(
    difference: float,
    tolerance: float,
    said: str,
    *causes: Cause,
    must_change: bool = False,
    **evidence: Any,
) -> Outcome:
    """The outcome of a difference: a pass with what is said where it is small enough or, if
    something must change, large enough; else a failure with its causes and evidence."""
    passed = difference > tolerance if must_change else difference <= tolerance
    return Outcome(
        "PASS" if passed else "FAIL",
        said if passed else "",
        difference=difference,
        tolerance=tolerance,
        must_change=must_change,
        causes=() if passed else causes,
        evidence={} if passed else evidence,
    )


def unsure(*causes: Cause, give: tuple[str, ...] = (), **evidence: Any) -> Outcome:
    """No verdict, because what was seen can be meant, or proves nothing; give: the arguments of
    `check` that would allow one."""
    return Outcome("cannot judge", give=give, causes=causes, evidence=evidence)


def not_asked(why: str, *give: str) -> Outcome:
    """Nothing was asked, because an argument of `check` was not given."""
    return Outcome("not asked", why, give)


def does_not_apply(why: str) -> Outcome:
    """Nothing was asked, because the model has nothing that could be asked for."""
    return Outcome("does not apply", why)
