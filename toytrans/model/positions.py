"""Where a token stands: one class per scheme.

A scheme may add something to the embeddings (`embed`), and may tell every attention how far its
keys are from its queries (`self_features`, `cross_features`); an attention turns those features
into a bias on its scores with the few numbers per head that it learns (`bias`).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig, PositionName
from toytrans.errors import UserError
from toytrans.tokens import PAD_ID

Product = Callable[[Tensor, Tensor], Tensor]


def bias_product(weights: Tensor, features: Tensor) -> Tensor:
    """Each head's weights (H, F) times the features (B, Tq, Tk, F) -> (B, H, Tq, Tk)."""
    with torch.autocast(features.device.type, enabled=False):
        flat = features.flatten(1, 2).mT  # (B, F, Tq Tk)
        bias = torch.bmm(weights.expand(len(flat), -1, -1), flat)
    return bias.view(*bias.shape[:2], *features.shape[1:3])


class Positions(nn.Module):
    """No positions at all: attention then cannot tell one order of its keys from another."""

    bias_weights = 0
    """Numbers per head that an attention learns for its bias."""

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__()

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, L, D) of places start .. start + L - 1, with their places."""
        return x

    def self_features(self, queries: range, keys: range, device: torch.device) -> Tensor | None:
        """Places Tq and Tk -> features (1, Tq, Tk, F) for self-attention, or None."""
        return None

    def cross_features(self, queries: range, src: Tensor) -> Tensor | None:
        """Target places Tq and source ids (B, S) -> features (B, Tq, S, F), or None."""
        return None

    def bias(self, table: Tensor, features: Tensor, product: Product = bias_product) -> Tensor:
        """What heads add to their scores: (H, W) and (B, Tq, Tk, F) -> (B, H, Tq, Tk)."""
        raise NotImplementedError


class Sinusoidal(Positions):
    """Sines and cosines of the place at D / 2 wavelengths from 2 pi to 10,000 times that.

    PE(t, 2i) = sin(t / 10000^(2i / D)), PE(t, 2i + 1) = cos of the same (Vaswani et al. 2017,
    Attention Is All You Need, section 3.5). There is no longest sequence.
    """

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        self._table = torch.empty(0, model.d_model)  # of as many places as were met

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        stop, table = start + x.shape[1], self._table
        if torch.compiler.is_compiling() and x.device.type != "mps":  # a graph keeps no table
            return x + sinusoids(start, x.shape[1], x.shape[2], x.device).to(x)
        if len(table) < stop or table.dtype != x.dtype or table.device != x.device:
            table = self._table = sinusoids(0, max(stop, 2 * len(table)), x.shape[2]).to(x)
        return x + table[start:stop]


def sinusoids(start: int, length: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Rows start .. start + length - 1 of the sinusoidal table: (length, width), fp64."""
    places = torch.arange(start, start + length, dtype=torch.float64, device=device)
    even = torch.arange(0, width, 2, dtype=torch.float64, device=device)
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
        self.register_buffer("separators", torch.tensor(separator_ids).long(), persistent=False)
        self.separators: Tensor
        picks = [self.anchors.index(anchor) for anchor in model.cross_anchors]
        chosen = torch.zeros(model.n_heads, len(self.anchors))
        chosen[torch.arange(model.n_heads), torch.tensor(picks)] = 1
        self.register_buffer("chosen", chosen, persistent=False)  # (H, A)
        self.chosen: Tensor
        self._table = chosen.new_empty(0, self.bias_weights + 1)  # of as many distances as met

    def self_features(self, queries: range, keys: range, device: torch.device) -> Tensor:
        distance = _arange(queries, device)[:, None] - _arange(keys, device)
        return self._features(distance[None], max(queries.stop, keys.stop))  # (1, Tq, Tk, 8)

    def cross_features(self, queries: range, src: Tensor) -> Tensor:
        """Eight features for each of the A anchors in use: (B, Tq, S, 8 A)."""
        places = torch.arange(src.shape[1], device=src.device)
        symbols = (src != PAD_ID).sum(1)[:, None, None] - 2  # n, (B, 1, 1)
        t = _arange(queries, src.device)[:, None]
        distances = {
            "start": lambda: t - self._since_separator(src, places)[:, None, :],
            "end": lambda: t - (symbols + 1 - places),
            "wrap": lambda: t - symbols - places,
        }
        shape = (len(src), len(queries), len(places))
        each = torch.stack([distances[anchor]().expand(shape) for anchor in self.anchors], -1)
        return self._features(each, queries.stop + 2 * len(places)).flatten(3)

    def bias(self, table: Tensor, features: Tensor, product: Product = bias_product) -> Tensor:
        """T_h (H, 7) and features (B or 1, Tq, Tk, 8 or 8 A) -> (B or 1, H, Tq, Tk)."""
        table = table.to(features.dtype)
        weights = nn.functional.pad(table, (0, 1), value=1.0)  # (H, 8); the slope is not learned
        if features.shape[-1] > weights.shape[1]:  # several anchors: each head takes its own
            weights = (self.chosen.to(table.dtype)[:, :, None] * weights[:, None]).flatten(1)
        return product(weights, features)

    def _since_separator(self, src: Tensor, places: Tensor) -> Tensor:
        """p(j), (B, S)."""
        if not len(self.separators):
            return places.expand(src.shape)
        separates = (src[..., None] == self.separators).any(-1)
        last = torch.where(separates, places, 0).cummax(1).values
        return places - nn.functional.pad(last[:, :-1], (1, 0))

    def _features(self, distance: Tensor, farthest: int) -> Tensor:
        """Whole numbers (...), at most `farthest` from 0 -> (..., 8): gain at one of seven steps,
        and the slope. Looked up, since most distances occur many times."""
        if torch.compiler.is_compiling():  # a graph keeps no table
            return self._measure(distance)
        reached = len(self._table) // 2
        like = self.chosen
        if reached < farthest or (self._table.dtype, self._table.device) != (
            like.dtype,
            like.device,
        ):
            reached = max(farthest, 2 * reached)
            self._table = self._measure(_arange(range(-reached, reached + 1), like.device))
        return nn.functional.embedding(distance + reached, self._table)

    def _measure(self, distance: Tensor) -> Tensor:
        steps = _arange(range(-self.reach, self.reach + 1), distance.device)
        near = distance.clamp(-self.reach, self.reach)[..., None] == steps
        features = torch.cat((self.gain * near, -self.slope * distance.abs()[..., None]), -1)
        return features.to(self.chosen.dtype)


def _arange(places: range, device: torch.device) -> Tensor:
    return torch.arange(places.start, places.stop, device=device)


POSITIONS: dict[PositionName, type[Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "anchored": Anchored,
}
