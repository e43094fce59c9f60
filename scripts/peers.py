"""What toytrans is measured against: peers in training, and peers in decoding its weights.

Training: the transformer of PyTorch's tutorial "Language Translation with nn.Transformer" and
Hugging Face's BART, each fed and stepped as its users do. Decoding: `toytrans.export` carries a
trained model over to Hugging Face's Marian and to CTranslate2, which then compute the same logits.
Sources are lists of ids as the encoder reads them, EOS included; answers end with EOS, or without
where `most` tokens were not enough; scores are sums of log-probabilities / length^alpha, EOS
counted in the length, which both count so by themselves. Where their searches differ from ours:

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

import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BartForConditionalGeneration, MarianMTModel

from toytrans.config.schema import ModelConfig
from toytrans.data.batches import Batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.export.huggingface import SPECIALS
from toytrans.export.shared import Rows, cut
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

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
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=src.device).triu(1),
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
        with torch.autocast(src.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
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
    """Sizes and ids for BartConfig."""
    sizes: dict[str, Any] = {"d_model": model.d_model, "forced_eos_token_id": None}
    depths = {"encoder": model.n_encoder_layers, "decoder": model.n_decoder_layers}
    for side, depth in depths.items():
        sizes |= {f"{side}_layers": depth, f"{side}_attention_heads": model.n_heads}
        sizes[f"{side}_ffn_dim"] = model.d_ff
    return sizes | SPECIALS


# Decoding: Hugging Face's Marian ---------------------------------------------------------------


@dataclass(frozen=True)
class Marian:
    """Greedy and beam search by `generate`; all sources of a call are one padded batch."""

    model: MarianMTModel

    def greedy(self, src: Rows, most: int) -> Rows:
        """The likeliest token at every step, at most `most` of them."""
        return cut(self._generate(src, most, num_beams=1)[:, 1:].tolist())

    def beam(
        self, src: Rows, width: int, alpha: float, most: int, *, scored: bool
    ) -> tuple[Rows, list[float] | None]:
        """The best hypotheses and, if `scored`, their scores, for which `generate` keeps a copy of
        each step's log-probabilities (B width, V)."""
        scores = {"output_scores": scored, "return_dict_in_generate": True}
        found = self._generate(src, most, num_beams=width, length_penalty=alpha, **scores)
        rows = cut(found.sequences[:, 1:].tolist())
        return rows, found.sequences_scores.tolist() if scored else None

    @torch.inference_mode()
    def _generate(self, src: Rows, most: int, **options: Any) -> Any:
        ids = pad_rows(src)[0].to(self.model.device)
        options |= {"attention_mask": (ids != PAD_ID).long(), "max_new_tokens": most}
        return self.model.generate(ids, do_sample=False, **options)


# Decoding: CTranslate2 -------------------------------------------------------------------------


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
        import ctranslate2  # a machine with a GPU may lack it: it is a peer on a CPU alone

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
            [[self.names[i] for i in row if i != EOS_ID] for row in src],  # it adds EOS
            max_batch_size=-(-len(src) // self.workers),
            max_input_length=0,
            max_decoding_length=most,
            min_decoding_length=0,  # 1 would forbid an empty answer
            return_end_token=True,
            **options,
        )
        rows = [[self.ids[name] for name in result.hypotheses[0]] for result in found]
        return rows, [result.scores[0] for result in found if result.scores]
