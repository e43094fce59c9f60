"""Position schemes: those that a config names, and code of the user's.

To add one, write a class in a file of this package and its entry here.
"""

from toytrans import user_code
from toytrans.config.schema import ModelConfig
from toytrans.errors import UserError
from toytrans.model.positions.absolute import Learned, Sinusoidal
from toytrans.model.positions.anchored import Anchored
from toytrans.model.positions.base import NoPositions, Positions
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


def position_scheme(name: str, model: ModelConfig, vocabulary: Vocabulary) -> Positions:
    """The position scheme of a model, by its name in the config. Raises UserError."""
    if not user_code.is_reference(name):
        return SCHEMES[name](model, vocabulary)
    made = user_code.construct(name, model, vocabulary)
    if not isinstance(made, Positions):
        raise UserError(
            f"{user_code.shown(name)}: derive it from Positions of toytrans.model.positions.base"
        )
    return made
