"""No positions."""

from toytrans.model.positions.base import Positions

SCHEME = Positions
