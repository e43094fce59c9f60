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
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.config.schema import DataConfig, Settings
from toytrans.data.hashing import row_keys
from toytrans.data.pairs import (
    MOST_TARGET_GROWTH,
    TARGET_SLACK,
    DataFacts,
    Sequences,
    pad_rows,
)
from toytrans.data.task_dataset import (
    FEWEST_SOURCES,
    Task,
    TaskDataset,
    power,
    uniform_length,
    uniform_symbols,
)
from toytrans.errors import UserError
from toytrans.references import shown
from toytrans.tokens import Vocabulary
from toytrans.user_code import load, refusing

Row = list[int]

USUAL_SYMBOLS, MOST_SYMBOLS = 10, 10**5

TRIED = 32
"""Training pairs that are tried out at the start. A run remembers them by their sha256."""

FEW, LONGEST_FEW = 64, 32
"""To see whether a sampler has few sources of a length, so many are drawn: then one comes twice.
Those of more symbols are taken to be many."""


def own_task(data: DataConfig) -> Task:
    """The task of the user's that a config names, as the built-in ones are. Raises UserError."""
    assert data.task
    return _as_task(OwnTask(data.task, data.symbols))


def open_own_task(settings: Settings, facts: DataFacts | None = None) -> TaskDataset:
    """The pairs of a task of the user's, which is tried out.

    facts: those of a run that was trained on it; its first pairs must be the same.
    Raises UserError.
    """
    data = settings.data
    assert data.task
    own = OwnTask(data.task, data.symbols)
    pairs = TaskDataset(_as_task(own), data, settings.data_seed)
    digest = _try_out(own, pairs)
    pairs.facts = replace(pairs.facts, train_sha256=digest)
    if facts is not None and facts != pairs.facts:
        own.refuse(
            "its pairs are not those that the run was trained on; put the code back, or train again"
        )
    return pairs


def _try_out(own: "OwnTask", pairs: TaskDataset) -> str:
    """The sha256 of the first training pairs. Raises UserError where a function is not pure or
    always gives an empty target."""
    low, high = pairs.facts.train_length
    for length in sorted({max(low, own.shortest), high}) if own.source else ():
        if own.drawn(pairs.seed, length) != own.drawn(pairs.seed, length):
            own.refuse(
                f"is not pure: two calls of {_call(length)} with equal generators differ; draw "
                "from `random`, its argument, alone"
            )
    indices = torch.arange(min(TRIED, pairs.size("train") or TRIED))
    sources = _rows(*pairs.sources("train", indices))
    targets = [own.target_of(source) for source in sources]
    for source, target in zip(sources, targets, strict=True):
        if own.target_of(source) != target:
            own.refuse(
                f"is not pure: two calls of {_call(source)} differ; it must depend on the source "
                "alone"
            )
    if sources and not any(targets):
        own.refuse(f"target is empty for all of {len(sources)} sources; nothing to learn")
    return hashlib.sha256(json.dumps([sources, targets]).encode()).hexdigest()


