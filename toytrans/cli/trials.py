"""How commands follow trials: one bar, and a line for each that ends."""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from toytrans.cli.common import note, printable
from toytrans.training.signals import collect_signals, exit_if_signalled

if TYPE_CHECKING:
    from toytrans.sweeps.processes import Failure, Round
    from toytrans.sweeps.trial import Trial


def follow(
    trials: "Sequence[Trial]",
    done: int,
    rounds: "Generator[Round]",
    describe: "Callable[[Trial, Failure | None], str]",
) -> None:
    """Follow trials to their end. done: how many of them need not run.

    The first signal lets all trainings save and end. A second one ends this process at once; the
    trainings then save by themselves.
    """
    from tqdm import tqdm

    if done:
        note(f"{done} of {len(trials)} runs are there already")
    shares = {trial.path: trial.share_done() for trial in trials}
    bar = tqdm(
        total=len(trials),
        initial=sum(shares.values()),
        disable=not sys.stderr.isatty(),
        dynamic_ncols=True,
        bar_format="{desc} {bar} {percentage:3.0f}% {remaining} left",
    )
    with collect_signals() as signals, contextlib.closing(rounds):
        for running, ended in rounds:
            shares |= {trial.path: trial.share_done() for trial in running}
            for trial, failure in ended:
                done, shares[trial.path] = done + 1, 1.0
                line = f"{done}/{len(trials)} {describe(trial, failure)}"
                bar.write(printable(line), file=sys.stderr) if not bar.disable else note(line)
            bar.update(sum(shares.values()) - bar.n)
            bar.set_description_str(f"{done}/{len(trials)} runs", refresh=False)
            if signals.received:
                break
    bar.close()
    if signals.received:
        note("stopped and saved; the same command goes on")
        exit_if_signalled(signals.received)
