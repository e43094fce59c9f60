"""What is known of a model under check: given by its user, or read from its config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from toytrans.checks.ids import IGNORED

MOST_SYMBOLS = 100_000
"""About so many ids of a vocabulary are asked with."""

Kind = Literal["encoder-decoder", "decoder", "encoder"]

PROMISES = {
    "norms": "layer norms hold what the layers pass on: larger embeddings give no larger logits",
    "residuals": "a residual connection leads past every sub-layer",
    "feed_forward": "every layer has a feed-forward sub-layer",
    "empty_sources": "a source of pads alone gives numbers",
}
"""What a model may promise: its lack is then a failure, where it otherwise may be meant."""


@dataclass(frozen=True)
class Facts:
    """What is known of a model. Those in the second half change what is asked, and are said in the
    report.

    name: how the report calls it. pad_id, vocabulary_size: of the target, and of the source unless
    source_pad_id and source_size are given. start_id: the id that tgt_in starts with; eos_id: the
    one that ends a sequence; decoding_start: the one that decoding starts with. masks_from_ids: the
    model makes its masks from ids alone, and is given none; takes_positions: it is given positions
    too, which count from the first token that is not masked.

    kind: what the model is; of one stream it takes ids alone. max_length: the most places it takes.
    equal_lengths: it takes source and target of one length alone, so the shorter one is filled up
    with pads. time_first: ids are (L, B), logits (T, B, V); layout_is_guessed: nobody said so.
    scale: what multiplies q k, if not 1 / root of the head's width. window: how many places away a
    token may be seen in self-attention, where that is bounded. prefix: how many places at the
    beginning of a target see each other. pad_side: where the model wants its pads; batches have
    them behind, and are turned round for it. promises: names of `PROMISES`.
    """

    name: str
    pad_id: int
    vocabulary_size: int
    start_id: int | None = None
    eos_id: int | None = None
    decoding_start: int | None = None
    masks_from_ids: bool = True
    takes_positions: bool = False

    kind: Kind = "encoder-decoder"
    source_pad_id: int | None = None
    source_size: int | None = None
    max_length: int | None = None
    equal_lengths: bool = False
    time_first: bool = False
    layout_is_guessed: bool = False
    scale: float | None = None
    window: int | None = None
    prefix: int = 0
    pad_side: Literal["right", "left"] = "right"
    promises: frozenset[str] = frozenset()
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_source(self) -> bool:
        """Whether the model takes a source beside a target."""
        return self.kind == "encoder-decoder"

    @property
    def is_causal(self) -> bool:
        """Whether the model predicts tokens, so that the future must be closed."""
        return self.kind != "encoder"

    @property
    def source_pad(self) -> int:
        """The id that pads sources."""
        return self.pad_id if self.source_pad_id is None else self.source_pad_id

    def symbols(self) -> list[int]:
        """Ids that may stand anywhere in source and target; of a large vocabulary some, evenly
        apart."""
        special = {self.pad_id, self.source_pad, self.start_id, self.eos_id, self.decoding_start}
        size = min(self.vocabulary_size, self.source_size or self.vocabulary_size)
        every = range(0, size, max(1, size // MOST_SYMBOLS))
        return [i for i in every if i not in special]

    def real_source(self, src: Tensor) -> Tensor:
        """Which places of a source are real, (B, S); where pad and end share an id, the first of
        those at the end of a row is the end."""
        real = src != self.source_pad
        if self.source_pad == self.eos_id and real.shape[1]:
            length = real.long().mul(torch.arange(1, real.shape[1] + 1)).amax(1)
            real = torch.arange(real.shape[1]) <= length[:, None]
        return real

    def pads_behind(self, ids: Tensor, is_source: bool) -> Tensor:
        """How many pads stand behind each row, (B,)."""
        real = self.real_source(ids.cpu()) if is_source else self.real_inputs(ids.cpu())
        return (~real).flip(1).long().cumprod(1).sum(1)

    def real_inputs(self, tgt_in: Tensor) -> Tensor:
        """Which decoder inputs are real, (B, T): the first whatever its id, since Marian and T5
        start with their pad id."""
        real = tgt_in != self.pad_id
        real[:, :1] |= self.is_causal
        return real

    def real_labels(self, tgt_out: Tensor) -> Tensor:
        """Which labels stand for no pads, (B, T); where the end has the pad's id, pads are told by
        their label."""
        is_ignored, is_pad = tgt_out == IGNORED, tgt_out == self.pad_id
        if self.pad_id == self.eos_id and bool(is_ignored.any()):
            return ~is_ignored
        return ~(is_ignored | is_pad)
