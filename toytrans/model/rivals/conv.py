"""A convolutional encoder-decoder, ConvS2S (Gehring et al. 2017)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config.schema import ModelConfig
from toytrans.model.masks import padding_mask
from toytrans.model.rivals.base import Rival, Written, masked_weights
from toytrans.tokens import Vocabulary

HALF = 0.5**0.5
"""The sum of two inputs of variance 1, times this, has variance 1 (section 3.4)."""


class GatedConv(nn.Conv1d):
    """A convolution of k neighbours and a gated linear unit: (N, D, L + k - 1) -> (N, D, L)."""

    def __init__(self, model: ModelConfig) -> None:
        width, size = model.d_model, model.kernel_size or 1
        super().__init__(width, 2 * width, size)
        kept = 1 - model.dropout
        nn.init.normal_(self.weight, std=(4 * kept / (size * width)) ** 0.5)  # section 3.5
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(super().forward(x), 1)


class AskingLayer(nn.Module):
    """A decoder layer: gated convolution of the past, attention over the source, residual sum."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.conv = GatedConv(model)
        self.query = _linear(model.d_model)

    def forward(
        self, x: Tensor, embedded: Tensor, past: Tensor, source: list[Tensor], mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x and embedded tokens (N, T, D), past inputs (N, D, k - 1) -> x, past, weights."""
        _, keys, values, root = source
        window = torch.cat((past, x.mT), -1)  # (N, D, k - 1 + T)
        here = self.conv(window).mT
        query = (self.query(here) + embedded) * HALF
        weights = masked_weights(query @ keys.mT, mask)
        context = weights.to(values.dtype) @ values * root
        return (here + context) * HALF, window[..., x.shape[1] :], weights


class Convolutional(Rival):
    """ConvS2S: gated convolutions, causal in the decoder, with attention in every decoder layer.

    Keys are the encoder's outputs z; values are z + e, e the embedded source. Sums are multiplied
    by the root of 1/2, and what attention finds by the root of the number of source tokens. Pads
    are zero before every convolution. Weights start as in section 3.5. Left out: weight
    normalisation, and the smaller gradient of the encoder.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        width, self.size = model.d_model, model.kernel_size or 1
        self.attentions = model.n_decoder_layers
        self.encoder_in, self.encoder_out = _linear(width), _linear(width)
        self.decoder_in, self.decoder_out = _linear(width), _linear(width)
        self.encoder = nn.ModuleList(GatedConv(model) for _ in range(model.n_encoder_layers))
        self.decoder = nn.ModuleList(AskingLayer(model) for _ in range(model.n_decoder_layers))

    def read(self, src: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Source ids (N, S) -> ids, keys, values (N, S, D) and the root of the source's length
        (N, 1, 1); no past of each decoder layer, (N, D, k - 1)."""
        real = padding_mask(src)[..., None]
        embedded = self.embed(self.src_embedding, src)
        x = self.encoder_in(embedded)
        sides = (self.size - 1) // 2, self.size // 2
        for conv in self.encoder:
            x = (conv(F.pad((self.drop(x) * real).mT, sides)).mT + x) * HALF
        keys = self.encoder_out(x)
        values = (keys + embedded) * HALF
        root = real.sum(1, keepdim=True).to(x.dtype).sqrt()
        past = x.new_zeros(len(src), x.shape[-1], self.size - 1)
        return [src, keys, values, root], [past] * len(self.decoder)

    def write(
        self, tokens: Tensor, source: list[Tensor], state: list[Tensor], place: int = 0
    ) -> Written:
        """Each layer sees the k - 1 inputs before its own, of the state or of `tokens`."""
        mask = self.masks.cross(source[0], tokens)
        embedded = self.embed(self.tgt_embedding, tokens, place)
        x, after, weights = self.decoder_in(embedded), [], []
        for layer, past in zip(self.decoder, state, strict=True):
            new, kept, seen = layer(self.drop(x), embedded, past, source, mask)
            x = (new + x) * HALF
            after.append(kept)
            weights.append(seen)
        return Written(self.output(self.drop(self.decoder_out(x))), after, weights)


def _linear(width: int) -> nn.Linear:
    """D -> D, which keeps a variance of 1."""
    made = nn.Linear(width, width)
    nn.init.normal_(made.weight, std=width**-0.5)
    nn.init.zeros_(made.bias)
    return made
