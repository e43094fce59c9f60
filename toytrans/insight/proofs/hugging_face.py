"""Hugging Face's models, with their own start, shift, masks and ignored labels."""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.insight.proofs.model_under_test import (
    IGNORED,
    Kind,
    Layers,
    ModelUnderTest,
    Symbols,
    padded,
)

LIMITS = (
    "max_position_embeddings",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
    "n_positions",
    "max_target_positions",
)

UNSCALED = {"t5", "mt5", "umt5", "longt5", "switch_transformers", "pop2piano", "udop"}
"""Families that scale no scores, by design."""


def is_hugging_face(model: Any) -> bool:
    """Whether a model is one of Hugging Face's."""
    config = getattr(model, "config", None)
    return hasattr(config, "model_type") and hasattr(config, "is_encoder_decoder")


def kind_of(model: Any) -> Kind:
    """What a model is: one that writes is a decoder, unless its family also fills gaps (BERT's) and
    its config does not make it a decoder."""
    if model.config.is_encoder_decoder:
        return "encoder-decoder"
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    writes = callable(getattr(model, "can_generate", None)) and model.can_generate()
    fills_gaps = type(model.config) in MODEL_FOR_MASKED_LM_MAPPING
    decodes = not fills_gaps or getattr(model.config, "is_decoder", False)
    return "decoder" if writes and decodes else "encoder"


def hugging_face(model: Any, **given: Any) -> ModelUnderTest:
    """A tested of a Hugging Face model; what was given goes before what its config says."""
    kind: Kind = given.pop("kind", None) or kind_of(model)
    known = known_of(model) | given
    if "vocabulary_size" not in known:
        raise UserError(
            f"{type(model).__name__} does not say its vocabulary_size in its config; check judges "
            "models that take ids: if this one does, give vocabulary_size=..."
        )
    if kind != "encoder-decoder":
        return _one_stream(model, kind, known, given)
    known.setdefault("decoding_start", known.get("start_id"))
    known.setdefault("start_id", known.get("decoding_start"))
    if known["start_id"] is None or "pad_id" not in known:
        missing = "pad_id" if "pad_id" not in known else "start_id"
        raise UserError(
            f"{type(model).__name__} does not say its {missing} in its config; give {missing}=..."
        )
    facts = ModelUnderTest(name=type(model).__name__, call=model, kind=kind, **known)
    call = HuggingFaceCall(model, facts)
    usual: dict[str, Any] = {
        "embeddings": _embeddings(model),
        "loss": _mean_loss,
        "batch_maker": _batch_maker(model, facts),
        "has_own_loss": "loss" not in known,
        # a pad that is also the end can only be told by its place: HF then ignores -100 alone
        "ignored": (IGNORED,) if facts.pad_id == facts.eos_id else None,
    }
    return _asked_through(call, facts, usual | known)


def _one_stream(
    model: Any, kind: Kind, known: dict[str, Any], given: dict[str, Any]
) -> ModelUnderTest:
    """Of a decoder or an encoder alone. Its pads are known by their mask: any id serves."""
    size = known["vocabulary_size"]
    taken = {known.get(name) for name in ("eos_id", "start_id", "decoding_start")}
    if "pad_id" not in known or (known["pad_id"] in taken and "pad_id" not in given):
        known["pad_id"] = next(i for i in range(size) if i not in taken)
    for name in ("start_id", "eos_id", "decoding_start"):
        if name not in given:
            known.pop(name, None)
    facts = ModelUnderTest(name=type(model).__name__, call=model, kind=kind, **known)
    call = HuggingFaceCall(model, facts)
    usual: dict[str, Any] = {"embeddings": _embeddings(model)}
    return _asked_through(call, facts, usual | known)


def _asked_through(call: nn.Module, facts: ModelUnderTest, known: dict[str, Any]) -> ModelUnderTest:
    """The tested that is asked through a call with the masks of its users."""
    return ModelUnderTest(
        name=facts.name,
        call=call,
        module=call,
        kind=facts.kind,
        layers=Layers.of(call),
        masks_from_ids=False,
        **known,
    )


def _batch_maker(model: Any, facts: ModelUnderTest) -> Any:
    def shifted(labels: Tensor) -> Tensor:
        """The model's own shift where it has one and knows its start; else the usual one."""
        knows_start = getattr(model.config, "decoder_start_token_id", None) is not None
        if knows_start and hasattr(model, "prepare_decoder_input_ids_from_labels"):
            inputs: Tensor = model.prepare_decoder_input_ids_from_labels(labels=labels.clone())
            return inputs
        moved = F.pad(labels[:, :-1], (1, 0), value=facts.start_id or 0)
        return moved.masked_fill(moved == IGNORED, facts.pad_id)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        end = [] if facts.eos_id is None else [facts.eos_id]
        src = padded([s + end for s, _ in pairs], facts.source_pad)
        tgt_out = padded([t + end for _, t in pairs], IGNORED)
        return src, shifted(tgt_out), tgt_out

    return batch


