"""Train toy encoder-decoder transformers in seconds, see every mask and number inside, and find out
whether the masks of your own model work.

import toytrans
run = toytrans.train("configs/textbook.yaml")    # or toytrans.load("runs/textbook")
run.translate("5 7 9")                          # "9 7 5"
run.evaluate(lengths=(2, 100))                  # exact match per length
toytrans.attention(run, "5 7 9"), toytrans.masks(run, "5 7 9")    # tables in a notebook
toytrans.curves(run), toytrans.live(run)        # its training, and a page in which it runs
toytrans.compare("runs/sweeps/study")           # runs beside each other
toytrans.export(run, "onnx")                    # its model for another runtime
run.model, run.vocabulary                       # a torch.nn.Module, and symbols <-> ids
toytrans.check(run)                             # the checks, on a run or on anybody's model
toytrans.explain("train.lr")                    # what a config key, a task, a fault or a check is
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.api import (
        attention,
        compare,
        curves,
        export,
        live,
        load,
        masks,
        sweep,
        train,
    )
    from toytrans.checks.run import check
    from toytrans.config.schema import Config
    from toytrans.glossary import explain
    from toytrans.sweeps.comparison import Comparison
    from toytrans.training.run import Run

__version__ = "0.5.0"

__all__ = [
    "Comparison",
    "Config",
    "Run",
    "UserError",
    "attention",
    "check",
    "compare",
    "curves",
    "explain",
    "export",
    "live",
    "load",
    "masks",
    "sweep",
    "train",
]

_MODULES = {
    "Comparison": "toytrans.sweeps.comparison",
    "Config": "toytrans.config.schema",
    "Run": "toytrans.training.run",
    "attention": "toytrans.api",
    "check": "toytrans.checks.run",
    "compare": "toytrans.api",
    "curves": "toytrans.api",
    "explain": "toytrans.glossary",
    "export": "toytrans.api",
    "live": "toytrans.api",
    "load": "toytrans.api",
    "masks": "toytrans.api",
    "sweep": "toytrans.api",
    "train": "toytrans.api",
}


def __getattr__(name: str) -> Any:
    """What takes time to import comes when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'toytrans' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
