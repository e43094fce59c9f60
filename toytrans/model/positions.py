"""Where a token stands: one class per scheme.

A scheme may add something to the embeddings (`embed`), and may tell every attention how far its
keys are from its queries (`self_features`, `cross_features`); an attention turns those features
into a bias on its scores with the few numbers per head that it learns (`bias`).
"""

import math

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig, PositionName
from toytrans.errors import UserError
from toytrans.tokens import PAD_ID


class Positions(nn.Module):
    """No positions at all: attention then cannot tell one order of its keys from another."""

    bias_weights = 0
    """Numbers per head that an attention learns for its bias."""

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__()

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, L, D) of places start .. start + L - 1, with their places."""
        return x

    def self_features(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Places (Tq,) and (Tk,) -> features (1, F, Tq, Tk) for self-attention, or None."""
        return None

    def cross_features(self, queries: Tensor, src: Tensor) -> Tensor | None:
        """Target places (Tq,) and source ids (B, S) -> features (B, F, Tq, S), or None."""
        return None

    def bias(self, table: Tensor, features: Tensor) -> Tensor:
        """What heads add to their scores: (H, W) and (B, F, Tq, Tk) -> (B, H, Tq, Tk)."""
        raise NotImplementedError


class Sinusoidal(Positions):
    """Sines and cosines of the place at D / 2 wavelengths from 2 pi to 10,000 times that.

    PE(t, 2i) = sin(t / 10000^(2i / D)), PE(t, 2i + 1) = cos of the same (Vaswani et al. 2017,
    Attention Is All You Need, section 3.5). There is no longest sequence.
    """

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        length, width = x.shape[1:]
        return x + sinusoids(start, length, width).to(x.dtype).to(x.device)


def sinusoids(start: int, length: int, width: int) -> Tensor:
    """Rows start .. start + length - 1 of the sinusoidal table: (length, width), fp64, CPU."""
    places = torch.arange(start, start + length, dtype=torch.float64)
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = places[:, None] * torch.exp(even * (-math.log(10_000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1)


class Learned(Positions):
    """A learned vector per place (Gehring et al. 2017, section 3.1): nothing past its last row.

    The table starts normal with standard deviation 0.1.
    """

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        assert model.max_positions
        self.table = nn.Parameter(torch.randn(model.max_positions, model.d_model) * 0.1)

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        rows, last = len(self.table), start + x.shape[1]
        if last > rows:
            raise UserError(
                f"a sequence of {last} places is longer than the learned position table of "
                f"{rows} (model.max_positions); shorten it, or train with more rows"
            )
        return x + self.table[start:last]


class Anchored(Positions):
    """Distances from anchors, clipped to seven learned steps, and a slope without end.

    A head adds gain T_h[clip(d, -3, 3)] - slope |d| to its scores. In self-attention d = i - j.
    In cross-attention, t being the decoder's place and j the source's (BOS is place 0 in both,
    n symbols in the source), each head has one anchor:

        start  d = t - p(j), p(j) = places since the last separator before j, or since BOS
        end    d = t - (n + 1 - j)
        wrap   d = t - n - j

    T_h starts at zero. The clipped table is that of Shaw et al. 2018 (Self-Attention with
    Relative Position Representations) as a bias, the slope that of Press et al. 2022 (ALiBi):
    with it the weight of all far keys together is a geometric series, bounded at any length. A
    head whose wanted key does not exist falls on the nearest end of the source, the same picture
    at every length. There is no longest sequence. Sources carry BOS and EOS.
    """

    reach = 3
    bias_weights = 2 * reach + 1

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        assert model.cross_anchors and model.bias_gain and model.slope is not None
        self.gain, self.slope = model.bias_gain, model.slope
        self.anchors = tuple(dict.fromkeys(model.cross_anchors))
        self.separator_ids = separator_ids
        picks = [self.anchors.index(anchor) for anchor in model.cross_anchors]
        chosen = torch.zeros(model.n_heads, len(self.anchors))
        chosen[torch.arange(model.n_heads), torch.tensor(picks)] = 1
        self.register_buffer("chosen", chosen, persistent=False)  # (H, A)
        self.chosen: Tensor

    def self_features(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self._features(queries[:, None] - keys)[None]

    def cross_features(self, queries: Tensor, src: Tensor) -> Tensor:
        """Eight features for each of the A anchors in use: (B, A 8, Tq, S)."""
        places = torch.arange(src.shape[1], device=src.device)
        symbols = (src != PAD_ID).sum(1)[:, None, None] - 2  # n, (B, 1, 1)
        t = queries[:, None]
        distances = {
            "start": lambda: t - self._since_separator(src, places)[:, None, :],
            "end": lambda: t - (symbols + 1 - places),
            "wrap": lambda: t - symbols - places,
        }
        shape = (len(src), len(queries), len(places))
        each = [self._features(distances[anchor]().expand(shape)) for anchor in self.anchors]
        return torch.cat(each, 1)  # (B, A 8, Tq, S)

    def bias(self, table: Tensor, features: Tensor) -> Tensor:
        table = table.to(features.dtype)
        weights = nn.functional.pad(table, (0, 1), value=1.0)  # (H, 8); the slope is not learned
        if features.shape[1] > weights.shape[1]:  # several anchors: each head takes its own
            weights = (self.chosen.to(table.dtype)[:, :, None] * weights[:, None]).flatten(1)
        with torch.autocast(features.device.type, enabled=False):
            bias: Tensor = weights @ features.flatten(2)
        return bias.view(*bias.shape[:2], *features.shape[2:])

    def _since_separator(self, src: Tensor, places: Tensor) -> Tensor:
        """p(j), (B, S)."""
        if not self.separator_ids:
            return places.expand(src.shape)
        separators = torch.tensor(self.separator_ids, device=src.device)
        last = torch.where(torch.isin(src, separators), places, 0).cummax(1).values
        return places - nn.functional.pad(last[:, :-1], (1, 0))

    def _features(self, distance: Tensor) -> Tensor:
        """Whole numbers (..., Tq, Tk) -> (..., 8, Tq, Tk): seven steps times gain, the slope."""
        steps = torch.arange(-self.reach, self.reach + 1, device=distance.device)
        near = distance.clamp(-self.reach, self.reach).unsqueeze(-3) == steps[:, None, None]
        slope = -self.slope * distance.abs().unsqueeze(-3)
        return torch.cat((self.gain * near, slope.to(self.chosen.dtype)), -3).to(self.chosen.dtype)


POSITIONS: dict[PositionName, type[Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "anchored": Anchored,
}
