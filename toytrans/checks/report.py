"""The report of a model: a `Result` for each check, and the verdict that they add up to, as lines
for people and as plain values for programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toytrans.checks.outcome import Cause, Counterexample, Outcome, Verdict
from toytrans.checks.registry import Check


class CheckFailed(AssertionError):
    """A report that is not passed; the message is its text."""


@dataclass(frozen=True)
class Result:
    """What came of a check: of the outcomes of its parts the one that counts, and all of them by
    their names. expected: why its failure, or its doubt, is meant; "" where it is not. reproduce: a
    line that shows a failure again."""

    check: Check
    outcome: Outcome
    parts: Mapping[str, Outcome]
    expected: str = ""
    reproduce: str = ""

    @property
    def name(self) -> str:
        """The name of the check."""
        return self.check.name

    @property
    def title(self) -> str:
        """What the check asks, in words."""
        return self.check.title

    @property
    def verdict(self) -> Verdict:
        """What came of it."""
        return self.outcome.verdict

    @property
    def cause(self) -> Cause | None:
        """Why it fails, or cannot be judged; None for other verdicts."""
        return self.outcome.cause

    @property
    def message(self) -> str:
        """The cause of a failure, why there is no verdict, or the evidence of a pass."""
        return self.outcome.message

    @property
    def give(self) -> tuple[str, ...]:
        """Arguments of `check` that would allow a verdict."""
        return self.outcome.give

    @property
    def difference(self) -> float | None:
        """What was measured; None where nothing was."""
        return self.outcome.difference

    @property
    def tolerance(self) -> float | None:
        """How large it may be, or must be."""
        return self.outcome.tolerance

    @property
    def example(self) -> Counterexample | None:
        """The smallest example of a failure, where one was found."""
        return self.outcome.example

    @property
    def details(self) -> dict[str, str]:
        """Of a failure, where known: the module where it first shows, the smallest example, the
        line of the model that computes it, and a line that shows it again."""
        if self.verdict != "FAIL":
            return {}
        example = self.example.text if self.example is not None else ""
        every = {"where": self.outcome.where, "example": example, "line": self.outcome.line}
        every["reproduce"] = self.reproduce
        return {name: text for name, text in every.items() if text}

    @property
    def headline(self) -> str:
        """Verdict, name, title, the difference and what is wanted."""
        text = f"{self.verdict}  {self.name:<9} {self.title:<47} "
        if self.difference is None or self.tolerance is None:
            return text.rstrip()
        relation = ">" if self.outcome.must_change else "<="
        if not self.tolerance:  # then the difference counts places or labels
            return f"{text}{self.difference:g} {relation} 0"
        return f"{text}{self.difference:.1e} {relation} {self.tolerance:.0e}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, with its parts."""
        about: dict[str, Any] = {"check": self.name, "title": self.title}
        about |= self.outcome.to_dict() | {"must_change": self.outcome.must_change} | self.details
        if self.expected:
            about["expected"] = self.expected
        parts = [{"part": name} | part.to_dict() for name, part in self.parts.items()]
        return about | {"parts": parts}


