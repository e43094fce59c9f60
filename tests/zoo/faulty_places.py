"""Decoders that see the future by other ways than attention's mask, or depend on its length."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from . import faulty
from .parts import WIDTH, Attention, Embedding, Layer, Translator, ahead, real, triangle, waves

SEEN = "future"


class _Mixing(Translator):
    """`mix` changes what the target's embeddings hold, (B, T, D) -> (B, T, D)."""

    def embed_target(self, tgt):
        y = self.target(tgt)
        return y + self.mix(y)


@faulty(SEEN)
class convolution_padded_on_both_sides(_Mixing):
    """A decoder's convolution with padding='same'."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding="same")

    def mix(self, y):
        return self.conv(y.mT).mT


@faulty(SEEN)
class convolution_trimmed_at_the_wrong_end(_Mixing):
    """Padded by 2 on both sides, and the first 2 outputs are dropped instead of the last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)

    def mix(self, y):
        return self.conv(y.mT)[..., 2:].mT


@faulty(SEEN)
class positions_by_convolution(_Mixing):
    """Positions by a symmetric depthwise convolution, as wav2vec has them in its encoder."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)

    def mix(self, y):
        return F.gelu(self.conv(y.mT)).mT


@faulty(SEEN)
class bidirectional_decoder(_Mixing):
    """A recurrent decoder that runs both ways."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def mix(self, y):
        return self.rnn(y)[0]


@faulty(SEEN)
class recurrence_from_the_end(_Mixing):
    """A recurrence over the flipped sequence, flipped back."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def mix(self, y):
        return self.rnn(y.flip(1))[0].flip(1)


@faulty(SEEN)
class shift_that_wraps_around(_Mixing):
    """torch.roll shifts the last place to the first."""

    def mix(self, y):
        return 0.5 * y.roll(1, 1)


@faulty(SEEN)
class circular_long_convolution(_Mixing):
    """A long convolution by FFT without zeros behind: its end wraps around to its start."""

    def mix(self, y):
        length = y.shape[1]
        kernel = 0.8 ** torch.arange(length, dtype=y.dtype)[:, None]
        return torch.fft.irfft(torch.fft.rfft(y, dim=1) * torch.fft.rfft(kernel, dim=0), length, 1)


@faulty(SEEN)
class fourier_mixing(_Mixing):
    """FNet's mixing of places, which is an encoder's, in a decoder."""

    def mix(self, y):
        return torch.fft.fft(y, dim=1, norm="ortho").real


@faulty(SEEN)
class mean_over_places(_Mixing):
    """The mean of the target is added to each place."""

    def mix(self, y):
        return y.mean(1, keepdim=True)


@faulty(SEEN)
class sum_from_the_end(_Mixing):
    """A cumulative sum that runs from the end."""

    def mix(self, y):
        return 0.1 * y.flip(1).cumsum(1).flip(1)


@faulty(SEEN)
class squeeze_and_excite(_Mixing):
    """Channels are gated by their mean over places."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def mix(self, y):
        return y * self.gate(y.mean(1, keepdim=True)).sigmoid()


@faulty(SEEN)
class norm_over_places(_Mixing):
    """Normalised over places and width together, as LayerNorm((T, D)) does."""

    def mix(self, y):
        return (y - y.mean((1, 2), keepdim=True)) / y.std((1, 2), keepdim=True)


@faulty(SEEN)
class group_norm_over_places(_Mixing):
    """GroupNorm on (B, D, T) takes its statistics over places."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, WIDTH)

    def mix(self, y):
        return self.norm(y.mT).mT


@faulty(SEEN)
class linear_attention_over_all(_Mixing):
    """Linear attention that sums keys and values over all places, not up to each."""

    def mix(self, y):
        q, k = F.elu(y) + 1, F.elu(y) + 1
        return q @ (k.mT @ y) / (q @ k.sum(1, keepdim=True).mT)


@faulty(SEEN)
class linear_attention_in_open_chunks(_Mixing):
    """Chunked linear attention that is causal between chunks and not inside."""

    def mix(self, y):
        k = F.elu(y) + 1
        states = (k[..., None] * y[:, :, None]).cumsum(1)
        last = (torch.arange(y.shape[1]) // 4 * 4 + 3).clamp(max=y.shape[1] - 1)
        return 0.1 * (k[:, :, None] @ states[:, last])[:, :, 0]


@faulty(SEEN)
class pooled_without_a_shift(_Mixing):
    """An hourglass decoder pools groups of three without a shift before."""

    def mix(self, y):
        length = y.shape[1]
        groups = F.pad(y, (0, 0, 0, -length % 3)).unflatten(1, (-1, 3)).mean(2)
        return groups.repeat_interleave(3, 1)[:, :length]


@faulty(SEEN)
class places_mixed_by_a_matrix(_Mixing):
    """MLP-Mixer's matrix over places, its triangle forgotten."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(600, 600) / 24)

    def mix(self, y):
        return self.matrix[: y.shape[1], : y.shape[1]] @ y


