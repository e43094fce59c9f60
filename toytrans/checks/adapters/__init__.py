"""The models that `check` knows how to ask: ours, Hugging Face's, torch's, and any callable."""

import math
import operator
import os
import re
from inspect import Parameter
from typing import Any, get_args

import torch
from torch import Tensor, nn

from toytrans.checks.adapters.hugging_face import is_hugging_face, of_hugging_face
from toytrans.checks.adapters.toytrans import is_run, of_run
from toytrans.checks.batch import apart, largest
from toytrans.checks.subject import BY_PLACE, RAISED, Adapter, Facts, Kind, arguments
from toytrans.errors import UserError

NUMBERS = ("vocabulary_size", "source_size", "max_length", "source_pad_id")
IDS = ("pad_id", "start_id", "eos_id")
HANDS = ("embedding", "loss", "batch", "generate")
"""Arguments that an `Adapter` takes beside `Facts`."""


def adapter_of(model: Any, **given: Any) -> Adapter:
    """The adapter of a model, with what was given over what can be known: arguments of `check`.

    Raises UserError where something is missing.
    """
    known = {name: value for name, value in given.items() if value is not None}
    if is_run(model) or isinstance(model, Adapter):
        if known:
            raise UserError("of a run all is known; give check length, seed, only or skip alone")
        return of_run(model) if is_run(model) else model
    _require_right(known)
    hands = {name: known.pop(name) for name in HANDS if name in known}
    batch_first = known.pop("batch_first", None)
    if is_hugging_face(model):
        return of_hugging_face(model, known, hands)
    if isinstance(model, str | os.PathLike):
        raise UserError(f"{os.fspath(model)!r} is a path; give toytrans.load({os.fspath(model)!r})")
    if not callable(model):
        raise UserError(
            f"{type(model).__name__} cannot be called; give f(src, tgt_in) -> logits, "
            "or a Hugging Face model"
        )
    return _of_callable(model, known, hands, batch_first)


def _require_right(known: dict[str, Any]) -> None:
    """Whole numbers of any kind become int, one embedding two. Raises UserError for others, and for
    ids that the vocabulary does not have."""
    for name in known.keys() & {*NUMBERS, *IDS}:
        value = known[name]
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = -1
        if number < 0:
            raise UserError(f"{name} {value!r}: give a whole number, 0 or more")
        known[name] = number
    size = known.get("vocabulary_size")
    for name in IDS:
        if size is not None and known.get(name, -1) >= size:
            raise UserError(f"{name} {known[name]} is not below vocabulary_size {size}")
    scale = known.get("scale", 1)
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < math.inf:
        raise UserError(f"scale {scale!r}: give the number, above 0, that multiplies q k")
    if (embedding := known.get("embedding")) is not None:
        pair = embedding if isinstance(embedding, tuple | list) else (embedding, embedding)
        if len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair):
            raise UserError("embedding is a torch.nn.Module, or two: the source's and the target's")
        known["embedding"] = tuple(pair)


# Any callable ------------------------------------------------------------------------------------


def _of_callable(
    model: Any, known: dict[str, Any], hands: dict[str, Any], batch_first: bool | None
) -> Adapter:
    """The adapter of a callable, as it can be asked: batch first, else time first, else with source
    and target of one length. What can be asked in none of these ways stays as it is, to be refused.

    known: `Facts`; hands: other arguments of `Adapter`; batch_first: None to find it out. Raises
    UserError where something is missing.
    """
    if missing := [name for name in ("pad_id", "vocabulary_size") if name not in known]:
        raise UserError(
            f"check needs {' and '.join(missing)} of a {type(model).__name__}; "
            f"give {' and '.join(f'{name}=...' for name in missing)}"
        )
    forward = getattr(type(model), "forward", None)
    if getattr(forward, "__module__", "") == nn.Transformer.__module__:
        raise UserError(
            f"{type(model).__name__} of torch takes vectors, not ids: give "
            "toytrans.checks.adapters.TorchTransformer(model, source embedding, target embedding, "
            "output layer), or a module of your own around it"
        )
    if isinstance(model, nn.Module) and any(map(nn.parameter.is_lazy, model.parameters())):
        raise UserError(f"{type(model).__name__} has lazy layers without sizes; call it once first")
    name = getattr(model, "__name__", type(model).__name__)
    _refuse_more_than_ids(model, name, known["pad_id"])
    kinds = [parameter.kind for parameter in arguments(model)]
    takes_one = sum(kind in BY_PLACE for kind in kinds) == 1
    if "kind" not in known and takes_one and Parameter.VAR_POSITIONAL not in kinds:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    if (kind := known.get("kind", "encoder-decoder")) not in get_args(Kind):
        raise UserError(f"kind {kind!r}: give one of {', '.join(get_args(Kind))}")

    def made(**others: bool) -> Adapter:
        facts: dict[str, Any] = {
            "time_first": batch_first is False,
            "decoding_start": known.get("start_id"),
        }
        return Adapter(model, Facts(name=name, **facts | known | others), **hands)

    plain = made()
    first = _rows_are_apart(plain)
    if batch_first is None and not first and _rows_are_apart(turned := made(time_first=True)):
        return turned
    if first is None and kind == "encoder-decoder":
        equal = made(equal_lengths=True)
        return plain if _rows_are_apart(equal) is None else equal
    return plain


