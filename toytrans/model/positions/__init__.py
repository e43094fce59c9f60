"""Position schemes. Scheme NAME of a config is `SCHEME` of the module NAME here, or code of the
user's: a subclass of `Positions`."""

from importlib import import_module

from toytrans import user_code
from toytrans.config.schema import ModelConfig
from toytrans.errors import UserError
from toytrans.model.positions.base import Positions
from toytrans.tokens import Vocabulary


def position_scheme(name: str, model: ModelConfig, vocabulary: Vocabulary) -> Positions:
    """The position scheme of a model, by its name in the config. Raises UserError."""
    if user_code.is_reference(name):
        return _own(name, model, vocabulary)
    return import_module(f"{__name__}.{name}").SCHEME(model, vocabulary)


def _own(reference: str, model: ModelConfig, vocabulary: Vocabulary) -> Positions:
    made = user_code.construct(reference, model, vocabulary)
    if not isinstance(made, Positions):
        raise UserError(
            f"{user_code.shown(reference)}: derive it from Positions of "
            "toytrans.model.positions.base"
        )
    return made
