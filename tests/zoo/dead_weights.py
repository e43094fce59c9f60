"""Models with weights on which no output depends; and sound ones of which it only looks so."""

import torch
from torch import nn

from . import SYMBOLS, Translator, faulty, sound
from .parts import WIDTH, Attention, Torchs, real


@faulty("weights", "attention.forward", cause="weights.thrown_away")
def attention_times_zero(self, x, memory, mask):
    return 0 * Attention.forward(self, x, memory, mask)


@faulty("weights", "attention.scores", cause="weights.thrown_away")
def scores_times_zero(self, q, k):
    """All keys that are open get the same weight."""
    return 0 * torch.einsum("bhqd,bhkd->bhqk", q, k)


@faulty("weights", cause="weights.thrown_away")
class only_the_last_layer_counts(Translator):
    depth = 2

    def encode(self, src):
        x = self.embed_source(src)
        for layer in self.encoder:
            memory = layer(x, self.source_mask(src))
        return self.encoder_norm(memory)


@faulty("weights", cause="weights.left_out")
class the_last_layer_is_left_out(Translator):
    depth = 2

    def encode(self, src):
        x = self.embed_source(src)
        for n in range(self.depth - 1):
            x = self.encoder[n](x, self.source_mask(src))
        return self.encoder_norm(x)


@faulty("weights", "forward", base=Torchs, cause="weights.thrown_away")
def torchs_encoder_thrown_away(self, src, tgt):
    """The decoder looks at the embedded source."""
    x, y, masks = self.source(src), self.target(tgt), self.masks(src, tgt)
    pads = masks.pop("src_key_padding_mask")
    self.transformer.encoder(x, src_key_padding_mask=pads)
    return self.head(self.transformer.decoder(y, x, **masks))


@faulty("weights", "masks", base=Torchs, cause="weights.thrown_away")
def torchs_encoder_looks_at_the_own_place_alone(self, src, tgt):
    """One key is open to each query, so queries and keys do not matter."""
    own = torch.eye(src.shape[1], dtype=torch.bool)
    return Torchs.masks(self, src, tgt) | {"src_mask": ~own, "src_key_padding_mask": None}


@sound("", doubts="weights.frozen", embedding=True)
class a_second_head_and_a_frozen_table(Translator):
    """The second head gives values beside the logits; the table is kept for other languages."""

    def __init__(self):
        super().__init__()
        self.values = nn.Linear(WIDTH, 1)
        self.table = nn.Embedding(SYMBOLS, WIDTH).requires_grad_(False)

    def forward(self, src, tgt):
        y = self.decode(src, tgt, self.encode(src))
        return self.head(y), self.values(y).flatten(1)


@sound("", doubts="weights.never_called", embedding=True)
class a_layer_of_before_is_left(Translator):
    def __init__(self):
        super().__init__()
        self.old_head = nn.Linear(WIDTH, SYMBOLS)


@sound("", doubts="weights.cut_off", embedding=True)
class chosen_without_a_gradient(Translator):
    """A router chooses a scale for each place; argmax lets no gradient through."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)

    def encode(self, src):
        x = super().encode(src)
        return x * (1 + self.router(x).argmax(-1, keepdim=True)) * real(src)[..., None]
