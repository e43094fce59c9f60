"""What proofs found, as a report."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from toytrans.html import Cell, html_table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Verdict = Literal["PASS", "FAIL", "cannot judge", "does not apply"]

ESSENTIAL = "abst"
"""Letters of the proofs of pads, of the future and of what must be seen: a model passes only where
these were judged."""

FOLLOWS = {
    **dict.fromkeys("abst", "k"),
    **{"c": "ka", "d": "ka", "e": "kab", "i": "ka", "u": "kba", "g": "ah", "j": "kst"},
    **dict.fromkeys("opq", "kstab"),
}
"""Proofs that fail as well where one of others does, the likelier first. Of (k), only a mask that
closes nothing, a wrong axis and mixed heads have consequences: there it `explains`."""


class ProofFailed(AssertionError):
    """A report that is not passed; the message is its text."""


class Witness(NamedTuple):
    """Two batches (src, tgt_in) that should be answered alike and are not. what: "pads" appended,
    "future" tokens changed, a "prefix" alone, a row "alone", rows in another "order". place: where
    the two begin to differ; row: which row is alone; shift: places that the second is moved by."""

    before: "tuple[Tensor, Tensor]"
    after: "tuple[Tensor, Tensor]"
    what: Literal["pads", "future", "prefix", "alone", "order"]
    place: int = 0
    row: int = 0
    shift: int = 0


class Outcome(NamedTuple):
    """What a proof measured. It passes where difference <= tolerance, or, for what must change,
    where difference > tolerance.

    evidence: printed for a pass. cause: printed for a failure. length: that `check` must be given
    to see it, if it is not the batch's. by_gradients: whether gradients were taken as well.
    explains: whether other proofs may fail for the same cause.
    """

    difference: float
    tolerance: float
    evidence: str
    cause: str
    must_change: bool = False
    witness: Witness | None = None
    length: int | None = None
    by_gradients: bool = False
    explains: bool = True

    @property
    def passed(self) -> bool:
        """NaN is no pass."""
        if self.must_change:
            return self.difference > self.tolerance
        return self.difference <= self.tolerance


class NotApplicable(Exception):
    """The model has nothing that a proof could be about; the message says what."""


class NotAsked(NotApplicable):
    """A proof needs arguments of `check` that were not given: what each is, by its name."""

    def __init__(self, **needed: str) -> None:
        what = " and ".join(f"{what} ({name}=...)" for name, what in needed.items())
        super().__init__(f"needs {what}")
        self.give = tuple(needed)


class CannotJudge(Exception):
    """A proof lacks what it needs; the message says what, and what to give."""


@dataclass(frozen=True)
class Finding:
    """What one proof found. difference: of what its title says; it passes up to the tolerance, or
    beyond it where something must change. Both None where nothing was measured. Of a failure, where
    it is known: where it first shows, the smallest example, and a line that reproduces it.

    give: arguments of `check` without which it "does not apply". by_gradients: whether gradients
    were taken as well."""

    letter: str
    title: str
    verdict: Verdict
    message: str
    difference: float | None = None
    tolerance: float | None = None
    must_change: bool = False
    where: str | None = None
    example: str | None = None
    reproduce: str | None = None
    give: tuple[str, ...] = ()
    by_gradients: bool = False
    explains: bool = True

    @property
    def shown_verdict(self) -> str:
        """The verdict, or "not asked" for want of an argument."""
        return "not asked" if self.give else self.verdict

    @property
    def details(self) -> dict[str, str]:
        """What is known of a failure beside its cause."""
        known = {"where": self.where, "example": self.example, "reproduce": self.reproduce}
        return {name: value for name, value in known.items() if value}


@dataclass
class Tried:
    """What the proofs were asked of."""

    lengths: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    modes: set[str] = field(default_factory=set)
    precisions: set[str] = field(default_factory=set)
    seeds: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, length: int, rows: int, mode: str, dtype: "torch.dtype", seed: int) -> None:
        self.lengths.add(length)
        self.rows.add(rows)
        self.modes.add(mode)
        self.precisions.add(str(dtype).removeprefix("torch."))
        self.seeds.add(seed)

    def to_dict(self) -> dict[str, Any]:
        names = ("lengths", "rows", "modes", "precisions", "seeds")
        known = {name: sorted(getattr(self, name)) for name in names}
        return known | {"notes": self.notes, "left_out": self.left_out}

    def __str__(self) -> str:
        if not self.lengths:
            return "nothing"
        listed = {
            name: ", ".join(map(str, values))
            for name, values in self.to_dict().items()
            if name not in ("notes", "left_out")
        }
        return (
            f"lengths {listed['lengths']}; rows {listed['rows']}; {listed['modes']} mode; "
            f"{listed['precisions']}; seeds {listed['seeds']}"
        )


def with_width_named(findings: list[Finding]) -> list[Finding]:
    """Where pads change outputs and what they hold does not, their number does."""
    e = next((f for f in findings if f.letter == "e"), None)
    if e is None or e.verdict != "PASS" or not e.by_gradients:
        return findings
    more = (
        "; what pads hold does not matter, by (e), so it may be how many there are: a mean, scale "
        "or position that uses the padded width"
    )
    return [
        replace(f, message=f.message + more) if f.letter in "ad" and f.verdict == "FAIL" else f
        for f in findings
    ]


def finding_of(letter: str, title: str, outcome: Outcome) -> Finding:
    """The message of a finding: its evidence where it passed, else the cause."""
    passed = outcome.passed
    message = outcome.evidence if passed else outcome.cause
    return Finding(
        letter,
        title,
        "PASS" if passed else "FAIL",
        message,
        outcome.difference,
        outcome.tolerance,
        outcome.must_change,
        by_gradients=outcome.by_gradients,
        explains=outcome.explains,
    )


@dataclass(frozen=True, repr=False)
class Report:
    """The findings of all proofs on one model."""

    subject: str
    precision: str
    findings: tuple[Finding, ...]
    tried: Tried | None = None

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "cannot judge"]:
        """FAIL if a proof fails, "cannot judge" if none passes, or an essential one could not be
        judged."""
        if self.failures:
            return "FAIL"
        unsure = not any(f.verdict == "PASS" for f in self.findings) or any(
            f.letter in ESSENTIAL and f.verdict == "cannot judge" for f in self.findings
        )
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

    @property
    def follows(self) -> dict[str, str]:
        """Failures that another one may explain: their letters, and the letter of that one."""
        failed = {f.letter: f.explains for f in self.failures}
        first = {
            letter: next((cause for cause in FOLLOWS.get(letter, "") if failed.get(cause)), "")
            for letter in failed
        }
        return {letter: cause for letter, cause in first.items() if cause}

    @property
    def shown(self) -> list[Finding]:
        """What was judged, or could not be: failures first, of these the first causes."""
        order = ("FAIL", "cannot judge", "PASS")
        judged = [finding for finding in self.findings if finding.verdict in order]
        follows = self.follows
        return sorted(judged, key=lambda f: (order.index(f.verdict), f.letter in follows))

    def cause_of(self, finding: Finding) -> list[str]:
        """What is said of a finding that did not pass: its cause and details, or what it may
        follow from."""
        if first := self.follows.get(finding.letter):
            return [f"may follow from ({first}): mend that first"]
        names = {"where": "first seen", "example": "smallest example", "reproduce": "reproduce"}
        details = [f"{names[name]}: {text}" for name, text in finding.details.items()]
        return [finding.message, *details]

    @property
    def reduced(self) -> str:
        """What was left out as too much work, after the verdict; empty for nothing."""
        left_out = self.tried.left_out if self.tried is not None else []
        if not left_out or not self.passed:
            return ""
        return (
            f", reduced: {', '.join(left_out)} left out; build the model small (2 layers, width "
            "64, 100 words), or be thorough"
        )

    @property
    def unasked(self) -> list[str]:
        """A line for all proofs that were not asked, and one for those that do not apply, with
        their reasons."""
        lines = []
        for verdict in ("not asked", "does not apply"):
            reasons: dict[str, str] = {}
            for finding in self.findings:
                if finding.shown_verdict == verdict:
                    letters = reasons.get(finding.message, "")
                    reasons[finding.message] = f"{letters}({finding.letter}) "
            if reasons:
                listed = "; ".join(letters + reason for reason, letters in reasons.items())
                lines.append(f"{verdict}: {listed}")
        return lines

    @property
    def not_judged(self) -> str:
        """What could not be judged, as "(c) cannot be judged"; empty for none."""
        unsure = "".join(f"({f.letter}) " for f in self.findings if f.verdict == "cannot judge")
        return f"{unsure}cannot be judged" if unsure else ""

    @property
    def not_asked(self) -> str:
        """What more proofs need, as "2 not asked (give embedding=, batch=)"; empty for none."""
        missing = [finding.give for finding in self.findings if finding.give]
        names = dict.fromkeys(f"{name}=" for give in missing for name in give)
        return f"{len(missing)} not asked (give {', '.join(names)})" if missing else ""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; numbers that JSON lacks become null."""
        follows = self.follows
        rows = [
            {
                "proof": finding.letter,
                "title": finding.title,
                "verdict": finding.verdict,
                "difference": finding.difference,
                "tolerance": finding.tolerance,
                "must_change": finding.must_change,
                "words": finding.message,
                **finding.details,
                **({"give": list(finding.give)} if finding.give else {}),
                **({"follows": follows[finding.letter]} if finding.letter in follows else {}),
            }
            for finding in self.findings
        ]
        return {
            "model": self.subject,
            "precision": self.precision,
            "passed": self.passed,
            "verdict": self.verdict,
            "tried": None if self.tried is None else self.tried.to_dict(),
            "proofs": rows,
        }

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        colours = {"PASS": "#b7e1c0", "FAIL": "#f2a6a6"}
        rows: list[tuple[str, list[str | Cell]]] = [
            (
                f"({finding.letter})",
                [
                    Cell(finding.shown_verdict, finding.message, colours.get(finding.verdict, "")),
                    finding.title,
                    "" if finding.difference is None else f"{finding.difference:.1e}",
                    finding.message if finding.verdict == "FAIL" else "",
                ],
            )
            for finding in self.findings
        ]
        title = f"{self.subject}, {self.precision}: {self.verdict}{self.reduced}"
        return html_table(title, ("verdict", "proof", "difference", "cause"), rows)

    def __str__(self) -> str:
        lines = [f"{self.subject}, {self.precision}"]
        for finding in self.shown:
            number = "" if finding.difference is None else f" {finding.difference:.1e}"
            lines.append(f"({finding.letter}) {finding.verdict}{number}  {finding.title}")
            if finding.verdict != "PASS":
                lines += [f"      {text}" for text in self.cause_of(finding)]
        lines += self.unasked
        if self.tried is not None:
            lines.append(f"tried: {self.tried}")
            lines += [f"note: {note}" for note in self.tried.notes]
        ends = (self.verdict + self.reduced, self.not_judged, self.not_asked)
        lines.append(", ".join(filter(None, ends)))
        return "\n".join(lines)
