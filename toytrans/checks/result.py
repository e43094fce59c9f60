"""What checks find: one `Result` for each, and the report that they add up to."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from toytrans.checks.changes import Change

Verdict = Literal["FAIL", "PASS", "cannot judge", "not asked", "does not apply"]

CHECKS = {
    "pads": "pads change no real output",
    "future": "a later target token changes no earlier output",
    "rows": "a pair gives the same in any batch",
    "calls": "nothing is kept from call to call",
    "order": "the order of the source is seen",
    "source": "every source token moves some output",
    "target": "every target token moves a later output",
    "steps": "decoding step by step = one parallel pass",
    "loss": "the loss is the mean over real labels",
    "labels": "labels are the next decoder inputs, to the end",
    "scale": "softmax is of q k / root of d_head, over keys",
    "sublayers": "residuals, norms and feed-forward take part",
}

ESSENTIAL = ("pads", "future", "source", "target")
"""Checks without which no model passes."""

FOLLOWS = {
    **dict.fromkeys(("pads", "future", "source", "target"), ("scale",)),
    "rows": ("scale", "pads"),
    "order": ("scale", "source", "target"),
    "sublayers": ("scale", "source", "target", "pads", "future"),
}
"""Checks that fail as well where one of others does, the likelier first. Of `scale`, only a mask
that closes nothing, a wrong axis and mixed heads have consequences: there it `explains`."""


class CheckFailed(AssertionError):
    """A report that is not passed; the message is its text."""


class Told(Exception):
    """What came of a check without measuring; the message says why."""

    verdict: Verdict

    def __init__(self, message: str, *give: str) -> None:
        super().__init__(message)
        self.give = give


class Wrong(Told):
    """Something is wrong; the message is the cause."""

    verdict = "FAIL"


class CannotJudge(Told):
    """A check lacks what it needs; the message says what, and what to give. give: arguments
    without which another one that was given is of no use."""

    verdict = "cannot judge"


class NotAsked(Told):
    """A check needs arguments that were not given: what each is, by its name."""

    verdict = "not asked"

    def __init__(self, **needed: str) -> None:
        super().__init__("needs " + " and ".join(needed.values()), *needed)


class NotApplicable(Told):
    """The model has nothing that a check could be about; the message says what."""

    verdict = "does not apply"


@dataclass(frozen=True)
class Result:
    """What a check, or a part of one, found.

    difference: of what its title says. It passes up to the tolerance or, where something
    `must_change`, beyond it; both None where nothing was measured. NaN never passes.
    message: evidence of a pass, cause of a failure, or why there is no verdict.
    details: of a failure, by name, where known: "where" it first shows, the smallest "example",
    and a line to "reproduce" it. give: arguments that were not given.
    change: what was changed in it. explains: whether other checks may fail for the same cause.
    causes: checks that explain it where they fail too, beside those of `FOLLOWS`.
    parts: what a check is made of, by their names.
    """

    name: str
    verdict: Verdict
    message: str
    difference: float | None = None
    tolerance: float | None = None
    must_change: bool = False
    details: dict[str, str] = field(default_factory=dict)
    give: tuple[str, ...] = ()
    explains: bool = True
    causes: tuple[str, ...] = ()
    change: "Change | None" = field(default=None, repr=False)
    parts: "dict[str, Result]" = field(default_factory=dict)

    @property
    def title(self) -> str:
        return CHECKS.get(self.name, "")

    @property
    def counts(self) -> bool:
        """Whether no model passes where it cannot be judged."""
        return self.name in ESSENTIAL or bool(self.give)

    @property
    def weight(self) -> tuple[int, float]:
        """What of several results counts: a failure, else a pass, the nearest to failing first."""
        strain = 0.0 if self.must_change else (self.difference or 0.0) / (self.tolerance or 1.0)
        return -get_args(Verdict).index(self.verdict), strain if self.verdict == "PASS" else 0.0

    @property
    def headline(self) -> str:
        """Verdict, name, title, the difference and what is wanted."""
        text = f"{self.verdict}  {self.name:<9} {self.title:<47} "
        if self.difference is None or self.tolerance is None:
            return text.rstrip()
        relation = ">" if self.must_change else "<="
        if not self.tolerance:  # then the difference counts places or labels
            return f"{text}{self.difference:g} {relation} 0"
        return f"{text}{self.difference:.1e} {relation} {self.tolerance:.0e}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, with its parts."""
        both = {
            "verdict": self.verdict,
            "difference": self.difference,
            "tolerance": self.tolerance,
            "words": self.message,
        } | ({"give": list(self.give)} if self.give else {})
        if not self.name:
            return both
        parts = [{"part": name} | part.to_dict() for name, part in self.parts.items()]
        named = {"check": self.name, "title": self.title}
        return named | both | {"must_change": self.must_change, **self.details, "parts": parts}


