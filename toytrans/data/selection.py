"""Which pairs a run is measured on: pairs of a split, or of other files, by their lengths.

A task draws as many pairs of the wanted lengths as are asked for; from files those that fit are
taken. Training needs none of this.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toytrans.config.schema import FilesConfig, Settings
from toytrans.data.files import encode_pairs
from toytrans.data.formats import SAY_THEIR_FORMAT, read_file
from toytrans.data.open import longest_source, open_dataset, too_long
from toytrans.data.pairs import MOST_IDS, DataFacts, Dataset, Pairs, Side, Span, Split, all_pairs
from toytrans.data.task_dataset import Task, TaskDataset
from toytrans.errors import UserError

MOST_DRAWS = 64
"""Targets of certain lengths are searched among this many times the wanted pairs of a task."""

WATCHED = 10_000
"""The lengths of a task's training targets are measured on this many pairs."""

SIDE_NAMES: dict[Side, str] = {"src": "source", "tgt": "target"}


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
    if not isinstance(dataset, TaskDataset):
        return _selected(all_pairs(dataset, split), wanted)
    count = wanted.examples or dataset.size(split)
    assert count is not None, f"{split} is endless"
    if wanted.lengths is None:
        return dataset.pairs(split, torch.arange(count))
    if wanted.side == "tgt":
        return _with_targets(settings, dataset, split, wanted.lengths, count)
    _check_span(settings, dataset.task, wanted.lengths, count)
    return dataset.pairs(split, torch.arange(count), wanted.lengths)


def check_selection(settings: Settings, dataset: Dataset, split: Split, wanted: Selection) -> None:
    """Raise UserError where `pairs_of_split` would, but draw no pairs that a task surely has."""
    if not isinstance(dataset, TaskDataset) or (wanted.side == "tgt" and wanted.lengths):
        pairs_of_split(settings, dataset.facts, split, wanted)
    elif wanted.lengths is not None:
        count = wanted.examples or dataset.size(split)
        assert count is not None, f"{split} is endless"
        _check_span(settings, dataset.task, wanted.lengths, count)


def pairs_of_files(
    paths: Path | tuple[Path, Path], settings: Settings, facts: DataFacts, wanted: Selection
) -> Pairs:
    """Pairs of a file, or of two files of parallel text, for a run with these settings.

    They are read as the run's own files are, but a name with an ending that tells the format is of
    that format. Raises UserError for a bad file or no pair.
    """
    named = str(paths) if isinstance(paths, Path) else (str(paths[0]), str(paths[1]))
    files = settings.data.files or FilesConfig(train=named)
    says_format = isinstance(paths, tuple) or paths.suffix.lower() in SAY_THEIR_FORMAT
    if says_format or files.format == "text":
        files = files.model_copy(update={"format": None})
    remedy = "they must occur in training"
    if settings.data.files is not None:
        remedy = "trained with data.files.unknown: symbol, a run reads them as <unk>"
    return _selected(encode_pairs(read_file(named, files).pairs, facts.vocabulary, remedy), wanted)


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


def sources_in_training(settings: Settings, facts: DataFacts, pairs: Pairs) -> int | None:
    """How many of some pairs have a source that training has too. None where that is not known:
    for a task, whose pairs are drawn, and where the training file is gone or another one."""
    if settings.data.files is None:
        return None
    try:
        trained = all_pairs(open_dataset(settings, facts), "train")
    except UserError:
        return None
    known = set(_sources(trained))
    return sum(source in known for source in _sources(pairs))


def _sources(pairs: Pairs) -> Iterator[tuple[int, ...]]:
    """The ids of each source."""
    for ids, length in zip(pairs.src.tolist(), pairs.src_length.tolist(), strict=True):
        yield tuple(ids[:length])


def _check_span(settings: Settings, task: Task, span: Span, count: int) -> None:
    """Raise UserError if a task has no sources of these lengths, or none that fit the model."""
    low, high = span
    room, reason = longest_source(task, settings.model), ""
    if high < task.shortest:
        reason = f"the task needs a source length of {task.shortest} or more"
    elif room is not None and high > room:
        reason = too_long(high, room, settings.model)
    elif count * high > MOST_IDS:
        reason = f"{count:,} pairs as long as that are more than {MOST_IDS:,} ids; take fewer"
    if reason:
        raise UserError(f"lengths {low}:{high}: {reason}")


def _with_targets(
    settings: Settings, dataset: TaskDataset, split: Split, span: Span, count: int
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
    return UserError(f"lengths {low}:{high}: the data holds no {SIDE_NAMES[side]} of such a length")
