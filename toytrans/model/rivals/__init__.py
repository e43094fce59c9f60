"""The rivals of the transformer: recurrent and convolutional encoder-decoders with attention."""

from toytrans.config.schema import ModelConfig
from toytrans.model.rivals.base import Rival
from toytrans.model.rivals.conv import Convolutional
from toytrans.model.rivals.rnn import Recurrent
from toytrans.tokens import Vocabulary


def rival(model: ModelConfig, vocabulary: Vocabulary) -> Rival:
    """The rival that `model.kind` names, with fresh weights. Raises UserError."""
    return {"rnn": Recurrent, "conv": Convolutional}[model.kind](model, vocabulary)


__all__ = ["Rival", "rival"]
