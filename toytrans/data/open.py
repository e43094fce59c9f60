"""The dataset that a config names: a built-in task, a task of the user's, or files. Whether it fits
the model is checked here, before anything is trained or written. What reads files, and what runs
the user's tasks, is imported for a config that names such.

A task's lengths follow from its settings, so `resolve` has them checked; files are read first.
"""

from toytrans.config.schema import DataConfig, DataSettings, ModelSettings, Settings
from toytrans.data.pairs import MOST_IDS, SPLITS, DataFacts, Dataset, all_pairs, longest_of
from toytrans.data.task_dataset import Task, TaskDataset
from toytrans.data.tasks import TASKS
from toytrans.errors import BadKey, did_you_mean
from toytrans.references import is_reference, shown
from toytrans.tokens import Vocabulary


def task_of(data: DataConfig) -> Task:
    """The task that a config names: one of ours, or code of the user's. Raises UserError."""
    name = data.task
    assert name is not None, "files have no task"
    if is_reference(name):
        from toytrans.data.own_tasks import own_task

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
            raise BadKey(f"data.{split}_length", too_long(high, room, model))
        examples = data.examples[split]
        longest = max(high, task.growth * high + task.extra)  # source or target
        if split != "train" and examples is not None and examples * longest > MOST_IDS:
            reason = (
                f"{examples:,} pairs of up to {longest:,} symbols are more than {MOST_IDS:,} ids; "
                f"lower it, or data.{split}_length"
            )
            raise BadKey(f"data.{split}_examples", reason)


def too_long(symbols: int, room: int, model: ModelSettings) -> str:
    """Why sequences of so many symbols do not fit a table with room for fewer, and the remedy."""
    return (
        f"{symbols} symbols are more than the {room} that model.max_positions "
        f"{model.max_positions} leaves room for; raise it, or take positions without a table"
    )


def open_dataset(
    settings: Settings, facts: DataFacts | None = None, vocabulary: Vocabulary | None = None
) -> Dataset:
    """The pairs that a config names.

    facts: those of the run that was trained on them. vocabulary: that which pairs of files take, in
    place of the symbols of their training file; a task has its own.
    """
    data = settings.data
    if data.files is not None:
        from toytrans.data.files import FileDataset

        return FileDataset(data.files, settings, facts, vocabulary)
    if is_reference(data.task):
        from toytrans.data.own_tasks import open_own_task

        return open_own_task(settings, facts)
    return TaskDataset(task_of(data), data, settings.data_seed)


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
        if model.max_length is None:
            continue
        for lengths, ends in (
            (pairs.src_length, 1 + model.source_bos),  # EOS, and BOS where sources have one
            (pairs.tgt_length, 1),  # BOS before what the decoder reads, or EOS behind the labels
        ):
            longest, room = longest_of(lengths), model.max_length - ends
            if longest > room:
                raise BadKey(f"data.files.{split}", too_long(longest, room, model))
