"""A test for your own repository: does the model keep its masks? Run it with pytest.

Replace `build_model` by your own; the ids are those of your vocabulary.
"""

import pytest
import torch
from torch import Tensor, nn

from toytrans.testing import CheckFailed, assert_sound

IDS = {"pad_id": 0, "start_id": 1, "eos_id": 2, "vocabulary_size": 40}


class Translator(nn.Module):
    """torch.nn.Transformer with embeddings and the masks that it needs."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(40, 16), nn.Embedding(100, 16)
        sizes = {"nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
        self.core = nn.Transformer(16, **sizes, dim_feedforward=32, batch_first=True)
        self.output = nn.Linear(16, 40)
        self.causal = causal

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        length = tgt_in.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)  # True = blocked
        out = self.core(
            self.embed(src),
            self.embed(tgt_in),
            tgt_mask=future if self.causal else None,
            src_key_padding_mask=src == 0,
            tgt_key_padding_mask=tgt_in == 0,
            memory_key_padding_mask=src == 0,
        )
        logits: Tensor = self.output(out)
        return logits


def test_the_model_is_sound() -> None:
    assert_sound(Translator(), **IDS, max_length=100)


def test_a_missing_causal_mask_is_found() -> None:
    with pytest.raises(CheckFailed, match="sees the future"):
        assert_sound(Translator(causal=False), **IDS, length=7)
