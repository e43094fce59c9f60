"""What checks find: one `Result` for each, and the report that they add up to."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    import torch

    from toytrans.checks.change import Change

Verdict = Literal["PASS", "FAIL", "cannot judge", "not asked", "does not apply"]

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


class NotApplicable(Exception):
    """The model has nothing that a check could be about; the message says what."""


class NotAsked(Exception):
    """A check needs arguments that were not given: what each is, by its name."""

    def __init__(self, **needed: str) -> None:
        super().__init__("needs " + " and ".join(needed.values()))
        self.give = tuple(needed)


class CannotJudge(Exception):
    """A check lacks what it needs; the message says what, and what to give."""


class Wrong(Exception):
    """A check found what is wrong without measuring; the message is the cause."""


@dataclass(frozen=True)
class Result:
    """What a check, or a part of one, found.

    difference: of what its title says. It passes up to the tolerance or, where something
    `must_change`, beyond it; both None where nothing was measured. NaN never passes.
    message: evidence of a pass, cause of a failure, or why there is no verdict.
    where, example, reproduce: of a failure, where known: where it first shows, the smallest
    example, and a line that shows it again. give: arguments that were not given.
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
    where: str | None = None
    example: str | None = None
    reproduce: str | None = None
    give: tuple[str, ...] = ()
    explains: bool = True
    causes: tuple[str, ...] = ()
    change: "Change | None" = field(default=None, repr=False)
    parts: "dict[str, Result]" = field(default_factory=dict)

    @property
    def title(self) -> str:
        return CHECKS.get(self.name, "")

    @property
    def details(self) -> dict[str, str]:
        """What is known of a failure beside its cause."""
        known = {"where": self.where, "example": self.example, "reproduce": self.reproduce}
        return {name: value for name, value in known.items() if value}

    @property
    def strain(self) -> float:
        """How near to failing a pass was: 1 at the tolerance."""
        if self.must_change:
            return 0.0
        return (self.difference or 0.0) / (self.tolerance or 1.0)

    @property
    def measured(self) -> str:
        """The difference and what is wanted; where none is allowed it counts places or labels."""
        if self.difference is None or self.tolerance is None:
            return ""
        relation = ">" if self.must_change else "<="
        if not self.tolerance:
            return f"{self.difference:g} {relation} 0"
        return f"{self.difference:.1e} {relation} {self.tolerance:.0e}"


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


