"""Greedy decoding."""

import torch
from torch import Tensor

from toytrans.model.decoding.limits import Decoded, rows_to_keep, token_limits
from toytrans.model.decoding.state import start_decoding
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


@torch.no_grad()
def greedy(model: Transformer, src: Tensor, growth: int = 2) -> Decoded:
    """The likeliest token at every step, for sources (B, S)."""
    rows = torch.arange(len(src), device=src.device)  # which source each row still here belongs to
    going = torch.ones_like(rows, dtype=torch.bool)
    limits = token_limits(src, growth, model.config.max_length)
    longest = int(limits.max()) if len(src) else 0
    tokens = src.new_full((len(src), longest), PAD_ID)
    state = start_decoding(model, src, longest)
    newest = src.new_full((len(src),), BOS_ID)
    used = 0
    for place in range(longest):
        used = place + 1
        logits = state.next_logits(newest[:, None])[:, 0]
        newest = logits[:, EOS_ID:].argmax(-1) + EOS_ID  # neither PAD nor BOS
        tokens[rows, place] = newest.where(going, PAD_ID)
        going &= (newest != EOS_ID) & (limits[rows] > place + 1)
        if not bool(going.any()):
            break
        if (kept := rows_to_keep(going)) is not None:
            rows, newest, going = rows[kept], newest[kept], going[kept]
            state.select_sources(kept)
    return Decoded(tokens[:, :used])
