"""How commands follow the runs of a sweep: one bar, and a line for each that ends."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toytrans.cli.common import note, printable, progress_bar
from toytrans.training.signals import collect_signals, exit_if_signalled

if TYPE_CHECKING:
    from toytrans.sweeps.sweep import Sweep
    from toytrans.sweeps.trials import Failure, Trial


def follow(
    sweep: "Sweep",
    describe: "Callable[[Trial], str]",
    jobs: int | None = None,
    on: Literal["local", "ray"] = "local",
    gpu_share: float | None = None,
) -> "dict[Path, Failure]":
    """Train what is missing of a sweep. Returns why runs failed, by their paths.

    The first signal lets all trainings save and end. A second one ends this process at once; the
    trainings then save by themselves.
    """
    for sentence in sweep.beginning():
        note(sentence)
    running = {trial.path: trial for trial in sweep.waiting()}
    failures: dict[Path, Failure] = {}
    total = len(sweep.trials)
    begun = total - len(running) + sum(trial.share_done() for trial in running.values())
    shape = "{desc} {bar} {percentage:3.0f}% {remaining} left"
    bar = progress_bar(shape, total=total, initial=begun)
    rounds = sweep.train(jobs, on, gpu_share)
    with collect_signals() as received, contextlib.closing(rounds), bar:
        for ended in rounds:
            for trial, failure in ended:
                del running[trial.path]
                if failure is not None:
                    failures[trial.path] = failure
                what = f"failed: {failure.reason}" if failure else describe(trial)
                line = printable(f"{total - len(running)}/{total} {trial.title}: {what}")
                bar.write(line, file=sys.stderr) if not bar.disable else note(line)
            done = total - len(running)
            bar.update(done + sum(each.share_done() for each in running.values()) - bar.n)
            bar.set_description_str(f"{done}/{total} runs", refresh=False)
            if received:
                break
    if received:
        note("stopped and saved; the same command goes on")
        exit_if_signalled(received)
    return failures


def raise_internal(failures: "dict[Path, Failure]") -> None:
    """Raise the first internal error of a run, once everything else is shown."""
    for failure in failures.values():
        if failure.traceback:
            raise RuntimeError(f"{failure.reason}\n{failure.traceback}")
