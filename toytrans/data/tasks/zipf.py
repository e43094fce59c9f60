"""Sources shaped like sentences: few symbols are frequent, lengths lie around a middle.

Both are drawn by looking up a whole number below 2^53 in a table of cumulative shares. The table
too has whole numbers, so that draws are the same on every device.
"""

from statistics import NormalDist

import torch
from torch import Tensor

from toytrans.data.hashing import draw
from toytrans.data.pairs import Sequences, longest_of

EXPONENT = 1.3
"""The k-th most frequent symbol has a share in proportion to k^-EXPONENT."""

_WHOLE = 2**53


def normal_length(keys: Tensor, span: tuple[int, int]) -> Tensor:
    """Lengths (N, 1) around half of the span's end, a tenth of it their standard deviation.

    A normal number is rounded up, and what falls outside the span goes to its nearer end.
    """
    low, high = span
    normal = NormalDist(high / 2, max(high, 1) / 10)
    shares = torch.tensor([normal.cdf(n) for n in range(low, high)], dtype=torch.float64)
    return low + _looked_up(draw(keys, 1, _WHOLE), shares)


def zipf_symbols(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Symbols in the order of their frequency, 0 the most frequent; shape (N, 1) holds lengths."""
    length = shape[:, 0]
    shares = torch.arange(1, symbols + 1, dtype=torch.float64).pow(-EXPONENT).cumsum(0)
    numbers = draw(keys, longest_of(length), _WHOLE)
    return _looked_up(numbers, (shares / shares[-1])[:-1]), length


def _looked_up(numbers: Tensor, shares: Tensor) -> Tensor:
    """How many of the cumulative shares (fp64, ascending) each number, a share of 2^53, reaches."""
    table = (shares * _WHOLE).long().to(numbers.device)
    return torch.searchsorted(table, numbers, right=True)
