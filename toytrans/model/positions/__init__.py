"""Position schemes. Scheme NAME of a config is `SCHEME` of the module NAME here."""

from importlib import import_module

from toytrans.config import ModelConfig
from toytrans.model.positions.base import Positions
from toytrans.tokens import Vocabulary


def position_scheme(name: str, model: ModelConfig, vocabulary: Vocabulary) -> Positions:
    """The position scheme of a model, by its name in the config."""
    return import_module(f"{__name__}.{name}").SCHEME(model, vocabulary)
