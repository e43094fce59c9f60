"""A task of the user's: one function from a source's symbols to its target's, or an object with
more. Python code on rows of symbols, without torch.

    def swap_pairs(source: list[int]) -> list[int]: ...

    class Brackets:                        # all but `target` may be left out
        symbols = ["(", ")"]               # names, or a number; the config's data.symbols
        target_symbols = ["yes", "no"]     # where the target's differ
        growth = 1                         # most target symbols per source symbol; 2
        shortest = 1                       # symbols of the shortest source; 0
        separators = ["+"]                 # symbols at which anchored positions start anew
        rule = "..."                       # the docstring
        def source(self, length, random): ...
        def target(self, source): ...

The same attributes may be set on a function.
"""

import inspect
import operator
import random
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NoReturn

from toytrans import user_code
from toytrans.errors import UserError
from toytrans.user_code import RAISED

Row = list[int]

USUAL_SYMBOLS = 10
MOST_SYMBOLS, MOST_GROWTH = 10**5, 1000

ROOM = 9
"""Symbols that a target may have beyond growth times its source's: decoding allows for as many."""

SLOWEST = 1.0
"""Seconds a pair may take; a pool of pairs would take hours."""


class OwnTask:
    """The task that a reference names, with its answers checked.

    symbols, target_symbols: names; symbol k of a source is number k, and of a target the number
    of its name in `vocabulary`.
    """

    def __init__(self, reference: str, symbols: int | None = None) -> None:
        """symbols: data.symbols of the config. Raises UserError."""
        self.reference, self.name = reference, user_code.shown(reference)
        self._object = made = self._instance(user_code.load(reference))
        self._target: Callable[[Row], Any] = getattr(made, "target", made)
        self._source: Callable[[int, random.Random], Any] | None = getattr(made, "source", None)
        if not callable(self._target):
            self._refuse("has no target(source) and cannot be called")
        if self._source is not None and not callable(self._source):
            self._refuse("source is not a function (length, random) -> list of symbols")
        self.growth = self._whole_number("growth", 2, 1, MOST_GROWTH)
        self.shortest = self._whole_number("shortest", 0, 0, 2**16)
        self.symbols = self._names("symbols", symbols)
        self.target_symbols = self.symbols
        if getattr(made, "target_symbols", None) is not None:
            self.target_symbols = self._names("target_symbols", None)
        self.vocabulary = tuple(dict.fromkeys((*self.symbols, *self.target_symbols)))
        self.separators = tuple(map(str, getattr(made, "separators", ())))
        if unknown := sorted(set(self.separators) - set(self.vocabulary)):
            self._refuse(f"separators: {unknown[0]!r} is none of its symbols")
        places = {name: k for k, name in enumerate(self.vocabulary)}
        self._numbers = [places[name] for name in self.target_symbols]

    @property
    def rule(self) -> str:
        """What the task's card says of it."""
        stated = getattr(self._object, "rule", None) or inspect.getdoc(self._object)
        return " ".join(str(stated).split()) if stated else "A task without a docstring."

    @property
    def has_sampler(self) -> bool:
        return self._source is not None

    def targets(self, sources: Sequence[Row]) -> list[Row]:
        """The target of each source, in numbers of the vocabulary. Raises UserError."""
        made: list[Any] = []
        try:
            for source in sources:
                made.append(self._target(source.copy()))
        except RAISED as error:
            self._failed(error, f"target({_short(sources[len(made)])})")
        size = len(self.target_symbols)
        rows = []
        for source, answer in zip(sources, made, strict=True):
            row = self._row(answer, size, source)
            if len(row) > self.growth * len(source) + ROOM:
                self._refuse(
                    f"target({_short(source)}) has {len(row):,} symbols for a source of "
                    f"{len(source)}; set its growth (now {self.growth}) to the most target symbols "
                    "per source symbol"
                )
            rows.append([self._numbers[k] for k in row])
        return rows

    def sources(self, drawn: Sequence[tuple[int, int]]) -> list[Row]:
        """The sources that its sampler draws, each from a seed and a length. Raises UserError."""
        assert self._source is not None
        generator, rows, size = random.Random(), [], len(self.symbols)
        for seed, length in drawn:
            generator.seed(seed)
            call = f"source({length}, random)"
            try:
                made = self._source(length, generator)
            except RAISED as error:
                self._failed(error, call)
            row = self._row(made, size, length)
            if not self.shortest <= len(row) <= length:
                self._refuse(
                    f"{call} has {len(row):,} symbols; it may have {self.shortest} to {length}"
                )
            rows.append(row)
        return rows

    def try_out(self, sources: Sequence[Row]) -> float:
        """Seconds that a target takes, their mean. Raises UserError where the function
        is not pure, changes its argument, takes too long or always gives an empty target."""
        times, symbols = [], 0
        for source in sources:
            given, began = source.copy(), perf_counter()
            self._call(given)
            times.append(perf_counter() - began)
            first = self.targets([source])
            if times[-1] > SLOWEST:
                self._refuse(
                    f"takes {times[-1]:.1f} s a pair; a training needs thousands: make it faster, "
                    "or write pairs to a file and name that in data.files"
                )
            if self.targets([source]) != first:
                self._refuse(
                    f"is not pure: two calls of target({_short(source)}) differ; it must depend "
                    "on the source alone"
                )
            if given != source:
                self._refuse(
                    f"target changes its argument {_short(source)}; begin with "
                    "source = list(source)"
                )
            symbols += len(first[0])
        if sources and not symbols:
            self._refuse(f"target is empty for all of {len(sources)} sources; nothing to learn")
        return sum(times) / max(1, len(times))

    def try_sampler(self, drawn: Sequence[tuple[int, int]]) -> None:
        """Raises UserError where the sampler draws from more than the generator it is given."""
        for before, after, (_, length) in zip(
            self.sources(drawn), self.sources(drawn), drawn, strict=True
        ):
            if before != after:
                self._refuse(
                    f"is not pure: two calls of source({length}, random) with equal generators "
                    "differ; draw from `random`, its argument, alone"
                )

    def _call(self, source: Row) -> Any:
        try:
            return self._target(source)
        except RAISED as error:
            self._failed(error, f"target({_short(source)})")

    def _instance(self, named: Any) -> Any:
        if inspect.ismodule(named):
            self._refuse("is a module, not a function or an object with target(source)")
        if not inspect.isclass(named):
            return named
        try:
            return named()
        except RAISED as error:
            self._failed(error, f"{named.__name__}()")

    def _row(self, answer: Any, size: int, given: Row | int) -> Row:
        """An answer as a list of whole numbers below `size`. given: a source to its target, or a
        length to its source."""
        try:
            row = list(map(operator.index, answer)) if isinstance(answer, list | tuple) else None
        except TypeError:
            row = None
        if row is None or (row and not 0 <= min(row) <= max(row) < size):
            call = (
                f"source({given}, random)" if isinstance(given, int) else f"target({_short(given)})"
            )
            self._refuse_answer(answer, size, call)
        return row

    def _refuse_answer(self, answer: Any, size: int, call: str) -> NoReturn:
        if not isinstance(answer, list | tuple):
            hint = "; does it end with return?" if answer is None else ""
            self._refuse(f"{call} is {_kind(answer)}, not a list of whole numbers{hint}")
        for value in answer:
            if not hasattr(value, "__index__"):
                self._refuse(f"{call} holds {_short(value)}, {_kind(value)}, not a whole number")
        wrong = next(value for value in answer if not 0 <= value < size)
        self._refuse(f"{call} holds symbol {wrong}; its symbols are 0 to {size - 1}")

    def _names(self, key: str, asked: int | None) -> tuple[str, ...]:
        """Names of symbols: those that the task gives, or numbers."""
        given = getattr(self._object, key, None)
        if isinstance(given, list | tuple):
            names = tuple(map(str, given))
            if asked is not None and asked != len(names):
                self._refuse(f"names its {len(names)} symbols itself; leave data.symbols out")
            if any(name.split() != [name] for name in names) or len(set(names)) != len(names):
                self._refuse(f"{key}: names of symbols differ and have no blanks")
            count = len(names)
        else:
            usual = USUAL_SYMBOLS if given is None else self._index(key, given)
            count = usual if asked is None else asked
            names = tuple(map(str, range(min(count, MOST_SYMBOLS))))
        if not 1 <= count <= MOST_SYMBOLS:
            self._refuse(f"{key}: {count:,}; a task has 1 to {MOST_SYMBOLS:,}")
        return names

    def _whole_number(self, key: str, usual: int, least: int, most: int) -> int:
        value = self._index(key, getattr(self._object, key, usual))
        if not least <= value <= most:
            self._refuse(f"{key}: {value:,}; it may be {least} to {most:,}")
        return value

    def _index(self, key: str, value: Any) -> int:
        try:
            return operator.index(value)
        except TypeError:
            self._refuse(f"{key}: {_short(value)} is not a whole number")

    def _failed(self, error: BaseException, call: str) -> NoReturn:
        self._refuse(f"{call} raises {user_code.failure(error, self.reference)}")

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"{self.name}: {reason}") from None


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]} ... {text[-15:]}"
