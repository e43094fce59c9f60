"""Starting a training from the weights of another run: `train --init RUN`.

The new run takes the best weights of the other one, and its vocabulary too, because a symbol must
keep its id. Everything else is new: the optimiser, the step, the seed. What does not fit is refused
before the first step, in one line that says what differs. Only such a training imports this.
"""

from pathlib import Path

from toytrans.config.load import flatten
from toytrans.config.schema import Settings
from toytrans.data.files import FileDataset
from toytrans.data.pairs import Dataset
from toytrans.errors import BadKey, listed
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import Vocabulary
from toytrans.training.checkpoint import copy_into, weights_of
from toytrans.training.run import Run

MOST_NAMED = 3
"""So many symbols that differ are named in an error."""


class InitRun:
    """The run that a training starts from."""

    def __init__(self, settings: Settings) -> None:
        """Raises UserError where there is no such run or its weights cannot be read, and BadKey
        where only one of both reads unknown symbols as one."""
        assert settings.train.init is not None
        self.settings = settings
        self.run = Run.open(Path(settings.train.init), device="cpu")
        self.weights = weights_of(self.run.model)
        files, unknown = settings.data.files, self.run.vocabulary.unknown
        if files is not None and (files.unknown == "symbol") != bool(unknown):
            wanted = "symbol" if unknown else "error"
            raise BadKey("data.files.unknown", f"{self.run.path}, the init, has {wanted}; take it")

    def check_symbols(self, dataset: Dataset) -> None:
        """Raise BadKey where files have symbols that the other run has no ids for, or where a task
        has other symbols."""
        theirs = self.run.vocabulary
        if isinstance(dataset, FileDataset):
            used = dataset.own_vocabulary()
            missing = [symbol for symbol in used.symbols if symbol not in theirs.symbols]
            if missing and not theirs.unknown:
                names = listed([repr(symbol) for symbol in missing], MOST_NAMED)
                raise BadKey(
                    "train.init",
                    f"{self.run.path} has no symbols {names}, which the training file holds; start "
                    "from a run that has them, or leave them out",
                )
        elif (used := dataset.facts.vocabulary).symbols != theirs.symbols:
            raise BadKey(
                "train.init",
                f"{self.run.path} has {len(theirs.symbols)} symbols ({_first(theirs)}), and the "
                f"task here {len(used.symbols)} ({_first(used)}); they must be the same",
            )

    def give_weights(self, model: Seq2Seq) -> None:
        """Give a new model the best weights of the other run. Raises BadKey with the keys of the
        model that differ where they do not fit."""
        ours = weights_of(model)
        theirs = {  # an fp64 training may start from fp32 weights
            name: values.to(ours[name].dtype) if name in ours else values
            for name, values in self.weights.items()
        }
        try:
            copy_into(ours, theirs)
        except ValueError as error:
            unlike = _differences(self.run.settings, self.settings)
            why = f"the model differs in {listed(unlike)}" if unlike else str(error)
            raise BadKey("train.init", f"{self.run.path} does not fit: {why}") from None

    def __str__(self) -> str:
        return f"starts from the weights of {self.run.title}"


def _first(vocabulary: Vocabulary) -> str:
    """The first symbols of a vocabulary, for an error."""
    return listed([repr(symbol) for symbol in vocabulary.symbols], MOST_NAMED)


def _differences(before: Settings, now: Settings) -> list[str]:
    """The keys of the model that differ: `model.d_model (64 there, 32 here)`."""
    theirs, ours = (
        flatten({"model": each.model.model_dump(mode="json")}) for each in (before, now)
    )
    return [
        f"{key} ({theirs[key]} there, {ours[key]} here)"
        for key in ours
        if key in theirs and theirs[key] != ours[key]
    ]
