"""Position schemes: those that a config names, and code of the user's.

To add one, write a class in a file of this package and its entry here.
"""

from toytrans import user_code
from toytrans.config.schema import ModelSettings
from toytrans.errors import BadKey, did_you_mean
from toytrans.model.positions.absolute import Learned, Sinusoidal
from toytrans.model.positions.anchored import Anchored
from toytrans.model.positions.base import NoPositions, Positions
from toytrans.model.positions.own import (
    check_own_cross_scheme,
    load_own_scheme,
    make_own_scheme,
)
from toytrans.model.positions.relative import Alibi, Clipped, T5Buckets
from toytrans.model.positions.rotary import Rotary
from toytrans.tokens import Vocabulary

SCHEMES: dict[str, type[Positions]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "none": NoPositions,
    "rotary": Rotary,
    "alibi": Alibi,
    "relative": Clipped,
    "t5": T5Buckets,
    "anchored": Anchored,
}


def scheme_names(*, of_cross_attention: bool = False) -> list[str]:
    """The names that `model.positions` may have, or `model.cross_positions`."""
    if not of_cross_attention:
        return list(SCHEMES)
    return [
        name
        for name, scheme in SCHEMES.items()
        if scheme is NoPositions or scheme.measures_cross_attention()
    ]


def check_scheme_name(name: str, *, of_cross_attention: bool = False) -> None:
    """Raise BadKey unless a name is one of ours, or names code of the user's."""
    names = scheme_names(of_cross_attention=of_cross_attention)
    if not user_code.is_reference(name) and name not in names:
        key = "model.cross_positions" if of_cross_attention else "model.positions"
        raise BadKey(key, f"found {name!r}; {did_you_mean(name, names)}")


def position_class(name: str, *, of_cross_attention: bool = False) -> type[Positions]:
    """The class of a position scheme, by its name in the config.

    Raises UserError for an unknown name, and for code of the user's that is no such class.
    """
    check_scheme_name(name, of_cross_attention=of_cross_attention)
    if user_code.is_reference(name):
        return load_own_scheme(name, of_cross_attention=of_cross_attention)
    return SCHEMES[name]


def position_scheme(name: str, settings: ModelSettings, vocabulary: Vocabulary) -> Positions:
    """The position scheme of embeddings and self-attention, by its name in the config.

    Raises UserError where the user's code is no scheme, or gives something of a wrong shape.
    """
    if user_code.is_reference(name):
        return make_own_scheme(name, settings, vocabulary)
    return position_class(name)(settings, vocabulary)


def cross_position_scheme(
    name: str, settings: ModelSettings, vocabulary: Vocabulary, positions: Positions
) -> Positions:
    """The position scheme of cross-attention. It is the object `positions` of self-attention if
    both have one name, so that what it learns is learned once.

    Raises UserError, also for one that measures nothing there and so would be ignored.
    """
    position_class(name, of_cross_attention=True)
    scheme = positions
    if name != settings.positions:
        scheme = position_scheme(name, settings, vocabulary)
    if user_code.is_reference(name):
        check_own_cross_scheme(name, scheme, settings, len(vocabulary))
    return scheme
