"""Greedy decoding."""

import torch
from torch import Tensor

from toytrans.data.pairs import longest_of
from toytrans.model.decoding.loop import Decoded, run, token_limits
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


@torch.no_grad()
def greedy(model: Seq2Seq, src: Tensor, target_growth: int = 2) -> Decoded:
    """The likeliest token at every step, for sources (B, S)."""
    return run(Greedy(model, src, token_limits(src, target_growth, model.config.max_length)))


class Greedy:
    """Greedy search of B sources, one place at a time; see `loop.Search`.

    limits: (B,), how many tokens each row may become
    """

    def __init__(self, model: Seq2Seq, src: Tensor, limits: Tensor) -> None:
        self.limits, self.longest = limits, longest_of(limits)
        self.state = model.start_decoding(src, self.longest)
        self.rows = torch.arange(len(src), device=src.device)  # which source each row is of
        self.going = torch.ones_like(self.rows, dtype=torch.bool)
        self.newest = torch.full_like(self.rows, BOS_ID)
        self.tokens = src.new_full((len(src), self.longest), PAD_ID)

    def step(self) -> None:
        place = self.state.place
        logits = self.state.next_logits(self.newest[:, None])[:, 0]
        self.newest.copy_(logits[:, EOS_ID:].argmax(-1) + EOS_ID)  # neither PAD nor BOS
        self.tokens[self.rows, place] = self.newest.where(self.going, PAD_ID)
        self.going &= (self.newest != EOS_ID) & (self.limits[self.rows] > place + 1)

    def keep(self, kept: Tensor) -> None:
        self.rows, self.newest, self.going = self.rows[kept], self.newest[kept], self.going[kept]
        self.state.select_sources(kept)

    def decoded(self) -> Decoded:
        return Decoded(self.tokens)
