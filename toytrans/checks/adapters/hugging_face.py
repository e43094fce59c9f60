"""Hugging Face's models, with their own start, shift, masks and ignored labels."""

import contextlib
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.beam_scores import Hypotheses
from toytrans.checks.facts import Facts, Kind
from toytrans.checks.ids import IGNORED, Symbols, filled_up
from toytrans.checks.model import RAISED, Adapter, NoAnswer, arguments, logits_of
from toytrans.checks.outcome import Judged, does_not_apply, not_asked
from toytrans.errors import UserError

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


def takes_their_arguments(model: Any) -> bool:
    """Whether a module of anybody's is called as Hugging Face's models are: with `input_ids`, and
    with their mask or the decoder's ids beside it."""
    names = {argument.name for argument in arguments(model)}
    return "input_ids" in names and bool({"attention_mask", "decoder_input_ids"} & names)


def _kind_of(model: Any) -> Kind:
    """What a model is: one that writes is a decoder, unless its family also fills gaps (BERT's) and
    its config does not make it a decoder. Raises UserError where a module does not say."""
    if not is_hugging_face(model):
        if "decoder_input_ids" in {argument.name for argument in arguments(model)}:
            return "encoder-decoder"
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    if model.config.is_encoder_decoder:
        return "encoder-decoder"
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    writes = callable(getattr(model, "can_generate", None)) and model.can_generate()
    fills_gaps = type(model.config) in MODEL_FOR_MASKED_LM_MAPPING
    decodes = not fills_gaps or getattr(model.config, "is_decoder", False)
    return "decoder" if writes and decodes else "encoder"


def of_hugging_face(model: Any, given: dict[str, Any], more: dict[str, Any]) -> Adapter:
    """The adapter of a model; what was given goes before what its config says. given: `Facts`;
    more: other arguments of `Adapter`."""
    known = known_of(model) | given
    kind = known["kind"] = given.get("kind") or _kind_of(model)
    name = known["name"] = type(model).__name__
    takes_mask = "attention_mask" in (argument.name for argument in arguments(model))
    takes_mask = takes_mask or is_hugging_face(model)
    if "vocabulary_size" not in known:
        raise UserError(
            f"{name} does not say its vocabulary_size in its config; check judges models that take "
            "ids: if this one does, give vocabulary_size=..."
        )
    if kind == "encoder-decoder":
        known.setdefault("decoding_start", known.get("start_id"))
        known.setdefault("start_id", known.get("decoding_start"))
        if known["start_id"] is None or "pad_id" not in known:
            missing = "pad_id" if "pad_id" not in known else "start_id"
            raise UserError(f"{name} does not say its {missing} in its config; give {missing}=...")
    elif not takes_mask and "pad_id" not in known:
        raise UserError(f"{name} does not say its pad_id in its config; give pad_id=...")
    elif takes_mask:
        # its pads are known by their mask: any id serves
        taken = {known.get(name) for name in ("eos_id", "start_id", "decoding_start")}
        if "pad_id" not in known or (known["pad_id"] in taken and "pad_id" not in given):
            size = known["vocabulary_size"]
            known["pad_id"] = next(i for i in range(size) if i not in taken)
        for name in ("start_id", "eos_id", "decoding_start"):
            if name not in given:
                known.pop(name, None)
    positions = "position_ids" in (argument.name for argument in arguments(model))
    facts = Facts(
        masks_from_ids=not takes_mask,
        takes_positions=positions and kind == "decoder",
        **known,
    )
    return HuggingFace(model, facts, **more)


