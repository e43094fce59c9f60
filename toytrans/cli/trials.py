"""How commands follow trials: one bar, and a line for each that ends."""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from toytrans.cli.common import note, printable
from toytrans.training.signals import collect_signals, exit_if_signalled

if TYPE_CHECKING:
    from toytrans.sweeps.failures import Failure
    from toytrans.sweeps.processes import Round
    from toytrans.sweeps.trial import Trial


def follow(
    total: int,
    waiting: "Sequence[Trial]",
    rounds: "Generator[Round]",
    describe: "Callable[[Trial, Failure | None], str]",
) -> None:
    """Follow the waiting trials of a total to their end.

    The first signal lets all trainings save and end. A second one ends this process at once; the
    trainings then save by themselves.
    """
    from tqdm import tqdm

    done = total - len(waiting)
    if done:
        note(f"{done} of {total} runs are there already")
    shares = {trial.path: trial.share_done() for trial in waiting}
    bar = tqdm(
        total=total,
        initial=done + sum(shares.values()),
        disable=not sys.stderr.isatty(),
        dynamic_ncols=True,
        bar_format="{desc} {bar} {percentage:3.0f}% {remaining} left",
    )
    with collect_signals() as signals, contextlib.closing(rounds):
        for running, ended in rounds:
            shares |= {trial.path: trial.share_done() for trial in running}
            for trial, failure in ended:
                done, shares[trial.path] = done + 1, 1.0
                line = f"{done}/{total} {describe(trial, failure)}"
                bar.write(printable(line), file=sys.stderr) if not bar.disable else note(line)
            bar.update(total - len(waiting) + sum(shares.values()) - bar.n)
            bar.set_description_str(f"{done}/{total} runs", refresh=False)
            if signals.received:
                break
    bar.close()
    if signals.received:
        note("stopped and saved; the same command goes on")
        exit_if_signalled(signals.received)
