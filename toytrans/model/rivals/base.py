"""What the rivals share: embeddings, masked weights, logits, and one way through the target."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.model.backends.dropout import Dropout
from toytrans.model.context import additive, has_visible_key
from toytrans.model.masks import MaskMaker
from toytrans.model.positions import position_scheme
from toytrans.model.substitute import Substitute
from toytrans.tokens import Vocabulary


class Written(NamedTuple):
    """What a rival makes of T target tokens.

    logits: (N, T, V), of the tokens after them.
    state: what it keeps for the tokens to come, (N, ...) each.
    weights: of each cross-attention, (N, T, S).
    """

    logits: Tensor
    state: list[Tensor]
    weights: list[Tensor]


class Rival(Substitute):
    """An encoder-decoder that reads a source once, and then writes the target.

    `read` gives what it keeps of the source and the state before the first token. `write` goes on
    from any state by any number of tokens. The parallel pass is `write` of all tokens from the
    first state; decoding is `write` of one token at a time. So both run the same code.

    attentions: how many cross-attentions it has, of one head each.
    """

    attentions = 1

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        nn.Module.__init__(self)
        self.config, self.masks = model, MaskMaker(model.pad_mask)
        self.refusal = (
            f"model.kind: {model.kind} has none of the transformer's layers that this command "
            "shows; train, eval, translate, check and attention take it"
        )
        size, width = len(vocabulary), model.d_model
        model.check_size(size)
        self.src_embedding = nn.Embedding(size, width)
        self.tgt_embedding = self.src_embedding
        self.output = nn.Linear(width, size, bias=False)
        if model.tie_embeddings:
            self.output.weight = self.src_embedding.weight
        else:
            self.tgt_embedding = nn.Embedding(size, width)
        self.positions = position_scheme(model.positions, model, vocabulary)
        self.cross_positions = position_scheme("none", model, vocabulary)
        self.drop = Dropout(model.dropout)
        for table in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(table.weight, std=width**-0.5)  # `embed` makes it variance 1

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        return self.write(tgt_in, *self.read(src)).logits

    def cross_weights(self, src: Tensor, tgt_in: Tensor) -> list[Tensor]:
        """The weights of each cross-attention in one pass: (B, T, S), zero at pads."""
        return self.write(tgt_in, *self.read(src)).weights

    @abstractmethod
    def read(self, src: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Source ids (N, S) -> what stays the same for every token, ids first, and the state
        before the first token: tensors (N, ...)."""

    @abstractmethod
    def write(
        self, tokens: Tensor, source: list[Tensor], state: list[Tensor], place: int = 0
    ) -> Written:
        """Tokens (N, T) of the places from `place` on -> logits, state after them, weights."""


def masked_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the source: scores (N, T, S), mask (N, 1, T or 1, S) -> (N, T, S).

    Closed keys get exactly 0; so does every key of a row that may see none.
    """
    visible = has_visible_key(mask)[:, 0]
    numbers = additive(mask, torch.promote_types(scores.dtype, torch.float32))[:, 0]
    return torch.softmax(scores + numbers, -1) * visible