@torch.no_grad()
def _rows_are_apart(tested: Adapter) -> bool | None:
    """Whether the rows of a small batch do not depend on each other; None where it is not taken."""
    asked = tested.copied() or tested
    symbols = asked.facts.symbols()
    if len(symbols) < 2:
        return True
    many = symbols * 12
    pairs = [(many[row : row + 6], many[2 * row : 2 * row + 4]) for row in range(3)]
    try:
        src, tgt_in, _ = asked.batch(pairs)
        before = asked.ask(src, tgt_in)
        src[0], tgt_in[0] = src[0].flip(0), tgt_in[0].flip(0)
        after = asked.ask(src, tgt_in)
    except RAISED:  # whatever a foreign model raises: it is raised again when it is asked
        return None
    moved = largest(apart(after[1:], before[1:]).nan_to_num(0.0, 0.0, 0.0))
    size = largest(before.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4))
    return moved <= 1e-4 * max(size, 1e-30)


# A ready wrapper for a model whose `forward` takes more than ids --------------------------------

MORE = re.compile(
    r"(masks?|(^|_)(pad|padding|lens?|lengths?|bias|pos|positions?|causal|cache|states?))(_|$)",
    re.IGNORECASE,
)
"""Words in names of what is no ids; tgt_padded and tgt_masked are ids."""

TARGET = re.compile(r"tgt|trg|target|dec|future|causal|look|subsequent", re.IGNORECASE)
CROSS = re.compile(r"mem|cross|enc_dec|dec_enc", re.IGNORECASE)


def _refuse_more_than_ids(model: Any, name: str, pad_id: int) -> None:
    """Raises UserError where a model must be given more than ids; behind a blank line of its
    message stands code that does so."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p for p in arguments(model) if p.default is p.empty and p.kind not in variadic]
    ids = [p.name for p in needed if p.kind is not p.KEYWORD_ONLY and not MORE.search(p.name)][:2]
    more = [p.name for p in needed if p.name not in ids]
    if not ids or not more:
        return
    passed = [f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in needed]
    blocks = any("padding" in argument for argument in more)
    meaning = "True = blocked, as torch's layers want it" if blocks else "True = may look"
    lines = [
        f"{name} takes {', '.join(more)} beside ids, and check gives it ids alone: give "
        f"Asked(model), in which {meaning}; turn a mask round where your layers want the opposite",
        "",
        "class Asked(torch.nn.Module):",
        "    def __init__(self, model):",
        "        super().__init__()",
        "        self.model = model",
        "",
        f"    def forward(self, {', '.join(ids)}):",
        *(f"        {argument} = {_made(argument, ids, pad_id, blocks)}" for argument in more),
        f"        return self.model({', '.join(passed)})",
    ]
    raise UserError("\n".join(lines))


def _made(name: str, ids: list[str], pad_id: int, blocks: bool) -> str:
    """A line that makes an argument from the ids."""
    is_target = bool(TARGET.search(name)) and not CROSS.search(name)
    of = ids[-1] if is_target or len(ids) == 1 else ids[0]
    square = f"torch.ones(2 * {of}.shape[1:]).bool()"
    if re.search("len", name, re.IGNORECASE):
        return f"({of} != {pad_id}).sum(1)  # (B,)"
    if re.search("padding", name, re.IGNORECASE):
        return f"{of} == {pad_id}  # (B, L)"
    if not re.search("mask|pad|causal", name, re.IGNORECASE):
        return "...  # what your training passes"
    if blocks:
        return f"{square}.triu(1)  # (L, L)" if is_target else "None"
    pads = f"({of} != {pad_id})[:, None, None]"
    return f"{pads} & {square}.tril()  # (B, 1, L, L)" if is_target else f"{pads}  # (B, 1, 1, L)"


# torch.nn.Transformer ----------------------------------------------------------------------------


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


__all__ = ["TorchTransformer", "adapter_of"]
