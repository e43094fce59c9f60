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

import hashlib
import inspect
import json
import operator
import random
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans import user_code
from toytrans.config.schema import Config, TaskLimits
from toytrans.data.hashing import row_keys
from toytrans.data.pairs import (
    MOST_TARGET_GROWTH,
    TARGET_SLACK,
    DataFacts,
    Sequences,
    pad_rows,
)
from toytrans.data.tasks.base import (
    FEWEST_SOURCES,
    Task,
    TaskPairs,
    power,
    uniform_length,
    uniform_symbols,
)
from toytrans.errors import UserError
from toytrans.tokens import Vocabulary
from toytrans.user_code import RAISED

Row = list[int]

USUAL_SYMBOLS, MOST_SYMBOLS = 10, 10**5

TRIED = 32
"""Training pairs that are tried out at the start. A run remembers them by their sha256."""

SLOW, SLOWEST = 1e-4, 1.0
"""Seconds of a pair that are worth a note, and those that are refused: a pool would take hours."""

FEW, LONGEST_FEW = 64, 32
"""To see whether a sampler has few sources of a length, so many are drawn: then one comes twice.
Those of more symbols are taken to be many."""


def open_own_task(config: Config, facts: DataFacts | None = None) -> TaskPairs:
    """The pairs of a config's task of the user's, fitted to the config and tried out.

    facts: those of a run that was trained on it; its first pairs must be the same.
    Raises UserError.
    """
    data = config.data
    assert data.task
    own = OwnTask(data.task, data.symbols)
    limits = TaskLimits(shortest=own.shortest)
    if facts is None:  # a new run, whose outputs may become as long as decoding allows
        limits = limits._replace(target_growth=own.target_growth, target_slack=TARGET_SLACK)
    if found := config.misfit(limits):
        has = f"{own.name} has growth {own.target_growth} and shortest {own.shortest}"
        raise UserError(f"{': '.join(found)} ({has})")
    asked = min(low for low, _ in data.lengths.values())
    settings = data.model_copy(update={"symbols": len(own.symbols)})
    pairs = TaskPairs(_as_task(own, asked), settings, config.data_seed)
    digest = _try_out(own, pairs)
    growth = max(2, own.target_growth)
    pairs.facts = replace(pairs.facts, target_growth=growth, train_sha256=digest)
    if facts is not None and facts != pairs.facts:
        raise UserError(
            f"{own.name}: its pairs are not those that the run was trained on; put the code "
            "back, or train again"
        )
    return pairs


def _try_out(own: "OwnTask", pairs: TaskPairs) -> str:
    """Try the code on the first training pairs, and note where it is slow.

    Returns the sha256 of these pairs. Raises UserError.
    """
    if own.has_sampler:
        low, high = pairs.facts.train_length
        own.try_sampler([(pairs.seed, n) for n in sorted({max(low, own.shortest), high})])
    indices = torch.arange(min(TRIED, pairs.size("train") or TRIED))
    sources = _rows(*pairs.sources("train", indices))
    seconds = own.try_targets(sources)
    if seconds >= SLOW:
        pairs.notes += (
            f"{own.name}: {1000 * seconds:.1f} ms a pair, so a process computes "
            f"{1 / seconds:,.0f} a second, and training waits for them",
        )
    return hashlib.sha256(json.dumps([sources, own.targets(sources)]).encode()).hexdigest()


