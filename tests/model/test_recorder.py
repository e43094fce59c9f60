"""The order in which CUDA graphs are made, with torch.cuda played by notes; and the tape itself."""

import contextlib
import gc

import pytest
import torch
from tape import Tape

from toytrans.errors import ran_out_of_memory
from toytrans.model.recorder import CudaRecorder


@pytest.fixture
def calls(monkeypatch) -> list:
    """What a CudaRecorder asks of torch.cuda."""
    noted: list = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            noted.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            noted.append("replay")

    @contextlib.contextmanager
    def within(*what, **options):
        noted.append(("in", *what, *sorted(options.items())))
        yield
        noted.append("out")

    device, side = torch.device("cuda:1"), Stream("side")
    monkeypatch.setattr(torch.cuda, "Stream", lambda on: side if on == device else None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda on: Stream("main"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: within(stream.name))
    monkeypatch.setattr(torch.cuda, "device", lambda on: within(str(on)))
    monkeypatch.setattr(
        torch.cuda,
        "graph",
        lambda graph, pool, stream: within("graph", pool=pool, stream=stream.name),
    )
    monkeypatch.setattr(
        torch.random, "fork_rng", lambda devices, device_type: within("fork_rng", *devices)
    )
    return noted


def test_graphs_are_warmed_up_aside_and_share_one_pool(calls):
    device = torch.device("cuda:1")
    recorder = CudaRecorder(device)
    recorder.warm_up(lambda: calls.append("work"))
    assert calls == [
        "side waits for main",
        ("in", "fork_rng", device),
        ("in", "side"),
        *["work", "work"],
        *["out", "out"],
        "main waits for side",
    ]
    calls.clear()
    recorder.warm_up(lambda: calls.append("work"))
    assert calls.count("work") == 1, "twice at first, then once"
    for _ in range(2):
        calls.clear()
        replay = recorder.record(lambda: calls.append("work"))
        graph = ("in", "graph", ("pool", "pool"), ("stream", "side"))
        assert calls == [("in", "cuda:1"), ("in", "side"), graph, "work", *["out"] * 3]
    replay()
    assert calls[-1] == "replay" and calls.count("work") == 1


def test_no_garbage_is_collected_in_a_capture(calls):
    """It could destroy an old graph, which breaks the capture; and nothing here needs it."""
    collecting = []
    recorder = CudaRecorder(torch.device("cuda:1"))
    recorder.record(lambda: collecting.append(gc.isenabled()))
    assert collecting == [False] and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        recorder.record(lambda: 1 / 0)
    assert gc.isenabled()


def test_an_error_in_a_capture_is_not_hidden_by_that_of_its_end(calls, monkeypatch):
    @contextlib.contextmanager
    def broken(*_, **__):
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "graph", broken)
    recorder = CudaRecorder(torch.device("cuda:1"))
    for error in (torch.OutOfMemoryError("tried to allocate"), ValueError("ours")):

        def work(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)) as raised:
            recorder.record(work)
        assert ran_out_of_memory(raised.value) == (error.args == ("tried to allocate",))
    with pytest.raises(RuntimeError, match="previous error"):
        recorder.record(lambda: None)


def test_the_tape_computes_nothing_while_it_records_and_holds_on_to_memory():
    x, total = torch.tensor([1.0, 2.0]), torch.zeros(2)
    held = {}

    def work():
        held["double"] = 2 * x
        total.add_(held["double"])

    replay = Tape().record(work)
    assert total.tolist() == [0, 0] and held["double"].isnan().all()
    for value, expected in ((5.0, 10), (1.0, 12)):
        x.fill_(value)
        replay()
        assert total.tolist() == [expected, expected]
    held["double"] = None  # Python of the work does not run again
    replay()
    assert total.tolist() == [14, 14] and held["double"] is None


def test_the_tape_refuses_to_read_a_number_back():
    with pytest.raises(AssertionError, match="reads"):
        Tape().record(lambda: bool(torch.ones(1).sum() > 0))