class HuggingFace(Adapter):
    """A model that is asked with the masks of its users, and decodes with its own cache."""

    def __init__(self, model: Any, facts: Facts, **more: Any) -> None:
        super().__init__(model, facts, **more)
        taken = arguments(model)
        names = {argument.name for argument in taken}
        takes_all = any(argument.kind is argument.VAR_KEYWORD for argument in taken)
        self.takes = None if takes_all or is_hugging_face(model) else names
        takes_labels = "labels" in (argument.name for argument in arguments(model))
        self.has_own_loss = facts.is_causal and takes_labels and self.given_loss is None
        if self.has_own_loss:
            self.given_loss = _mean_loss
        if facts.has_source:
            self.given_loss = self.given_loss or _mean_loss
            self.maker = self.maker or _batch_maker(model, facts)

    def batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """As any model's; the labels of a decoder are its next ids."""
        src, tgt_in, tgt_out = super().batch(pairs)
        if self.facts.kind == "decoder" and tgt_out is None and self.maker is None:
            following = F.pad(tgt_in[:, 1:], (0, 1), value=self.facts.pad_id)
            tgt_out = following.masked_fill(~self.facts.real_labels(following), IGNORED)
        return src, tgt_in, tgt_out

    def answer(
        self,
        src: Tensor,
        tgt_in: Tensor,
        masked: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """What the model gives to ids, with the masks that its users make, and to labels."""
        facts = self.facts
        named: dict[str, Any] = {"return_dict": True}
        if labels is not None:
            named["labels"] = labels
        if facts.kind != "encoder":
            named["use_cache"] = False
        if facts.has_source:
            named["attention_mask"] = facts.real_source(src).long()  # 1 = keep
            named["decoder_attention_mask"] = facts.real_inputs(tgt_in).long()
            return self._called(input_ids=src, decoder_input_ids=tgt_in, **named)
        real = facts.real_inputs(tgt_in) if masked is None else ~masked
        is_moved = masked is not None or not bool(real[:, 0].all())
        if facts.takes_positions and is_moved:  # places count from the first token
            named["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
        return self._called(input_ids=tgt_in, attention_mask=real.long(), **named)

    def _called(self, **named: Any) -> Any:
        """The answer to those arguments that the model takes."""
        takes = named.keys() if self.takes is None else self.takes
        return self.call(**{name: value for name, value in named.items() if name in takes})

    def own_loss(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor | None:
        """The loss that the model computes itself of labels (B, T); None if it has none."""
        if not self.has_own_loss:
            return None
        if self.facts.kind == "decoder":  # which shifts its ids by itself
            following = tgt_out.masked_fill(tgt_out == IGNORED, self.facts.pad_id)
            first = tgt_in[:, :1]
            tgt_in, tgt_out = torch.cat((first, following), 1), torch.cat((first, tgt_out), 1)
        try:
            answer = self.foreign("its own loss", self.answer, src, tgt_in, None, tgt_out)
        except UserError as error:
            raise NoAnswer(str(error)) from error.__cause__  # what the model raised
        return _loss_of(answer)

    def step(self, src: Tensor, tgt_in: Tensor, positions: bool = True) -> Tensor | Hypotheses:
        """The loop of `generate`: a token at a time, with what the last step handed on."""
        if self.generate is not None or self.takes is not None:
            return super().step(src, tgt_in)
        model: Any = self.call
        kept, steps, has_source = None, [], self.facts.has_source
        names = {argument.name for argument in arguments(model)}
        if has_source and "encoder_outputs" not in names:
            why = "forward names no encoder_outputs, by which it would decode step by step"
            raise Judged(not_asked(why, "generate"))
        takes_cache = "cache" in names
        name = "cache" if takes_cache else "past_key_values"  # as older versions say
        named: dict[str, Any] = {"use_cache": True, "return_dict": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of older names for the cache
            if has_source:
                mask = self.facts.real_source(src).long()
                encoded = model.get_encoder()(input_ids=src, attention_mask=mask, return_dict=True)
                named |= {"encoder_outputs": encoded, "attention_mask": mask}
            for step, token in enumerate(tgt_in.split(1, 1)):
                named["decoder_input_ids" if has_source else "input_ids"] = token
                if not has_source:
                    mask = tgt_in.new_ones(len(tgt_in), step + 1)
                    past = {"use_cache": True, name: kept, "attention_mask": mask}
                    is_masked = not step or _hands_on_a_mask(model, tgt_in[:, : step + 1], past)
                    named["attention_mask"] = mask if is_masked else None
                if positions and self.facts.takes_positions:
                    named["position_ids"] = torch.full_like(token, step)
                if kept is not None:
                    named[name] = kept
                out = model(**named)
                kept = getattr(out, name, None)
                if kept is None:
                    why = "the model hands on no cache to decode with"
                    raise Judged(does_not_apply(why))
                steps.append(logits_of(out))
        return torch.cat(steps, 1)


def _hands_on_a_mask(model: Any, ids: Tensor, past: dict[str, Any]) -> bool:
    """Whether the model's `generate` hands it a mask at a later step; recurrent ones get none."""
    with contextlib.suppress(*RAISED):  # older models, and some of users', prepare in other ways
        made = model.prepare_inputs_for_generation(ids, is_first_iteration=False, **past)
        return made.get("attention_mask") is not None
    return True


def _loss_of(answer: Any) -> Tensor | None:
    """The loss in what a model returns: `.loss`, ["loss"], or of a tuple the tensor that is one
    number."""
    found = getattr(answer, "loss", answer.get("loss") if isinstance(answer, dict) else None)
    parts = answer if isinstance(answer, tuple | list) else ()
    one = (x for x in parts if isinstance(x, Tensor) and x.dim() == 0)
    return next(one, None) if found is None else found


def _batch_maker(model: Any, facts: Facts) -> Any:
    def shifted(labels: Tensor) -> Tensor:
        """The model's own shift where it has one and knows its start; else the usual one."""
        config = getattr(model, "config", None)
        knows_start = getattr(config, "decoder_start_token_id", None) is not None
        if knows_start and hasattr(model, "prepare_decoder_input_ids_from_labels"):
            inputs: Tensor = model.prepare_decoder_input_ids_from_labels(labels=labels.clone())
            return inputs
        moved = F.pad(labels[:, :-1], (1, 0), value=facts.start_id or 0)
        return moved.masked_fill(moved == IGNORED, facts.pad_id)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        end = [] if facts.eos_id is None else [facts.eos_id]
        src = filled_up([s + end for s, _ in pairs], facts.source_pad)
        tgt_out = filled_up([t + end for _, t in pairs], IGNORED)
        return src, shifted(tgt_out), tgt_out

    return batch


def known_of(model: Any) -> dict[str, Any]:
    """What a Hugging Face model's configs say of it."""
    config, generation = getattr(model, "config", None), getattr(model, "generation_config", None)
    config = SimpleNamespace(**config) if isinstance(config, dict) else config
    decoder, encoder = (getattr(config, name, None) for name in ("decoder", "encoder"))
    text = None if config is None else getattr(config, "get_text_config", lambda: None)()

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
        "max_length": min((n for n in limits if isinstance(n, int) and n > 0), default=None),
    }
    ids = ("start_id", "eos_id", "decoding_start", "pad_id")
    for name in ids:  # some configs name ids that a small vocabulary does not have
        if size is not None and known[name] is not None and not 0 <= known[name] < size:
            known[name] = None
    if getattr(config, "model_type", None) in UNSCALED:
        known["scale"] = 1
    window = look_up("sliding_window", config, text) or look_up("window_size", config, text)
    if isinstance(window, int) and window > 0:
        known["window"] = window - 1  # of so many places one is the token's own
    return {name: value for name, value in known.items() if value is not None}


def _mean_loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
    """Hugging Face's loss: the mean over labels that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=IGNORED)
