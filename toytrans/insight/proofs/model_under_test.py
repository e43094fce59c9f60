"""A model under proof: how it is asked, and what is known of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

Kind = Literal["encoder-decoder", "decoder", "encoder"]

Symbols = Sequence[tuple[list[int], list[int]]]
"""Ragged pairs of symbol ids, without start, end or pads."""

BatchMaker = Callable[[Symbols], tuple[Tensor, Tensor, Tensor]]
"""Pairs -> src (B, S), tgt_in (B, T), tgt_out (B, T)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""logits (B, T, V), tgt_out (B, T) -> the mean loss, a scalar."""

IGNORED = -100
"""The label that torch's cross entropy, and with it Hugging Face's models, ignores."""

# the last matrix of a sub-layer, by its name in toytrans, torch, BART and its kin, T5, BERT, and
# the Annotated Transformer
ATTENTION_END = re.compile(
    r"(att[\w.]*\.out_proj|Attention\.o|attention\.output\.dense|attn\.linears\.3)$"
)
FEED_FORWARD_END = re.compile(
    r"(feed_forward\.(3|w_2)|linear2|fc2|DenseReluDense\.wo|(?<!attention)\.output\.dense)$"
)
CROSS = re.compile(r"cross_?att|multihead_attn|encoder_attn|src_attn|EncDecAttention")
HALF = re.compile(r"(enc|dec)oder|(?<![a-z])(enc|dec)(?![a-z])")
EXPERT = re.compile(r"expert|moe|router", re.IGNORECASE)


def half_of(name: str) -> Literal["encoder", "decoder"] | None:
    """Which half of a model a module belongs to, by the word that its name says first."""
    found = HALF.search(name)
    if found is None:
        return None
    return "encoder" if found[0].startswith("enc") else "decoder"


@dataclass(frozen=True)
class Layers:
    """What a model is built of, by name: the last matrix of every attention and of every
    feed-forward sub-layer."""

    attention_ends: dict[str, nn.Module]
    feed_forward_ends: dict[str, nn.Module]

    @property
    def count(self) -> int:
        """Layers: each has one self-attention."""
        return sum(1 for name in self.attention_ends if not CROSS.search(name))

    @staticmethod
    def of(model: nn.Module) -> "Layers | None":
        """Those of a model whose names are known; None for others."""
        modules = dict(model.named_modules())
        ends = {name: m for name, m in modules.items() if ATTENTION_END.search(name)}
        if not ends:
            return None
        forward = {
            name: m
            for name, m in modules.items()
            if FEED_FORWARD_END.search(name) and not EXPERT.search(name)
        }
        return Layers(ends, forward)


@dataclass(frozen=True)
class ModelUnderTest:
    """A model under proof, and what is known of it.

    call (src (B, S), tgt_in (B, T)) -> logits (B, T, V); a model of one stream takes its ids as
    tgt_in and ignores src. embeddings: of source and target ids. decoding_start: the id that
    decoding starts with; start_id: the one that tgt_in starts with. source_size: ids of the source,
    where they are not `vocabulary_size`. limit: the most places. ignored: labels that stand for
    pads. module: what holds the weights; ours: where it is a toytrans model. has_own_loss:
    `call.loss_of` is the model's own, which `loss` should equal. generate: decoding, to be compared
    with the parallel pass. scale: what scores are multiplied with, if not 1 / root of d_head.
    """

    name: str
    call: Callable[[Tensor, Tensor], Any]
    pad_id: int
    vocabulary_size: int
    kind: Kind = "encoder-decoder"
    source_pad_id: int | None = None
    pad_side: str | None = None
    start_id: int | None = None
    eos_id: int | None = None
    decoding_start: int | None = None
    source_size: int | None = None
    limit: int | None = None
    embeddings: tuple[nn.Module, nn.Module] | None = None
    loss: Loss | None = None
    batch_maker: BatchMaker | None = None
    layers: Layers | None = None
    module: nn.Module | None = None
    ours: Transformer | None = None
    ignored: tuple[int, ...] | None = None
    has_own_loss: bool = False
    generate: Callable[..., Any] | None = None
    equal_lengths: bool = False
    masks_from_ids: bool = True
    scale: float | None = None

    @property
    def has_source(self) -> bool:
        return self.kind == "encoder-decoder"

    @property
    def is_causal(self) -> bool:
        return self.kind != "encoder"

    @property
    def source_pad(self) -> int:
        return self.pad_id if self.source_pad_id is None else self.source_pad_id

    def symbols(self) -> list[int]:
        """Ids that may stand anywhere in source and target."""
        special = {self.pad_id, self.source_pad, self.start_id, self.eos_id, self.decoding_start}
        if self.ours is not None:
            special |= {PAD_ID, BOS_ID, EOS_ID}
        size = min(self.vocabulary_size, self.source_size or self.vocabulary_size)
        return [i for i in range(size) if i not in special]

    def make_batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """src, tgt_in and tgt_out, this None where no batch maker is at hand."""
        if self.batch_maker is not None:
            return self.batch_maker(pairs)
        end = [] if self.eos_id is None else [self.eos_id]
        start = [] if self.start_id is None else [self.start_id]
        src = padded([s + end for s, _ in pairs], self.source_pad)
        left = self.pad_side == "left"
        return src, padded([start + t for _, t in pairs], self.pad_id, left), None

    def real_source(self, src: Tensor) -> Tensor:
        """Which places of a source are real, (B, S); where pad and end share an id, the first of
        those at the end of a row is the end."""
        real = src != self.source_pad
        if self.source_pad == self.eos_id and real.shape[1]:
            length = real.long().mul(torch.arange(1, real.shape[1] + 1)).amax(1)
            real = torch.arange(real.shape[1]) <= length[:, None]
        return real

    def real_inputs(self, tgt_in: Tensor) -> Tensor:
        """Which decoder inputs are real, (B, T): the first whatever its id, since Marian and T5
        start with their pad id. A place with real ones on both sides is real as well."""
        real = tgt_in != self.pad_id
        if not real.shape[1]:
            return real
        if self.kind == "encoder":
            return real
        if self.pad_side != "left":
            real[:, :1] = True
        elif self.start_id == self.pad_id:  # one place before the first that is no pad
            real[:, :-1] |= real[:, 1:].cummax(1).values
        return real

    def real_labels(self, tgt_out: Tensor) -> Tensor:
        ignored = self.ignored or (self.pad_id, IGNORED)
        if self.pad_id == self.eos_id and bool((tgt_out == IGNORED).any()):
            ignored = (IGNORED,)  # the end has the pad's id, and pads are told by their label
        return ~torch.isin(tgt_out, torch.tensor(ignored))


def padded(rows: list[list[int]], value: int, left: bool = False) -> Tensor:
    """Ragged rows of ids, each filled up with a value, at least one place wide: (N, L)."""
    width = max(1, *(len(row) for row in rows))
    filled = [(row, [value] * (width - len(row))) for row in rows]
    return torch.tensor([pads + row if left else row + pads for row, pads in filled])


def described(given: Any) -> str:
    """What a function of somebody else's gave, for an error: its kind, and those of its parts."""

    def kind(value: Any) -> str:
        is_tensor = isinstance(value, Tensor)
        return f"{value.dtype} {tuple(value.shape)}" if is_tensor else type(value).__name__

    parts = f" of {', '.join(map(kind, given))}" if isinstance(given, tuple | list) else ""
    return f"{kind(given)}{parts}"
