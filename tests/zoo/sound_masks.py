"""Sound masks: windows, prefixes, registers, memories, and fused attention."""

import torch
from torch import nn
from torch.nn import functional as F

from . import sound
from .parts import (
    WIDTH,
    Attention,
    Translator,
    merge_heads,
    real,
    split_heads,
    triangle,
    waves,
)


@sound()
class pads_closed_as_queries_too(Translator):
    """Pads are closed as keys and as queries."""

    def source_mask(self, src, number):
        return real(src)[:, None, None] & real(src)[:, None, :, None]


@sound()
class target_pads_closed(Translator):
    """The triangle and the target's pads together."""

    def target_mask(self, tgt, number):
        pads = ~real(tgt)
        pads[:, 0] = False
        return triangle(tgt.shape[1]) & ~pads[:, None, None]


@sound()
class sliding_window(Translator):
    """Each place sees the four last ones."""

    depth = 2

    def target_mask(self, tgt, number):
        return (triangle(tgt.shape[1]) & ~triangle(tgt.shape[1], -4))[None, None]


@sound()
class window_in_one_head(Translator):
    """One head sees all of the past, one the last two places."""

    def target_mask(self, tgt, number):
        past = triangle(tgt.shape[1])
        return torch.stack((past, past & ~past.tril(-2)))[None]


@sound()
class local_blocks_of_the_past(Translator):
    """Blocks of four, closed to the future inside, with the start seen by all."""

    depth = 2

    def target_mask(self, tgt, number):
        places = torch.arange(tgt.shape[1])
        near = places[:, None] // 4 - places // 4 <= 1
        return (triangle(tgt.shape[1]) & (near | (places == 0)))[None, None]


@sound()
class strided_past(Translator):
    """Sparse attention: the last two places and every third before them."""

    depth = 2

    def target_mask(self, tgt, number):
        places = torch.arange(tgt.shape[1])
        back = places[:, None] - places
        return ((back >= 0) & ((back < 2) | (back % 3 == 0)))[None, None]


@sound()
class encoder_window(Translator):
    """The encoder sees two places to each side and the first."""

    def source_mask(self, src, number):
        places = torch.arange(src.shape[1])
        near = (places[:, None] - places).abs() <= 2
        return real(src)[:, None, None] & (near | (places == 0))


@sound()
class encoder_under_a_triangle(Translator):
    """A causal encoder, as for streams: inputs and outputs cannot tell it from a fault."""

    def source_mask(self, src, number):
        return triangle(src.shape[1]) & real(src)[:, None, None]


@sound()
class registers_in_front(Translator):
    """Two register tokens stand before the target and see none of it."""

    def __init__(self):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(2, WIDTH))

    def embed_target(self, tgt):
        return torch.cat((self.registers.expand(len(tgt), -1, -1), self.target(tgt)), 1)

    def target_mask(self, tgt, number):
        return triangle(tgt.shape[1] + 2)[None, None]

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, memory)[:, 2:]


@sound()
class latents_between(Translator):
    """Perceiver's latents read the source, and the decoder reads the latents."""

    def __init__(self):
        super().__init__()
        self.latents, self.reader = nn.Parameter(torch.randn(6, WIDTH)), Attention()

    def encode(self, src):
        latents = self.latents.expand(len(src), -1, -1)
        return self.reader(latents, super().encode(src), real(src)[:, None, None])

    def cross_mask(self, src, tgt, number):
        return torch.ones(1, 1, 1, 6, dtype=torch.bool)


@sound()
class linformer_memory(Translator):
    """The source is projected to four places, its pads zeroed before."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 600) / 4)

    def encode(self, src):
        x = super().encode(src) * real(src)[..., None]
        return self.matrix[:, : src.shape[1]] @ x

    def cross_mask(self, src, tgt, number):
        return torch.ones(1, 1, 1, 4, dtype=torch.bool)


@sound()
class linear_attention(Translator):
    """Linear attention: sums of keys and values up to each place."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
            q, k, v = (split_heads(part) for part in parts)
            weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT * mask
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
            return self.out_proj(merge_heads(weights @ v))


