"""The pairs of a task of the user's: `OwnTask`, row by row in Python, as a `Task`."""

import hashlib
import json
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.config.schema import DataConfig
from toytrans.data.pairs import (
    MAX_LEN_B,
    DatasetInfo,
    Sequences,
    real_places,
    row_keys,
)
from toytrans.data.tasks import FEWEST_SOURCES, Task, TaskPairs, uniform_length, uniform_symbols
from toytrans.errors import UserError
from toytrans.own_task import OwnTask
from toytrans.tokens import Vocabulary

TRIED = 32
"""Training pairs that are tried out at the start. A run remembers them by their sha256."""

FEW = 64
"""Sources of one length that a sampler draws to see whether it has few: then one comes twice."""

SLOW = 1e-4
"""Seconds of a pair that are worth a note."""

LONGEST_FEW = 32
"""A sampler's sources of more symbols are taken to be many."""


class OwnTaskPairs(TaskPairs):
    """TaskPairs of a task of the user's. It is tried out when it is opened.

    facts: those of a run that was trained on it; its first pairs must be the same.
    """

    def __init__(self, data: DataConfig, seed: int, facts: DatasetInfo | None = None) -> None:
        assert data.task
        self.own = own = OwnTask(data.task, data.symbols)
        _check_lengths(data, own)
        if own.has_sampler:
            span = data.train_length or (0, 0)
            own.try_sampler([(seed, n) for n in sorted({max(span[0], own.shortest), span[1]})])
        known = data.model_copy(update={"symbols": len(own.symbols)})
        super().__init__(known, seed, _as_task(own, data.shortest()))
        self.longest = data.longest()
        indices = torch.arange(min(TRIED, self.size("train") or TRIED))
        sources = _rows(*self._sources("train", indices))
        seconds = own.try_out(sources)
        if seconds >= SLOW:
            a_step = data.batch_tokens // (sum(self.facts.train_length) + 3)
            self.notes += (
                f"{own.name}: {1000 * seconds:.1f} ms a pair, so a process computes "
                f"{1 / seconds:,.0f} a second, and a step of about {a_step} pairs waits for them",
            )
        tried = hashlib.sha256(json.dumps([sources, own.targets(sources)]).encode()).hexdigest()
        self.facts = replace(self.facts, max_len_a=max(2, own.growth), train_sha256=tried)
        if facts is not None and facts != self.facts:
            raise UserError(
                f"{own.name}: its pairs are not those that the run was trained on; put the code "
                "back, or train again"
            )

    def check_rows(self, rows: int | None) -> None:
        """Raise UserError where sequences may be longer than a position table."""
        most = max(1, self.own.growth) * self.longest + MAX_LEN_B
        if rows is not None and most > rows:
            raise UserError(
                f"{self.own.name}: {self.longest} source symbols may become {most} target symbols, "
                f"more than the {rows} places of the position table; raise model.max_positions, "
                "lower data.test_length or the task's growth, or take positions without a table"
            )


def _check_lengths(data: DataConfig, own: OwnTask) -> None:
    for key in ("train_length", "valid_length", "test_length"):
        span = getattr(data, key)
        if span is not None and span[1] < own.shortest:
            raise UserError(
                f"data.{key}: {own.name} needs a source length of {own.shortest} or more"
            )


def _as_task(own: OwnTask, low: int) -> Task:
    """low: of the lengths that are asked for; a sampler may refuse shorter ones."""

    def sizes(keys: Tensor, span: tuple[int, int]) -> Tensor:
        return uniform_length(keys, (max(span[0], own.shortest), span[1]))

    def sampled(keys: Tensor, sizes: Tensor, symbols: int) -> Sequences:
        drawn = list(zip(keys.tolist(), sizes[:, 0].tolist(), strict=True))
        src, length = _tensors(own.sources(drawn), keys)
        return pad(src, (0, int(sizes.max()) - src.shape[1])), length

    def targets(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
        return _tensors(own.targets(_rows(src, length)), src)

    def count(symbols: int, length: int) -> int:
        """How many sources of a length there are, at most FEWEST_SOURCES.

        With a sampler this is a bound. It is below FEWEST_SOURCES if one of FEW draws comes twice.
        """
        if length < own.shortest:
            return 0
        most = min(symbols ** min(length, 14), FEWEST_SOURCES)
        if not own.has_sampler or not low <= length <= LONGEST_FEW:
            return most
        seeds = row_keys(torch.arange(FEW), length).tolist()
        drawn = own.sources([(seed, length) for seed in seeds])
        return most if len({tuple(row) for row in drawn}) == FEW else min(most, FEWEST_SOURCES - 1)

    return Task(
        own.rule,
        lambda symbols, seed: Vocabulary(own.vocabulary, own.separators),
        sizes,
        sampled if own.has_sampler else uniform_symbols,
        targets,
        count,
    )


def _rows(src: Tensor, length: Tensor) -> list[list[int]]:
    """(N, W) and lengths (N,) -> ragged rows."""
    return [row[:n] for row, n in zip(src.tolist(), length.tolist(), strict=True)]


def _tensors(rows: list[list[int]], like: Tensor) -> Sequences:
    length = torch.tensor([len(row) for row in rows], dtype=torch.long)
    real = real_places(length, max(map(len, rows), default=0))
    values = torch.zeros(real.shape, dtype=torch.long)
    values[real] = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)
    return values.to(like.device), length.to(like.device)
