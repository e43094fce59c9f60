"""Open the dataset that a config names, check it before anything is trained or written, and select
the pairs on which a run is measured."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toytrans.config.names import FormatName
from toytrans.config.schema import DataConfig, DataSettings, ModelSettings, Settings
from toytrans.data.files import MOST_IDS, FilePairs, encode_pairs, read_pairs
from toytrans.data.own_tasks import open_own_task, own_task
from toytrans.data.pairs import (
    SPLITS,
    DataFacts,
    Dataset,
    Pairs,
    Side,
    Span,
    Split,
    all_pairs,
    longest_of,
)
from toytrans.data.task_pairs import Task, TaskPairs
from toytrans.data.tasks import TASKS
from toytrans.errors import BadKey, UserError, did_you_mean
from toytrans.user_code import is_reference, shown


def task_of(data: DataConfig) -> Task:
    """The task that a config names: one of ours, or code of the user's. Raises UserError."""
    name = data.task
    assert name is not None, "files have no task"
    if is_reference(name):
        return own_task(data)
    if name not in TASKS:
        raise BadKey("data.task", f"found {name!r}; {did_you_mean(name, TASKS)}")
    return TASKS[name]


def longest_source(task: Task, model: ModelSettings) -> int | None:
    """The symbols of the longest source for which the table of places has room, both for it and for
    its target with their ends; None where any length fits."""
    places = model.max_length
    if places is None:
        return None
    target = (places - 1 - task.extra) // task.growth
    return max(0, min(places - 1 - model.source_bos, target))


def check_lengths(task: Task, data: DataSettings, model: ModelSettings) -> None:
    """Raise BadKey where a task has no sources of the lengths of a split, the table of places no
    room for them, or a computer no memory."""
    room = longest_source(task, model)
    for split, (_, high) in data.lengths.items():
        if high < task.shortest:
            needs = f"{shown(data.task or '')} needs a source length of {task.shortest} or more"
            raise BadKey(f"data.{split}_length", needs)
        if room is not None and high > room:
            raise BadKey(f"data.{split}_length", _too_long(high, room, model))
        examples = data.examples[split]
        if split != "train" and examples is not None and examples * high > MOST_IDS:
            reason = (
                f"{examples:,} pairs of up to {high:,} symbols are more than {MOST_IDS:,} ids; "
                f"lower it, or data.{split}_length"
            )
            raise BadKey(f"data.{split}_examples", reason)


def _too_long(symbols: int, room: int, model: ModelSettings) -> str:
    return (
        f"{symbols} symbols are more than the {room} that model.max_positions "
        f"{model.max_positions} leaves room for; raise it, or take positions without a table"
    )


def open_dataset(settings: Settings, facts: DataFacts | None = None) -> Dataset:
    """The pairs that a config names. facts: those of the run that was trained on them."""
    data = settings.data
    if data.files is not None:
        return FilePairs(data.files, settings, facts)
    if is_reference(data.task):
        return open_own_task(settings, facts)
    return TaskPairs(task_of(data), data, settings.data_seed)


def check_dataset(settings: Settings, dataset: Dataset) -> None:
    """Read every split of files now. Raises UserError, also where a vocabulary is too large for a
    model, or a sequence too long for its table of places. The lengths of a task are checked where
    its settings are made.
    """
    model, files = settings.model, settings.data.files
    model.check_size(len(dataset.facts.vocabulary))
    if files is None:
        return
    for split in SPLITS:
        if split == "test" and files.test is None:
            continue
        pairs = all_pairs(dataset, split)
        longest = max(longest_of(pairs.src_length), longest_of(pairs.tgt_length))
        room = None if model.max_length is None else model.max_length - 1 - model.source_bos
        if room is not None and longest > room:
            raise BadKey(f"data.files.{split}", _too_long(longest, room, model))


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

    lengths: Span | None = None
    examples: int | None = None
    side: Side = "src"


def pairs_of_split(settings: Settings, facts: DataFacts, split: Split, wanted: Selection) -> Pairs:
    """Pairs of a split of a run: drawn for a task, taken from the files otherwise.

    Raises UserError if no pair has the wanted lengths, or if they are too long for the model.
    """
    dataset = open_dataset(settings, facts)
    if not isinstance(dataset, TaskPairs):
        return _selected(all_pairs(dataset, split), wanted)
    count = wanted.examples or dataset.size(split)
    assert count is not None, f"{split} is endless"
    if wanted.lengths is None:
        return dataset.pairs(split, torch.arange(count))
    if wanted.side == "tgt":
        return _with_targets(settings, dataset, split, wanted.lengths, count)
    _check_span(settings, dataset.task, wanted.lengths, count)
    return dataset.pairs(split, torch.arange(count), wanted.lengths)


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


def trained_lengths(settings: Settings, facts: DataFacts, side: Side) -> Span:
    """The shortest and the longest training sequence of one side.

    For the targets of a task, the first WATCHED training pairs are measured. Raises UserError if
    files cannot be read.
    """
    if side == "src":
        return facts.train_length
    dataset = open_dataset(settings, facts)
    size = dataset.size("train")
    if settings.data.task is not None:
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


def _check_span(settings: Settings, task: Task, span: Span, count: int) -> None:
    """Raise UserError if a task has no sources of these lengths, or none that fit the model."""
    low, high = span
    room, reason = longest_source(task, settings.model), ""
    if high < task.shortest:
        reason = f"the task needs a source length of {task.shortest} or more"
    elif room is not None and high > room:
        reason = _too_long(high, room, settings.model)
    elif count * high > MOST_IDS:
        reason = f"{count:,} pairs as long as that are more than {MOST_IDS:,} ids; take fewer"
    if reason:
        raise UserError(f"lengths {low}:{high}: {reason}")


def _with_targets(
    settings: Settings, dataset: TaskPairs, split: Split, span: Span, count: int
) -> Pairs:
    """The first pairs of a split whose targets have the wanted lengths, at most `count`.

    Sources are as long as those of the split, or as the longest target. Raises UserError if there
    are none among MOST_DRAWS times as many pairs.
    """
    sources = dataset.task.shortest, max(dataset.spans[split][1], span[1])
    _check_span(settings, dataset.task, sources, count)
    found = torch.empty(0, dtype=torch.long)
    for start in range(0, MOST_DRAWS * count, count):
        indices = torch.arange(start, start + count)
        fits = _within(dataset.pairs(split, indices, sources).tgt_length, span)
        found = torch.cat((found, indices[fits]))[:count]
        if len(found) == count:
            break
    if not len(found):
        raise _nothing(span, "tgt")
    return dataset.pairs(split, found, sources)


def _selected(pairs: Pairs, wanted: Selection) -> Pairs:
    if wanted.lengths is None:
        return pairs.take(slice(wanted.examples))
    rows = _within(pairs.length(wanted.side), wanted.lengths).nonzero()[:, 0]
    if not len(rows):
        raise _nothing(wanted.lengths, wanted.side)
    return pairs.take(rows[: wanted.examples])


def _within(lengths: Tensor, span: Span) -> Tensor:
    return (lengths >= span[0]) & (lengths <= span[1])


def _nothing(span: Span, side: Side) -> UserError:
    low, high = span
    return UserError(f"lengths {low}:{high}: the data holds no {WORDS[side]} of such a length")