def _embeddings(model: Any) -> tuple[nn.Module, nn.Module] | None:
    """Of source and target ids; None where the model does not give them."""
    try:
        if not model.config.is_encoder_decoder:
            one = model.get_input_embeddings()
            return (one, one) if isinstance(one, nn.Module) else None
        parts = [model.get_encoder(), model.get_decoder()]
        embeddings = [_embedding_of(part) for part in parts]
    except Exception:  # some models raise NotImplementedError, some lack the method
        return None
    return (
        (embeddings[0], embeddings[1])
        if all(isinstance(m, nn.Module) for m in embeddings)
        else None
    )


def _embedding_of(part: Any) -> Any:
    try:
        return part.get_input_embeddings()
    except Exception:
        return getattr(part, "embed_tokens", None)


def known_of(model: Any) -> dict[str, Any]:
    """What a Hugging Face model's configs say of it."""
    config, generation = model.config, getattr(model, "generation_config", None)
    decoder, encoder = (getattr(config, name, None) for name in ("decoder", "encoder"))
    text = config.get_text_config() if hasattr(config, "get_text_config") else None

    def look_up(name: str, *places: Any) -> Any:
        values = (getattr(place, name, None) for place in places)
        value = next((value for value in values if value is not None), None)
        return value[0] if isinstance(value, list) else value  # several ends: the first

    size = (
        look_up("decoder_vocab_size", config)
        or look_up("tgt_vocab_size", config)
        or look_up("vocab_size", decoder, config, text)
    )
    limits = [look_up(name, config, decoder, encoder, text) for name in LIMITS]
    known = {
        "pad_id": look_up("pad_token_id", config, decoder, text, encoder),
        "source_pad_id": look_up("pad_token_id", encoder),
        "vocabulary_size": size,
        "source_size": look_up("src_vocab_size", config)
        or look_up("vocab_size", encoder, config, text),
        "start_id": look_up("decoder_start_token_id", config),
        "eos_id": look_up("eos_token_id", config, decoder, text),
        "decoding_start": look_up("decoder_start_token_id", generation, config),
        "limit": min((n for n in limits if isinstance(n, int) and n > 0), default=None),
    }
    ids = ("start_id", "eos_id", "decoding_start", "pad_id")
    for name in ids:  # some configs name ids that a small vocabulary does not have
        if size is not None and known[name] is not None and not 0 <= known[name] < size:
            known[name] = None
    if config.model_type in UNSCALED:
        known["scale"] = 1
    return {name: value for name, value in known.items() if value is not None}


def _mean_loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
    """Hugging Face's loss: the mean over labels that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=IGNORED)


class HuggingFaceCall(nn.Module):
    """model(src, tgt_in) with the attention masks, and positions, that its users pass."""

    def __init__(self, model: Any, facts: ModelUnderTest) -> None:
        super().__init__()
        self.model = model
        # not the module of `facts`: a copy of this one must not hold the original
        self.facts = ModelUnderTest(**{**vars(facts), "call": _nobody})
        self.gives_positions = False
        self.takes = set(inspect.signature(model.forward).parameters)

    @property
    def takes_positions(self) -> bool:
        """Whether the place of a token can be given to a decoder."""
        return self.facts.kind == "decoder" and "position_ids" in self.takes

    @contextlib.contextmanager
    def positions_given(self) -> Iterator[None]:
        """Positions are meanwhile passed for every batch."""
        self.gives_positions = True
        try:
            yield
        finally:
            self.gives_positions = False

    @contextlib.contextmanager
    def pads_are(self, pad_id: int) -> Iterator[None]:
        """Another id is meanwhile what the masks close."""
        before = self.facts
        self.facts = replace(before, pad_id=pad_id)
        try:
            yield
        finally:
            self.facts = before

    def masks(self, src: Tensor, tgt_in: Tensor) -> dict[str, Tensor]:
        """1 = keep."""
        facts = self.facts
        real = facts.real_inputs(tgt_in).long()
        if not facts.has_source:
            if facts.start_id != facts.pad_id:
                real = (tgt_in != facts.pad_id).long()
            return {"attention_mask": real}
        return {
            "attention_mask": self.facts.real_source(src).long(),
            "decoder_attention_mask": real,
        }

    def forward(self, src: Tensor, tgt_in: Tensor) -> Any:
        return self._ask(src, tgt_in)

    def loss_of(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Any:
        """The model's own loss."""
        return self._ask(src, tgt_in, labels=tgt_out).loss

    def _ask(self, src: Tensor, tgt_in: Tensor, **labels: Tensor) -> Any:
        named: dict[str, Any] = {"return_dict": True, **self.masks(src, tgt_in), **labels}
        if self.facts.kind != "encoder":
            named["use_cache"] = False
        if self.facts.has_source:
            return self.model(input_ids=src, decoder_input_ids=tgt_in, **named)
        if self.takes_positions:
            real = named["attention_mask"]
            if self.gives_positions or not bool(
                real[:, 0].all()
            ):  # pads on the left: places count from the first token
                named["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
        return self.model(input_ids=tgt_in, **named)


def _nobody(*_: Any) -> Any:
    raise RuntimeError("facts are not asked")
