"""Parts that are imported when something names them: "toytrans.model.positions.rotary:Rotary".

A training uses one scheme of positions out of eight. Tables of such parts hold their places as
text, so that what a config does not name is not imported.
"""

from importlib import import_module
from typing import Any


def import_named(place: str) -> Any:
    """What stands at a place, written MODULE:NAME."""
    module, name = place.split(":")
    return getattr(import_module(module), name)
