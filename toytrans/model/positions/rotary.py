"""Rotary positions: queries and keys are rotated by their place, so that scores see distances."""

import functools

import torch
from torch import Tensor

from toytrans.config.schema import ModelSettings
from toytrans.errors import BadKey
from toytrans.model.positions.absolute import angles_of, rounded_up
from toytrans.model.positions.base import Positions


class Rotary(Positions):
    """Queries and keys of self-attention, rotated by their place (Su et al. 2021, RoFormer,
    section 3.2).

    Pair i of a head's numbers, i and i + Dh / 2, is rotated by the angle t / 10000^(2i / Dh). Then
    a score depends on the distance alone. Sequences may have any length, but angles beyond those
    of training are new to the model.
    """

    summary = "given how far apart two tokens of a sequence are, as a rotation"

    @classmethod
    def check(cls, settings: ModelSettings) -> None:
        width = settings.d_model // settings.n_heads
        if width % 2:
            reason = f"rotary rotates pairs: heads of even width, not {width}"
            raise BadKey("model.positions", reason)

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        cos, sin = cos_sin(q, start)
        return apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + Dh / 2) of x (..., L, Dh) by angles given as cos and sin (L, Dh / 2)."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def cos_sin(x: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of x (..., L, Dh), whose first place is `start`: (L, Dh / 2)
    each, in the dtype of x."""
    stop = start + x.shape[-2]
    cos, sin = rotary_table(rounded_up(stop), x.shape[-1], x.dtype, x.device)
    return cos[start:stop], sin[start:stop]


@functools.cache
def rotary_table(
    rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of places 0 .. rows - 1 for heads of a width: (rows, width / 2) each.

    They are kept for good: a CUDA graph reads them where they are.
    """
    with torch.inference_mode(False):  # training may use what evaluation made
        angles = angles_of(0, rows, width)
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