class OwnTask:
    """The task that a reference names, with its attributes and answers checked.

    symbols, target_symbols: names; symbol k of a source is number k, and of a target the number
    of its name in `vocabulary`.
    """

    def __init__(self, reference: str, symbols: int | None = None) -> None:
        """symbols: data.symbols of the config. Raises UserError."""
        self.reference, self.name = reference, user_code.shown(reference)
        self._object = made = self._instance(user_code.load(reference))
        target, source = getattr(made, "target", made), getattr(made, "source", None)
        if not callable(target):
            self._refuse("has no target(source) and cannot be called")
        if source is not None and not callable(source):
            self._refuse("source is not a function (length, random) -> list of symbols")
        self.target_growth = self._number("growth", 2, 1, MOST_TARGET_GROWTH)
        self.shortest = self._number("shortest", 0, 0, 2**16)
        self.symbols = self.target_symbols = self._names("symbols", symbols)
        if getattr(made, "target_symbols", None) is not None:
            self.target_symbols = self._names("target_symbols", None)
        names = tuple(dict.fromkeys((*self.symbols, *self.target_symbols)))
        separators = tuple(map(str, getattr(made, "separators", ())))
        if unknown := sorted(set(separators) - set(names)):
            self._refuse(f"separators: {unknown[0]!r} is none of its symbols")
        self.vocabulary = Vocabulary(names, separators)
        places = {name: k for k, name in enumerate(names)}
        self._numbers = [places[name] for name in self.target_symbols]
        self._target, self._source = target, source

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
        rows = []
        for source in sources:
            row = self._target_of(source)
            if len(row) >= self.target_growth * len(source) + TARGET_SLACK:
                self._refuse(
                    f"target({_short(source)}) has {len(row):,} symbols for a source of "
                    f"{len(source)}; set its growth (now {self.target_growth}) to the most target "
                    "symbols per source symbol"
                )
            rows.append([self._numbers[k] for k in row])
        return rows

    def sample(self, drawn: Sequence[tuple[int, int]]) -> list[Row]:
        """The sources that its sampler draws, each from a seed and a length. Raises UserError."""
        generator, rows = random.Random(), []
        for seed, length in drawn:
            generator.seed(seed)
            row = self._answer(self._source, len(self.symbols), length, generator)
            if not self.shortest <= len(row) <= length:
                self._refuse(
                    f"{_call(length)} has {len(row):,} symbols; it may have {self.shortest} to "
                    f"{length}"
                )
            rows.append(row)
        return rows

    def try_targets(self, sources: Sequence[Row]) -> float:
        """Seconds that a target takes, their mean. Raises UserError where the function
        is not pure, takes too long or always gives an empty target."""
        seconds, symbols = 0.0, 0
        for source in sources:
            began = perf_counter()
            first = self._target_of(source)
            took = perf_counter() - began
            if took > SLOWEST:
                self._refuse(
                    f"takes {took:.1f} s a pair; a training needs thousands: make it faster, "
                    "or write pairs to a file and name that in data.files"
                )
            if self._target_of(source) != first:
                self._refuse(
                    f"is not pure: two calls of {_call(source)} differ; it must depend on the "
                    "source alone"
                )
            seconds, symbols = seconds + took, symbols + len(first)
        if sources and not symbols:
            self._refuse(f"target is empty for all of {len(sources)} sources; nothing to learn")
        return seconds / max(1, len(sources))

    def try_sampler(self, drawn: Sequence[tuple[int, int]]) -> None:
        """Raises UserError where the sampler draws from more than the generator it is given."""
        twice = zip(self.sample(drawn), self.sample(drawn), drawn, strict=True)
        for before, after, (_, length) in twice:
            if before != after:
                self._refuse(
                    f"is not pure: two calls of {_call(length)} with equal generators differ; "
                    "draw from `random`, its argument, alone"
                )

    def _target_of(self, source: Row) -> Row:
        return self._answer(self._target, len(self.target_symbols), source)

    def _answer(self, function: Any, size: int, given: Row | int, *more: Any) -> Row:
        """What a function of the task answers, as a list of whole numbers below `size`."""
        argument = given.copy() if isinstance(given, list) else given
        try:
            answer = function(argument, *more)
        except RAISED as error:
            self._refuse(f"{_call(given)} raises {user_code.failure(error, self.reference)}")
        if argument != given:
            self._refuse(f"{_call(given)} changes its argument; begin with source = list(source)")
        if not isinstance(answer, list | tuple):
            hint = "; does it end with return?" if answer is None else ""
            self._refuse(f"{_call(given)} is {_kind(answer)}, not a list of whole numbers{hint}")
        try:
            row = list(map(operator.index, answer))
        except TypeError:
            wrong = next(value for value in answer if _whole(value) is None)
            self._refuse(
                f"{_call(given)} holds {_short(wrong)}, {_kind(wrong)}, not a whole number"
            )
        if row and not 0 <= min(row) <= max(row) < size:
            wrong = next(k for k in row if not 0 <= k < size)
            self._refuse(f"{_call(given)} holds symbol {wrong}; its symbols are 0 to {size - 1}")
        return row

    def _instance(self, named: Any) -> Any:
        if inspect.ismodule(named):
            self._refuse("is a module, not a function or an object with target(source)")
        if not inspect.isclass(named):
            return named
        try:
            return named()
        except RAISED as error:
            failure = user_code.failure(error, self.reference)
            self._refuse(f"{named.__name__}() raises {failure}")

    def _names(self, key: str, asked: int | None) -> tuple[str, ...]:
        """Names of symbols: those that the task gives, or numbers."""
        given = getattr(self._object, key, None)
        if not isinstance(given, list | tuple):
            count = self._number(key, USUAL_SYMBOLS, 1, MOST_SYMBOLS)
            return tuple(map(str, range(count if asked is None else asked)))
        names = tuple(map(str, given))
        if asked is not None and asked != len(names):
            self._refuse(f"names its {len(names)} symbols itself; leave data.symbols out")
        if any(name.split() != [name] for name in names) or len(set(names)) != len(names):
            self._refuse(f"{key}: names of symbols differ and have no blanks")
        if not 1 <= len(names) <= MOST_SYMBOLS:
            self._refuse(f"{key}: {len(names):,} names; it may have 1 to {MOST_SYMBOLS:,}")
        return names

    def _number(self, key: str, usual: int, least: int, most: int) -> int:
        """A whole number that the task may set."""
        given = getattr(self._object, key, None)
        number = usual if given is None else _whole(given)
        if number is None or not least <= number <= most:
            self._refuse(f"{key}: {_short(given)}; it may be a whole number, {least} to {most:,}")
        return number

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"{self.name}: {reason}") from None


