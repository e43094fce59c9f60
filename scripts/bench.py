"""Measure toytrans and its peers in one run, interleaved (A B A B); medians and ratios.

    python scripts/bench.py [--only training decoding] [--quick]
    python scripts/bench.py --device cuda [--only training decoding] [--sizes 64] [--tokens 4096]

Needs the extra `bench`. The peers: PyTorch's tutorial trainer around nn.Transformer and Hugging
Face's BART in training, CTranslate2 and Hugging Face's Marian in decoding. Every contender is a
process of its own, in decoding with as many threads and workers as suit it best; rates of training
are real target tokens a second over whole steps: data (made beforehand for the same work), forward,
backward, clip (the tutorial's trainer has none, and gets one for the same work alone), optimiser.
On a GPU contenders run one after the other: it has no neighbours, and memory for one large model.
On a shared machine only ratios within one run mean much.
"""

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import toytrans
from toytrans.config.schema import Config, ModelConfig
from toytrans.data.batches import Batch, training_batches
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.doctor.machine import installed
from toytrans.export import Rows, to_ctranslate2, to_huggingface
from toytrans.model.build import as_transformer
from toytrans.model.decoding import search
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.devices import choose_precision, processor_name, tune_process
from toytrans.training.graphs import GraphedUpdate, cuda_capture, most_places
from toytrans.training.step import AdamW, Update

THREADS = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))
PEERS = ("nn.Transformer", "BART")
Options = argparse.Namespace
Row = dict[str, Any]


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


SIZES = {
    "cpu": (Size(64, 2, 4, 25), Size(128, 2, 4, 20), Size(256, 3, 8, 40)),
    "cuda": (Size(64, 2, 4, 25), Size(256, 3, 8, 40), Size(1024, 6, 16, 40)),
}
WIDTHS = sorted({size.d_model for sizes in SIZES.values() for size in sizes})
TOKENS = (4096, 16_384, 65_536)
ROWS = {"cpu": (64, 512), "cuda": (64, 512, 4096)}
"""Sources that are decoded together."""


@dataclass(frozen=True)
class Training:
    """Who trains on what. who: ours | nn.Transformer | BART. rows: None = the config's own
    batches; bucketed: batches of like length with about so many rows. same: the very same padded
    batches whoever asks, made beforehand, all clipped and with fused optimisers, BART with our
    activation and dropout in our places. positions: of ours. tuned: a peer with our settings of the
    process, a fused optimiser, and in bf16 attention without torch's fused kernel, which BART takes
    there and which is several times slower. device: cpu | cuda. recorded: ours as CUDA graphs."""

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
    recorded: bool = False
    threads: int = THREADS


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


Spec = Training | Decoding


class Contender:
    """A process that does one thing; `ask` has it do that and waits.

    A process of its own keeps apart what holds for a whole process: ours sets how memory is given
    back and which library multiplies fp32, the peers run as torch comes unless they are `tuned`.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, spec), daemon=True)
        environment = {"OMP_NUM_THREADS": str(spec.threads)}  # read when torch is loaded
        if spec.who == "ours" or spec.tuned:
            environment["GOMP_SPINCOUNT"] = "2000"  # as the command line does
        with patch.dict(os.environ, environment):
            self._process.start()
        other.close()

    def ask(self, *question: Any) -> Any:
        """The answer to a question; its process ends with an error it cannot answer."""
        try:
            self._line.send(question)
            return self._line.recv()
        except (EOFError, OSError):
            raise SystemExit(f"{self._spec}: its process has ended, see above") from None

    def close(self) -> None:
        self._line.close()
        self._process.join(10)
        self._process.kill()


def _serve(line: Any, spec: Spec) -> None:
    # nn.TransformerEncoder's remarks on its own fast path, which change nothing
    warnings.filterwarnings("ignore", "enable_nested_tensor is True|The PyTorch API of nested")
    torch.manual_seed(0)
    torch.set_num_threads(spec.threads)
    if spec.who == "ours" or spec.tuned:
        tune_process()
    answer = _trainer(spec) if isinstance(spec, Training) else _decoder(spec)
    with contextlib.suppress(EOFError):
        while True:
            line.send(answer(*line.recv()))


# A contender in training ---------------------------------------------------------------------


def config_of(spec: Training) -> Config:
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
        data["batch_tokens"] = spec.rows * (size.longest + 3)  # S + T of a pair of mean length
    train = {"max_steps": 10**6, "precision": spec.precision}
    return Config.model_validate({"data": data, "model": model, "train": train})


def _batches(spec: Training, config: Config, source: Any) -> Iterator[Batch]:
    """Endless batches, made as they are asked for; `same`, and those of a GPU's peers: a hundred
    made beforehand, since a loader in the step's process would keep a GPU waiting."""
    if spec.rows is None or spec.bucketed:
        return (dealt[0] for dealt in training_batches(source, config, 0, spec.device))
    pairs = source.pairs("train", torch.arange(100 * spec.rows))
    batches = (batch.to(spec.device) for batch in loader(pairs, spec.rows))
    beforehand = spec.same or spec.device != "cpu"
    return itertools.cycle(list(itertools.islice(batches, 100))) if beforehand else batches


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


