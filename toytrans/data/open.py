"""Open the dataset that a config names, and check it before anything is trained or written."""

from toytrans.config.schema import Config
from toytrans.data.files import FilePairs
from toytrans.data.own_tasks import open_own_task
from toytrans.data.pairs import SPLITS, DataFacts, Dataset, all_pairs
from toytrans.data.tasks import TASKS
from toytrans.data.tasks.base import TaskPairs
from toytrans.errors import UserError
from toytrans.user_code import is_reference


def open_dataset(config: Config, facts: DataFacts | None = None) -> Dataset:
    """The pairs that a config names. facts: those of the run that was trained on them."""
    data, seed = config.data, config.data_seed
    if data.files is not None:
        return FilePairs(data.files, seed, data.examples, facts)
    if is_reference(data.task):
        return open_own_task(config, facts)
    return TaskPairs(TASKS[data.task or ""], data, seed)


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
        longest = int(all_pairs(dataset, split).lengths_on_host().max())
        if reason := config.too_long(longest, config.data.limits):
            raise UserError(f"data.files.{split}: {reason}")
