"""A convolutional encoder-decoder, ConvS2S (Gehring et al. 2017).

model:
  class: examples/conv.py:Convolutional
  max_positions: 512

Of the config it heeds d_model, the numbers of layers, dropout, tie_embeddings and max_positions.
The file stands alone, since a run hashes the file that it names and not what that imports.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config.schema import ModelSettings
from toytrans.errors import UserError
from toytrans.model.dropout import Dropout
from toytrans.model.positions.absolute import sinusoids
from toytrans.model.seq2seq import RowState, Seq2Seq
from toytrans.tokens import PAD_ID

HALF = 0.5**0.5
"""The sum of two inputs of variance 1, times this, has variance 1 (section 3.4)."""


class GatedConv(nn.Conv1d):
    """A convolution of k neighbours and a gated linear unit: (N, D, L + k - 1) -> (N, D, L)."""

    def __init__(self, settings: ModelSettings, kernel: int) -> None:
        width, kept = settings.d_model, 1 - settings.dropout
        super().__init__(width, 2 * width, kernel)
        nn.init.normal_(self.weight, std=(4 * kept / (kernel * width)) ** 0.5)  # section 3.5
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(super().forward(x), 1)


class AskingLayer(nn.Module):
    """A decoder layer: gated convolution of the past, attention over the source, residual sum."""

    def __init__(self, settings: ModelSettings, kernel: int) -> None:
        super().__init__()
        self.conv = GatedConv(settings, kernel)
        self.query = linear(settings.d_model)

    def forward(
        self, x: Tensor, embedded: Tensor, past: Tensor, source: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """x and embedded tokens (N, T, D), past inputs (N, D, k - 1) -> x, and past after them."""
        src, keys, values, root = source
        window = torch.cat((past, x.mT), -1)  # (N, D, k - 1 + T)
        here = self.conv(window).mT
        query = (self.query(here) + embedded) * HALF
        weights = softmax_over(src, query @ keys.mT)
        context = weights.to(values.dtype) @ values * root
        return (here + context) * HALF, window[..., x.shape[1] :]


class Convolutional(Seq2Seq):
    """Gated convolutions, causal in the decoder, with attention in every decoder layer.

    Keys are the encoder's outputs z; values are z + e, e the embedded source. Sums are multiplied
    by the root of 1/2, and what attention finds by the root of the number of source tokens. Pads
    are zero before every convolution. Weights start as in section 3.5. Left out: weight
    normalisation, and the smaller gradient of the encoder.

    kernel: places that a convolution sees.
    learned: places have learned vectors, as in the paper, or sinusoids.
    """

    kernel = 5
    learned = True

    def __init__(self, settings: ModelSettings, vocabulary_size: int) -> None:
        super().__init__(settings)
        width = settings.d_model
        self.src_embedding = nn.Embedding(vocabulary_size, width)
        self.tgt_embedding = self.src_embedding
        self.output = nn.Linear(width, vocabulary_size, bias=False)
        if settings.tie_embeddings:
            self.output.weight = self.src_embedding.weight
        else:
            self.tgt_embedding = nn.Embedding(vocabulary_size, width)
        if self.learned:
            if settings.max_positions is None:
                raise UserError("model.max_positions: null; give the rows of the table of places")
            self.places = nn.Embedding(settings.max_positions, width)
            self.places.weight.data.mul_(0.1)
        for table in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(table.weight, std=width**-0.5)  # `embed` makes it variance 1
        self.drop = Dropout(settings.dropout)
        self.encoder_in, self.encoder_out = linear(width), linear(width)
        self.decoder_in, self.decoder_out = linear(width), linear(width)
        n_encoder, n_decoder = settings.n_encoder_layers, settings.n_decoder_layers
        self.encoder = nn.ModuleList(GatedConv(settings, self.kernel) for _ in range(n_encoder))
        self.decoder = nn.ModuleList(AskingLayer(settings, self.kernel) for _ in range(n_decoder))

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        return self.write(tgt_in, *self.read(src))[0]

    def start_decoding(self, src: Tensor, places: int, beams: int = 1) -> RowState:
        """The state before the first token: `write` goes on from it by one token at a time."""
        return RowState(self.write, *self.read(src), beams)

    def read(self, src: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Source ids (N, S) -> ids, keys, values (N, S, D) and the root of the source's length
        (N, 1, 1); no past of each decoder layer, (N, D, k - 1)."""
        real = (src != PAD_ID)[..., None]
        embedded = self.embed(self.src_embedding, src)
        x = self.encoder_in(embedded)
        sides = (self.kernel - 1) // 2, self.kernel // 2
        for conv in self.encoder:
            x = (conv(F.pad((self.drop(x) * real).mT, sides)).mT + x) * HALF
        keys = self.encoder_out(x)
        values = (keys + embedded) * HALF
        root = real.sum(1, keepdim=True).to(x.dtype).sqrt()
        past = x.new_zeros(len(src), x.shape[-1], self.kernel - 1)
        return [src, keys, values, root], [past] * len(self.decoder)

    def write(
        self, tokens: Tensor, source: list[Tensor], state: list[Tensor], place: int = 0
    ) -> tuple[Tensor, list[Tensor]]:
        """Target tokens (N, T) from a place on, and what `read` gives -> logits (N, T, V), and the
        last k - 1 inputs of each layer."""
        embedded = self.embed(self.tgt_embedding, tokens, place)
        x, after = self.decoder_in(embedded), []
        for layer, past in zip(self.decoder, state, strict=True):
            new, kept = layer(self.drop(x), embedded, past, source)
            x = (new + x) * HALF
            after.append(kept)
        return self.output(self.drop(self.decoder_out(x))), after

    def embed(self, embedding: nn.Embedding, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (N, L) of places start .. start + L - 1 -> (N, L, D), with their positions."""
        x, length = embedding(ids) * self.settings.d_model**0.5, ids.shape[1]
        if self.learned:
            return self.drop(x + self.places.weight[start : start + length])
        return self.drop(x + sinusoids(start, length, x.shape[-1]).to(x))


class Sinusoidal(Convolutional):
    """The same without a table of places. Sequences may have any length."""

    learned = False


class EvenKernel(Sinusoidal):
    """The same with four places: one back, two ahead."""

    kernel = 4


def linear(width: int) -> nn.Linear:
    """D -> D, which keeps a variance of 1."""
    made = nn.Linear(width, width)
    nn.init.normal_(made.weight, std=width**-0.5)
    nn.init.zeros_(made.bias)
    return made


def softmax_over(src: Tensor, scores: Tensor) -> Tensor:
    """Softmax over the tokens of src (N, S): scores (N, T, S) -> (N, T, S). Pads get exactly 0,
    also where a row is all pads."""
    real = (src != PAD_ID)[:, None]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    open_scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
    return torch.softmax(open_scores, -1) * real.any(-1, keepdim=True)
