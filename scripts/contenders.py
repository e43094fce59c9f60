"""Who is measured beside whom: toytrans and its peers, as a step of training or a way to decode.

    Training -> config, batches, a step -> `measure` -> tokens per second
    Decoding -> the same weights in each library -> tokens and scores

`bench.py` races them on a CPU, `gpu_check.py` on a GPU. Hugging Face's transformers and CTranslate2
are imported by the functions that need them, so that a machine which lacks one of them can measure
everything else.
"""

import contextlib
import itertools
import json
import math
import os
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import toytrans
from toytrans.config.schema import Config, ModelSettings, Settings
from toytrans.data.batches import Batch, DealtBatch, training_batches
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Dataset, Pairs, pad_rows
from toytrans.exports import Rows, to_ctranslate2, to_huggingface
from toytrans.model.build import as_transformer
from toytrans.model.decoding import search
from toytrans.resolve import resolve
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.devices import choose_device, choose_precision
from toytrans.training.graphs import CudaSteps, cuda_capture
from toytrans.training.session import new_model
from toytrans.training.trainer import Trainer

THREADS = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))
PEERS = ("nn.Transformer", "BART")
Row = dict[str, Any]

BEFOREHAND = 20
"""Batches that are made before the clock starts, where they are."""


# Training ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A model, and the lengths it is trained on."""

    d_model: int
    layers: int
    heads: int
    longest: int

    @property
    def name(self) -> str:
        return f"d {self.d_model}, {self.layers}+{self.layers}, 1..{self.longest}"

    @property
    def tokens_of_a_pair(self) -> int:
        """S + T of a pair of mean length, with its ends."""
        return self.longest + 3


@dataclass(frozen=True)
class Training:
    """Who trains on what.

    who: ours | nn.Transformer | BART.
    rows: pairs of a batch on average; None = the config's own batches.
    bucketed: batches hold pairs of like length, with about so many rows.
    same: everybody gets the very same padded batches, made beforehand, clips its gradients and has
        a fused optimiser. BART has our activation, and dropout in our places.
    positions: those of ours.
    tuned: a peer gets our settings of the process, a fused optimiser, and in bf16 attention without
        torch's fused kernel, which BART takes there and which is several times slower on a CPU.
    device: cpu | cuda. captured: ours is captured as CUDA graphs.
    """

    who: str
    size: Size
    rows: int | None = 64
    precision: str = "fp32"
    dropout: float = 0.1
    bucketed: bool = False
    same: bool = False
    positions: str = "sinusoidal"
    tuned: bool = False
    device: str = "cpu"
    captured: bool = False
    threads: int = THREADS


Step = Callable[[Batch], object]


def contender(spec: Training) -> tuple[Step, Iterator[Batch]]:
    """The training step of a contender, and its endless batches."""
    config = config_of(spec)
    dataset = open_dataset(config)
    step = our_step(spec, config) if spec.who == "ours" else peer_step(spec, config)
    return step, batches_of(spec, config, dataset)


def measure(
    step: Step,
    batches: Iterator[Batch],
    seconds: float,
    met: Counter[Any],
    device: str = "cpu",
    most: float = 300.0,
) -> Row:
    """Real target tokens per second over whole steps, while no shape is new.

    A shape is new the first two times, in which CUDA graphs are captured and kernels are generated
    or chosen. Steps are timed in stretches, since a GPU is only asked for its work when a step
    returns; a stretch with a new shape in it counts as a start, not for the rate.

    met: how often each shape was met; it is carried on from one measurement to the next.
    most: seconds of starts after which a RuntimeError is raised.
    """
    longest = 10 if device == "cuda" else 1
    steps = tokens = 0
    steady = starting = 0.0
    while steady < seconds:
        began, taken, real, is_new = time.perf_counter(), 0, 0, False
        while taken < longest and time.perf_counter() - began < max(seconds, 0.1):
            batch = next(batches)
            shape = *batch.src.shape, batch.tgt_in.shape[1]
            met[shape] += 1
            is_new |= met[shape] <= 2
            step(batch)
            taken, real = taken + 1, real + batch.target_tokens
        wait()
        passed = time.perf_counter() - began
        if is_new:
            starting += passed
            if starting > most:
                raise RuntimeError(f"every stretch of {starting:.0f} s had a new shape")
            continue
        steps, tokens, steady = steps + taken, tokens + real, steady + passed
    return {
        "rate": tokens / steady,
        "step_ms": 1e3 * steady / steps,
        "steps": steps,
        "starting_s": starting,
        "shapes": len(met),
    }


