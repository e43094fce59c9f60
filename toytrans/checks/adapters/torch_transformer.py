"""torch.nn.Transformer behind ids: embeddings and an output layer around it, and its masks."""

import torch
from torch import Tensor, nn

from toytrans.errors import UserError


class TorchTransformer(nn.Module):
    """torch.nn.Transformer (batch first) with embeddings around it, and its masks made from ids.

    src_embedding and tgt_embedding take ids (B, L) to (B, L, D), positions included; output takes
    (B, T, D) to logits (B, T, V). Raises UserError for a transformer that is not batch first.
    """

    def __init__(
        self,
        transformer: nn.Transformer,
        src_embedding: nn.Module,
        tgt_embedding: nn.Module,
        output: nn.Module,
        pad_id: int = 0,
    ) -> None:
        super().__init__()
        if not transformer.batch_first:
            raise UserError("nn.Transformer is not batch first; build it with batch_first=True")
        self.transformer, self.output, self.pad_id = transformer, output, pad_id
        self.src_embedding, self.tgt_embedding = src_embedding, tgt_embedding

    def masks(self, src: Tensor, tgt_in: Tensor) -> dict[str, Tensor]:
        """Arguments of nn.Transformer; True = blocked."""
        length = tgt_in.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=src.device).triu(1)
        source_pads, target_pads = src == self.pad_id, tgt_in == self.pad_id
        target_pads[:, :1] = False
        return {
            "tgt_mask": future,
            "src_key_padding_mask": source_pads,
            "tgt_key_padding_mask": target_pads,
            "memory_key_padding_mask": source_pads,
        }

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """(B, S), (B, T) -> (B, T, V)."""
        x, y = self.src_embedding(src), self.tgt_embedding(tgt_in)
        logits: Tensor = self.output(self.transformer(x, y, **self.masks(src, tgt_in)))
        return logits
