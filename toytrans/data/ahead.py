"""Pairs of a slow task, computed ahead in worker processes while steps run.

A worker opens the task of a config for itself and answers requests, one pool at a time: pairs are
a pure function of their indices, so that they are the same wherever they are computed. What a
worker cannot answer is computed here, and an error of the task's is raised here. A worker ends as
soon as its standard input does, however the process that started it has ended.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.config import Config
from toytrans.config_file import check_config
from toytrans.data.pairs import Pairs, PairSource
from toytrans.user_code import trust
from toytrans.yaml_tree import Tree

PATIENCE = 0.1
"""Seconds that steps may wait for a pool before workers compute the next ones."""

MOST_WORKERS = 4

PROGRAM = "from toytrans.data.ahead import serve; serve()"


def pools_ahead(source: PairSource, requests: Iterator[Tensor], config: Config) -> Generator[Pairs]:
    """The training pairs at each request's indices, in order. Of a slow source the next ones are
    computed while the last are used. Closing the iterator ends the workers."""
    indices = next(requests)
    pairs = source.pairs("train", indices)
    if seconds_per_pair(source) * len(indices) <= PATIENCE:
        yield pairs
        yield from (source.pairs("train", indices) for indices in requests)
        return
    with Workers(config) as workers:
        for indices in requests:
            workers.ask(indices)
            yield pairs
            answer = workers.answer()
            pairs = source.pairs("train", indices) if answer is None else answer.to(indices.device)


def seconds_per_pair(source: PairSource) -> float:
    """What a source says of itself; 0 for those that are fast enough."""
    return getattr(source, "seconds_per_pair", 0.0)


def worker_count() -> int:
    """Cores that this process need not have, at least 1 and at most 4."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = here // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, shared - 1))


class Workers:
    """Processes that compute the pairs of one config, a share of every request each."""

    def __init__(self, config: Config) -> None:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        first = f"{json.dumps(config.model_dump(mode='json'))}\n".encode()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # signals of the terminal are for the training alone
            )
            for _ in range(worker_count())
        ]
        for process in self._processes:
            _send(process, first)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()
            process.wait()

    def ask(self, indices: Tensor) -> None:
        """Let the workers compute training pairs."""
        for process, share in zip(
            self._processes, indices.cpu().tensor_split(len(self._processes)), strict=True
        ):
            _send(process, f"{json.dumps(share.tolist())}\n".encode())

    def answer(self) -> Pairs | None:
        """The pairs asked for first that were not given yet; None where a worker has none."""
        parts = [_receive(process.stdout) for process in self._processes]
        whole = [part for part in parts if part is not None]
        return _joined(whole) if len(whole) == len(parts) else None


def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
    """A line to a worker. One that has ended gives no answer."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(line)
        process.stdin.flush()


def _receive(stream: IO[bytes] | None) -> Pairs | None:
    """The pairs that a worker has written: the shapes of the four columns, then their bytes."""
    assert stream is not None
    header = stream.readline()
    if not header.endswith(b"\n"):
        return None
    columns = []
    for shape in json.loads(header):
        size = 8 * torch.Size(shape).numel()
        if len(raw := stream.read(size)) < size:
            return None
        values = torch.frombuffer(bytearray(raw), dtype=torch.int64) if size else torch.empty(0)
        columns.append(values.long().view(shape))
    return Pairs(*columns) if columns else None


def _joined(parts: list[Pairs]) -> Pairs:
    width = max(part.src.shape[1] for part in parts)
    height = max(part.tgt.shape[1] for part in parts)
    return Pairs(
        torch.cat([pad(part.src, (0, width - part.src.shape[1])) for part in parts]),
        torch.cat([part.src_length for part in parts]),
        torch.cat([pad(part.tgt, (0, height - part.tgt.shape[1])) for part in parts]),
        torch.cat([part.tgt_length for part in parts]),
    )


def serve() -> None:
    """The program of a worker. Its standard output is for answers; what code prints goes to
    standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    source = None
    with contextlib.suppress(Exception):  # it is raised again where the pairs are wanted
        source = _opened(lines.get())
    while True:
        columns: list[Tensor] = []
        indices = torch.tensor(json.loads(lines.get()), dtype=torch.long)
        with contextlib.suppress(Exception):
            if source is not None and len(indices):
                pairs = source.pairs("train", indices)
                columns = [pairs.src, pairs.src_length, pairs.tgt, pairs.tgt_length]
        header = json.dumps([list(column.shape) for column in columns])
        with contextlib.suppress(OSError):  # nobody is there to read it
            out.write(f"{header}\n".encode())
            for column in columns:
                out.write(column.contiguous().numpy().tobytes())
            out.flush()


def _read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Requests as they come. At their end the process ends, whatever it is computing."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _opened(line: bytes) -> PairSource:
    from toytrans.data.own_tasks import OwnTaskPairs

    config = check_config(Tree("the config of a worker", json.loads(line)))
    trust(config.references.values())
    return OwnTaskPairs(config.data, config.data_seed)
