"""Anybody's model, made to fit the proofs: what can be detected in it, and what was given.

Here, as in `conventions`, True = blocked where torch's own layers want it so.
"""

import copy
import inspect
import math
import operator
import os
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from toytrans.config.schema import Config
from toytrans.config.sealed import fault_remark
from toytrans.data.batches import Batch, make_batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.errors import UserError
from toytrans.insight.proofs.answers import NoAnswer, answer, apart, largest, logits_of
from toytrans.insight.proofs.copies import variant_of
from toytrans.insight.proofs.hugging_face import hugging_face, is_hugging_face
from toytrans.insight.proofs.model_under_test import Kind, Layers, ModelUnderTest, Symbols, padded
from toytrans.insight.proofs.wrapper import refuse_more_than_ids
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from toytrans.training.faults import objective_of
from toytrans.user_code import RAISED

NUMBERS = ("vocabulary_size", "source_size", "limit", "pad_id", "start_id", "eos_id")


def model_under_test(model: Any, **given: Any) -> ModelUnderTest:
    """What can be known of a model, over it what was given: the arguments of `check`.

    Raises UserError where something is missing.
    """
    known = {name: value for name, value in given.items() if value is not None}
    _check_numbers(known)
    if known.get("pad_side", "right") not in ("right", "left"):
        raise UserError(f"pad_side {known['pad_side']!r}: give 'right' or 'left'")
    scale = known.get("scale", 1)
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < math.inf:
        raise UserError(f"scale {scale!r}: give the number, above 0, that multiplies q k")
    embedding = known.pop("embedding", None)
    if embedding is not None:
        pair = embedding if isinstance(embedding, tuple | list) else (embedding, embedding)
        if len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair):
            raise UserError("embedding is a torch.nn.Module, or two: the source's and the target's")
        known["embeddings"] = tuple(pair)
    batch_first = known.pop("batch_first", None)
    if is_hugging_face(model):
        return hugging_face(model, **known)
    if isinstance(model, str | os.PathLike):
        raise UserError(f"{os.fspath(model)!r} is a path; give toytrans.load({os.fspath(model)!r})")
    if not callable(model):
        raise UserError(
            f"{type(model).__name__} cannot be called; give f(src, tgt_in) -> logits, "
            "or a Hugging Face model"
        )
    if missing := [name for name in ("pad_id", "vocabulary_size") if name not in known]:
        raise UserError(
            f"check needs {' and '.join(missing)} of a {type(model).__name__}; "
            f"give {' and '.join(f'{name}=...' for name in missing)}"
        )
    refuse_more_than_ids(model, known["pad_id"])
    known["kind"] = kind_of(model, known.get("kind"))
    if isinstance(model, TorchTransformer):
        known = {"embeddings": (model.src_embedding, model.tgt_embedding)} | known
    known.setdefault("decoding_start", known.get("start_id"))
    name = getattr(model, "__name__", type(model).__name__)
    module = model if isinstance(model, nn.Module) else None
    tested = ModelUnderTest(name=name, call=model, module=module, **known)
    if not tested.has_source:
        tested = adapted(tested, batch_first is not False)
    elif batch_first is False:
        tested = adapted(tested, False)
    return _laid_out(_with_side(tested), batch_first)


def _with_side(tested: ModelUnderTest) -> ModelUnderTest:
    """The tested with the side on which its batch maker pads targets."""
    symbols = tested.symbols()
    if tested.pad_side is not None or tested.batch_maker is None or not symbols:
        return tested
    try:
        tgt_in = tested.batch_maker([(symbols[:1], symbols[:1]), (symbols[:1], symbols[:1] * 4)])[1]
        first, last = tgt_in[0, 0] == tested.pad_id, tgt_in[0, -1] == tested.pad_id
        left = bool(first) and not bool(last)
    except RAISED:  # whatever a batch maker raises: it is raised again when it is asked
        return tested
    return replace(tested, pad_side="left") if left else tested


def _check_numbers(known: dict[str, Any]) -> None:
    """Whole numbers of any kind become int. Raises UserError for others, and for ids that the
    vocabulary does not have."""
    for name in (*NUMBERS, "source_pad_id"):
        value = known.get(name, 0)
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = -1
        if number < 0:
            raise UserError(f"{name} {value!r}: give a whole number, 0 or more")
        if name in known:
            known[name] = number
    size = known.get("vocabulary_size")
    for name in NUMBERS[3:]:
        if size is not None and known.get(name, -1) >= size:
            raise UserError(f"{name} {known[name]} is not below vocabulary_size {size}")


