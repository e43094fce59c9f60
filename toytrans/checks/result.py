"""What checks find: one `Result` for each, and the report that they add up to."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

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


class CheckFailed(AssertionError):
    """A report that is not passed; the message is its text."""


class Told(Exception):
    """What came of a check without measuring, and why. verdict: of "FAIL" the message is the cause;
    of "cannot judge" it says what the check lacks; of "not asked", which argument; of "does not
    apply", what the model has not. give: arguments of `check` to give."""

    def __init__(self, verdict: Verdict, message: str, *give: str) -> None:
        super().__init__(message)
        self.verdict, self.give = verdict, give


wrong, unsure = partial(Told, "FAIL"), partial(Told, "cannot judge")


@dataclass(frozen=True)
class Result:
    """What a check, or a part of one, found.

    difference: of what its title says. It passes up to the tolerance or, where something
    `must_change`, beyond it; both None where nothing was measured. NaN never passes.
    message: evidence of a pass, cause of a failure, or why there is no verdict.
    details: of a failure, by name, where known: "where" it first shows, the smallest "example",
    and a line to "reproduce" it. give: arguments that were not given.
    change: what was changed in it, and how far each output moved (N, T). causes: checks that
    explain it where they fail too, the likelier first; explains: whether it explains others.
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
    change: "tuple[Change, Tensor] | None" = field(default=None, repr=False)
    parts: "dict[str, Result]" = field(default_factory=dict)

    @property
    def title(self) -> str:
        return CHECKS.get(self.name, "")

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


@dataclass(frozen=True, repr=False)
class Report:
    """The results of all checks of one model. tried: lengths, rows, modes, precisions and seeds of
    the batches that were asked; notes on them; what was left out as too much work."""

    subject: str
    precision: str
    results: tuple[Result, ...]
    tried: dict[str, list[Any]]

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "cannot judge"]:
        """FAIL if a check fails, "cannot judge" if one is `decisive`."""
        if self.of("FAIL"):
            return "FAIL"
        return "cannot judge" if self.decisive else "PASS"

    @property
    def decisive(self) -> Result | None:
        """What alone keeps a report without failures from PASS: a check that could not be judged
        and is essential, or of a loss that was given; where no check passes, any."""
        unsure = self.of("cannot judge")
        counted = [result for result in unsure if result.name in ESSENTIAL or result.give]
        return next(iter(counted if self.of("PASS") else (*counted, *unsure, *self.results)), None)

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
    def follows(self) -> dict[str, str]:
        """Failures that another one may explain: their names, and that of the other."""
        explaining = {result.name for result in self.of("FAIL") if result.explains}
        found: dict[str, str] = {}
        for result in self.of("FAIL"):
            if causes := [name for name in result.causes if name in explaining]:
                found[result.name] = causes[0]
        return {name: found.get(cause, cause) for name, cause in found.items()}

    @property
    def failures(self) -> tuple[Result, ...]:
        """Those that failed, of these the first causes first."""
        follows = self.follows
        return tuple(sorted(self.of("FAIL"), key=lambda result: result.name in follows))

    def with_parts(self, verdict: Verdict) -> dict[str, Result]:
        """Checks of a verdict, and single parts of other checks, in words."""
        found: dict[str, Result] = {}
        for result in self.results:
            parts = {f"{result.name} by {name}": part for name, part in result.parts.items()}
            here = {result.name: result} if result.verdict == verdict else parts
            found |= {name: each for name, each in here.items() if each.verdict == verdict}
        return found

    @property
    def end(self) -> str:
        """The verdict with what limits it: what failed, was left out, not judged, not asked."""
        text: str = self.verdict
        if self.failures:
            text += f": {', '.join(result.name for result in self.failures)}"
        if self.tried["left_out"] and self.passed:
            text += (
                f", reduced: {', '.join(self.tried['left_out'])} left out; build the model small "
                "(2 layers, width 64, 100 words), or give length=512"
            )
        for said, names in (
            ("not judged", self.with_parts("cannot judge")),
            ("not asked", self.with_parts("not asked")),
        ):
            text += f"; {said}: {', '.join(names)}" if names else ""
        return text

    @property
    def scope(self) -> str:
        """What was tried, in words."""
        listed = {name: ", ".join(map(str, values)) for name, values in self.tried.items()}
        text = "lengths {lengths}; rows {rows}; {modes} mode; {precisions}; seeds {seeds}"
        return text.format(**listed)

    def lines(self, everything: bool = False) -> list[tuple[str, str]]:
        """The report line by line: failures first, then what could not be judged, then what passed
        in one line, or each check in lines of its own for `everything`. Beside each line its
        style: a verdict, "title", "cause", "more" or "end"."""
        lines, follows = [(f"{self.subject}, {self.precision}", "title")], self.follows
        names = {"where": "first seen", "example": "smallest example", "reproduce": "reproduce"}
        for result in self.failures:
            said = [result.message, *(f"{names[k]}: {v}" for k, v in result.details.items())]
            if first := follows.get(result.name):
                said = [f"may follow from {first}: mend that first"]
            lines.append((result.headline, "FAIL"))
            lines += [(f"      {text}", "cause") for text in said]
        unsure = {name: part.message for name, part in self.with_parts("cannot judge").items()}
        for why, unjudged in _gathered(unsure).items():
            lines.append((f"?     {unjudged}: {why}", "cannot judge"))
        passed = self.of("PASS")
        if passed and not everything:
            lines.append((f"PASS  {', '.join(result.name for result in passed)}", "PASS"))
        for result in passed if everything else ():
            lines.append((result.headline, "PASS"))
            for name, part in result.parts.items():
                if part.verdict == "PASS":
                    lines.append((f"      {name}: {part.message}", "more"))
        give = {name: "=, ".join(part.give) for name, part in self.with_parts("not asked").items()}
        apart = {each.name: each.message for each in self.of("does not apply")}
        more = {
            "not asked": [f"{asked} (give {needed}=)" for needed, asked in _gathered(give).items()],
            "does not apply": [f"{these}: {why}" for why, these in _gathered(apart).items()],
            "tried": [self.scope],
        }
        lines += [(f"{name}: {'; '.join(said)}", "more") for name, said in more.items() if said]
        lines += [(f"note: {note}", "more") for note in self.tried["notes"]]
        return [*lines, (self.end, "end")]

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.lines())

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; numbers that JSON lacks become null."""
        follows = {name: {"follows": cause} for name, cause in self.follows.items()}
        return {
            "model": self.subject,
            "precision": self.precision,
            "passed": self.passed,
            "verdict": self.verdict,
            "tried": self.tried,
            "checks": [each.to_dict() | follows.get(each.name, {}) for each in self.results],
        }


def _gathered(values: dict[str, str]) -> dict[str, str]:
    """Names by what they share."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return {value: ", ".join(names) for value, names in found.items()}
