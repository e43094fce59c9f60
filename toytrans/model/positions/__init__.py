"""Position schemes: those that a config names, and code of the user's.

To add one, write a class in a file of this package and its entry here.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from toytrans import user_code
from toytrans.config.schema import ModelSettings
from toytrans.errors import BadKey, UserError, did_you_mean
from toytrans.model.positions.absolute import Learned, Sinusoidal
from toytrans.model.positions.anchored import Anchored
from toytrans.model.positions.base import NoPositions, Positions
from toytrans.model.positions.relative import Alibi, Clipped, T5Buckets
from toytrans.model.positions.rotary import Rotary
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID, Vocabulary

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


MOST_BIAS_WEIGHTS = 2**16
"""Of each head of an attention: far more than a table of distances needs."""


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
    """The class of a position scheme, by its name in the config. Raises UserError."""
    check_scheme_name(name, of_cross_attention=of_cross_attention)
    if not user_code.is_reference(name):
        return SCHEMES[name]
    named, shown = user_code.load(name), user_code.shown(name)
    if not (isinstance(named, type) and issubclass(named, Positions)):
        raise UserError(f"{shown}: derive it from Positions of toytrans.model.positions.base")
    if of_cross_attention and not named.measures_cross_attention():
        raise BadKey(
            "model.cross_positions",
            f"{shown} has no cross_distances, so that cross-attention would know of no places; "
            "define it, or take none",
        )
    return named


def position_scheme(name: str, model: ModelSettings, vocabulary: Vocabulary) -> Positions:
    """The position scheme of embeddings and self-attention, by its name in the config.

    Raises UserError where the user's code is no scheme, or gives something of a wrong shape.
    """
    if not user_code.is_reference(name):
        return position_class(name)(model, vocabulary)
    scheme: Positions = user_code.construct(name, model, vocabulary)
    _check_own(scheme, user_code.shown(name))
    _try_out(name, lambda: _check_shapes(scheme, model))
    return scheme


def cross_position_scheme(
    name: str, model: ModelSettings, vocabulary: Vocabulary, positions: Positions
) -> Positions:
    """The position scheme of cross-attention. It is the object `positions` of self-attention if
    both have one name, so that what it learns is learned once.

    Raises UserError, also for one that measures nothing there and so would be ignored.
    """
    position_class(name, of_cross_attention=True)
    scheme = positions
    if name != model.positions:
        scheme = position_scheme(name, model, vocabulary)
    if user_code.is_reference(name):
        _try_out(name, lambda: _check_cross_shapes(scheme, model, len(vocabulary)))
    return scheme


# Code of the user's ---------------------------------------------------------------------------


def _check_own(scheme: object, name: str) -> None:
    """Raise UserError for an object that cannot be a part of a transformer."""
    if not isinstance(scheme, Positions):
        raise UserError(f"{name}: derive it from Positions of toytrans.model.positions.base")
    if "_modules" not in vars(scheme):
        raise UserError(f"{name}: its __init__ must call super().__init__(model, vocabulary) first")
    weights, deviation = scheme.bias_weights, scheme.bias_deviation
    if type(weights) is not int or not 0 <= weights <= MOST_BIAS_WEIGHTS:
        raise UserError(
            f"{name}: bias_weights is {weights!r}; a number of each head's weights, 0 to "
            f"{MOST_BIAS_WEIGHTS:,}"
        )
    if not isinstance(deviation, int | float) or not 0 <= deviation < float("inf"):
        raise UserError(f"{name}: bias_deviation is {deviation!r}; a number of 0 or more")


def _try_out(name: str, check: Callable[[], None]) -> None:
    """Run a check of the user's code, so that what is wrong shows before the first step."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            check()
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # code of the user's may raise anything
        raise UserError(
            f"{user_code.shown(name)}: fails when it is tried out: {user_code.failure(error, name)}"
        ) from None


def _check_shapes(scheme: Positions, model: ModelSettings) -> None:
    """Ask a scheme for all that embeddings and self-attention ask, of two rows of few places."""
    length = min(3, model.max_length or 3)
    heads, width = model.n_heads, model.d_model // model.n_heads
    x = torch.zeros(2, length, model.d_model)
    _check_shape("embed", scheme.embed(x), x.shape)
    q = torch.zeros(2, heads, length, width)
    _check_shape("rotate", scheme.rotate(q), q.shape)
    distances = scheme.self_distances(range(length), x.device)
    if distances is not None:
        bias = scheme.bias(scheme.new_bias_table(heads), distances)
        _check_bias("bias", bias, (2, heads, length, length))


def _check_cross_shapes(scheme: Positions, model: ModelSettings, size: int) -> None:
    """Ask a scheme for the bias of cross-attention, of two sources and their targets."""
    src = torch.tensor([[BOS_ID, FIRST_SYMBOL_ID, EOS_ID], [BOS_ID, EOS_ID, PAD_ID]])
    src = src.clamp(max=size - 1)
    memory = torch.zeros(2, 3, model.d_model)
    tgt_in = src[:, None, :2]  # (B, W, T)
    distances = scheme.cross_distances(memory, src, tgt_in, range(2))
    if distances is not None:
        bias = scheme.bias(scheme.new_bias_table(model.n_heads), distances)
        _check_bias("bias in cross-attention", bias, (2, model.n_heads, 2, 3))


def _check_shape(what: str, found: object, wanted: Sequence[int]) -> None:
    if not isinstance(found, Tensor) or found.shape != torch.Size(wanted):
        raise ValueError(f"{what} gives {_shape_of(found)}, where {tuple(wanted)} is wanted")


def _check_bias(what: str, found: object, wanted: Sequence[int]) -> None:
    """An axis of a bias may be 1 for all rows, heads or queries; not that of the keys."""
    fits = isinstance(found, Tensor) and found.dim() == 4 and found.shape[-1] == wanted[-1]
    if not fits or any(n not in (1, m) for n, m in zip(found.shape, wanted, strict=True)):  # type: ignore[attr-defined]
        raise ValueError(f"{what} gives {_shape_of(found)}, where {tuple(wanted)} is wanted")


def _shape_of(found: object) -> str:
    return str(tuple(found.shape)) if isinstance(found, Tensor) else type(found).__name__
