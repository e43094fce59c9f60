"""The checks, their parts and their causes, each registered where it is written.

A check is a file of `toytrans.checks.rules`:

    TWICE = Check("twice", "a row that stands twice gives the same", how="each row repeated")

    MIXED = TWICE.cause(
        "mixed",
        when="the outputs of a repeated row differ",
        words="a row that stands twice gives two answers",
        remedy="what depends on the other rows of a batch?",
    )

    @TWICE.part("each row repeated", on="every")
    def each_row_repeated(asked: Asked) -> Iterator[Change]: ...

What `check` asks and prints, its JSON, `explain` and the page of the check follow from these.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from toytrans.checks.asked import Asked
from toytrans.checks.changes import Change
from toytrans.checks.common_causes import COMMON
from toytrans.checks.facts import Kind
from toytrans.checks.outcome import Cause, Evidence, Outcome, fits_always
from toytrans.errors import UserError, did_you_mean


class Kinds(NamedTuple):
    """Kinds of models that are asked, and why others are not."""

    names: tuple[Kind, ...]
    otherwise: str


ALL_KINDS = Kinds(("encoder-decoder", "decoder", "encoder"), "")
CAUSAL = Kinds(("encoder-decoder", "decoder"), "an encoder sees both sides and predicts no token")
WITH_SOURCE = Kinds(("encoder-decoder",), "the model has no source")

On = Literal["first", "every", "both ends", "last"]
"""Which batches a part is asked of: the first, which is the shortest; every one, in every mode and
precision; the first and the longest; or the first again, after all else."""

Conclude = Callable[[Outcome, Mapping[str, Outcome]], Outcome]
"""Of the failure that counts and the outcomes of all parts, by their names, the failure that is
reported: the same, or one of another cause."""

Ask = TypeVar("Ask", bound=Callable[[Asked], Outcome | Iterable[Change]])


@dataclass(frozen=True)
class Part:
    """One question of a check. ask: a function of a batch that was asked, which gives an outcome,
    or changes that must move nothing. of_unsteady: whether it is asked, alone, of a model that
    answers one input in two ways. may_be_another_pad: whether it would fail too if the source had
    another pad than the one that is known. compares_modes: whether it asks for both modes itself;
    what fails in one mode alone follows from its check. of_rows: whether it asks if rows see each
    other; where it fails, changes count only if they move outputs among equal rows too.
    also_follows: checks that explain a failure of this part, beyond those that explain any failure
    of its check."""

    check: "Check"
    name: str
    ask: Callable[[Asked], Outcome | Iterable[Change]]
    on: On
    kinds: Kinds
    of_unsteady: bool
    may_be_another_pad: bool
    compares_modes: bool
    of_rows: bool
    also_follows: tuple[str, ...]

    @property
    def title(self) -> str:
        """The check and the part, as "pads by gradients"."""
        return f"{self.check.name} by {self.name}"

    def follows(self, kind: Kind) -> tuple[str, ...]:
        """Checks that explain its failure in a model of some kind, the likelier first: those of
        the whole check for all kinds, those of the whole check for this kind, its own."""
        check = self.check
        return (*check.follows, *check.follows_in.get(kind, ()), *self.also_follows)


@dataclass
class Check:
    """A check: what must hold, and all that belongs to it. Making one adds it to `CHECKS`.

    how: in a few words, how it is asked. limits: what it does not see, in sentences. essential:
    no model passes that it could not be asked of. follows: checks that it follows from where they
    fail too, the likelier first; follows_in: further ones, by kinds of models. Both hold for all
    parts, and a part may have more. may_be_another_pad: see `Part`, for all parts.
    may_be_batch_statistics: whether it fails in train mode as BatchNorm is meant to. conclude: what
    `conclusion` registers.
    """

    name: str
    title: str
    how: str
    limits: str = ""
    essential: bool = False
    kinds: Kinds = ALL_KINDS
    follows: tuple[str, ...] = ()
    follows_in: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    may_be_another_pad: bool = False
    may_be_batch_statistics: bool = False
    conclude: Conclude | None = field(default=None, init=False)
    parts: list[Part] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.name in CHECKS:
            raise ValueError(f"two checks are called {self.name}")
        CHECKS[self.name] = self

    def cause(
        self,
        name: str,
        *,
        when: str,
        words: str,
        remedy: str = "",
        fits: Callable[[Evidence], bool] = fits_always,
        read: str = "",
        explains: bool = True,
    ) -> Cause:
        """Add a row to the table of causes; `Cause` says what each argument is."""
        return self._add(Cause(f"{self.name}.{name}", when, words, remedy, fits, read, explains))

    def doubt(
        self,
        name: str,
        *,
        when: str,
        words: str,
        remedy: str = "",
        fits: Callable[[Evidence], bool] = fits_always,
        counts: bool = False,
    ) -> Cause:
        """Add a row that says why the check cannot be judged."""
        code = f"{self.name}.{name}"
        return self._add(Cause(code, when, words, remedy, fits, is_doubt=True, counts=counts))

    def _add(self, row: Cause) -> Cause:
        if row.code in CAUSES:
            raise ValueError(f"two causes are called {row.code}")
        CAUSES[row.code] = row
        self.causes.append(row)
        return row

    def part(
        self,
        name: str,
        on: On = "first",
        kinds: Kinds | None = None,
        of_unsteady: bool = False,
        may_be_another_pad: bool = False,
        compares_modes: bool = False,
        of_rows: bool = False,
        also_follows: tuple[str, ...] = (),
    ) -> Callable[[Ask], Ask]:
        """Make a function a part of this check; `Part` says what each argument is. The function's
        docstring says on the page of the check what is asked."""

        def register(ask: Ask) -> Ask:
            """Make a part of the function, which stays as it is."""
            made = Part(
                self,
                name,
                ask,
                on,
                kinds or self.kinds,
                of_unsteady,
                may_be_another_pad or self.may_be_another_pad,
                compares_modes,
                of_rows,
                also_follows,
            )
            self.parts.append(made)
            return ask

        return register

    def conclusion(self, conclude: Conclude) -> Conclude:
        """Make a function what this check concludes from all its parts together, where one has
        failed. It is called once, when all batches were asked."""
        self.conclude = conclude
        return conclude


CHECKS: dict[str, Check] = {}
"""Every check by its name, in the order in which they are asked and reported."""

CAUSES: dict[str, Cause] = {}
"""Every cause by its code, doubts among them."""

CAUSES |= {row.code: row for row in COMMON}


def selected(only: str | Iterable[str], skip: str | Iterable[str] = ()) -> tuple[str, ...]:
    """The names of checks to ask for, all where none is given, but for those to skip: ["pads",
    "future"], or "pads,future". Raises UserError for others, and where none is left."""
    wanted, left_out = _names(only), _names(skip)
    if unknown := [name for name in (*wanted, *left_out) if name not in CHECKS]:
        raise UserError(f"no check {unknown[0]}; {did_you_mean(unknown[0], CHECKS)}")
    names = tuple(name for name in wanted or CHECKS if name not in left_out)
    if not names:
        raise UserError(f"skip {', '.join(left_out)}: no check is left; leave out fewer")
    return names


def _names(given: str | Iterable[str]) -> list[str]:
    each = given.split(",") if isinstance(given, str) else given
    return [name.strip() for name in each if name.strip()]
