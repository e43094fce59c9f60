"""Open the dataset that a config names, check it before anything is trained or written, and select
the pairs on which a run is measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toytrans.config.load import check_config
from toytrans.config.names import FormatName
from toytrans.config.schema import Config
from toytrans.config.yaml import Tree
from toytrans.data.files import FilePairs, encode_pairs, read_pairs
from toytrans.data.own_tasks import open_own_task
from toytrans.data.pairs import (
    SPLITS,
    DataFacts,
    Dataset,
    Pairs,
    Side,
    Split,
    all_pairs,
    longest_of,
)
from toytrans.data.task_pairs import TaskPairs
from toytrans.data.tasks import TASKS
from toytrans.errors import UserError
from toytrans.user_code import is_reference


def open_dataset(config: Config, facts: DataFacts | None = None) -> Dataset:
    """The pairs that a config names. facts: those of the run that was trained on them."""
    data = config.data
    if data.files is not None:
        return FilePairs(data.files, config, facts)
    if is_reference(data.task):
        return open_own_task(config, facts)
    return TaskPairs(TASKS[data.task or ""], data, config.data_seed)


def check_dataset(config: Config, dataset: Dataset) -> None:
    """Read every split of files now. Raises UserError, also where a vocabulary is too large for a
    model, or a sequence too long for its position table. A task's lengths are checked already.
    """
    config.model.check_size(len(dataset.facts.vocabulary))
    if (files := config.data.files) is None:
        return
    for split in SPLITS:
        if split == "test" and files.test is None:
            continue
        pairs = all_pairs(dataset, split)
        longest = max(longest_of(pairs.src_length), longest_of(pairs.tgt_length))
        if reason := config.too_long(longest, config.data.limits):
            raise UserError(f"data.files.{split}: {reason}")


# Selecting ------------------------------------------------------------------------------------

MOST_DRAWS = 64
"""Targets of certain lengths are searched among this many times the wanted pairs of a task."""

WATCHED = 10_000
"""The lengths of a task's training targets are measured on this many pairs."""

WORDS: dict[Side, str] = {"src": "source", "tgt": "target"}


@dataclass(frozen=True)
class Selection:
    """Which pairs to measure.

    lengths: the shortest and the longest; None = all.
    examples: the greatest number of pairs; None = all.
    side: whether lengths are of sources or of targets.
    """

    lengths: tuple[int, int] | None = None
    examples: int | None = None
    side: Side = "src"


def pairs_of_split(config: Config, facts: DataFacts, split: Split, wanted: Selection) -> Pairs:
    """Pairs of a split of a run: drawn for a task, taken from the files otherwise.

    Raises UserError if no pair has the wanted lengths.
    """
    if config.data.task is None:
        return _selected(all_pairs(open_dataset(config, facts), split), wanted)
    changes: dict[str, Any] = {}
    if wanted.examples:
        changes[f"{split}_examples"] = wanted.examples
    if wanted.lengths and wanted.side == "src":
        changes[f"{split}_length"] = list(wanted.lengths)
    elif wanted.lengths:
        longest = max(config.data.lengths[split][1], wanted.lengths[1])
        changes[f"{split}_length"] = [config.data.limits.shortest, longest]
    dataset = open_dataset(_changed(config, changes), facts)
    if wanted.lengths and wanted.side == "tgt":
        return dataset.pairs(split, _with_targets(dataset, split, wanted))
    return all_pairs(dataset, split)


def pairs_of_files(
    paths: Path | tuple[Path, Path],
    format: FormatName | None,
    facts: DataFacts,
    wanted: Selection,
) -> Pairs:
    """Pairs of a file, or of two files of parallel text.

    format: of one file; None = its ending tells it
    Raises UserError for a bad file or no pair.
    """
    if isinstance(paths, tuple):
        text = read_pairs((str(paths[0]), str(paths[1])), "text")
    else:
        text = read_pairs(str(paths), format)
    return _selected(encode_pairs(text, facts.vocabulary), wanted)


def trained_lengths(config: Config, facts: DataFacts, side: Side) -> tuple[int, int]:
    """The shortest and the longest training sequence of one side.

    For the targets of a task, the first WATCHED training pairs are measured. Raises UserError if
    files cannot be read.
    """
    if side == "src":
        return facts.train_length
    dataset = open_dataset(config, facts)
    size = dataset.size("train")
    if config.data.task is not None:
        size = min(size or WATCHED, WATCHED)
    assert size is not None, "files end"
    lengths = dataset.pairs("train", torch.arange(size)).tgt_length
    return int(lengths.min()), int(lengths.max())


def first_of_each(lengths: Tensor, count: int | None) -> Tensor:
    """The indices (M,) of the first pairs of each length.

    lengths: (N,), of all pairs.
    count: the greatest number of pairs of one length; None = all.
    """
    if count is None:
        return torch.arange(len(lengths))
    order = lengths.argsort(stable=True)
    ordered = lengths[order]
    starts = torch.searchsorted(ordered, ordered)  # where each one's length begins
    return order[torch.arange(len(order)) - starts < count].sort().values


def _changed(config: Config, changes: dict[str, Any]) -> Config:
    """A run's config with other data settings, checked like any config."""
    values = config.model_dump(mode="json")
    values["data"] |= changes
    return check_config(Tree("lengths", values))


def _with_targets(dataset: Dataset, split: Split, wanted: Selection) -> Tensor:
    """Indices of the first pairs whose targets have the wanted lengths. Raises UserError."""
    size = dataset.size(split)
    assert size is not None and wanted.lengths
    rows = torch.empty(0, dtype=torch.long)
    for start in range(0, MOST_DRAWS * size, size):
        indices = torch.arange(start, start + size)
        fits = _within(dataset.pairs(split, indices).tgt_length, wanted.lengths)
        rows = torch.cat((rows, indices[fits]))[:size]
        if len(rows) == size:
            break
    if not len(rows):
        raise _nothing(wanted)
    return rows


def _selected(pairs: Pairs, wanted: Selection) -> Pairs:
    if wanted.lengths is None:
        return pairs.take(slice(wanted.examples))
    rows = _within(pairs.length(wanted.side), wanted.lengths).nonzero()[:, 0]
    if not len(rows):
        raise _nothing(wanted)
    return pairs.take(rows[: wanted.examples])


def _within(lengths: Tensor, span: tuple[int, int]) -> Tensor:
    return (lengths >= span[0]) & (lengths <= span[1])


def _nothing(wanted: Selection) -> UserError:
    low, high = wanted.lengths or (0, 0)
    return UserError(
        f"lengths {low}:{high}: the data holds no {WORDS[wanted.side]} of such a length"
    )
