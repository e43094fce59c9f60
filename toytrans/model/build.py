"""The model of a config."""

from toytrans.config.schema import ModelConfig
from toytrans.model.own import own_model
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary


def build(model: ModelConfig, vocabulary: Vocabulary) -> Seq2Seq:
    """A transformer with fresh weights, and with manual backward if the config asks for it; or the
    user's own model. Raises UserError."""
    if model.class_ is not None:
        return own_model(model, vocabulary)
    transformer = Transformer(model, vocabulary)
    if model.backward == "by_hand":
        from toytrans.model.manual_backward.layers import use_manual_backward

        use_manual_backward(transformer)
    return transformer