def _trainer(spec: Training) -> Callable[..., Any]:
    """Answers a number of seconds with rates over about that time."""
    config = config_of(spec)
    source = open_dataset(config)
    batches = _batches(spec, config, source)
    step = _our_step(spec, config) if spec.who == "ours" else _peer_step(spec, config)

    def answer(seconds: float) -> Row:
        wait()
        done: list[Batch] = []
        began = time.perf_counter()
        while len(done) < 2 or time.perf_counter() - began < seconds:
            done.append(next(batches))
            step(done[-1])
            if len(done) % 10 == 0:  # else a GPU would be asked for far more than is timed
                wait()
        wait()
        taken = time.perf_counter() - began
        tokens = sum(batch.target_tokens for batch in done)
        return {"rate": tokens / taken, "step_ms": 1e3 * taken / len(done)}

    return answer


def wait() -> None:
    """Until a GPU has done what it was asked for."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _our_step(spec: Training, config: Config) -> Callable[[Batch], None]:
    """The step of `toytrans train`: forward, loss, backward, clip, AdamW."""
    device, facts = torch.device(spec.device), open_dataset(config).facts
    precision = choose_precision(config.train.precision, device, config.model.d_model)
    model = Transformer(config.model, facts.vocabulary).to(device).train()
    optimizer = AdamW(model, config.train.weight_decay)
    update: Any = Update(model, optimizer, device, config.train, precision)
    if spec.recorded:
        places = most_places(config, facts)
        update = GraphedUpdate(cuda_capture(device), update, model, places)
    return lambda batch: update([batch], lr=1e-4)


def _peer_step(spec: Training, config: Config) -> Callable[[Batch], None]:
    """The step of a peer, with the optimiser that its users take and no schedule.

    The tutorial's: Adam with its betas and epsilon, fused if asked for, no clipping. BART: fused
    AdamW without weight decay, which is the default of Hugging Face's Trainer, clipped to norm 1.
    """
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
                loss = loss_of(*batch)
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

    def __init__(self, model: ModelConfig, vocabulary: int, spec: Training) -> None:
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


def bart(model: ModelConfig, vocabulary: int, spec: Training) -> nn.Module:
    """Hugging Face's BART of our sizes with random weights. By default it takes GELU and drops
    neither attention weights nor what is inside feed-forward; `same`: as ours, ReLU and both."""
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


# A contender in decoding ---------------------------------------------------------------------
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
Found = tuple[Rows, list[float] | None]


def _decoder(spec: Decoding) -> Callable[..., Any]:
    """Answers ("greedy" | "beam" | "scored beam", sources, most tokens, seconds): tokens, scores
    (of "beam" where they cost nothing), tokens a second over as many repetitions as take that long.
    """
    run = toytrans.load(spec.run, "last", spec.device)
    if spec.who == "ours":
        decode = _our_decoder(run.model, spec.device)
    elif spec.who == "HF generate":
        decode = _marian(to_huggingface.converted(as_transformer(run.model)).to(spec.device))
    else:
        folder = Path(tempfile.mkdtemp(dir=spec.folder))
        to_ctranslate2.write(run, folder)
        decode = _ctranslate2(folder, spec)

    def answer(how: str, sources: Rows, most: int, least: float = 0.0) -> Any:
        time.sleep(0.2)  # until the threads of the one before have stopped to spin
        began, tokens = time.perf_counter(), 0
        while not tokens or time.perf_counter() - began < least:
            rows, scores = decode(how, sources, most)
            tokens += sum(map(len, rows))
        return rows, scores, tokens / (time.perf_counter() - began)

    return answer


def _our_decoder(model: Any, device: str) -> Callable[[str, Rows, int], Found]:
    def decode(how: str, sources: Rows, _: int) -> Found:
        src = pad_rows(sources)[0].to(device)
        found = search(model, src, beam=1 if how == "greedy" else WIDTH)
        rows = [[token for token in row if token] for row in found.tokens.tolist()]
        return rows, None if found.score is None else found.score.tolist()

    return decode


def _marian(model: Any) -> Callable[[str, Rows, int], Found]:
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


def _ctranslate2(folder: Path, spec: Decoding) -> Callable[[str, Rows, int], Found]:
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


# Tables of training --------------------------------------------------------------------------

TABLES = {
    "as-run": "as people run them: peers 64 random rows, fp32, dropout 0.1; ours the defaults "
    "(buckets, no dropout, precision auto), anchored and sinusoidal",
    "same-work": "same work: the very same padded batches of 64 rows, fp32, dropout 0.1; peers as "
    "they come, and tuned: with our settings of the process",
    "no-dropout": "same work without dropout",
    "best": "each at its best: dropout 0.1, tuned if quicker; rows, precision and buckets of the "
    "sweep's best",
    "gpu": "on a GPU, dropout 0.1: ours in buckets; peers with random rows that are there already",
}
CPU_TABLES = [name for name in TABLES if name != "gpu"]


def training(options: Options, console: Console) -> None:
    """Tables of rates."""
    sizes = [size for size in SIZES[options.device] if size.d_model in options.sizes]
    sizes = sizes[:1] if options.quick else sizes
    on_gpu = options.device == "cuda"
    for name in ("gpu",) if on_gpu else options.tables:
        columns = ("size", "who", "tokens/s", "range", "ms a step", "ours to it")
        table = Table(*columns, title=TABLES[name])
        for size, tokens in itertools.product(sizes, options.tokens if on_gpu else (None,)):
            if tokens:
                specs = gpu_specs(size, tokens)
            elif name == "best":
                specs = at_best(size, options, console)
            else:
                specs = as_run(size) if name == "as-run" else same_work(size, name)
            raced = race(specs, options)
            for spec, answers in zip(specs, raced, strict=True):
                if not answers:
                    continue
                rates, steps = ([a[key] for a in answers] for key in ("rate", "step_ms"))
                both = zip(raced[0], answers, strict=bool(raced[0]))
                ratios = [ours["rate"] / other["rate"] for ours, other in both]
                medians = statistics.median(steps), statistics.median(ratios or [math.nan])
                where = size.name + (f", {tokens:,} tokens" if tokens else "")
                shown = (f"{median:.2f}" for median in medians)
                table.add_row(where, label(spec, name), *spread(rates), *shown)
        console.print(table)


def spread(rates: list[float]) -> tuple[str, str]:
    """Median and range."""
    return f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}..{max(rates):,.0f}"


def as_run(size: Size) -> list[Training]:
    ours = [
        Training("ours", size, None, "auto", 0.0, positions=positions)
        for positions in ("anchored", "sinusoidal")
    ]
    return [*ours, *(Training(who, size) for who in PEERS)]


def same_work(size: Size, table: str) -> list[Training]:
    dropout = 0.0 if table == "no-dropout" else 0.1
    come = [Training(who, size, dropout=dropout, same=True) for who in ("ours", *PEERS)]
    return [*come, *(replace(spec, tuned=True) for spec in come[1:])]


def at_best(size: Size, options: Options, console: Console) -> list[Training]:
    """The quickest of every combination for each side, tried once; of a peer tuned, and its
    quickest as it comes."""
    best = []
    rows = (64,) if options.quick else (64, 256, 1024)
    short = argparse.Namespace(seconds=options.seconds / 2, repeats=1)
    for who in ("ours", *PEERS):
        ways = itertools.product(rows, ("fp32", "bf16"), (False, True))
        specs = [
            Training(who, size, n, precision, bucketed=bucketed, tuned=who != "ours")
            for n, precision, bucketed in ways
        ]
        tried = {spec: race([spec], short)[0][0]["rate"] for spec in specs}
        if who != "ours":
            as_it_comes = replace(max(tried, key=tried.__getitem__), tuned=False)
            tried[as_it_comes] = race([as_it_comes], short)[0][0]["rate"]
        listing = ", ".join(f"{label(spec, 'best')} {rate:,.0f}" for spec, rate in tried.items())
        console.print(f"{size.name}, sweep: {listing}", style="dim")
        best.append(max(tried, key=tried.__getitem__))
    return best


def race(specs: list[Training], options: Options) -> list[list[dict[str, float]]]:
    """Answers of every repetition for each contender, in turn after a warm-up. On a GPU one after
    the other; one whose process ends, say for want of memory, has no answers there."""
    if specs[0].device == "cuda" and len(specs) > 1:
        found: list[list[dict[str, float]]] = []
        for spec in specs:
            try:
                found += race([spec], options)
            except SystemExit as error:
                found.append([])
                print(error, file=sys.stderr)
        return found
    contenders = [Contender(spec) for spec in specs]
    answers: list[list[dict[str, float]]] = [[] for _ in specs]
    for repeat in range(options.repeats + 1):
        for contender, so_far in zip(contenders, answers, strict=True):
            answer = contender.ask(options.seconds)
            if repeat:
                so_far.append(answer)
    for contender in contenders:
        contender.close()
    return answers


def label(spec: Training, table: str) -> str:
    words = [f"{spec.who} {spec.positions}" if spec.who == "ours" else spec.who]
    if table in ("best", "gpu"):
        words += [f"{spec.rows} rows", spec.precision, "buckets" if spec.bucketed else "random"]
    return " ".join(words + ["tuned"] * spec.tuned + ["recorded"] * spec.recorded)


def gpu_specs(size: Size, tokens: int) -> list[Training]:
    """Ours in buckets, as CUDA graphs in each precision and eager in bf16; then the peers, with
    random rows of the same number of padded tokens."""
    rows = max(1, tokens // (size.longest + 3))  # S + T of a pair of mean length
    base = Training("ours", size, rows, bucketed=True, device="cuda")
    ours = [replace(base, precision=kind, recorded=True) for kind in ("bf16", "fp32")]
    peers = [("nn.Transformer", "fp32"), ("nn.Transformer", "bf16"), ("BART", "bf16")]
    return [
        *ours,
        replace(ours[0], positions="anchored"),
        replace(base, precision="bf16"),
        *(replace(base, who=who, precision=kind, bucketed=False) for who, kind in peers),
    ]


# Tables of decoding --------------------------------------------------------------------------

DECODERS = {
    "cpu": ("ours", "CTranslate2 float32", "CTranslate2 int8", "HF generate"),
    "cuda": ("ours", "HF generate"),
}
DECODING_CONFIG = """
data: {task: reverse, symbols: 100, train_length: [1, 20], batch_tokens: 2048}
model: {d_model: 128, positions: sinusoidal, norm: post}
train: {max_steps: STEPS, lr: 1e-3, warmup_steps: 300}
"""


def decoding(options: Options, console: Console) -> None:
    """The same trained weights in every runtime: equal tokens and scores, then speed, each with
    as many threads and workers as suit it best."""
    least = options.seconds if options.device == "cuda" else 1.0
    with tempfile.TemporaryDirectory() as folder:
        run = trained(Path(folder), options)
        questions = {
            (rows, how): (how, random_sources(rows, 20, 20), 50, least)
            for rows, how in itertools.product(ROWS[options.device], ("greedy", "beam"))
        }
        specs = [Decoding(who, run, folder, device=options.device) for who in DECODERS["cpu"]]
        specs = [spec for spec in specs if spec.who in DECODERS[options.device]]
        agreement(specs, console)
        best = {spec.who: quickest(spec, questions) for spec in specs}
        contenders = {
            spec: Contender(spec) for chosen in best.values() for spec in set(chosen.values())
        }
        table = Table("rows", "search", "who", "threads", "tokens/s", "range", "ours to it")
        table.title = "decoding rows of 20 tokens: the same weights, d 128, 2+2"
        for (rows, how), question in questions.items():
            rates: dict[str, list[float]] = {spec.who: [] for spec in specs}
            for repeat in range(options.repeats + 1):
                for who, so_far in rates.items():
                    rate = contenders[best[who][rows, how]].ask(*question)[2]
                    if repeat:  # after one to warm up
                        so_far.append(rate)
            for who, each in rates.items():
                ratios = [a / b for a, b in zip(rates["ours"], each, strict=True)]
                spec, ratio = best[who][rows, how], statistics.median(ratios)
                threads = f"{spec.workers} x {spec.threads}"
                table.add_row(str(rows), how, who, threads, *spread(each), f"{ratio:.2f}")
        console.print(table)
        for contender in contenders.values():
            contender.close()


def trained(folder: Path, options: Options) -> str:
    """The run that is decoded."""
    config, run = folder / "decoding.yaml", str(folder / "run")
    config.write_text(DECODING_CONFIG.replace("STEPS", "400" if options.quick else "4000"))
    command = [sys.executable, "-m", "toytrans", "train", str(config), "--out", run]
    command += ["--device", options.device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return run


def quickest(spec: Decoding, questions: dict[Any, tuple[Any, ...]]) -> dict[Any, Decoding]:
    """With how many threads, of 1, 2, 4 and so on and one a core, and CTranslate2 in how many
    workers, a runtime decodes most tokens a second of each question: the better of two tries, after
    one to warm up. On a GPU with as many as there are cores."""
    if spec.device == "cuda":
        return dict.fromkeys(questions, spec)
    numbers = sorted({THREADS, *(2**n for n in range(THREADS.bit_length()))})
    specs = [replace(spec, threads=threads) for threads in numbers]
    if spec.who.startswith("CTranslate2"):
        specs += [replace(spec, threads=THREADS // n, workers=n) for n in numbers[1:]]
    rates: dict[Any, dict[Decoding, float]] = {key: {} for key in questions}
    for tried in specs:
        contender = Contender(tried)
        for key, question in questions.items():
            contender.ask(*question)
            rates[key][tried] = max(contender.ask(*question)[2] for _ in range(2))
        contender.close()
    return {key: max(found, key=found.__getitem__) for key, found in rates.items()}


def random_sources(rows: int, low: int, high: int) -> Rows:
    draw = random.Random(rows)
    lengths = [draw.randint(low, high) for _ in range(rows)]
    last = FIRST_SYMBOL_ID + 99
    return [
        [draw.randint(FIRST_SYMBOL_ID, last) for _ in range(length)] + [EOS_ID]
        for length in lengths
    ]


def agreement(specs: list[Decoding], console: Console) -> None:
    """How many of 512 sources give our tokens, and how far the beams' scores are from ours."""
    contenders = {spec.who: Contender(spec) for spec in specs}
    sources = random_sources(512, 1, 20)
    expected, _, _ = contenders["ours"].ask("greedy", sources, 50)
    pairs = zip(expected, sources, strict=True)
    right = sum(row == [*source[-2::-1], EOS_ID] for row, source in pairs)
    hypotheses, scores, _ = contenders["ours"].ask("scored beam", sources, 50)
    table = Table("who", "greedy tokens equal", "beam 5 tokens equal", "largest score difference")
    table.title = f"agreement on 512 sources of 1 to 20 symbols; {right} of ours are right"
    for who in list(contenders)[1:]:
        greedy, _, _ = contenders[who].ask("greedy", sources, 50)
        rows, theirs, _ = contenders[who].ask("scored beam", sources, 50)
        far = max(abs(a - b) for a, b in zip(scores, theirs, strict=True))
        equal = [sum(map(list.__eq__, *pair)) for pair in ((greedy, expected), (rows, hypotheses))]
        table.add_row(who, *(f"{n} of 512" for n in equal), f"{far:.1e}")
    for contender in contenders.values():
        contender.close()
    console.print(table)


# All of them ---------------------------------------------------------------------------------

PARTS = {"training": training, "decoding": decoding}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, help="default: all")
    parser.add_argument("--sizes", nargs="+", type=int, choices=WIDTHS, default=WIDTHS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tables", nargs="+", choices=CPU_TABLES, default=CPU_TABLES)
    parser.add_argument("--quick", action="store_true", help="smallest size, one short repetition")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of a stretch of training; 4, a GPU: 1")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, help="on a GPU")
    options = parser.parse_args()
    on_cuda = options.device == "cuda"
    if on_cuda and not torch.cuda.is_available():
        parser.exit(2, "bench.py: --device cuda: no CUDA device here\n")
    options.seconds = options.seconds or (1.0 if on_cuda else 4.0)
    if options.quick:
        options.repeats, options.seconds = 1, 0.5
    options.tokens = (256,) if options.quick else options.tokens
    console = Console(width=None if sys.stdout.isatty() else 110)
    versions = (f"{name} {installed(name)}" for name in ("torch", "transformers", "ctranslate2"))
    console.print(f"{processor_name()}, {THREADS} cores, {', '.join(versions)}")
    for name in options.only or PARTS:
        PARTS[name](options, console)


if __name__ == "__main__":
    main()
