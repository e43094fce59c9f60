"""The model of a config, and the refusal where a command needs the transformer."""

from toytrans.config.schema import ModelConfig
from toytrans.errors import UserError
from toytrans.model.own import own_model
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary
from toytrans.user_code import shown


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


def as_transformer(model: Seq2Seq) -> Transformer:
    """A model, for whoever asks for its layers. Raises UserError for one that is no transformer."""
    if not isinstance(model, Transformer):
        raise UserError(
            f"{shown(model.config.class_ or '')}: a model of your own, whose layers this command "
            "does not know; train, eval, translate and check do without"
        )
    return model
