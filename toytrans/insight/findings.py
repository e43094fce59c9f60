"""What proofs found, as a report."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Verdict = Literal["PASS", "FAIL", "cannot judge", "does not apply"]

ESSENTIAL = "ab"
"""Letters of the proofs of pads and of the future: a model passes only where these were judged."""


class ProofFailed(AssertionError):
    """A report that is not passed; the message is its text."""


class Outcome(NamedTuple):
    """What a proof measured. It passes where difference <= tolerance, or, for what must change,
    where difference > tolerance. evidence: said of a pass; cause: said of a failure."""

    difference: float
    tolerance: float
    evidence: str
    cause: str
    must_change: bool = False

    @property
    def passed(self) -> bool:
        """NaN is no pass."""
        if self.must_change:
            return self.difference > self.tolerance
        return self.difference <= self.tolerance


class NotApplicable(Exception):
    """The model has nothing that a proof could be about; the message says what."""


class CannotJudge(Exception):
    """A proof lacks what it needs; the message says what, and what to give."""


@dataclass(frozen=True)
class Finding:
    """What one proof found. difference: of what its title says; it passes up to the tolerance, or
    beyond it where something must change. Both None where the proof does not apply."""

    letter: str
    title: str
    verdict: Verdict
    words: str
    difference: float | None = None
    tolerance: float | None = None
    must_change: bool = False


def finding_of(letter: str, title: str, outcome: Outcome) -> Finding:
    """What a proof found, in words: its evidence where it passed, else the cause."""
    passed = outcome.passed
    words = outcome.evidence if passed else outcome.cause
    return Finding(
        letter,
        title,
        "PASS" if passed else "FAIL",
        words,
        outcome.difference,
        outcome.tolerance,
        outcome.must_change,
    )


@dataclass(frozen=True)
class Report:
    """The findings of all proofs on one model."""

    subject: str
    precision: str
    findings: tuple[Finding, ...]
    tried: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "cannot judge"]:
        """FAIL if a proof fails, "cannot judge" if pads or the future could not be judged."""
        if self.failures:
            return "FAIL"
        unsure = any(f.letter in ESSENTIAL and f.verdict == "cannot judge" for f in self.findings)
        return "cannot judge" if unsure else "PASS"

    @property
    def passed(self) -> bool:
        return self.verdict == "PASS"

    def __bool__(self) -> bool:
        return self.passed

    def raise_if_failed(self) -> None:
        """Raises ProofFailed, an AssertionError, unless the verdict is PASS."""
        if not self.passed:
            raise ProofFailed(str(self))

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "FAIL")

    def document(self) -> dict[str, Any]:
        """Everything as plain values; numbers that JSON lacks become null."""
        rows = [
            {
                "proof": finding.letter,
                "title": finding.title,
                "verdict": finding.verdict,
                "difference": _finite(finding.difference),
                "tolerance": finding.tolerance,
                "must_change": finding.must_change,
                "words": finding.words,
            }
            for finding in self.findings
        ]
        return {
            "model": self.subject,
            "precision": self.precision,
            "passed": self.passed,
            "verdict": self.verdict,
            "tried": list(self.tried),
            "proofs": rows,
        }

    def __str__(self) -> str:
        lines = [f"{self.subject}, {self.precision}"]
        for finding in self.findings:
            number = "" if finding.difference is None else f" {finding.difference:.1e}"
            lines.append(f"({finding.letter}) {finding.verdict}{number}  {finding.title}")
            if finding.verdict != "PASS":
                lines.append(f"      {finding.words}")
        return "\n".join(lines)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
