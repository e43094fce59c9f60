"""Anybody's encoder-decoder model, made to fit the proofs.

A proof asks a `Subject` for logits, and for as much more as it needs: where embeddings are, what
is scored, which layers there are. `subject_of` finds out what it can; the rest is given.
Here, as in `conventions`, True = blocked where torch's own layers want it so.
"""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config import Config
from toytrans.data.batches import Batch, make_batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.errors import UserError
from toytrans.model.attention import Attention
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from toytrans.training.faults import objective_of

Symbols = Sequence[tuple[list[int], list[int]]]
"""Ragged pairs of symbol ids, without start, end or pads."""

BatchMaker = Callable[[Symbols], tuple[Tensor, Tensor, Tensor]]
"""Pairs -> src (B, S), tgt_in (B, T), tgt_out (B, T)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""logits (B, T, V), tgt_out (B, T) -> the mean loss, a scalar."""

HF_IGNORED = -100
"""The label that torch's cross entropy, and with it Hugging Face's models, ignores."""

# the last matrix of a sub-layer, by its name in toytrans, torch, BART and its kin, T5, BERT
ATTENTION_END = re.compile(r"(out_proj|Attention\.o|attention\.output\.dense)$")
FEED_FORWARD_END = re.compile(
    r"(feed_forward\.3|linear2|fc2|DenseReluDense\.wo|(?<!attention)\.output\.dense)$"
)
CROSS = re.compile(r"cross_?att|multihead_attn|encoder_attn|src_attn|EncDecAttention")


@dataclass(frozen=True)
class Layers:
    """What a model is built of, by name: the attention modules whose projections are at hand, and
    the last matrix of every attention and of every feed-forward sub-layer."""

    attentions: dict[str, nn.Module]
    attention_ends: dict[str, nn.Module]
    feed_forward_ends: dict[str, nn.Module]

    @property
    def count(self) -> int:
        """Layers: each has one self-attention."""
        return sum(1 for name in self.attention_ends if not CROSS.search(name))

    @staticmethod
    def of(model: nn.Module) -> "Layers | None":
        """Those of a model whose names tell; None for others."""
        modules = dict(model.named_modules())
        ends = {name: m for name, m in modules.items() if ATTENTION_END.search(name)}
        if not ends:
            return None
        forward = {name: m for name, m in modules.items() if FEED_FORWARD_END.search(name)}
        attentions = {
            name: module
            for name, module in modules.items()
            if isinstance(module, Attention) or _is_plain(module)
        }
        return Layers(attentions, ends, forward)


def _is_plain(module: nn.Module) -> bool:
    """Whether an attention's projections are at hand: torch's, of one width, or BART's kin."""
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None and module.bias_k is None
    parts = ("q_proj", "k_proj", "v_proj", "out_proj")
    return all(isinstance(getattr(module, part, None), nn.Module) for part in parts) and isinstance(
        getattr(module, "num_heads", None), int
    )


@dataclass(frozen=True)
class Subject:
    """A model under proof, and what is known of it.

    call (src (B, S), tgt_in (B, T)) -> logits (B, T, V). embeddings: of source and target ids.
    decoding_start: the id that decoding starts with; start_id: the one that tgt_in starts with.
    source_size: ids of the source, where they are not `vocabulary_size`. limit: the most places.
    ignored: labels that stand for pads. module: what holds the weights; ours: where it is a
    toytrans model. has_own_loss: `call.loss_of` is the model's own, which `loss` should equal.
    """

    name: str
    call: Callable[[Tensor, Tensor], Any]
    pad_id: int
    vocabulary_size: int
    start_id: int | None = None
    eos_id: int | None = None
    decoding_start: int | None = None
    source_size: int | None = None
    limit: int | None = None
    embeddings: tuple[nn.Module, nn.Module] | None = None
    loss: Loss | None = None
    batch: BatchMaker | None = None
    layers: Layers | None = None
    module: nn.Module | None = None
    ours: Transformer | None = None
    ignored: tuple[int, ...] | None = None
    has_own_loss: bool = False

    def symbols(self) -> list[int]:
        """Ids that may stand anywhere in source and target."""
        special = {self.pad_id, self.start_id, self.eos_id, self.decoding_start}
        if self.ours is not None:
            special |= {PAD_ID, BOS_ID, EOS_ID}
        size = min(self.vocabulary_size, self.source_size or self.vocabulary_size)
        return [i for i in range(size) if i not in special]

    def make_batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """src, tgt_in and tgt_out, this None where no batch maker is at hand."""
        if self.batch is not None:
            return self.batch(pairs)
        end = [] if self.eos_id is None else [self.eos_id]
        start = [] if self.start_id is None else [self.start_id]
        src = padded([s + end for s, _ in pairs], self.pad_id)
        return src, padded([start + t for _, t in pairs], self.pad_id), None

    def real_inputs(self, tgt_in: Tensor) -> Tensor:
        """Where decoder inputs are real, (B, T): place 0 whatever its id, since Marian and T5
        start with their pad id."""
        real = tgt_in != self.pad_id
        real[:, :1] = True
        return real

    def real_labels(self, tgt_out: Tensor) -> Tensor:
        ignored = self.ignored or (self.pad_id, HF_IGNORED)
        return ~torch.isin(tgt_out, torch.tensor(ignored))


