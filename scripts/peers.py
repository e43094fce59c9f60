"""What toytrans is measured against: peers in training, and peers in decoding its weights.

Training: the transformer of PyTorch's tutorial "Language Translation with nn.Transformer" and
Hugging Face's BART, each fed and stepped as its users do. Decoding: `to_marian` and
`to_ctranslate2` carry a trained toytrans model over to Hugging Face's Marian and to CTranslate2,
which then compute the same logits. Sources are lists of ids as the encoder reads them, EOS
included; answers end with EOS, or without where `most` tokens were not enough; scores are sums of
log-probabilities / length^alpha, EOS counted in the length, which both count so by themselves.
Where their searches differ from ours:

    PAD and BOS   Marian forbids them after its softmax, at no cost to the scores. CTranslate2
                  can only forbid them before it, which changes every score; so they stay allowed
                  there, and no trained model says them.
    who may end   EOS among the best `width` continuations of a step; ours: among 2 width.
    who may win   both rank beams that `most` cuts off with ended ones; ours only if none ended.
    when to stop  CTranslate2: when `width` hypotheses have ended. Marian: when, besides, no beam
                  could overtake the worst of them at the present length. Ours: when none can
                  overtake the best at any length.

Needs `transformers` and `ctranslate2`. Time each in a process of its own: idle threads may spin.
"""

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ctranslate2
import torch
import transformers
from ctranslate2.specs import TransformerSpec
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BartForConditionalGeneration, GenerationConfig, MarianMTModel

from toytrans.config import ModelConfig
from toytrans.data.batches import Batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

Rows = list[list[int]]
"""Ragged rows of ids."""

SPECIALS = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
}

# nn.TransformerEncoder's remarks on its own fast path, which change nothing
warnings.filterwarnings("ignore", "enable_nested_tensor is True|The PyTorch API of nested tensors")

# Training ------------------------------------------------------------------------------------


class PositionedEmbedding(nn.Module):
    """Token embeddings times the root of the width, plus sines and cosines, then dropout."""

    def __init__(self, vocabulary: int, width: int, dropout: float, places: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        angles = torch.arange(places)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        self.table: Tensor
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), 2).flatten(1))

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, D)."""
        tokens = self.embedding(ids) * math.sqrt(self.table.shape[1])
        return self.dropout(tokens + self.table[: ids.shape[1]])  # type: ignore[no-any-return]


class TutorialTransformer(nn.Module):
    """The model of PyTorch's translation tutorial, batch first: post-norm, ReLU, nothing tied."""

    def __init__(
        self, model: ModelConfig, vocabulary: int, dropout: float = 0.1, places: int = 1024
    ) -> None:
        super().__init__()
        width, depths = model.d_model, (model.n_encoder_layers, model.n_decoder_layers)
        self.src_embedding = PositionedEmbedding(vocabulary, width, dropout, places)
        self.tgt_embedding = PositionedEmbedding(vocabulary, width, dropout, places)
        self.transformer = nn.Transformer(
            width, model.n_heads, *depths, model.d_ff, dropout, batch_first=True
        )
        self.generator = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        length, src_pads = tgt_in.shape[1], src == PAD_ID  # True = may not attend
        x = self.transformer(
            self.src_embedding(src),
            self.tgt_embedding(tgt_in),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=src_pads,
            tgt_key_padding_mask=tgt_in == PAD_ID,
            memory_key_padding_mask=src_pads,
        )
        logits: Tensor = self.generator(x)
        return logits


def bart(
    model: ModelConfig, vocabulary: int, dropout: float = 0.1, same: bool = False
) -> BartForConditionalGeneration:
    """Hugging Face's BART of our sizes with random weights. By default it takes GELU and drops
    neither attention weights nor what is inside feed-forward; `same`: as ours, ReLU and both."""
    ours = {"activation_function": "relu", "attention_dropout": dropout}
    config = transformers.BartConfig(
        vocab_size=vocabulary,
        dropout=dropout,
        **(ours | {"activation_dropout": dropout} if same else {}),
        **_sizes(model),
    )
    return BartForConditionalGeneration(config)


