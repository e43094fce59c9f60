"""Data: from a config to padded batches."""

from toytrans.config import Config
from toytrans.data.files import FilePairs
from toytrans.data.pairs import SPLITS, DataFacts, PairSource
from toytrans.data.tasks import TaskPairs


def open_source(config: Config, facts: DataFacts | None = None) -> PairSource:
    """The pairs that a config names. facts: those of the run that was trained on them."""
    data = config.data
    if data.files is None:
        return TaskPairs(data, config.seed)
    limits = (data.train_examples, data.valid_examples, data.test_examples)
    examples = dict(zip(SPLITS, limits, strict=True))
    return FilePairs(data.files, config.seed, examples, facts)
