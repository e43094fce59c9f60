"""Many trials on the machines of a cluster: `run(trial)` as a task of Ray.

Ray decides when and where a trial runs, and starts one again whose worker or node is lost. It goes
on from its checkpoint, because the nodes share the folder of the runs.
"""

import contextlib
import logging
import os
import platform
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from toytrans.errors import UserError, how_to_install
from toytrans.references import hand_over, take_over
from toytrans.sweeps.trial import Ended, Failure, Trial, lost, run
from toytrans.training.signals import end_at_once


def check_ray() -> None:
    """Raise UserError where Ray is not installed."""
    if find_spec("ray") is None:
        raise UserError(f"--on ray needs Ray, which is not installed; {how_to_install('ray')}")


def run_on_ray(trials: Sequence[Trial]) -> Generator[list[Ended]]:
    """Run trials; yields those that have ended, about once a second. Closed early, it lets every
    training save."""
    with _connected() as ray:
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        task = ray.remote(max_calls=1, max_retries=3, num_cpus=1)(_task)
        running = {}
        for trial in trials:
            device = trial.config.device
            on_gpu = device.startswith("cuda") or (device == "auto" and has_gpus)
            given = trial, hand_over(trial.config.references.values()), os.getcwd()
            running[task.options(num_gpus=float(on_gpu)).remote(*given)] = trial
        try:
            while running:
                over, _ = ray.wait(list(running), num_returns=len(running), timeout=1.0)
                yield [_answer(ray, running.pop(each), each) for each in over]
        finally:
            for each in running:
                ray.cancel(each)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=60.0)


def _answer(ray: Any, trial: Trial, task: Any) -> Ended:
    """A trial, and why it has failed if it did."""
    try:
        return trial, ray.get(task)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        return trial, lost(trial, f"Ray lost it ({type(error).__name__}: {reason})")


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Ray, connected to RAY_ADDRESS, to a cluster that runs here, or to one that is started for as
    long as the block lasts. Raises UserError."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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


def _task(trial: Trial, code: Mapping[str, bytes], folder: str) -> Failure | None:
    """The program of one task, in the folder of the command. code: the user's, as it was read."""
    end_at_once()
    take_over(code)
    if not os.path.isdir(folder):
        where = f"{folder}: not on {platform.node()}"
        return Failure(reason=f"{where}; the nodes must share the folder of the command")
    os.chdir(folder)
    return run(trial)
