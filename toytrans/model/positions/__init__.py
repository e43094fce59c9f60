"""Position schemes: those that a config names, and code of the user's.

To add one, write a class in a file of this package and its entry here. A scheme is imported when a
config names it.
"""

from pkgutil import resolve_name

from toytrans.config.schema import ModelSettings
from toytrans.errors import BadKey, did_you_mean
from toytrans.model.positions.base import NoPositions, Positions
from toytrans.references import is_reference
from toytrans.tokens import Vocabulary

SCHEMES = {
    "sinusoidal": "toytrans.model.positions.absolute:Sinusoidal",
    "learned": "toytrans.model.positions.absolute:Learned",
    "none": "toytrans.model.positions.base:NoPositions",
    "rotary": "toytrans.model.positions.rotary:Rotary",
    "alibi": "toytrans.model.positions.relative:Alibi",
    "relative": "toytrans.model.positions.relative:Clipped",
    "t5": "toytrans.model.positions.relative:T5Buckets",
    "anchored": "toytrans.model.positions.anchored:Anchored",
}


def scheme_class(name: str) -> type[Positions]:
    """The class of a scheme of ours."""
    return resolve_name(SCHEMES[name])


def scheme_names(*, of_cross_attention: bool = False) -> list[str]:
    """The names that `model.positions` may have, or `model.cross_positions`."""
    if not of_cross_attention:
        return list(SCHEMES)
    return [name for name in SCHEMES if _fits_cross_attention(scheme_class(name))]


def _fits_cross_attention(scheme: type[Positions]) -> bool:
    return scheme is NoPositions or scheme.measures_cross_attention()


def check_scheme_name(name: str) -> None:
    """Raise BadKey unless `model.positions` is one of ours, or names code of the user's."""
    if not is_reference(name) and name not in SCHEMES:
        raise BadKey("model.positions", f"found {name!r}; {did_you_mean(name, SCHEMES)}")


def position_class(name: str) -> type[Positions]:
    """The class of the scheme that `model.positions` names.

    Raises UserError for an unknown name, and for code of the user's that is no such class.
    """
    check_scheme_name(name)
    if is_reference(name):
        from toytrans.model.positions.own import load_scheme

        return load_scheme(name)
    return scheme_class(name)


def cross_position_class(name: str) -> type[Positions]:
    """The class of the scheme that `model.cross_positions` names.

    Raises UserError as `position_class`, and for a scheme that measures nothing in cross-attention,
    where it would be ignored.
    """
    if is_reference(name):
        from toytrans.model.positions.own import load_cross_scheme

        return load_cross_scheme(name)
    if name not in SCHEMES or not _fits_cross_attention(scheme_class(name)):
        names = scheme_names(of_cross_attention=True)
        raise BadKey("model.cross_positions", f"found {name!r}; {did_you_mean(name, names)}")
    return scheme_class(name)


def position_scheme(name: str, settings: ModelSettings, vocabulary: Vocabulary) -> Positions:
    """The position scheme of embeddings and self-attention, by its name in the config.

    Raises UserError where the user's code is no scheme, or gives something of a wrong shape.
    """
    if is_reference(name):
        from toytrans.model.positions.own import make_scheme

        return make_scheme(name, settings, vocabulary)
    return position_class(name)(settings, vocabulary)


def cross_position_scheme(
    name: str, settings: ModelSettings, vocabulary: Vocabulary, positions: Positions
) -> Positions:
    """The position scheme of cross-attention. It is the object `positions` of self-attention if
    both have one name, so that what it learns is learned once.

    Raises UserError, also for one that measures nothing there and so would be ignored.
    """
    cross_position_class(name)
    scheme = positions
    if name != settings.positions:
        scheme = position_scheme(name, settings, vocabulary)
    if is_reference(name):
        from toytrans.model.positions.own import check_cross_scheme

        check_cross_scheme(name, scheme, settings, len(vocabulary))
    return scheme