def _as_task(own: OwnTask, asked: int) -> Task:
    """The task as `TaskPairs` asks for it: the same rule on tensors.

    asked: the shortest length that is asked for; a sampler may refuse shorter ones.
    """

    def draw_shape(keys: Tensor, span: tuple[int, int]) -> Tensor:
        return uniform_length(keys, (max(span[0], own.shortest), span[1]))

    def sampled(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
        drawn = list(zip(keys.tolist(), shape[:, 0].tolist(), strict=True))
        src, length = pad_rows(own.sample(drawn), keys.device)
        return pad(src, (0, int(shape.max()) - src.shape[1])), length

    def targets(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
        return pad_rows(own.targets(_rows(src, length)), src.device)

    def count(symbols: int, length: int) -> int:
        """How many sources of a length there are, as far as LONG_ENOUGH.

        With a sampler this is a bound. It is below FEWEST_SOURCES if one of FEW draws comes twice.
        """
        if length < own.shortest:
            return 0
        most = power(symbols, length)
        if not own.has_sampler or not asked <= length <= LONGEST_FEW:
            return most
        seeds = row_keys(torch.arange(FEW), length).tolist()
        drawn = own.sample([(seed, length) for seed in seeds])
        return most if len({tuple(row) for row in drawn}) == FEW else min(most, FEWEST_SOURCES - 1)

    draw = sampled if own.has_sampler else uniform_symbols
    return Task(own.rule, targets, lambda *_: own.vocabulary, draw_shape, draw, count)


def _rows(src: Tensor, length: Tensor) -> list[Row]:
    """(N, W) and lengths (N,) -> ragged rows."""
    return [row[:n] for row, n in zip(src.tolist(), length.tolist(), strict=True)]


def _call(given: Row | int) -> str:
    """A call in words: of the target of a source, or of a source of a length."""
    return f"source({given}, random)" if isinstance(given, int) else f"target({_short(given)})"


def _whole(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]} ... {text[-15:]}"
