"""What several formats share."""

from collections.abc import Callable

import torch
from torch import Tensor

from toytrans.model.transformer import Transformer
from toytrans.tokens import EOS_ID, SPECIALS, Vocabulary

Rows = list[list[int]]
"""Ragged rows of ids."""

Decoder = Callable[[Rows, int], Rows]
"""Greedy decoding: sources as the encoder reads them, and the most tokens of an answer -> ids with
EOS, or without it where that many were not enough. What follows EOS is of no account."""

PLACES = 1024
"""Longest sequence of a format with a table of positions, where the model itself has no limit."""


def position_table(model: Transformer) -> Tensor:
    """What positions add to embeddings, in fp32: (PLACES or the model's own limit, D)."""
    nothing = torch.zeros(1, model.config.max_length or PLACES, model.config.d_model)
    return model.positions.embed(nothing.to(model.output.weight))[0].detach().float()


def token_names(vocabulary: Vocabulary) -> list[str]:
    """The text of every id. A special one gets more angles where a symbol has its name."""
    names = []
    for name in SPECIALS:
        while name in vocabulary.symbols:
            name = f"<{name}>"
        names.append(name)
    return [*names, *vocabulary.symbols]


def cut(rows: Rows) -> Rows:
    """Rows up to and with EOS."""
    return [row[: row.index(EOS_ID) + 1] if EOS_ID in row else row for row in rows]