@dataclass
class Tried:
    """What the checks were asked of."""

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
        listed = {name: ", ".join(map(str, values)) for name, values in self.to_dict().items()}
        return (
            f"lengths {listed['lengths']}; rows {listed['rows']}; {listed['modes']} mode; "
            f"{listed['precisions']}; seeds {listed['seeds']}"
        )


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
        """FAIL if a check fails, "cannot judge" if none passes, or an essential one could not be
        judged."""
        if self.failures:
            return "FAIL"
        unsure = any(r.verdict == "cannot judge" and r.name in ESSENTIAL for r in self.results)
        return "cannot judge" if unsure or not self.of("PASS") else "PASS"

    @property
    def passed(self) -> bool:
        return self.verdict == "PASS"

    def __bool__(self) -> bool:
        return self.passed

    def raise_if_failed(self) -> None:
        """Raises CheckFailed, an AssertionError, unless the verdict is PASS."""
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
        failed, follows = self.of("FAIL"), self.follows
        return tuple(sorted(failed, key=lambda result: result.name in follows))

    @property
    def follows(self) -> dict[str, str]:
        """Failures that another one may explain: their names, and that of the other."""
        failed = {result.name: result for result in self.of("FAIL")}
        found: dict[str, str] = {}
        for name, result in failed.items():
            causes = (*FOLLOWS.get(name, ()), *result.causes)
            likely = [cause for cause in causes if cause in failed and failed[cause].explains]
            if likely:
                found[name] = likely[0]
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
            parts = result.parts.items() if result.verdict != verdict else ()
            found |= {f"{result.name} by {name}": p for name, p in parts if p.verdict == verdict}
            if result.verdict == verdict:
                found[result.name] = result
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
        unsure = self.of("cannot judge")
        essential = [result for result in unsure if result.name in ESSENTIAL]
        first = (*essential, *unsure, *self.results)[0]
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
            lines.append(_head(result))
            lines += [Line(f"      {text}", "cause") for text in self.cause_of(result)]
        lines += [Line(f"?     {name}: {why}", "cannot judge") for name, why in
                  self.not_judged.items()]  # fmt: skip
        passed = self.of("PASS")
        for result in passed if everything else ():
            lines.append(_head(result))
            passed_parts = {n: p for n, p in result.parts.items() if p.verdict == "PASS"}
            lines += [Line(f"      {n}: {p.message}", "more") for n, p in passed_parts.items()]
        if passed and not everything:
            lines.append(Line(f"PASS  {', '.join(result.name for result in passed)}", "PASS"))
        if asked := _gathered(self.not_asked):
            text = "; ".join(f"{names} (give {'=, '.join(give)}=)" for give, names in asked.items())
            lines.append(Line(f"not asked: {text}", "more"))
        if apart := _gathered({r.name: r.message for r in self.of("does not apply")}):
            text = "; ".join(f"{names}: {why}" for why, names in apart.items())
            lines.append(Line(f"does not apply: {text}", "more"))
        lines.append(Line(f"tried: {self.tried}", "more"))
        lines += [Line(f"note: {note}", "more") for note in self.tried.notes]
        return [*lines, Line(self.end, "end")]

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines())

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; numbers that JSON lacks become null."""
        follows = self.follows
        return {
            "model": self.subject,
            "precision": self.precision,
            "passed": self.passed,
            "verdict": self.verdict,
            "tried": self.tried.to_dict(),
            "checks": [_plain(r) | ({"follows": follows[r.name]} if r.name in follows else {})
                       for r in self.results],
        }  # fmt: skip


def _gathered(values: dict[str, Any]) -> dict[Any, str]:
    """Names by what they share."""
    found: dict[Any, str] = {}
    for name, value in values.items():
        found[value] = f"{found[value]}, {name}" if value in found else name
    return found


def _head(result: Result) -> Line:
    text = f"{result.verdict}  {result.name:<9} {result.title:<47} {result.measured}"
    return Line(text.rstrip(), result.verdict)


def _plain(result: Result) -> dict[str, Any]:
    """A result for JSON, with its parts."""
    found: dict[str, Any] = {
        "check": result.name,
        "title": result.title,
        "verdict": result.verdict,
        "difference": result.difference,
        "tolerance": result.tolerance,
        "must_change": result.must_change,
        "words": result.message,
        **result.details,
    }
    if result.give:
        found["give"] = list(result.give)
    parts = {"verdict", "difference", "tolerance", "words", "give"}
    found["parts"] = [
        {"part": name} | {key: value for key, value in _plain(part).items() if key in parts}
        for name, part in result.parts.items()
    ]
    return found


def merged(name: str, parts: dict[str, Result], essential: str) -> Result:
    """The result of a check from those of its parts: the first that failed, else what could be
    judged, of passes the nearest to failing. Without its essential part, if it has one, it is not
    judged."""
    ranks = ("FAIL", *get_args(Verdict))
    first = min(parts.values(), key=lambda part: ranks.index(part.verdict))
    base = parts.get(essential)
    if base is not None and base.verdict == "cannot judge" and first.verdict != "FAIL":
        first = base
    worst = first
    if first.verdict == "PASS":
        worst = max((p for p in parts.values() if p.verdict == "PASS"), key=lambda p: p.strain)
    difference, tolerance = worst.difference, worst.tolerance
    return replace(first, name=name, difference=difference, tolerance=tolerance, parts=parts)