def measured(
    difference: float,
    tolerance: float,
    evidence: str,
    cause: str,
    must_change: bool = False,
    **more: Any,
) -> Result:
    """The result of a difference: `evidence` where it passes, else `cause`. It has no name yet."""
    passed = difference > tolerance if must_change else difference <= tolerance
    verdict: Verdict = "PASS" if passed else "FAIL"
    message = evidence if passed else cause
    return Result("", verdict, message, difference, tolerance, must_change, **more)


def merged(name: str, parts: dict[str, Result], essential: str) -> Result:
    """The result of a check: of its parts the one that counts most, of passes with the evidence of
    the first. Without its essential part, if it has one, it is not judged."""
    found, base = max(parts.values(), key=lambda part: part.weight), parts.get(essential)
    if base is not None and base.verdict == "cannot judge" and found.verdict != "FAIL":
        found = base
    passed = [part.message for part in parts.values() if part.verdict == "PASS"]
    message = passed[0] if found.verdict == "PASS" else found.message
    return replace(found, name=name, parts=parts, message=message)


@dataclass
class Tried:
    """What the checks were asked of. asked: length, rows, mode, precision and seed of batches."""

    asked: set[tuple[int, int, str, str, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        names = ("lengths", "rows", "modes", "precisions", "seeds")
        known = {name: sorted({each[n] for each in self.asked}) for n, name in enumerate(names)}
        return known | {"notes": self.notes, "left_out": self.left_out}

    def __str__(self) -> str:
        listed = {name: ", ".join(map(str, values)) for name, values in self.to_dict().items()}
        text = "lengths {lengths}; rows {rows}; {modes} mode; {precisions}; seeds {seeds}"
        return text.format(**listed) if self.asked else "nothing"


class Line(NamedTuple):
    """A line of a report, and how it is shown: a verdict, "title", "cause", "more" or "end"."""

    text: str
    style: str


@dataclass(frozen=True, repr=False)
class Report:
    """The results of all checks of one model."""

    subject: str
    precision: str
    results: tuple[Result, ...]
    tried: Tried

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "cannot judge"]:
        """FAIL if a check fails, "cannot judge" if none passes, or one that counts could not be
        judged: an essential one, or of a loss that was given."""
        if self.failures:
            return "FAIL"
        unsure = any(result.counts for result in self.of("cannot judge"))
        return "cannot judge" if unsure or not self.of("PASS") else "PASS"

    @property
    def passed(self) -> bool:
        return self.verdict == "PASS"

    def __bool__(self) -> bool:
        return self.passed

    def raise_if_failed(self) -> None:
        """Raises CheckFailed, an AssertionError, unless the verdict is PASS."""
        __tracebackhide__ = True  # of pytest
        if not self.passed:
            raise CheckFailed(str(self))

    def __getitem__(self, name: str) -> Result:
        """The result of a check by its name."""
        return next(result for result in self.results if result.name == name)

    def of(self, verdict: Verdict) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.verdict == verdict)

    @property
    def failures(self) -> tuple[Result, ...]:
        """Those that failed, of these the first causes first."""
        follows = self.follows
        return tuple(sorted(self.of("FAIL"), key=lambda result: result.name in follows))

    @property
    def follows(self) -> dict[str, str]:
        """Failures that another one may explain: their names, and that of the other."""
        failed = {result.name: result for result in self.of("FAIL")}
        found: dict[str, str] = {}
        for name, result in failed.items():
            for cause in (*FOLLOWS.get(name, ()), *result.causes):
                if cause in failed and failed[cause].explains:
                    found.setdefault(name, cause)
        return {name: found.get(cause, cause) for name, cause in found.items()}

    def cause_of(self, result: Result) -> list[str]:
        """What is said of a result that did not pass: its cause and details, or what it may
        follow from."""
        if first := self.follows.get(result.name):
            return [f"may follow from {first}: mend that first"]
        names = {"where": "first seen", "example": "smallest example", "reproduce": "reproduce"}
        details = [f"{names[name]}: {text}" for name, text in result.details.items()]
        return [result.message, *details]

    def _within(self, verdict: Verdict) -> dict[str, Result]:
        """Checks of a verdict, and single parts of other checks, in words."""
        found: dict[str, Result] = {}
        for result in self.results:
            parts = {f"{result.name} by {name}": part for name, part in result.parts.items()}
            here = {result.name: result} if result.verdict == verdict else parts
            found |= {name: each for name, each in here.items() if each.verdict == verdict}
        return found

    @property
    def not_asked(self) -> dict[str, tuple[str, ...]]:
        """What was not asked, in words, and the arguments of `check` that would ask it."""
        return {name: result.give for name, result in self._within("not asked").items()}

    @property
    def not_judged(self) -> dict[str, str]:
        """What could not be judged, in words, and why."""
        return {name: result.message for name, result in self._within("cannot judge").items()}

    @property
    def decisive(self) -> tuple[str, str]:
        """Of what could not be judged the first that counts, and why."""
        unsure = sorted(self.of("cannot judge"), key=lambda result: not result.counts)
        first = (*unsure, *self.results)[0]
        return first.name, first.message

    @property
    def end(self) -> str:
        """The verdict with what limits it: what failed, was left out, not judged, not asked."""
        text: str = self.verdict
        if self.failures:
            text += f": {', '.join(result.name for result in self.failures)}"
        if self.tried.left_out and self.passed:
            text += (
                f", reduced: {', '.join(self.tried.left_out)} left out; build the model small (2 "
                "layers, width 64, 100 words), or give length=512"
            )
        if unsure := self.not_judged:
            text += f"; not judged: {', '.join(unsure)}"
        if unasked := self.not_asked:
            text += f"; not asked: {', '.join(unasked)}"
        return text

    def lines(self, everything: bool = False) -> list[Line]:
        """The report line by line: failures first, then what could not be judged, then what passed
        in one line, or each check in lines of its own for `everything`."""
        lines = [Line(f"{self.subject}, {self.precision}", "title")]
        for result in self.failures:
            lines.append(Line(result.headline, "FAIL"))
            lines += [Line(f"      {text}", "cause") for text in self.cause_of(result)]
        for why, names in _gathered(self.not_judged).items():
            lines.append(Line(f"?     {names}: {why}", "cannot judge"))
        passed = self.of("PASS")
        if passed and not everything:
            lines.append(Line(f"PASS  {', '.join(result.name for result in passed)}", "PASS"))
        for result in passed if everything else ():
            lines.append(Line(result.headline, "PASS"))
            for name, part in result.parts.items():
                if part.verdict == "PASS":
                    lines.append(Line(f"      {name}: {part.message}", "more"))
        asked = _gathered({name: "=, ".join(give) for name, give in self.not_asked.items()})
        apart = _gathered({each.name: each.message for each in self.of("does not apply")})
        more = {
            "not asked": "; ".join(f"{names} (give {give}=)" for give, names in asked.items()),
            "does not apply": "; ".join(f"{names}: {why}" for why, names in apart.items()),
            "tried": str(self.tried),
        }
        lines += [Line(f"{name}: {text}", "more") for name, text in more.items() if text]
        lines += [Line(f"note: {note}", "more") for note in self.tried.notes]
        return [*lines, Line(self.end, "end")]

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines())

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; numbers that JSON lacks become null."""
        follows = {name: {"follows": cause} for name, cause in self.follows.items()}
        return {
            "model": self.subject,
            "precision": self.precision,
            "passed": self.passed,
            "verdict": self.verdict,
            "tried": self.tried.to_dict(),
            "checks": [each.to_dict() | follows.get(each.name, {}) for each in self.results],
        }


def _gathered(values: dict[str, str]) -> dict[str, str]:
    """Names by what they share."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return {value: ", ".join(names) for value, names in found.items()}
