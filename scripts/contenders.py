"""What bench.py times: each contender in a process of its own, asked for one stretch at a time.

Only one contender works at any moment. A process of its own keeps apart what holds for a whole
process: ours sets how memory is given back and which library multiplies fp32 (see
`toytrans.training.devices.tune_process`), the peers run as torch comes unless they are `tuned`.
"""

import contextlib
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# torch is imported by the processes, after their environment is set


@dataclass(frozen=True)
class Size:
    """One of the three models, and the lengths it is trained on."""

    d_model: int
    layers: int
    heads: int
    longest: int

    @property
    def name(self) -> str:
        return f"d {self.d_model}, {self.layers}+{self.layers}, 1..{self.longest}"


THREADS = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))
SIZES = (Size(64, 2, 4, 25), Size(128, 2, 4, 20), Size(256, 3, 8, 40))


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


@dataclass(frozen=True)
class Decoding:
    """Who decodes the weights of a run. who: ours | CTranslate2 float32 | CTranslate2 int8 |
    HF generate. threads: of each of the workers, which CTranslate2 alone has more than one of."""

    who: str
    run: str
    folder: str
    threads: int
    workers: int = 1
    device: str = "cpu"


class Contender:
    """A process that does one thing; `ask` has it do that and waits."""

    def __init__(self, spec: Training | Decoding) -> None:
        self._spec = spec
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, spec), daemon=True)
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


def _serve(line: Any, spec: Training | Decoding) -> None:
    threads = spec.threads if isinstance(spec, Decoding) else THREADS
    tuned = spec.who == "ours" or (isinstance(spec, Training) and spec.tuned)
    if tuned:
        os.environ["GOMP_SPINCOUNT"] = "2000"  # as the command line does
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    if tuned:
        from toytrans.training.devices import tune_process

        tune_process()
    answer = _trainer(spec) if isinstance(spec, Training) else _decoder(spec)
    while True:
        try:
            question = line.recv()
        except EOFError:
            return
        line.send(answer(*question))


# Training ------------------------------------------------------------------------------------


def config_of(spec: Training) -> Any:
    """The config of a size: reverse, 100 symbols, everything else by default."""
    from toytrans.config.load import check_config
    from toytrans.config.yaml import Tree

    size = spec.size
    model: dict[str, Any] = {
        "d_model": size.d_model,
        "d_ff": 4 * size.d_model,
        "n_heads": size.heads,
        "n_encoder_layers": size.layers,
        "n_decoder_layers": size.layers,
        "positions": spec.positions,
        "norm": "pre",
        "dropout": spec.dropout,
    }
    data: dict[str, Any] = {"task": "reverse", "symbols": 100, "train_length": [1, size.longest]}
    if spec.rows is not None:
        data["batch_tokens"] = spec.rows * (size.longest + 3)  # S + T of a pair of mean length
    train = {"max_steps": 10**6, "precision": spec.precision}
    return check_config(Tree("bench", {"data": data, "model": model, "train": train}))


def _batches(spec: Training, config: Any, source: Any) -> Iterator[Any]:
    """Endless batches, made as they are asked for; `same`, and those of a GPU's peers: a hundred
    made beforehand, since a loader in the step's process would keep a GPU waiting."""
    import torch
    from peers import loader

    from toytrans.data.batches import training_batches

    if spec.rows is None or spec.bucketed:
        return (dealt[0] for dealt in training_batches(source, config, 0, spec.device))
    pairs = source.pairs("train", torch.arange(100 * spec.rows))
    batches = (batch.to(spec.device) for batch in loader(pairs, spec.rows, seed=0))
    beforehand = spec.same or spec.device != "cpu"
    return itertools.cycle(list(itertools.islice(batches, 100))) if beforehand else batches


def _trainer(spec: Training) -> Callable[..., Any]:
    """Answers ("steps", seconds), ("data", batches): seconds to make one, over so many; and, for
    ours, ("shares", 0)."""
    from toytrans.data.open import open_dataset

    config = config_of(spec)
    source = open_dataset(config)
    batches = _batches(spec, config, source)
    step = _our_step(spec, config) if spec.who == "ours" else _peer_step(spec, config)

    def answer(question: str, argument: Any) -> Any:
        if question == "shares":
            return _shares(step, batches)
        done: list[Any] = []
        began = time.perf_counter()
        if question == "data":
            for _ in itertools.islice(batches, argument):
                pass
            return (time.perf_counter() - began) / argument
        wait()
        while len(done) < 2 or time.perf_counter() - began < argument:
            batch = next(batches)
            step(batch)
            done.append(batch)
            if len(done) % 10 == 0:  # else a GPU would be asked for far more than is timed
                wait()
        wait()
        seconds = time.perf_counter() - began
        padded, real = (sum(b.padded_tokens for b in done), sum(b.real_tokens for b in done))
        return {
            "rate": sum(batch.target_tokens for batch in done) / seconds,
            "step_ms": 1e3 * seconds / len(done),
            "padding": padded / real,
        }

    return answer