@faulty(SEEN)
class keys_projected_over_places(_Mixing):
    """Linformer's projection of keys over places, in a decoder."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 600) / 10)

    def mix(self, y):
        few = self.matrix[:, : y.shape[1]] @ y
        return (y @ few.mT).softmax(-1) @ few


@faulty("", embedding=True)
class experts_choose_tokens(_Mixing):
    """Each expert takes the half of all target tokens that it likes most: later ones compete."""

    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def mix(self, y):
        score = self.router(y)[..., 0]
        chosen = score.topk((y.shape[1] + 1) // 2, 1).indices
        kept = torch.zeros_like(score).scatter(1, chosen, 1.0)
        return self.expert(y) * (kept * score.sigmoid())[..., None]


@faulty(SEEN)
class scaled_by_the_largest(_Mixing):
    """Activations are rounded to 8 bits with one scale for the whole tensor."""

    def mix(self, y):
        scale = y.abs().max() / 127
        return (y / scale).round() * scale


@faulty(SEEN)
class labels_as_inputs(Translator):
    """The next token is embedded with each, as teacher forcing by the labels would."""

    def embed_target(self, tgt):
        return self.target(tgt) + 0.1 * ahead(self.target.tokens(tgt))


@faulty(SEEN, is_long=True)
class leak_twenty_places_ahead(Translator):
    """A head looks exactly 20 places ahead."""

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1])
        return (mask | mask.new_ones(mask.shape).triu(20).tril(20))[None, None]


@faulty(SEEN, is_long=True)
class leak_beyond_forty_places(Translator):
    """The future is closed up to 40 places ahead, for a band that was made for shorter targets."""

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        return (triangle(length) | ~triangle(length, 40))[None, None]


@faulty(SEEN)
class coverage_over_all_steps(Translator):
    """Coverage sums the attention of all steps, not of those before."""

    class attention(Attention):
        def weights(self, scores, mask):
            found = super().weights(scores, mask)
            return found / (1 + 0.1 * found.sum(-2, keepdim=True))


# The target's length -------------------------------------------------------------------------


@faulty(embedding=True)
class embedding_scaled_by_length(Translator):
    """Target embeddings are divided by the root of the target's length, pads aside."""

    def embed_target(self, tgt):
        return self.target(tgt) / real(tgt).sum(1)[:, None, None] ** 0.5


class _FromTheEnd(Embedding):
    def places(self, ids):
        return waves(real(ids).sum(1)[:, None] - torch.arange(ids.shape[1]))


@faulty(embedding=True)
class places_counted_from_the_end(Translator):
    """Target places are counted from each target's own end."""

    def __init__(self):
        super().__init__()
        self.target = _FromTheEnd()


@faulty()
class places_counted_from_the_end_without_embedding(places_counted_from_the_end):
    """The same, and no embedding is given."""


@faulty(embedding=True)
class places_counted_from_the_batchs_end(Translator):
    """Target places are counted from the end of the longest target."""

    def embed_target(self, tgt):
        y = self.target.tokens(tgt)
        return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)


class _Shares(Embedding):
    def places(self, ids):
        return waves(20 * torch.arange(ids.shape[1]) / real(ids).sum(1, keepdim=True))


@faulty(embedding=True)
class places_as_shares_of_the_length(Translator):
    """A place is t / T of the target's own length."""

    def __init__(self):
        super().__init__()
        self.target = _Shares()


@faulty(embedding=True)
class scores_scaled_by_the_length(Translator):
    """Scores are multiplied by log(T) of the whole target, where log(t) is meant."""

    class attention(Attention):
        def scores(self, q, k):
            return super().scores(q, k) * math.log(1 + k.shape[-2])

    def source_mask(self, src, number):
        return real(src)[:, None, None]


@faulty(embedding=True)
class branches_weighed_by_the_length(Translator):
    """Each branch is divided by the number of target places: 3e-4 apart for one place more."""

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            return x + self.dropout(sublayer(norm(x))) * (1 + 3e-3 / x.shape[1])

    def source_mask(self, src, number):
        return real(src)[:, None, None]


@faulty(embedding=True)
class a_word_for_the_length(Translator):
    """The start token is told how long the target will be, as length codes are in training."""

    def __init__(self):
        super().__init__()
        self.lengths = nn.Embedding(600, WIDTH)

    def embed_target(self, tgt):
        return self.target(tgt) + 0.1 * self.lengths(real(tgt).sum(1))[:, None]


@faulty()
class target_places_behind_the_source(Translator):
    """Target places begin at the padded width of the source: pads move them."""

    def decode(self, src, tgt, memory):
        places = waves(src.shape[1] + torch.arange(tgt.shape[1]))
        y = self.target.tokens(tgt) + places.to(memory)
        for layer in self.decoder:
            masks = self.target_mask(tgt, 0), memory, self.cross_mask(src, tgt, 0)
            y = layer(y, *masks)
        return self.decoder_norm(y)


@faulty(SEEN)
class norm_by_the_batch(Translator):
    """Batch norm without running statistics takes them of the batch in eval mode too."""

    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def embed_target(self, tgt):
        return self.batch_norm(self.target(tgt).mT).mT


@faulty("order", is_long=True)
class places_end_at_32(Translator):
    """Sources have no order behind place 32, whose position all later places get."""

    def embed_source(self, src):
        places = torch.arange(src.shape[1]).clamp(max=31)
        return self.source.tokens(src) + waves(places).to(self.source.tokens.weight)