def kind_of(model: Any, given: Any) -> Kind:
    """Of a callable, by what it takes: (src, tgt_in), or ids alone and then it must be given."""
    if given is not None:
        if given not in get_args(Kind):
            raise UserError(f"kind {given!r}: give one of {', '.join(get_args(Kind))}")
        kind: Kind = given
        return kind
    function = model.forward if isinstance(model, nn.Module) else model
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "encoder-decoder"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return "encoder-decoder"
    if sum(1 for p in parameters if p.kind in positional) == 1:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    return "encoder-decoder"


class Adapted(nn.Module):
    """A model of one stream, or one that wants time before batch, called as (src, tgt_in)."""

    def __init__(self, model: Any, has_source: bool, batch_first: bool) -> None:
        super().__init__()
        self.model = model
        self.has_source, self.batch_first = has_source, batch_first

    def forward(self, src: Tensor, tgt_in: Tensor) -> Any:
        given = [src, tgt_in] if self.has_source else [tgt_in]
        if self.batch_first:
            return self.model(*given)
        logits = logits_of(self.model(*(ids.T for ids in given)))
        return logits.transpose(0, 1) if isinstance(logits, Tensor) and logits.dim() > 2 else logits


def adapted(tested: ModelUnderTest, batch_first: bool) -> ModelUnderTest:
    call = Adapted(tested.call, tested.has_source, batch_first)
    module = call if tested.module is not None else None
    return replace(tested, call=call, module=module)


def _laid_out(tested: ModelUnderTest, batch_first: bool | None) -> ModelUnderTest:
    """The tested as it can be asked: batch first, else time first, else with source and target
    of one length. What can be asked in none of these ways stays as it is, to be refused."""
    first = _independent(tested)
    if batch_first is None and not first:
        inner = tested.call.model if isinstance(tested.call, Adapted) else tested.call
        turned = adapted(replace(tested, call=inner), False)
        if _independent(turned):
            return turned
    if first is None and tested.has_source:
        equal = replace(tested, equal_lengths=True)
        return equal if _independent(equal) is not None else tested
    return tested


@torch.no_grad()
def _independent(tested: ModelUnderTest) -> bool | None:
    """Whether the rows of a small batch do not depend on each other; None where it is not taken."""
    variant = variant_of(tested)
    asked = tested if variant is None else variant.model
    symbols = asked.symbols()
    if len(symbols) < 2:
        return True
    target = 6 if tested.equal_lengths else 4
    pairs = [
        ([symbols[(r + i) % len(symbols)] for i in range(6)],
         [symbols[(2 * r + i) % len(symbols)] for i in range(target)])
        for r in range(3)
    ]  # fmt: skip
    try:
        src, tgt_in, _ = asked.make_batch(pairs)
        if tested.equal_lengths:
            width = max(src.shape[1], tgt_in.shape[1])
            src = nn.functional.pad(src, (0, width - src.shape[1]), value=asked.source_pad)
            tgt_in = nn.functional.pad(tgt_in, (0, width - tgt_in.shape[1]), value=asked.pad_id)
        before = answer(asked, src.clone(), tgt_in.clone())
        src[0], tgt_in[0] = src[0].flip(0), tgt_in[0].flip(0)
        after = answer(asked, src.clone(), tgt_in.clone())
    except RAISED:  # whatever a foreign model raises: it is raised again when it is asked
        return None
    moved = largest(apart(after[1:], before[1:]).nan_to_num(0.0, 0.0, 0.0))
    return moved <= 1e-4 * max(largest(before.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4)), 1e-30)


def own(model: Seq2Seq, config: Config, vocabulary: Vocabulary, name: str) -> ModelUnderTest:
    """A toytrans model with what it learns from, faults included. One that its user wrote is asked
    as any model is."""
    model = copy.deepcopy(model).cpu()
    ours = model if isinstance(model, Transformer) else None
    objective = objective_of(config.fault, config.model.backward)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
        plain = make_batch(Pairs(*pad_rows(sources), *pad_rows(targets)), config.source_bos)
        src, tgt_in, tgt_out = objective.batch(plain)
        return src, tgt_in, tgt_out

    def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
        return objective.mean(logits, Batch(tgt_out, tgt_out, tgt_out))

    return ModelUnderTest(
        name=", ".join(filter(None, (name, fault_remark(config.fault)))),
        call=model,
        pad_id=PAD_ID,
        vocabulary_size=len(vocabulary),
        start_id=BOS_ID,
        eos_id=EOS_ID,
        decoding_start=BOS_ID,
        limit=model.config.max_length,
        embeddings=(ours.src_embedding, ours.tgt_embedding) if ours else None,
        loss=loss,
        batch_maker=batch,
        layers=Layers.of(model),
        module=model,
        ours=ours,
    )


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


__all__ = ["NoAnswer", "TorchTransformer", "own", "padded", "model_under_test"]
