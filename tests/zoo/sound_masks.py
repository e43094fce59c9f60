"""Sound masks: windows, prefixes, registers, memories, and fused attention."""

from torch.nn import functional as F

from . import sound
from .parts import Attention, Translator, real, split_heads


@sound()
class pads_closed_as_queries_too(Translator):
    """Pads are closed as keys and as queries."""

    def source_mask(self, src, number):
        return real(src)[:, None, None] & real(src)[:, None, :, None]


@sound()
class pointer_network(Translator):
    """A copy mechanism: part of the attention is added to the logits of source ids."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        y = self.decode(src, tgt, memory)
        weights = (y @ memory.mT).masked_fill(~real(src)[:, None], -1e9).softmax(-1)
        places = src[:, None].expand(-1, tgt.shape[1], -1)
        return self.head(y).scatter_add(2, places, weights)


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