def padded(rows: list[list[int]], value: int) -> Tensor:
    """Ragged rows of ids, each filled up with a value, at least one place wide: (N, L)."""
    width = max(1, *(len(row) for row in rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def subject_of(model: Any, **given: Any) -> Subject:
    """What can be known of a model, over it what was given: the arguments of `check`.

    Modules are copied, in eval mode and fp64 where they run in it; the one given stays as it is.
    Raises UserError where something is missing.
    """
    known = {name: value for name, value in given.items() if value is not None}
    _check_numbers(known)
    embedding = known.pop("embedding", None)
    if embedding is not None:
        pair = embedding if isinstance(embedding, tuple | list) else (embedding, embedding)
        if len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair):
            raise UserError("embedding is a torch.nn.Module, or two: the source's and the target's")
        known["embeddings"] = tuple(pair)
    if is_hugging_face(model):
        return _in_fp64(hugging_face(model, **known))
    if not callable(model):
        raise UserError(
            f"{type(model).__name__} cannot be called; give f(src, tgt_in) -> logits, "
            "or a Hugging Face encoder-decoder model"
        )
    for name in ("pad_id", "vocabulary_size"):
        if name not in known:
            raise UserError(f"check needs {name} of a {type(model).__name__}; give {name}=...")
    if isinstance(model, TorchTransformer):
        known = {"embeddings": (model.src_embedding, model.tgt_embedding)} | known
    known.setdefault("decoding_start", known.get("start_id"))
    module = model if isinstance(model, nn.Module) else None
    layers = Layers.of(module) if module is not None else None
    name = getattr(model, "__name__", type(model).__name__)
    return _in_fp64(Subject(name=name, call=model, module=module, layers=layers, **known))


def _check_numbers(known: dict[str, Any]) -> None:
    """Raises UserError for numbers that are none, and ids that the vocabulary does not have."""
    names = ("vocabulary_size", "source_size", "limit", "pad_id", "start_id", "eos_id")
    for name in names:
        value = known.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{name} {value!r}: give a whole number, 0 or more")
    size = known.get("vocabulary_size")
    for name in names[3:]:
        if size is not None and known.get(name, -1) >= size:
            raise UserError(f"{name} {known[name]} is not below vocabulary_size {size}")


def own(model: Transformer, config: Config, vocabulary: Vocabulary, name: str) -> Subject:
    """A toytrans model with what it learns from, faults included; the model is copied to fp64."""
    model = copy.deepcopy(model).double().eval().cpu()
    objective = objective_of(config.fault, config.model.backward)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
        plain = make_batch(Pairs(*pad_rows(sources), *pad_rows(targets)), config.marks_both_ends)
        src, tgt_in, tgt_out = objective.batch(plain)
        return src, tgt_in, tgt_out

    def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
        return objective.mean(logits, Batch(tgt_out, tgt_out, tgt_out))

    return Subject(
        name=name + (f", broken on purpose: {config.fault}" if config.fault else ""),
        call=model,
        pad_id=PAD_ID,
        vocabulary_size=len(vocabulary),
        start_id=BOS_ID,
        eos_id=EOS_ID,
        decoding_start=BOS_ID,
        limit=model.longest,
        embeddings=(model.src_embedding, model.tgt_embedding),
        loss=loss,
        batch=batch,
        layers=Layers.of(model),
        module=model,
        ours=model,
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


def is_hugging_face(model: Any) -> bool:
    """Whether a model is one of Hugging Face's encoder-decoders."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def hugging_face(model: Any, **given: Any) -> Subject:
    """A Hugging Face encoder-decoder model with its own start, shift and ignored labels."""
    known = _known_of(model) | given
    known.setdefault("decoding_start", known.get("start_id"))
    known.setdefault("start_id", known.get("decoding_start"))
    if known["start_id"] is None or "pad_id" not in known:
        missing = "pad_id" if "pad_id" not in known else "start_id"
        raise UserError(
            f"{type(model).__name__} does not say its {missing} in its config; give {missing}=..."
        )
    name, pad_id, start_id = type(model).__name__, known["pad_id"], known["start_id"]

    def shifted(labels: Tensor) -> Tensor:
        """The model's own shift where it has one and knows its start; else the usual one."""
        says_start = getattr(model.config, "decoder_start_token_id", None) is not None
        if says_start and hasattr(model, "prepare_decoder_input_ids_from_labels"):
            inputs: Tensor = model.prepare_decoder_input_ids_from_labels(labels=labels)
            return inputs
        moved = F.pad(labels[:, :-1], (1, 0), value=start_id)
        return moved.masked_fill(moved == HF_IGNORED, pad_id)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        end = [] if known.get("eos_id") is None else [known["eos_id"]]
        src = padded([s + end for s, _ in pairs], pad_id)
        tgt_out = padded([t + end for _, t in pairs], HF_IGNORED)
        return src, shifted(tgt_out), tgt_out

    call = HuggingFaceCall(model, pad_id)
    usual: dict[str, Any] = {
        "name": name,
        "embeddings": tuple(
            part.get_input_embeddings() for part in (model.get_encoder(), model.get_decoder())
        ),
        "loss": _mean_loss,
        "batch": batch,
        "has_own_loss": "loss" not in known,
        # a pad that is also the end can only be told by its place: HF then ignores -100 alone
        "ignored": (HF_IGNORED,) if pad_id == known.get("eos_id") else None,
    }
    return Subject(call=call, module=call, layers=Layers.of(call), **(usual | known))


def _known_of(model: Any) -> dict[str, Any]:
    """What a Hugging Face model's configs say of it."""
    config, generation = model.config, getattr(model, "generation_config", None)
    decoder, encoder = (getattr(config, name, None) for name in ("decoder", "encoder"))

    def look_up(name: str, *places: Any) -> Any:
        found = (getattr(place, name, None) for place in places)
        value = next((value for value in found if value is not None), None)
        return value[0] if isinstance(value, list) else value  # several ends: the first

    known = {
        "pad_id": look_up("pad_token_id", config, decoder, encoder),
        "vocabulary_size": look_up("decoder_vocab_size", config)
        or look_up("vocab_size", decoder, config),
        "source_size": look_up("vocab_size", encoder, config),
        "start_id": look_up("decoder_start_token_id", config),
        "eos_id": look_up("eos_token_id", config),
        "decoding_start": look_up("decoder_start_token_id", generation, config),
        "limit": look_up("max_position_embeddings", config, decoder, encoder),
    }
    return {name: value for name, value in known.items() if value is not None}


def _mean_loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
    """Hugging Face's loss: the mean over labels that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=HF_IGNORED)


class HuggingFaceCall(nn.Module):
    """model(src, tgt_in) with the attention masks that its users pass."""

    def __init__(self, model: Any, pad_id: int) -> None:
        super().__init__()
        self.model, self.pad_id = model, pad_id

    def masks(self, src: Tensor, tgt_in: Tensor) -> dict[str, Tensor]:
        """1 = keep."""
        real = tgt_in != self.pad_id
        real[:, :1] = True
        return {
            "attention_mask": (src != self.pad_id).long(),
            "decoder_attention_mask": real.long(),
        }

    def forward(self, src: Tensor, tgt_in: Tensor) -> Any:
        return self._ask(src, tgt_in).logits

    def loss_of(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Any:
        """The model's own loss."""
        return self._ask(src, tgt_in, labels=tgt_out).loss

    def _ask(self, src: Tensor, tgt_in: Tensor, **labels: Tensor) -> Any:
        return self.model(
            input_ids=src,
            decoder_input_ids=tgt_in,
            use_cache=False,
            return_dict=True,
            **self.masks(src, tgt_in),
            **labels,
        )


def _in_fp64(subject: Subject) -> Subject:
    """A copy in eval mode and fp64, with the copy's embeddings and layers; in the precision that
    it has where it runs in no other. What cannot be copied is asked as it is, from outside."""
    if subject.module is None:
        return subject
    names = {module: name for name, module in subject.module.named_modules()}
    if any(part not in names for part in subject.embeddings or ()):
        return replace(subject, layers=None)  # a copy would not use these embeddings
    copied = _copied(subject, names)
    if copied is None:
        return replace(subject, layers=None)
    assert copied.module is not None
    try:
        symbols = copied.symbols()
        src, tgt_in, _ = copied.make_batch([(symbols[:2], symbols[:1])])
        with torch.no_grad():
            copied.module.double()(src, tgt_in)
    except Exception:  # whatever a foreign model says to fp64: a copy in its own precision
        return _copied(subject, names) or subject
    return copied


def _copied(subject: Subject, names: dict[nn.Module, str]) -> Subject | None:
    """The subject on a copy of its module, all weights with gradients; None if it has no copy."""
    try:
        module = copy.deepcopy(subject.module)
    except Exception:  # tensors inside a graph, locks, open files: anything may refuse
        return None
    assert module is not None
    module = module.eval().cpu()
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    modules = dict(module.named_modules())
    embeddings = subject.embeddings and tuple(modules[names[part]] for part in subject.embeddings)
    return replace(
        subject, call=module, module=module, embeddings=embeddings, layers=Layers.of(module)
    )
