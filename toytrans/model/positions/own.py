"""Position schemes that are code of the user's.

They are loaded, made, and tried out on two small rows before the first step, so that a wrong class
or a wrong shape ends in one line that names it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from toytrans.config.schema import ModelSettings
from toytrans.errors import BadKey, UserError
from toytrans.model.positions.base import Positions
from toytrans.references import shown
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID, Vocabulary
from toytrans.user_code import construct, failure, load

MOST_BIAS_WEIGHTS = 2**16
"""Of each head of an attention: far more than a table of distances needs."""


def load_scheme(name: str) -> type[Positions]:
    """The class that a config names. Raises UserError where it is no scheme."""
    named = load(name)
    if not (isinstance(named, type) and issubclass(named, Positions)):
        raise UserError(f"{shown(name)}: derive it from Positions of toytrans.model.positions.base")
    return named


def load_cross_scheme(name: str) -> type[Positions]:
    """The class that a config names for cross-attention. Raises UserError where it is no scheme, or
    measures nothing there."""
    scheme = load_scheme(name)
    if not scheme.measures_cross_attention():
        raise BadKey(
            "model.cross_positions",
            f"{shown(name)} has no cross_distances, so that cross-attention would know "
            "of no places; define it, or take none",
        )
    return scheme


def make_scheme(name: str, settings: ModelSettings, vocabulary: Vocabulary) -> Positions:
    """The scheme that a config names. Raises UserError where it cannot be a part of a transformer,
    or gives something of a wrong shape to embeddings or self-attention."""
    scheme: Positions = construct(name, settings, vocabulary)
    _check_attributes(scheme, shown(name))
    _try_out(name, lambda: _check_shapes(scheme, settings))
    return scheme


def check_cross_scheme(name: str, scheme: Positions, settings: ModelSettings, size: int) -> None:
    """Raise UserError for a scheme that gives something of a wrong shape to cross-attention.

    size: of the vocabulary
    """
    _try_out(name, lambda: _check_cross_shapes(scheme, settings, size))


def _check_attributes(scheme: object, name: str) -> None:
    """Raise UserError for an object that cannot be a part of a transformer."""
    if not isinstance(scheme, Positions):
        raise UserError(f"{name}: derive it from Positions of toytrans.model.positions.base")
    if "_modules" not in vars(scheme):
        raise UserError(
            f"{name}: its __init__ must call super().__init__(settings, vocabulary) first"
        )
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
            f"{shown(name)}: fails when it is tried out: {failure(error, name)}"
        ) from None


def _check_shapes(scheme: Positions, settings: ModelSettings) -> None:
    """Ask a scheme for all that embeddings and self-attention ask, of two rows of few places."""
    length = min(3, settings.max_length or 3)
    heads, width = settings.n_heads, settings.d_model // settings.n_heads
    x = torch.zeros(2, length, settings.d_model)
    _check_shape("embed", scheme.embed(x), x.shape)
    q = torch.zeros(2, heads, length, width)
    for rotated in scheme.rotate(q, q.clone()):
        _check_shape("rotate", rotated, q.shape)
    distances = scheme.self_distances(range(length), x.device)
    if distances is not None:
        bias = scheme.bias(scheme.new_bias_table(heads), distances)
        _check_bias("bias", bias, (2, heads, length, length))


def _check_cross_shapes(scheme: Positions, settings: ModelSettings, size: int) -> None:
    """Ask a scheme for the bias of cross-attention, of two sources and their targets."""
    src = torch.tensor([[BOS_ID, FIRST_SYMBOL_ID, EOS_ID], [BOS_ID, EOS_ID, PAD_ID]])
    src = src.clamp(max=size - 1)
    memory = torch.zeros(2, 3, settings.d_model)
    tgt_in = src[:, None, :2]  # (B, W, T)
    distances = scheme.cross_distances(memory, src, tgt_in, range(2))
    if distances is not None:
        bias = scheme.bias(scheme.new_bias_table(settings.n_heads), distances)
        _check_bias("bias in cross-attention", bias, (2, settings.n_heads, 2, 3))


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
