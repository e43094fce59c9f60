"""The batch that `inspect-masks`, `trace` and `demo decoding` look at, and the model that reads it:
that of a run, the fresh one of a config, or a small fresh one for sequences of nobody's."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toytrans.cli.common import check_has_checkpoints, warn_of_fault
from toytrans.cli.opening import newest, open_run
from toytrans.cli.terminal import Progress
from toytrans.config.load import load_config
from toytrans.errors import UserError
from toytrans.inspection.shown import (
    InspectedBatch,
    batch_of_config,
    batch_of_pairs,
    batch_of_run,
)
from toytrans.inspection.walkthrough import PAIRS, Pairs
from toytrans.training.devices import choose_device


def batch_of(
    run: Path | None,
    config: Path | None,
    pairs: Pairs | None = None,
    *,
    checkpoint: str = "best",
    device: str = "cpu",
    trust_code: bool = False,
) -> InspectedBatch:
    """The batch, and the model that reads it, whose fault is noted.

    Where nothing is given, the newest run; without a run, the pairs of the walk.
    pairs: sources, and a target for each; a run or a config translates where there are none.
    device: where the model reads the batch. Raises UserError.
    """
    chosen, progress = choose_device(device), Progress()
    if not (run or config or pairs):
        with contextlib.suppress(UserError):  # there is none
            run = newest()
    check_has_checkpoints(run, checkpoint)
    if run is not None:
        loaded = open_run(run, trust_code, checkpoint)
        progress("the model")
        inspected = batch_of_run(loaded, *(pairs or ()))
    elif config is not None:
        settings = load_config(config, trust_code=trust_code)
        warn_of_fault(settings.fault)
        inspected = batch_of_config(settings, *(pairs or ()))
    else:
        inspected = batch_of_pairs(*(pairs or PAIRS))
    return replace(inspected, device=chosen)


def check_each_has_a_target(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise UserError where some sources have a target, and others have none."""
    if targets and len(targets) != len(sources):
        raise UserError(
            f"{len(sources)} sources and {len(targets)} --tgt; give one --tgt for each source"
        )
