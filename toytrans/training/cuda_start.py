"""Start CUDA aside, while torch is imported."""

import contextlib
import ctypes
import importlib.util
import os
import sys
import threading


def start_cuda(device: str) -> threading.Thread | None:
    """Let the driver make the context of a GPU in a thread. None = there is nothing to start.

    device: as in a config.

    CUDA's runtime then finds the context there (CUDA Driver API, "Primary Context Management").
    `torch.cuda.init` would gain nothing in a thread: it needs torch, and holds Python's lock.
    Errors are left to torch, which meets them again.
    """
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cuda") or sys.platform != "linux" or not _torch_has_cuda():
        return None
    ordinal = number or os.environ.get("LOCAL_RANK", "0")
    if not ordinal.isdecimal():  # whoever joins the processes says so
        return None
    thread = threading.Thread(target=_make_context, args=(int(ordinal),), daemon=True)
    thread.start()
    return thread


def _torch_has_cuda() -> bool:
    """Whether the installed torch is a build with CUDA; it is not imported."""
    spec = importlib.util.find_spec("torch")
    places = (spec and spec.submodule_search_locations) or ()
    return any(os.path.exists(f"{place}/lib/libtorch_cuda.so") for place in places)


def _make_context(ordinal: int) -> None:
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does, before the driver starts
    with contextlib.suppress(OSError, AttributeError):  # no driver, or one without these functions
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), ordinal):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