class _Prefix(Translator):
    """One stack reads source and target, one behind the other."""

    def __init__(self):
        super().__init__()
        del self.decoder, self.decoder_norm

    def forward(self, src, tgt):
        x = torch.cat((self.source(src), self.target(tgt)), 1)
        width = src.shape[1]
        mask = triangle(x.shape[1])
        mask[:width, width:], mask[:, :width] = False, True
        keep = torch.cat((real(src), torch.ones_like(tgt, dtype=torch.bool)), 1)
        for layer in self.encoder:
            x = layer(x, mask & keep[:, None, None])
        return self.head(self.encoder_norm(x[:, width:]))


@sound()
class prefix_language_model(_Prefix):
    """A prefix LM: the source is open to all, the target to what follows it."""


@sound()
class prefix_language_model_with_one_embedding(_Prefix):
    """A prefix LM that embeds source and target in one call."""

    def __init__(self):
        super().__init__()
        self.target = self.source

    def forward(self, src, tgt):
        width = src.shape[1]
        ids = torch.cat((src, tgt), 1)
        places = torch.cat((torch.arange(width), 300 + torch.arange(tgt.shape[1])))
        x = self.source.tokens(ids) + waves(places).to(self.head.weight)
        mask = triangle(ids.shape[1])
        mask[:width, width:], mask[:, :width] = False, True
        keep = torch.cat((real(src), torch.ones_like(tgt, dtype=torch.bool)), 1)
        for layer in self.encoder:
            x = layer(x, mask & keep[:, None, None])
        return self.head(self.encoder_norm(x[:, width:]))


@sound()
class pointer_network(Translator):
    """A copy mechanism: part of the attention is added to the logits of source ids."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        y = self.decode(src, tgt, memory)
        weights = (y @ memory.mT).masked_fill(~real(src)[:, None], -1e9).softmax(-1)
        places = src[:, None].expand(-1, tgt.shape[1], -1)
        return self.head(y).scatter_add(2, places, weights)


@sound()
class coverage(Translator):
    """What earlier steps attended to lowers scores, up to each step alone."""

    def __init__(self):
        super().__init__()
        for layer in self.decoder:
            layer.encoder_attn = _Covered()


class _Covered(Attention):
    def weights(self, scores, mask):
        first = super().weights(scores, mask)
        before = first.cumsum(-2) - first
        return super().weights(scores - 0.3 * before, mask)


@sound()
class log_of_the_place_as_scale(Translator):
    """Scores grow with log(t), of each query's own place."""

    class attention(Attention):
        def scores(self, q, k):
            places = torch.arange(q.shape[-2])[:, None].to(q)
            return super().scores(q, k) * (2 + places).log()


@sound()
class fused_attention(Translator):
    """scaled_dot_product_attention with boolean masks."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
            q, k, v = (split_heads(part) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.out_proj(self.merge(y.nan_to_num(0.0)))


@sound("PASS or cannot judge")
class fused_attention_with_dropout(Translator):
    """Dropout by an argument of scaled_dot_product_attention, which no module shows."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
            q, k, v = (split_heads(part) for part in parts)
            p = 0.1 if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
            return self.out_proj(self.merge(y.nan_to_num(0.0)))


@sound()
class fused_attention_is_causal(Translator):
    """scaled_dot_product_attention's own triangle where no mask is passed."""

    class attention(Attention):
        def forward(self, x, memory, mask):
            parts = (self.q_proj(x), self.k_proj(memory), self.v_proj(memory))
            q, k, v = (split_heads(part) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            return self.out_proj(self.merge(y.nan_to_num(0.0)))

    def target_mask(self, tgt, number):
        return None