class OwnTask:
    """The task that a reference names, with its attributes and answers checked.

    target, source: its functions; source is None where symbols and lengths are uniform.
    symbols: how many a source may hold. Symbol k is number k of `vocabulary`.
    growth, shortest, rule: as at the top.
    """

    def __init__(self, reference: str, symbols: int | None = None) -> None:
        """symbols: data.symbols of the config. Raises UserError."""
        self.reference, self.name = reference, shown(reference)
        made = load(reference)
        if inspect.isclass(made):
            made = self._returned(made, f"{made.__name__}()")
        target, self.source = getattr(made, "target", made), getattr(made, "source", None)
        if not callable(target):
            self.refuse("has no target(source) and cannot be called")
        if self.source is not None and not callable(self.source):
            self.refuse("source is not a function (length, random) -> list of symbols")
        self.target = target
        self.growth = self._number(made, "growth", 2, 1, MOST_TARGET_GROWTH)
        self.shortest = self._number(made, "shortest", 0, 0, 2**16)
        known = said = self._names(made, "symbols", symbols)
        if getattr(made, "target_symbols", None) is not None:
            said = self._names(made, "target_symbols", None)
        self.symbols, names = len(known), tuple(dict.fromkeys((*known, *said)))
        separators = getattr(made, "separators", ())
        if not isinstance(separators, list | tuple | str):
            self.refuse(f"separators: {_short(separators)}; it may be a list of its symbols")
        separators = tuple(map(str, separators))
        if unknown := sorted(set(separators) - set(names)):
            self.refuse(f"separators: {unknown[0]!r} is none of its symbols")
        self.vocabulary = Vocabulary(names, separators)
        numbers = {name: k for k, name in enumerate(names)}
        self._target_numbers = [numbers[name] for name in said]
        rule = getattr(made, "rule", None) or inspect.getdoc(made)
        self.rule = " ".join(str(rule).split()) if rule else "A task without a docstring."

    def target_of(self, source: Row) -> Row:
        """The target of a source, in numbers of the vocabulary. Raises UserError."""
        row = self._answer(self.target, len(self._target_numbers), source)
        if len(row) >= self.growth * len(source) + TARGET_SLACK:
            self.refuse(
                f"{_call(source)} has {len(row):,} symbols for a source of {len(source)}; set its "
                f"growth (now {self.growth}) to the most target symbols per source symbol"
            )
        return [self._target_numbers[k] for k in row]

    def drawn(self, seed: int, length: int) -> Row:
        """The source that its sampler draws. Raises UserError."""
        row = self._answer(self.source, self.symbols, length, random.Random(seed))
        if not self.shortest <= len(row) <= length:
            self.refuse(
                f"{_call(length)} has {len(row):,} symbols; it may have {self.shortest} to {length}"
            )
        return row

    def refuse(self, reason: str) -> NoReturn:
        """Raise UserError with the name of the task and what is wrong with it."""
        raise UserError(f"{self.name}: {reason}") from None

    def _returned(self, function: Callable[..., Any], call: str, *arguments: Any) -> Any:
        with refusing(f"{self.name}: {call} raises", self.reference):
            return function(*arguments)

    def _answer(self, function: Any, size: int, given: Row | int, *more: Any) -> Row:
        """What a function of the task answers, as a list of whole numbers below `size`."""
        argument, call = given.copy() if isinstance(given, list) else given, _call(given)
        answer = self._returned(function, call, argument, *more)  # which may change the copy
        if not isinstance(answer, list | tuple):
            hint = "; does it end with return?" if answer is None else ""
            self.refuse(f"{call} is {_kind(answer)}, not a list of whole numbers{hint}")
        row = []
        for value in answer:
            number = _whole(value)
            if number is None:
                self.refuse(f"{call} holds {_short(value)}, {_kind(value)}, not a whole number")
            if not 0 <= number < size:
                self.refuse(f"{call} holds symbol {number}; its symbols are 0 to {size - 1}")
            row.append(number)
        return row

    def _names(self, made: Any, key: str, asked: int | None) -> tuple[str, ...]:
        """Names of symbols: those that the task gives, or numbers. asked: how many."""
        given = getattr(made, key, None)
        if not isinstance(given, list | tuple):
            count = self._number(made, key, USUAL_SYMBOLS, 1, MOST_SYMBOLS)
            return tuple(map(str, range(count if asked is None else asked)))
        names = tuple(map(str, given))
        if asked is not None and asked != len(names):
            self.refuse(f"names its {len(names)} symbols itself; leave data.symbols out")
        if any(name.split() != [name] for name in names) or len(set(names)) != len(names):
            self.refuse(f"{key}: names of symbols differ and have no blanks")
        if odd := [name for name in names if not _has_utf8(name)]:
            self.refuse(f"{key}: {odd[0]!a} is no text; it holds half a character")
        if not 1 <= len(names) <= MOST_SYMBOLS:
            self.refuse(f"{key}: {len(names):,} names; it may have 1 to {MOST_SYMBOLS:,}")
        return names

    def _number(self, made: Any, key: str, usual: int, least: int, most: int) -> int:
        """A whole number that the task may set."""
        given = getattr(made, key, None)
        number = usual if given is None else _whole(given)
        if number is None or not least <= number <= most:
            self.refuse(f"{key}: {_short(given)}; it may be a whole number, {least} to {most:,}")
        return number


def _as_task(own: OwnTask) -> Task:
    """The task as `TaskDataset` asks for it: the same rule on tensors."""

    def draw_shape(keys: Tensor, span: tuple[int, int]) -> Tensor:
        return uniform_length(keys, (max(span[0], own.shortest), span[1]))

    def sampled(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
        rows = list(map(own.drawn, keys.tolist(), shape[:, 0].tolist()))
        src, length = pad_rows(rows)
        return pad(src, (0, int(shape.max()) - src.shape[1])), length

    def targets(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
        return pad_rows(list(map(own.target_of, _rows(src, length))))

    def count(symbols: int, length: int) -> int:
        """How many sources of a length there are, or enough.

        With a sampler it is the most that there may be. That is taken to be below FEWEST_SOURCES
        where one of FEW draws comes twice.
        """
        if length < own.shortest:
            return 0
        most = power(symbols, length)
        if not own.source or length > LONGEST_FEW:
            return most
        seeds = row_keys(torch.arange(FEW), length).tolist()
        try:
            different = {tuple(own.drawn(seed, length)) for seed in seeds}
        except UserError:  # a sampler may refuse a length that the config does not ask for
            return most
        return most if len(different) == FEW else min(most, FEWEST_SOURCES - 1)

    draw = sampled if own.source else uniform_symbols
    return Task(
        own.rule,
        targets,
        lambda *_: own.vocabulary,
        draw_shape,
        draw,
        count,
        growth=own.growth,
        extra=TARGET_SLACK - 1,
        shortest=own.shortest,
        symbols=own.symbols,
    )


def _rows(src: Tensor, length: Tensor) -> list[Row]:
    """(N, W) and lengths (N,) -> ragged rows."""
    return [row[:n] for row, n in zip(src.tolist(), length.tolist(), strict=True)]


def _call(given: Row | int) -> str:
    """A call in words: of the target of a source, or of a source of a length."""
    return f"source({given}, random)" if isinstance(given, int) else f"target({_short(given)})"


def _has_utf8(text: str) -> bool:
    """Whether a file can hold a text. Half of a surrogate pair, say, has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