@dataclass(frozen=True, repr=False)
class Report:
    """The results of all checks of one model. given: facts that change what is asked. tried:
    lengths, rows, modes, precisions and seeds of the batches that were asked; notes on them; what
    was left out as too much work."""

    subject: str
    precision: str
    results: tuple[Result, ...]
    given: Mapping[str, Any]
    tried: dict[str, list[Any]]

    # The verdict -----------------------------------------------------------------------------

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "cannot judge"]:
        """FAIL if a check fails that was not expected to, "cannot judge" if one is `decisive`."""
        if self.failures:
            return "FAIL"
        return "cannot judge" if self.decisive else "PASS"

    @property
    def decisive(self) -> Result | None:
        """What alone keeps a report without failures from PASS: a check that could not be judged,
        is essential or of a loss or a generate that was given, and was not expected to; where no
        check passes, any."""
        unsure = [result for result in self.of("cannot judge") if not result.expected]
        counted = [result for result in unsure if result.check.essential or result.give]
        judged = self.of("PASS") or self.expected
        return next(iter(counted if judged else (*counted, *unsure, *self.results)), None)

    @property
    def passed(self) -> bool:
        """Whether the verdict is PASS."""
        return self.verdict == "PASS"

    def __bool__(self) -> bool:
        return self.passed

    def raise_if_failed(self) -> None:
        """Raises CheckFailed, an AssertionError, unless the verdict is PASS."""
        __tracebackhide__ = True  # of pytest
        if not self.passed:
            raise CheckFailed(str(self))

    # Results ---------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Result:
        """The result of a check by its name."""
        return next(result for result in self.results if result.name == name)

    def of(self, verdict: Verdict) -> tuple[Result, ...]:
        """The results of a verdict."""
        return tuple(result for result in self.results if result.verdict == verdict)

    @property
    def follows(self) -> dict[str, str]:
        """Failures that another one may explain: their names, and that of the other."""
        failed = self.of("FAIL")
        explaining = {each.name for each in failed if each.cause is None or each.cause.explains}
        found: dict[str, str] = {}
        for result in failed:
            others = (name for name in result.outcome.follows if name in explaining)
            if first := [name for name in others if found.get(name) != result.name]:
                found[result.name] = first[0]
        return {name: found.get(cause, cause) for name, cause in found.items()}

    @property
    def failures(self) -> tuple[Result, ...]:
        """Those that failed and were not expected to, of these the first causes first."""
        follows = self.follows
        failed = (result for result in self.of("FAIL") if not result.expected)
        return tuple(sorted(failed, key=lambda result: result.name in follows))

    @property
    def expected(self) -> tuple[Result, ...]:
        """Those that failed, or could not be judged, as expected."""
        found = (*self.of("FAIL"), *self.of("cannot judge"))
        return tuple(result for result in found if result.expected)

    @property
    def surprises(self) -> tuple[Result, ...]:
        """Those that passed though they were expected to fail."""
        return tuple(result for result in self.of("PASS") if result.expected)

    @property
    def judged(self) -> tuple[int, int]:
        """How many parts of checks passed or failed, and how many apply to the model."""
        outcomes = [part for result in self.results for part in result.parts.values()]
        judged = sum(part.verdict in ("PASS", "FAIL") for part in outcomes)
        return judged, sum(part.verdict != "does not apply" for part in outcomes)

    def with_parts(self, verdict: Verdict) -> dict[str, Outcome]:
        """Checks of a verdict, and single parts of other checks, in words."""
        found: dict[str, Outcome] = {}
        for result in self.results:
            parts = {f"{result.name} by {name}": part for name, part in result.parts.items()}
            whole = {result.name: result.outcome}
            here = whole if result.verdict == verdict else parts
            found |= {name: each for name, each in here.items() if each.verdict == verdict}
        return found

    # In words --------------------------------------------------------------------------------

    @property
    def end(self) -> str:
        """The verdict with what limits it: what failed, was left out, not judged, not asked."""
        text: str = self.verdict
        if self.failures:
            text += f": {', '.join(result.name for result in self.failures)}"
        if self.passed:
            text += ", judged {} of {} parts".format(*self.judged)
        if self.tried["left_out"] and self.passed:
            text += (
                f", reduced: {', '.join(self.tried['left_out'])} left out; build the model small "
                "(2 layers, width 64, 100 words), or give length=512"
            )
        for said, names in (
            ("failed as expected", [r.name for r in self.expected if r.verdict == "FAIL"]),
            ("passed unexpectedly", [result.name for result in self.surprises]),
            ("not judged", self.with_parts("cannot judge")),
            ("not asked", self.with_parts("not asked")),
        ):
            text += f"; {said}: {', '.join(names)}" if names else ""
        return text

    @property
    def scope(self) -> str:
        """What was tried, in words."""
        listed = {name: ", ".join(map(str, values)) for name, values in self.tried.items()}
        came = " (it came in train mode)" * (self.tried["came_in"] == ["train"])
        text = f"lengths {{lengths}}; rows {{rows}}; {{modes}} mode{came}; {{precisions}}; "
        text += "seeds {seeds}"
        return text.format(**listed)

    def lines(self, everything: bool = False) -> list[tuple[str, str]]:
        """The report line by line: failures first, then what was expected, what could not be
        judged, and what passed, in one line, or each check in lines of its own for `everything`.
        Beside each line its style: a verdict, "title", "cause", "more" or "end"."""
        lines = [(f"{self.subject}, {self.precision}", "title")]
        for failure in self.failures:
            lines += self.lines_of(failure)
        for result in self.expected:
            verb = "fails" if result.verdict == "FAIL" else "cannot be judged"
            lines.append((f"expected: {result.name} {verb}: {result.expected}", "more"))
        for result in self.surprises:
            text = f"surprise: {result.name} passes, but was expected to fail: {result.expected}"
            lines.append((text, "cannot judge"))
        unsure = {name: _doubt(part) for name, part in self.with_parts("cannot judge").items()}
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
        return [*lines, *self._lines_of_the_rest(), (self.end, "end")]

    def lines_of(self, failure: Result) -> list[tuple[str, str]]:
        """A failure with its cause, where it shows, its smallest example, and where to read on; or
        with the check from which it may follow."""
        if first := self.follows.get(failure.name):
            said = [f"may follow from {first}: mend that first"]
        else:
            names = {"where": "first seen", "example": "smallest example", "line": "computed at"}
            names["reproduce"] = "reproduce"
            details = failure.details.items()
            more = [f"{names[n]}: {text}" for n, text in details if text[3:] not in failure.message]
            said = [failure.message, *more]
            if failure.cause is not None:
                said.append(f"read on: toytrans explain {failure.cause.code}")
        return [(failure.headline, "FAIL"), *((f"      {text}", "cause") for text in said)]

    def _lines_of_the_rest(self) -> list[tuple[str, str]]:
        """What was not asked, what was given, and what was tried."""
        give = {name: "=, ".join(part.give) for name, part in self.with_parts("not asked").items()}
        others = {each.name: each.message for each in self.of("does not apply")}
        more = {
            "not asked": [f"{asked} (give {needed}=)" for needed, asked in _gathered(give).items()],
            "does not apply": [f"{these}: {why}" for why, these in _gathered(others).items()],
            "given": [f"{name}={_short(value)}" for name, value in self.given.items()],
            "tried": [self.scope],
        }
        lines = [(f"{name}: {'; '.join(said)}", "more") for name, said in more.items() if said]
        return lines + [(f"note: {note}", "more") for note in self.tried["notes"]]

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.lines())

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; numbers that JSON lacks become null."""
        follows = {name: {"follows": cause} for name, cause in self.follows.items()}
        judged, parts = self.judged
        return {
            "model": self.subject,
            "precision": self.precision,
            "passed": self.passed,
            "verdict": self.verdict,
            "judged": judged,
            "parts": parts,
            "given": {name: _short(value) for name, value in self.given.items()},
            "tried": self.tried,
            "checks": [each.to_dict() | follows.get(each.name, {}) for each in self.results],
        }


def _doubt(outcome: Outcome) -> str:
    """Why there is no verdict, and the code under which `explain` and `expected=` know it."""
    code = "" if outcome.cause is None else f" ({outcome.cause.code})"
    return f"{outcome.message}{code}"


def _short(value: Any) -> str:
    """A fact that was given, in words."""
    if isinstance(value, frozenset):
        return "+".join(sorted(value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _gathered(values: dict[str, str]) -> dict[str, str]:
    """Names by what they share."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return {value: ", ".join(names) for value, names in found.items()}
