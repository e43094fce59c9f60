"""What `inspect-masks`, `trace` and `demo` look at: a run, a config, or sequences."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import Progress, newest, open_run, warn_of_fault
from toytrans.errors import HOW_TO_SEPARATE, UserError

if TYPE_CHECKING:
    from toytrans.inspection.shown import InspectedBatch

OfConfig = Annotated[
    Path | None,
    typer.Option(metavar="CONFIG", help="Take the training pairs and fresh weights of a config."),
]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--src", metavar="SEQUENCE", help='A source such as "5 7 9". Repeat it for a padded batch.'
    ),
]
Targets = Annotated[
    list[str] | None, typer.Option("--tgt", metavar="SEQUENCE", help="The target of each --src.")
]


Pairs = tuple[list[str], list[str]]
"""Sources and their targets."""


def batch_of(
    run: Path | None,
    config: Path | None,
    src: list[str] | None = None,
    tgt: list[str] | None = None,
    *,
    otherwise: Pairs | None = None,
) -> "InspectedBatch":
    """The batch, and the model that reads it: a run's, a config's, or a small fresh one.

    Where nothing is given, the newest run; without a run, the pairs `otherwise`. Raises UserError.
    """
    from toytrans.config.load import load_config
    from toytrans.inspection.shown import batch_of_config, batch_of_pairs, batch_of_run

    progress, pairs = Progress(), given_pairs(run, config, src or [], tgt or [])
    if not (run or config or pairs):
        with contextlib.suppress(UserError):  # there is none
            run = newest()
        pairs = None if run else otherwise
    chosen = pairs or ([], [])
    if run is not None:
        loaded = open_run(run, "best")
        warn_of_fault(loaded.config.fault)
        progress("the model")
        return batch_of_run(loaded, *chosen)
    if config is not None:
        settings = load_config(config)
        warn_of_fault(settings.fault)
        progress("the model")
        return batch_of_config(settings, *chosen)
    if pairs is None:
        raise UserError(
            "nothing to inspect: there is no run here; name one, or give --config FILE, or "
            '--src "5 7 9" --tgt "9 7 5"'
        )
    return batch_of_pairs(*pairs)


def given_pairs(
    run: Path | None, config: Path | None, src: list[str], tgt: list[str]
) -> Pairs | None:
    """The pairs of --src and --tgt. Raises UserError, also for a run beside a config."""
    if src and run and " " in str(run) and not run.exists():
        raise UserError(
            f"{run}: a sequence without an option; give each sequence an option of its own: "
            '--src "5 7 9" --src "2 4"'
        )
    if config and run:
        raise UserError(f"--config {config} and run {run}: a run has its own config; give one")
    if len(src) != len(tgt):
        raise UserError(f"{len(src)} --src and {len(tgt)} --tgt; give one --tgt for each --src")
    if not (run or config):  # whose vocabulary says what a symbol is
        for sequence in (*src, *tgt):
            if any("," in symbol and len(symbol) > 1 for symbol in sequence.split()):
                raise UserError(f"{sequence!r}: {HOW_TO_SEPARATE}")
    return (src, tgt) if src else None
