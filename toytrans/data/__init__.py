"""Data: from a config to padded batches."""

from toytrans.config.schema import Config
from toytrans.data.files import FilePairs
from toytrans.data.own_tasks import OwnTaskPairs
from toytrans.data.pairs import SPLITS, DatasetInfo, PairSource, all_pairs
from toytrans.data.tasks import TaskPairs
from toytrans.errors import UserError
from toytrans.user_code import is_reference


def open_source(config: Config, facts: DatasetInfo | None = None) -> PairSource:
    """The pairs that a config names. facts: those of the run that was trained on them."""
    data = config.data
    if is_reference(data.task):
        return OwnTaskPairs(data, config.data_seed, facts)
    if data.files is None:
        return TaskPairs(data, config.data_seed)
    limits = (data.train_examples, data.valid_examples, data.test_examples)
    examples = dict(zip(SPLITS, limits, strict=True))
    return FilePairs(data.files, config.data_seed, examples, facts)


def check_splits(config: Config, source: PairSource) -> None:
    """Read every split now, before anything is trained or written. Raises UserError.

    The pairs of a built-in task are checked by the config alone; others also for sequences past a
    learned position table.
    """
    config.model.check_size(len(source.facts.vocabulary))
    files, rows = config.data.files, config.model.max_length
    if isinstance(source, OwnTaskPairs):
        source.check_rows(rows)
    if files is None:
        return
    for split in SPLITS:
        if split == "test" and files.test is None:
            continue
        pairs = all_pairs(source, split)
        longest = int(max(pairs.src_length.max(), pairs.tgt_length.max())) + 1
        if rows is not None and longest > rows:
            raise UserError(
                f"data.files.{split}: a sequence of {longest} places, its end included, is longer "
                f"than model.max_positions {config.model.max_positions} leaves room for; raise it, "
                "or take positions without a table"
            )
