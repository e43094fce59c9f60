"""The checks, a file each. Importing this package registers them, so take `CHECKS` from here."""

from importlib import import_module

from toytrans.checks.registry import CAUSES, CHECKS

__all__ = ["CAUSES", "CHECKS", "IN_ORDER"]

IN_ORDER = (
    "rows",
    "pads",
    "future",
    "calls",
    "modes",
    "order",
    "source",
    "target",
    "reach",
    "weights",
    "heads",
    "steps",
    "steps_of_ids",
    "steps_of_beams",
    "loss",
    "loss_of_labels",
    "labels",
    "scale",
    "sublayers",
    "residuals",
)
"""The files, in the order in which their checks are asked and reported."""

for _name in IN_ORDER:
    import_module(f"{__name__}.{_name}")