def wait() -> None:
    """Until a GPU has done what it was asked for."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def config_of(spec: Training) -> Settings:
    """The config of a size: reverse, 100 symbols, everything else by default."""
    size = spec.size
    model = {
        "d_model": size.d_model,
        "d_ff": 4 * size.d_model,
        "n_heads": size.heads,
        "n_encoder_layers": size.layers,
        "n_decoder_layers": size.layers,
        "positions": spec.positions,
        "norm": "pre",
        "dropout": spec.dropout,
    }
    data: Row = {"task": "reverse", "symbols": 100, "train_length": [1, size.longest]}
    if spec.rows is not None:
        data["batch_tokens"] = spec.rows * size.tokens_of_a_pair
    train = {"max_steps": 10**6, "precision": spec.precision}
    return resolve(Config.model_validate({"data": data, "model": model, "train": train}))


def batches_of(spec: Training, config: Settings, dataset: Dataset) -> Iterator[Batch]:
    """Endless batches of a contender, each made when it is asked for.

    Where all get the `same`, and for the peers on a GPU, some are made beforehand and come again
    and again: a loader in the step's process would keep a GPU waiting.
    """
    if spec.rows is None or spec.bucketed:
        return (batch for batch, _ in training_batches(dataset, config))
    pairs = dataset.pairs("train", torch.arange(BEFOREHAND * spec.rows))
    batches = (batch.to(spec.device) for batch in loader(pairs, spec.rows))
    if not spec.same and spec.device == "cpu":
        return batches
    return itertools.cycle(list(itertools.islice(batches, BEFOREHAND)))


def loader(pairs: Pairs, rows: int) -> Iterator[Batch]:
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

    def collate(samples: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        src, tgt = (
            pad_sequence(list(side), batch_first=True, padding_value=PAD_ID)
            for side in zip(*samples, strict=True)
        )
        return Batch(src, tgt[:, :-1], tgt[:, 1:])

    order = torch.Generator().manual_seed(0)
    batches: Any = DataLoader(dataset, rows, shuffle=True, collate_fn=collate, generator=order)
    while True:
        yield from batches


def our_step(spec: Training, config: Settings) -> Step:
    """The step of `toytrans train`: forward, loss, backward, clip, AdamW."""
    device, dataset = choose_device(spec.device), open_dataset(config)
    precision = choose_precision(config.train.precision, device, config.model.d_model)
    model = new_model(config, dataset, precision, device).train()
    cuda_steps = None
    if device.type == "cuda":
        cuda_steps = CudaSteps(device, cuda_capture(device) if spec.captured else None, print)
    trainer = Trainer(config, dataset, model, precision, cuda_steps=cuda_steps)
    return lambda batch: trainer.take_step([DealtBatch(batch, 0)])


def peer_step(spec: Training, config: Settings) -> Step:
    """The step of a peer, with the optimiser that its users take and no schedule.

    The tutorial's: Adam with its betas and epsilon, fused if asked for, no clipping. BART: fused
    AdamW without weight decay, which is the default of Hugging Face's Trainer, clipped to norm 1.
    """
    # nn.TransformerEncoder's remarks on its own fast path, which change nothing
    warnings.filterwarnings("ignore", "enable_nested_tensor is True|The PyTorch API of nested")
    vocabulary = len(open_dataset(config).facts.vocabulary)
    tutorial = spec.who == "nn.Transformer"
    make: Any = TutorialTransformer if tutorial else bart
    model = make(config.model, vocabulary, spec).to(spec.device).train()
    weights, fused = model.parameters(), spec.same or spec.tuned
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(weights, 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=fused or None)
        if tutorial
        else torch.optim.AdamW(weights, 1e-4, weight_decay=0.0, fused=True)
    )
    criterion = nn.CrossEntropyLoss(ignore_index=PAD_ID)
    in_bf16 = spec.precision == "bf16"

    def loss_of(src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        """Mean cross entropy over real target tokens."""
        if tutorial:
            return criterion(model(src, tgt_in).flatten(0, 1), tgt_out.flatten())
        real, labels = src != PAD_ID, tgt_out.masked_fill(tgt_out == PAD_ID, -100)
        return model(src, real.long(), decoder_input_ids=tgt_in, labels=labels).loss

    def step(batch: Batch) -> None:
        with sdpa_kernel(SDPBackend.MATH) if spec.tuned and in_bf16 else contextlib.nullcontext():
            optimizer.zero_grad()
            with torch.autocast(spec.device, torch.bfloat16, enabled=in_bf16):
                loss = loss_of(**batch.to(spec.device).named())
            loss.backward()
            if spec.same or not tutorial:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return step


class PositionedEmbedding(nn.Module):
    """Token embeddings times the root of the width, plus sines and cosines, then dropout."""

    def __init__(self, vocabulary: int, width: int, dropout: float, places: int = 1024) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        angles = torch.arange(places)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        self.table: Tensor
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), 2).flatten(1))

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, D)."""
        tokens = self.embedding(ids) * math.sqrt(self.table.shape[1])
        return self.dropout(tokens + self.table[: ids.shape[1]])