class PeerTrainer:
    """A peer with the optimiser that its users take.

    The tutorial's: Adam with its betas and epsilon, fused if asked for. BART: fused AdamW without
    weight decay, which is the default of Hugging Face's Trainer. Neither has a schedule. clip:
    largest norm of the gradient; the tutorial has none, Hugging Face's Trainer 1.
    """

    def __init__(
        self,
        model: TutorialTransformer | BartForConditionalGeneration,
        precision: Literal["fp32", "bf16"],
        clip: float | None,
        fused: bool,
    ) -> None:
        self.model, self.precision, self.clip = model.train(), precision, clip
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD_ID)
        weights = model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(weights, 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=fused or None)
            if isinstance(model, TutorialTransformer)
            else torch.optim.AdamW(weights, 1e-4, weight_decay=0.0, fused=True)
        )

    def step(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> None:
        """One update from src (B, S), tgt_in (B, T), tgt_out (B, T)."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.loss(src, tgt_in, tgt_out)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()

    def loss(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        """Mean cross entropy over real target tokens, a scalar."""
        if isinstance(self.model, TutorialTransformer):
            logits = self.model(src, tgt_in)
            loss: Tensor = self.criterion(logits.flatten(0, 1), tgt_out.flatten())
        else:
            real, labels = src != PAD_ID, tgt_out.masked_fill(tgt_out == PAD_ID, -100)
            loss = self.model(src, real.long(), decoder_input_ids=tgt_in, labels=labels).loss
        return loss


def loader(pairs: Pairs, rows: int, seed: int) -> Iterator[Batch]:
    """Endless batches of `rows` pairs from a shuffled DataLoader, padded to their longest.

    As in the tutorial and in BART's own shift, tgt_in is a padded target less its last column:
    rows that are not the longest keep their EOS in it, where the loss looks at nothing.
    """
    bos, eos = torch.tensor([BOS_ID]), torch.tensor([EOS_ID])
    lengths = zip(pairs.src_length.tolist(), pairs.tgt_length.tolist(), strict=True)
    dataset: Any = [
        (torch.cat((pairs.src[i, :s], eos)), torch.cat((bos, pairs.tgt[i, :t], eos)))
        for i, (s, t) in enumerate(lengths)
    ]
    order = torch.Generator().manual_seed(seed)
    batches: Any = DataLoader(dataset, rows, shuffle=True, collate_fn=_collate, generator=order)
    while True:
        yield from batches


def _collate(samples: Sequence[tuple[Tensor, Tensor]]) -> Batch:
    """B pairs of src (S,) with EOS and tgt (T + 1,) with BOS and EOS -> Batch."""
    sides = zip(*samples, strict=True)
    src, tgt = (pad_sequence(list(rows), batch_first=True, padding_value=PAD_ID) for rows in sides)
    return Batch(src, tgt[:, :-1], tgt[:, 1:])


def _sizes(model: ModelConfig) -> dict[str, Any]:
    """Settings that BartConfig and MarianConfig share."""
    sizes: dict[str, Any] = {"d_model": model.d_model, "forced_eos_token_id": None}
    depths = {"encoder": model.n_encoder_layers, "decoder": model.n_decoder_layers}
    for side, depth in depths.items():
        sizes |= {f"{side}_layers": depth, f"{side}_attention_heads": model.n_heads}
        sizes[f"{side}_ffn_dim"] = model.d_ff
    return sizes | SPECIALS


# Decoding: Hugging Face's Marian ---------------------------------------------------------------


@torch.no_grad()
def to_marian(model: Transformer, places: int = 1024) -> MarianMTModel:
    """A MarianMTModel, in eval mode, with the weights of a toytrans model in its dtype.

    Marian's own sinusoidal table has all sines before all cosines; it is overwritten with ours,
    which has them in turn. places: how many of its rows there are.
    """
    table, tied = _position_table(model, places), model.config.tie_embeddings
    config = transformers.MarianConfig(
        vocab_size=len(model.output.weight),
        max_position_embeddings=places,
        activation_function="relu",
        dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=tied,
        tie_word_embeddings=tied,
        **_sizes(model.config),
    )
    marian = MarianMTModel(config).to(model.dtype)
    weights = {
        "final_logits_bias": marian.final_logits_bias,  # zero
        "lm_head.weight": model.output.weight,
        "model.encoder.embed_tokens.weight": model.src_embedding.weight,
        "model.decoder.embed_tokens.weight": model.tgt_embedding.weight,
        "model.encoder.embed_positions.weight": table,
        "model.decoder.embed_positions.weight": table,
    }
    if tied:
        weights["model.shared.weight"] = model.src_embedding.weight
    for side, stack in (("encoder", model.encoder_stack()), ("decoder", model.decoder_stack())):
        for number, layer in enumerate(stack):
            for name, values in _marian_layer(layer).items():
                weights[f"model.{side}.layers.{number}.{name}"] = values
    marian.load_state_dict(weights)  # strict: nothing is left over on either side
    marian.generation_config = GenerationConfig(suppress_tokens=[PAD_ID, BOS_ID], **SPECIALS)
    return marian.eval()


def _marian_layer(layer: Any) -> dict[str, Tensor]:
    """One layer's weights under Marian's names; our Q, K and V are rows of one projection."""
    modules = {"self_attn": layer.self_attention}
    if hasattr(layer, "cross_attention"):
        modules["encoder_attn"] = layer.cross_attention
    norms = [f"{name}_layer_norm" for name in (*modules, "final")]
    modules |= {"fc1": layer.feed_forward[0], "fc2": layer.feed_forward[3]}
    modules |= zip(norms, (part.norm for part in layer.residuals), strict=True)
    found = {}
    for name, module in modules.items():
        for key, values in module.state_dict().items():
            parts = zip("qkv", values.chunk(3), strict=True) if "in_proj" in key else [("", values)]
            for letter, part in parts:
                found[f"{name}.{key.replace('in_', f'{letter}_')}"] = part
    return found


@dataclass(frozen=True)
class Marian:
    """Greedy and beam search by `generate`; all sources of a call are one padded batch."""

    model: MarianMTModel

    def greedy(self, src: Rows, most: int) -> Rows:
        """The likeliest token at every step, at most `most` of them."""
        return _cut(self._generate(src, most, num_beams=1))

    def beam(
        self, src: Rows, width: int, alpha: float, most: int, *, scored: bool
    ) -> tuple[Rows, list[float] | None]:
        """The best hypotheses and, if `scored`, their scores, for which `generate` keeps a copy of
        each step's log-probabilities (B width, V)."""
        scores = {"output_scores": scored, "return_dict_in_generate": True}
        found = self._generate(src, most, num_beams=width, length_penalty=alpha, **scores)
        return _cut(found.sequences), found.sequences_scores.tolist() if scored else None

    @torch.inference_mode()
    def _generate(self, src: Rows, most: int, **options: Any) -> Any:
        ids, _ = pad_rows(src)
        options |= {"attention_mask": (ids != PAD_ID).long(), "max_new_tokens": most}
        return self.model.generate(ids, do_sample=False, **options)


def _cut(tokens: Tensor) -> Rows:
    """BOS and ids (B, 1 + L) -> rows without BOS, up to and with EOS; any id may follow it."""
    rows = tokens[:, 1:].tolist()
    return [row[: row.index(EOS_ID) + 1] if EOS_ID in row else row for row in rows]


# Decoding: CTranslate2 -------------------------------------------------------------------------


@torch.no_grad()
def to_ctranslate2(model: Transformer, directory: Path, places: int = 1024) -> None:
    """Write a toytrans model as a CTranslate2 model of float32 weights.

    Its tokens are <pad>, <s>, </s> and the other ids in decimals; CTranslate2 wants an unknown
    token, for which <pad> stands. places: rows of the table of positions, which is ours.
    """
    table = _array(_position_table(model, places))
    encoder, decoder = model.encoder_stack(), model.decoder_stack()
    depths = len(encoder), len(decoder)  # by default: ReLU, embeddings times the root of D
    spec = TransformerSpec.from_config(depths, model.config.n_heads, pre_norm=False)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    spec.decoder.projection.weight = _array(model.output.weight)
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = table
    layers = [*spec.encoder.layer, *spec.decoder.layer]
    for theirs, layer in zip(layers, [*encoder, *decoder], strict=True):
        _fill_layer(theirs, layer)
    names = ["<pad>", "<s>", "</s>", *map(str, range(3, len(model.output.weight)))]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = names[:3]
    spec.config.decoder_start_token = names[BOS_ID]
    spec.config.layer_norm_epsilon = encoder[0].residuals[0].norm.eps
    spec.validate()
    spec.optimize()
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def _fill_layer(theirs: Any, layer: Any) -> None:
    """One layer's weights; self-attention has Q, K and V in one, cross-attention K and V."""
    width = layer.self_attention.out_proj.out_features
    attentions = [(theirs.self_attention, layer.self_attention, [3 * width])]
    if hasattr(layer, "cross_attention"):
        attentions.append((theirs.attention, layer.cross_attention, [width, 2 * width]))
    inner, outer = layer.feed_forward[0], layer.feed_forward[3]
    linears = [(theirs.ffn.linear_0, inner.weight, inner.bias)]
    linears.append((theirs.ffn.linear_1, outer.weight, outer.bias))
    for spec, ours, split in attentions:
        weights = (*ours.in_proj.weight.split(split), ours.out_proj.weight)
        biases = (*ours.in_proj.bias.split(split), ours.out_proj.bias)
        linears += zip(spec.linear, weights, biases, strict=True)
    for linear, weight, bias in linears:
        linear.weight, linear.bias = _array(weight), _array(bias)
    norms = (*(spec.layer_norm for spec, *_ in attentions), theirs.ffn.layer_norm)
    for norm, residual in zip(norms, layer.residuals, strict=True):
        norm.gamma, norm.beta = _array(residual.norm.weight), _array(residual.norm.bias)


def _array(values: Tensor) -> Any:
    return values.detach().float().numpy()


class CTranslate2:
    """Greedy and beam search by `translate_batch`, which sorts a call's sources by length and cuts
    them into as many batches as there are workers. Its tokens are strings: each is looked up on its
    way in and out. int8: the weights are quantised while loading."""

    def __init__(
        self,
        directory: Path,
        compute_type: Literal["float32", "int8"],
        workers: int,
        threads: int,
    ) -> None:
        self.translator = ctranslate2.Translator(
            str(directory), compute_type=compute_type, inter_threads=workers, intra_threads=threads
        )
        self.workers = workers
        self.names = json.loads((directory / "shared_vocabulary.json").read_text())
        self.ids = {name: number for number, name in enumerate(self.names)}

    def greedy(self, src: Rows, most: int) -> Rows:
        """The likeliest token at every step, at most `most` of them."""
        return self._translate(src, most, beam_size=1)[0]

    def beam(
        self, src: Rows, width: int, alpha: float, most: int, *, scored: bool
    ) -> tuple[Rows, list[float]]:
        """The best hypotheses and their scores, which cost nothing."""
        return self._translate(src, most, beam_size=width, length_penalty=alpha, return_scores=True)

    def _translate(self, src: Rows, most: int, **options: Any) -> tuple[Rows, list[float]]:
        """The best hypotheses, and their scores where options ask for them."""
        found = self.translator.translate_batch(
            [[self.names[i] for i in row] for row in src],
            max_batch_size=-(-len(src) // self.workers),
            max_input_length=0,
            max_decoding_length=most,
            min_decoding_length=0,  # 1 would forbid an empty answer
            return_end_token=True,
            **options,
        )
        rows = [[self.ids[name] for name in result.hypotheses[0]] for result in found]
        return rows, [result.scores[0] for result in found if result.scores]


def _position_table(model: Transformer, places: int) -> Tensor:
    """What a model's positions add to embeddings: (places, D). Refuses models that do not fit."""
    config = model.config
    if (config.positions, config.norm, config.activation) != ("sinusoidal", "post", "relu"):
        raise ValueError("only models of sinusoidal positions, post-norm and ReLU fit")
    return model.positions.embed(torch.zeros(1, places, config.d_model, dtype=model.dtype))[0]
