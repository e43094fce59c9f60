"""What a panel is, and what panels are made of: one real pass of a model over a batch.

Attention is watched from outside: a hook keeps what each attention got, and the attention itself
computes its intermediates from that. So a panel shows what the model does, broken or not.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from toytrans.data.batches import Batch
from toytrans.model.attention import Attention, Intermediates, KeysValues
from toytrans.model.masks import Masks
from toytrans.model.sight import Sight
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary

CLOSED = "·"
"""The mark of a closed cell; it has an ASCII twin where the terminal wants one."""

ATTENTIONS = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "cross": "Cross-attention",
}


@dataclass(frozen=True)
class Panel:
    """One table to be printed: its numbers are text already. Panels of one number belong together.

    shape: before and after broadcasting. notes: sentences below the table; one that starts with
    "Trap:" names a common mistake. marks: the cells are those of a mask.
    """

    number: str
    name: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]
    shape: str = ""
    legend: str = ""
    notes: tuple[str, ...] = ()
    marks: bool = False


@dataclass(frozen=True)
class Pass:
    """What one attention got in a forward pass: x (B, Tq, D), and memory if it is cross."""

    module: Attention
    x: Tensor
    sight: Sight
    memory: KeysValues | None

    def intermediates(self, sight: Sight | None = None) -> Intermediates:
        """Every step of this attention, by its own code; under another sight if one is given."""
        with torch.no_grad():
            return self.module.intermediates(self.x, sight or self.sight, self.memory)[0]

    def unmasked(self) -> Intermediates:
        """The same attention with everything open."""
        return self.intermediates(replace(self.sight, mask=None, additive=None, open_rows=None))


@dataclass(frozen=True)
class View:
    """What is looked at: a batch, and the model in eval mode that reads it."""

    batch: Batch
    vocabulary: Vocabulary
    model: Transformer
    weights: str
    """where the model's weights come from"""

    @cached_property
    def passes(self) -> dict[str, Pass]:
        """The first layer's attentions in a real pass, by the names of ATTENTIONS."""
        return watch(self.model, self.batch)

    @cached_property
    def masks(self) -> Masks:
        """The masks that these attentions got: each (B, 1, Tq or 1, Tk)."""
        return Masks(*(self._mask(name) for name in ATTENTIONS))

    def _mask(self, name: str) -> Tensor:
        given = self.passes[name].sight.mask
        if given is not None:
            return given
        keys = self.ids(name)[1]
        return torch.ones_like(keys, dtype=torch.bool)[:, None, None]

    def ids(self, name: str) -> tuple[Tensor, Tensor]:
        """Ids of an attention's queries (B, Tq) and keys (B, Tk)."""
        src, tgt_in, _ = self.batch
        return {
            "encoder_self": (src, src),
            "decoder_self": (tgt_in, tgt_in),
            "cross": (tgt_in, src),
        }[name]

    def whole(self, name: str) -> Tensor:
        """A mask as (B, Tq, Tk)."""
        mask: Tensor = getattr(self.masks, name)[:, 0]
        return mask.expand(-1, self.ids(name)[0].shape[1], -1)

    def tokens(self, name: str, row: int) -> tuple[list[str], list[str]]:
        """Queries and keys of one pair as text."""
        queries, keys = (self.names(ids[row]) for ids in self.ids(name))
        return queries, keys

    def names(self, ids: Tensor) -> list[str]:
        return [self.vocabulary.name(i) for i in ids.tolist()]


def watch(model: Transformer, batch: Batch) -> dict[str, Pass]:
    """Run the model on a batch and keep what its first layers' attentions got."""
    encoder, decoder = model.encoder_stack()[0], model.decoder_stack()[0]
    modules = (encoder.self_attention, decoder.self_attention, decoder.cross_attention)
    found: dict[str, Pass] = {}

    def keeping(name: str) -> Callable[..., None]:
        def keep(module: Attention, args: Any, kwargs: Any) -> None:
            given = inspect.signature(Attention.forward).bind(module, *args, **kwargs).arguments
            # shared layers pass here more than once; the first time is the first layer's
            found.setdefault(name, Pass(module, given["x"], given["sight"], given.get("memory")))

        return keep

    hooks = [
        module.register_forward_pre_hook(keeping(name), with_kwargs=True)
        for name, module in zip(ATTENTIONS, modules, strict=True)
    ]
    try:
        with torch.no_grad():
            model(batch.src, batch.tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def fresh(make: Callable[[], Transformer], seed: int) -> Transformer:
    """A new model in eval mode whose weights the seed decides; torch's generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def number(value: float, digits: int = 2) -> str:
    """A short number; "0" is a true zero, "0.00" is one that rounds to it."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}".replace("-0", "0")
    if abs(value) >= 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def numbers(values: Tensor, digits: int = 2) -> list[str]:
    """(N,) -> their texts."""
    return [number(value, digits) for value in values.tolist()]


def shape_of(*shapes: Iterable[int]) -> str:
    """(2, 5) -> (2, 1, 1, 5)"""
    return " -> ".join(str(tuple(shape)) for shape in shapes)
