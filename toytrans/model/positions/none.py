"""No positions."""

from toytrans.model.positions.base import Positions


class NoPositions(Positions):
    """Attention without a causal mask cannot tell one order of its keys from another. A decoder can
    learn to count what it sees (Kazemnejad et al. 2023, The Impact of Positional Encoding on Length
    Generalization in Transformers)."""

    given = "given no places; a decoder can count what it sees"


SCHEME = NoPositions
