"""Which library multiplies fp32 matrices on a CPU: torch's own choice, or oneDNN.

A command leaves the products of training to oneDNN where that is faster. Decoding takes them back
for as long as it lasts. A program that imports toytrans keeps the setting of its own.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch

_onednn_multiplies = False


def leave_products_to_onednn(wanted: bool) -> None:
    """Whether oneDNN multiplies fp32 matrices in this whole process. As long as nobody calls this,
    torch's setting is left alone."""
    global _onednn_multiplies
    _onednn_multiplies = wanted
    torch.set_float32_matmul_precision("medium" if wanted else "highest")


def products_as_they_are() -> Callable[[], None]:
    """What puts the library of fp32 products back as it is now."""
    wanted, setting = _onednn_multiplies, torch.get_float32_matmul_precision()

    def put_back() -> None:
        leave_products_to_onednn(wanted)
        torch.set_float32_matmul_precision(setting)

    return put_back


@contextlib.contextmanager
def torchs_own_products() -> Iterator[None]:
    """Until the block ends, torch multiplies with the library that it would choose by itself.

    Decoding multiplies many small matrices. oneDNN copies each of them into a layout of its own
    first, which takes longer than it saves.
    """
    wanted = _onednn_multiplies
    if wanted:
        leave_products_to_onednn(False)
    try:
        yield
    finally:
        if wanted:
            leave_products_to_onednn(True)
