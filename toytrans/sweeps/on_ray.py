"""Trials on a Ray cluster: each is a task, with a CPU or with its share of a GPU.

Ray decides which node runs what. The nodes share the folder of the runs, so a trial whose worker or
node is lost goes on elsewhere from its checkpoint.
"""

import contextlib
import logging
import os
import platform
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from toytrans.errors import UserError, how_to_install
from toytrans.sweeps.failures import Failure, keep_failure
from toytrans.sweeps.processes import Round, attempt
from toytrans.sweeps.trial import Trial
from toytrans.user_code import trust_as_read

RETRIES = 3
"""Times that a trial is tried again after its worker or its node was lost."""

SECONDS_TO_SAVE = 60.0

QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns that it will change
    "RAY_USAGE_STATS_ENABLED": "0",
}


def check_ray() -> None:
    """Raise UserError where Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError(
            f"--on ray needs Ray, which is not installed; {how_to_install('ray')}"
        ) from None


def run_on_ray(
    trials: Sequence[Trial], at_once: int | None = None, gpu_share: float | None = None
) -> Generator[Round]:
    """Run trials; yields about once a second. Closed early, it lets every training save.

    at_once: None = as many as the cluster has room for. gpu_share: of a trial on a GPU; None = 1.
    """
    with _connected() as ray:
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        task = ray.remote(max_calls=1, max_retries=RETRIES, num_cpus=1)(_work)
        waiting, running = list(trials), dict[Any, Trial]()
        try:
            while waiting or running:
                while waiting and len(running) < (at_once or len(trials)):
                    trial = waiting.pop(0)
                    gpus = _gpus(trial, has_gpus, gpu_share)
                    reference = task.options(num_gpus=gpus).remote(trial, trial.code, os.getcwd())
                    running[reference] = trial
                done, _ = ray.wait(list(running), num_returns=len(running), timeout=1.0)
                ended = [(running.pop(each), _outcome(ray, each)) for each in done]
                for trial, failure in ended:
                    keep_failure(trial.path, failure)
                yield Round([], ended)
        finally:
            for reference in running:
                ray.cancel(reference)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=SECONDS_TO_SAVE)


def _gpus(trial: Trial, has_gpus: bool, share: float | None) -> float:
    """The share of a GPU that a trial takes."""
    device = trial.config.device
    on_gpu = device.startswith("cuda") or device == "auto" and has_gpus
    return (share or 1.0) if on_gpu else 0.0


def _work(trial: Trial, code: Mapping[str, bytes], folder: str) -> Failure | None:
    """The program of one task, in the folder of the command. code: the user's, as it was read."""
    trust_as_read(code)
    try:
        os.chdir(folder)
    except OSError as error:
        return Failure(
            reason=f"{folder}: {error.strerror} on {platform.node()}; the nodes must share the "
            "folder of the command"
        )
    return attempt(trial)


def _outcome(ray: Any, reference: Any) -> Failure | None:
    try:
        failure: Failure | None = ray.get(reference)
        return failure
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        lost = f"Ray lost it ({type(error).__name__}: {reason})"
        return Failure(reason=f"{lost}; the same command goes on where it stopped")


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Ray, connected to RAY_ADDRESS, to a cluster that runs here, or to one that is started for as
    long as the block lasts. Raises UserError."""
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    check_ray()
    import ray

    if ray.is_initialized():
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise UserError(f"Ray: {str(error).strip().partition(chr(10))[0]}") from None
    finally:
        signal.signal(signal.SIGTERM, handler)
    try:
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            yield ray  # a thread of Ray's prints to standard output which nodes it has lost
    finally:
        ray.shutdown()