def wait() -> None:
    """Until a GPU has done what it was asked for."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _our_step(spec: Training, config: Any) -> Callable[[Any], None]:
    """The step of `Trainer`: forward, loss, backward, clip, AdamW."""
    import torch

    from toytrans.data.open import open_dataset
    from toytrans.model.transformer import Transformer
    from toytrans.training.devices import choose_precision
    from toytrans.training.graphs import CudaCapture, GraphedUpdate, most_places
    from toytrans.training.optimizer import AdamW
    from toytrans.training.step import Update

    device, facts = torch.device(spec.device), open_dataset(config).facts
    precision = choose_precision(config.train.precision, device, config.model.d_model)
    model = Transformer(config.model, facts.vocabulary).to(device).train()
    optimizer = AdamW(model, config.train.weight_decay)
    update: Any = Update(model, optimizer, device, config.train, precision)
    if spec.recorded:
        places = most_places(config, facts)
        update = GraphedUpdate(CudaCapture(device), update, model, places)

    def step(batch: Any) -> None:
        update([batch], lr=1e-4)

    return step


def _peer_step(spec: Training, config: Any) -> Callable[[Any], None]:
    import peers
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from toytrans.data.open import open_dataset

    sizes = config.model, len(open_dataset(config).facts.vocabulary), spec.dropout
    model: Any = (
        peers.bart(*sizes, spec.same) if spec.who == "BART" else peers.TutorialTransformer(*sizes)
    )
    model.to(spec.device)
    clip = None if spec.who == "nn.Transformer" and not spec.same else 1.0
    trainer = peers.PeerTrainer(model, spec.precision, clip, fused=spec.same or spec.tuned)
    written_out = spec.tuned and spec.precision == "bf16"

    def step(batch: Any) -> None:
        with sdpa_kernel(SDPBackend.MATH) if written_out else contextlib.nullcontext():
            trainer.step(*batch)

    return step


def bf16_rate(device: Any) -> float:
    """The machine's own bf16 product of 2048 (a GPU: 8192) cubed, FLOP a second; the best of
    several."""
    import torch

    size = 2048 if str(device) == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / min(_times(lambda: a @ b, 12))


def _shares(step: Callable[[Any], None], batches: Iterator[Any]) -> Any:
    """What a step's time is spent on: the products' own time, and real tokens' arithmetic.

    The products of one step of each of twenty batches, forward and backward, are recorded with
    shapes and strides, and timed alone. Arithmetic is 2 M N K each, times the share of real tokens
    among padded ones, squared for attention's; peak: that of the machine's large bf16 product,
    whatever the precision of the step. Data is not in these steps.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    names = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}

    class Recorder(TorchDispatchMode):
        """Notes every product on its way."""

        def __init__(self) -> None:
            super().__init__()
            self.found: list[tuple[Any, list[Any]]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if str(func) in names:
                layout = [(x.shape, x.stride(), x.dtype) for x in args]
                self.found.append((func, layout))
            return func(*args, **(kwargs or {}))

    chosen = list(itertools.islice(batches, 20))
    device = chosen[0].src.device
    rate, whole, alone, work = bf16_rate(device), 0.0, 0.0, 0.0
    for batch in chosen:
        whole += statistics.median(_times(lambda batch=batch: step(batch), 5))
        recorder = Recorder()
        with recorder:
            step(batch)
        real = batch.real_tokens / batch.padded_tokens
        for func, layout in recorder.found:
            operands = [
                torch.randn(_span(shape, stride), device=device).to(dtype).as_strided(shape, stride)
                for shape, stride, dtype in layout
            ]
            alone += statistics.median(_times(lambda f=func, o=operands: f(*o), 5))
            *_, left, right = (shape for shape, _, _ in layout)
            share = real**2 if "bmm" in str(func) else real
            work += 2 * left.numel() * right[-1] * share
    return {"products": alone / whole, "peak": work / whole / rate, "bf16_flops": rate}


def _span(shape: Any, stride: Any) -> int:
    """Elements of memory that a tensor reaches over."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


def _times(work: Callable[[], Any], times: int) -> list[float]:
    work()
    taken = []
    for _ in range(times):
        wait()
        began = time.perf_counter()
        work()
        wait()
        taken.append(time.perf_counter() - began)
    return taken


# Decoding ------------------------------------------------------------------------------------


def _decoder(spec: Decoding) -> Callable[..., Any]:
    """Answers ("greedy" | "beam" | "scored beam", sources, most tokens, seconds): tokens, scores
    (of "beam" where they cost nothing), tokens a second over as many repetitions as take that long.
    """
    import toytrans

    run = toytrans.load(spec.run, "last", spec.device)
    if spec.who == "ours":
        decode = _our_decoder(run.model, spec)
    else:
        import peers

        from toytrans.export import ctranslate2, huggingface

        if spec.who == "HF generate":
            peer: Any = peers.Marian(huggingface.converted(run.model).to(spec.device))
        else:
            folder = Path(tempfile.mkdtemp(dir=spec.folder))
            ctranslate2.write(run, folder)
            kind: Any = spec.who.split()[1]
            peer = peers.CTranslate2(folder, kind, spec.workers, spec.threads)

        def decode(how: str, sources: list[list[int]], most: int) -> Any:
            if how == "greedy":
                return peer.greedy(sources, most), None
            return peer.beam(sources, 5, 1.0, most, scored=how == "scored beam")

    def answer(how: str, sources: list[list[int]], most: int, least: float = 0.0) -> Any:
        time.sleep(0.2)  # until the threads of the one before have stopped to spin
        began, tokens = time.perf_counter(), 0
        while not tokens or time.perf_counter() - began < least:
            rows, scores = decode(how, sources, most)
            tokens += sum(map(len, rows))
        return rows, scores, tokens / (time.perf_counter() - began)

    return answer


def _our_decoder(model: Any, spec: Decoding) -> Callable[..., Any]:
    from toytrans.data.pairs import pad_rows
    from toytrans.model.decoding import search

    def decode(how: str, sources: list[list[int]], _: int) -> Any:
        src = pad_rows(sources)[0].to(spec.device)
        found = search(model, src, beam=1 if how == "greedy" else 5)
        rows = [[token for token in row if token] for row in found.tokens.tolist()]
        return rows, None if found.score is None else found.score.tolist()

    return decode