class TutorialTransformer(nn.Module):
    """The model of PyTorch's tutorial "Language Translation with nn.Transformer", batch first:
    post-norm, ReLU, nothing tied."""

    def __init__(self, model: ModelSettings, vocabulary: int, spec: Training) -> None:
        super().__init__()
        width, depths = model.d_model, (model.n_encoder_layers, model.n_decoder_layers)
        self.src_embedding = PositionedEmbedding(vocabulary, width, spec.dropout)
        self.tgt_embedding = PositionedEmbedding(vocabulary, width, spec.dropout)
        self.transformer = nn.Transformer(
            width, model.n_heads, *depths, model.d_ff, spec.dropout, batch_first=True
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
        return self.generator(x)


def bart(model: ModelSettings, vocabulary: int, spec: Training) -> nn.Module:
    """Hugging Face's BART of our sizes with random weights. By default it takes GELU and drops
    neither attention weights nor what is inside feed-forward; `same`: as ours, ReLU and both."""
    import transformers  # a machine with a GPU may lack it

    dropped = {"attention_dropout": spec.dropout, "activation_dropout": spec.dropout}
    sides = {"encoder": model.n_encoder_layers, "decoder": model.n_decoder_layers}
    config = transformers.BartConfig(
        vocab_size=vocabulary,
        d_model=model.d_model,
        dropout=spec.dropout,
        forced_eos_token_id=None,
        **({"activation_function": "relu"} | dropped if spec.same else {}),
        **{f"{side}_layers": depth for side, depth in sides.items()},
        **{f"{side}_attention_heads": model.n_heads for side in sides},
        **{f"{side}_ffn_dim": model.d_ff for side in sides},
        **to_huggingface.SPECIALS,
    )
    return transformers.BartForConditionalGeneration(config)


# Decoding ------------------------------------------------------------------------------------
#
# Sources are lists of ids as the encoder reads them, EOS included; answers end with EOS, or without
# where `most` tokens were not enough; scores are sums of log-probabilities / length, EOS counted in
# the length. Where the searches of the peers differ from ours:
#
#     PAD and BOS   Marian forbids them after its softmax, at no cost to the scores. CTranslate2
#                   can only forbid them before it, which changes every score; so they stay allowed
#                   there, and no trained model says them.
#     who may end   EOS among the best `width` continuations of a step; ours: among 2 width.
#     who may win   both rank beams that `most` cuts off with ended ones; ours only if none ended.
#     when to stop  CTranslate2: when `width` hypotheses have ended. Marian: when, besides, no beam
#                   could overtake the worst of them at the present length. Ours: when none can
#                   overtake the best at any length.

WIDTH = 5
"""Beams of a beam search."""

Found = tuple[Rows, list[float] | None]


@dataclass(frozen=True)
class Decoding:
    """Who decodes the weights of a run. who: ours | CTranslate2 float32 | CTranslate2 int8 |
    HF generate. threads: of each of the workers, which CTranslate2 alone has more than one of."""

    who: str
    run: str
    folder: str
    threads: int = THREADS
    workers: int = 1
    device: str = "cpu"
    tuned: bool = False


def decoder(spec: Decoding) -> Callable[..., Any]:
    """Answers ("greedy" | "beam" | "scored beam", sources, most tokens, seconds): tokens, scores
    (of "beam" where they cost nothing), tokens a second over as many repetitions as take that long.
    """
    run = toytrans.load(spec.run, "last", spec.device)
    if spec.who == "ours":
        decode = our_decoder(run.model, spec.device)
    elif spec.who == "HF generate":
        decode = marian(to_huggingface.converted(as_transformer(run.model)).to(spec.device))
    else:
        folder = Path(tempfile.mkdtemp(dir=spec.folder))
        to_ctranslate2.write(run, folder)
        decode = ctranslate2(folder, spec)

    def answer(how: str, sources: Rows, most: int, least: float = 0.0) -> Any:
        time.sleep(0.2)  # until the threads of the one before have stopped to spin
        began, tokens = time.perf_counter(), 0
        while not tokens or time.perf_counter() - began < least:
            rows, scores = decode(how, sources, most)
            tokens += sum(map(len, rows))
        return rows, scores, tokens / (time.perf_counter() - began)

    return answer


def our_decoder(model: Any, device: str) -> Callable[[str, Rows, int], Found]:
    def decode(how: str, sources: Rows, _: int) -> Found:
        src = pad_rows(sources)[0].to(device)
        found = search(model, src, beam=1 if how == "greedy" else WIDTH)
        rows = [[token for token in row if token] for row in found.tokens.tolist()]
        return rows, None if found.score is None else found.score.tolist()

    return decode


def marian(model: Any) -> Callable[[str, Rows, int], Found]:
    """`generate` of a converted model; all sources of a call are one padded batch. For scores it
    keeps a copy of each step's log-probabilities (B width, V)."""

    @torch.inference_mode()
    def decode(how: str, sources: Rows, most: int) -> Found:
        ids, scored = pad_rows(sources)[0].to(model.device), how == "scored beam"
        beams: Row = {"num_beams": 1 if how == "greedy" else WIDTH}
        beams |= {} if how == "greedy" else {"length_penalty": 1.0, "output_scores": scored}
        found = model.generate(
            ids,
            attention_mask=(ids != PAD_ID).long(),
            max_new_tokens=most,
            do_sample=False,
            return_dict_in_generate=True,
            **beams,
        )
        rows = found.sequences[:, 1:].tolist()  # beams that have ended repeat EOS
        rows = [row[: row.index(EOS_ID) + 1] if EOS_ID in row else row for row in rows]
        return rows, found.sequences_scores.tolist() if scored else None

    return decode


def ctranslate2(folder: Path, spec: Decoding) -> Callable[[str, Rows, int], Found]:
    """`translate_batch` sorts a call's sources by length and cuts them into as many batches as
    there are workers. Its tokens are strings: each is looked up on its way in and out. int8: the
    weights are quantised while loading."""
    from ctranslate2 import Translator  # a machine with a GPU may lack it: a peer on a CPU alone

    kind = spec.who.split()[1]
    threads = {"inter_threads": spec.workers, "intra_threads": spec.threads}
    translator = Translator(str(folder), compute_type=kind, **threads)
    names = json.loads((folder / "shared_vocabulary.json").read_text())
    ids = {name: number for number, name in enumerate(names)}

    def decode(how: str, sources: Rows, most: int) -> Found:
        beams = {"beam_size": WIDTH, "length_penalty": 1.0, "return_scores": True}
        found = translator.translate_batch(
            [[names[i] for i in row if i != EOS_ID] for row in sources],  # it adds EOS
            max_batch_size=-(-len(sources) // spec.workers),
            max_input_length=0,
            max_decoding_length=most,
            min_decoding_length=0,  # 1 would forbid an empty answer
            return_end_token=True,
            **({"beam_size": 1} if how == "greedy" else beams),
        )
        rows = [[ids[name] for name in result.hypotheses[0]] for result in found]
        return rows, [result.scores[0] for result in found if result.scores]

    return decode


def random_sources(rows: int, low: int, high: int) -> Rows:
    draw = random.Random(rows)
    lengths = [draw.randint(low, high) for _ in range(rows)]
    last = FIRST_SYMBOL_ID + 99
    return [
        [draw.randint(FIRST_SYMBOL_ID, last) for _ in range(length)] + [EOS_ID]
        for length in lengths
    ]
