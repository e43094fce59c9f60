"""CUDA is started aside, by calls of the driver; here a stand-in takes them."""

import ctypes
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from toytrans.training import cuda_start
from toytrans.training.cuda_start import start_cuda


@pytest.fixture
def driver(monkeypatch):
    """A driver that notes its calls and answers with `driver.answers`, by name."""
    stand_in = SimpleNamespace(calls=[], answers={})

    def function(name):
        def called(*arguments):
            stand_in.calls.append((name, *(a for a in arguments if isinstance(a, int))))
            return stand_in.answers.get(name, 0)

        return called

    for name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"):
        setattr(stand_in, name, function(name))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: stand_in)
    monkeypatch.setattr(cuda_start, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    return stand_in


@pytest.mark.parametrize(
    ("device", "rank", "number"),
    [("auto", None, 0), ("cuda", None, 0), ("cuda:3", None, 3), ("cuda", "2", 2)],
)
def test_the_context_of_the_device_is_made_in_a_thread(monkeypatch, driver, device, rank, number):
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    thread = start_cuda(device)
    assert thread is not None
    thread.join()
    assert driver.calls == [("cuInit", 0), ("cuDeviceGet", number), ("cuDevicePrimaryCtxRetain",)]


def test_who_starts_it_does_not_wait(monkeypatch, driver):
    go_on = threading.Event()
    driver.cuInit = lambda flags: not go_on.wait(60)
    thread = start_cuda("auto")
    assert thread is not None and thread.is_alive() and thread.daemon
    go_on.set()
    thread.join()
    assert [name for name, *_ in driver.calls] == ["cuDeviceGet", "cuDevicePrimaryCtxRetain"]


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_other_devices_start_nothing(driver, device):
    assert start_cuda(device) is None and driver.calls == []


def test_a_torch_without_cuda_starts_nothing(monkeypatch, driver, tmp_path):
    monkeypatch.undo()
    for has_cuda in (False, True):
        library = tmp_path / str(has_cuda) / "torch" / "lib"
        library.mkdir(parents=True)
        (library.parent / "__init__.py").write_text("")
        if has_cuda:
            (library / "libtorch_cuda.so").write_text("")
        program = (
            "import sys; from toytrans.training.cuda_start import _torch_has_cuda as has; "
            f"sys.path.insert(0, {str(library.parents[1])!r}); print(has(), 'torch' in sys.modules)"
        )
        found = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert found.stdout.split() == [str(has_cuda), "False"]


@pytest.mark.parametrize("name", ["cuInit", "cuDeviceGet"])
def test_errors_of_the_driver_are_left_to_torch(driver, name):
    driver.answers[name] = 100  # no device
    thread = start_cuda("cuda")
    assert thread is not None
    thread.join()
    assert driver.calls[-1][0] == name


def test_a_machine_without_a_driver_goes_on(monkeypatch, driver):
    errors = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    thread = start_cuda("cuda")
    assert thread is not None
    thread.join()
    assert not errors


def test_a_rank_that_is_no_number_starts_nothing(driver, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "x")
    assert start_cuda("cuda") is None and driver.calls == []
