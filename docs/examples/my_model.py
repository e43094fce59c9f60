# my_model.py
import torch
from torch import Tensor, nn


class TwoGRUs(nn.Module):
    """One GRU reads the source, one the target; attention between them (Luong et al. 2015)."""

    def __init__(self, settings, vocabulary_size: int) -> None:
        super().__init__()
        width = settings.d_model
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.attention = nn.MultiheadAttention(width, settings.n_heads, batch_first=True)
        self.output = nn.Linear(2 * width, vocabulary_size)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        memory, _ = self.reader(self.tokens(src))
        state, _ = self.writer(self.tokens(tgt_in))
        found, _ = self.attention(state, memory, memory, key_padding_mask=src == 0)
        return self.output(torch.cat((state, found), -1))
