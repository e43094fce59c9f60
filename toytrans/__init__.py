"""toytrans: train, inspect and measure encoder-decoder transformers on toy translation tasks.

import toytrans
run = toytrans.load("runs/reverse")
run.translate(["5 7 9"])            # ["9 7 5"]
run.model, run.vocabulary           # a torch.nn.Module, and symbols <-> ids
print(toytrans.check(run))          # the proofs, on a run or on anybody's model
"""

from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """What takes time to import comes when it is first asked for."""
    if name == "load":
        from toytrans.training.run import load_run

        return load_run
    if name == "check":
        from toytrans.insight.proofs import check

        return check
    raise AttributeError(f"module 'toytrans' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", "check", "load"]
