"""`toytrans train`."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from toytrans.cli.common import (
    RARE,
    Break,
    Overrides,
    Progress,
    TrustCode,
    note,
    progress_bar,
    share,
    warn_of_fault,
)
from toytrans.cli.render.results import print_results
from toytrans.cli.reporter import reporter
from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.config.schema import Config
    from toytrans.training.run import Record
    from toytrans.training.trainer import Trainer

HIDDEN_BY_ANCHORS = ("pad_visible", "wrong_start", "no_residual")
"""Faults that cost a model its exact match, but not one that is shown where to look."""


class Moment(NamedTuple):
    """A record, target tokens a second, and the exact match measured last."""

    record: "Record"
    rate: float
    match: float | None

    def seconds_left(self, max_steps: int) -> float:
        """To max_steps, at the mean pace so far."""
        step = self.record["step"]
        return float(self.record["elapsed_s"] / max(step, 1) * (max_steps - step))


def train(
    path: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="YAML file that describes the run.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG", help="The same as the argument CONFIG.", rich_help_panel=RARE
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Run directory. Default: runs/ and the config's name."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="auto | cpu | cuda | cuda:N | mps. Default: that of the config.",
        ),
    ] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Short for --set seed=N.")] = None,
    fault: Break = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue a run from its last checkpoint; no CONFIG is needed with --out.",
        ),
    ] = False,
    log_to: Annotated[
        Literal["tensorboard"] | None,
        typer.Option(help="Copy the records to RUN/logs.", rich_help_panel=RARE),
    ] = None,
    watched: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show loss curve, translations and attention. Without a terminal: lines.",
        ),
    ] = False,
    trust_code: TrustCode = False,
) -> None:
    """Train a model from a YAML file and measure it."""
    from toytrans.config.load import load_config

    if path and config:
        raise UserError(f"{path} and --config {config}: give the config once")
    file = path or config
    if out == "":  # a shell variable that is not set
        raise UserError("--out: empty; name a directory, or leave --out away")
    changes, short = overrides or [], {"device": device, "fault": fault, "seed": seed}
    if file is not None:
        name, settings = file.stem, load_config(file, changes, by_option=short)
    elif resume and out is not None:
        name, settings = Path(out).name, _saved_config(Path(out), changes, short)
    else:
        raise UserError("no config; name one, say `toytrans train textbook`")
    warn_of_fault(settings.fault)
    if settings.model.cross_positions != "none" and settings.fault in HIDDEN_BY_ANCHORS:
        note(
            f"positions that are told the alignment hide {settings.fault}: exact match will look "
            "sound; its harm shows with --set model.positions=sinusoidal --set "
            "model.cross_positions=none"
        )
    from toytrans.training.devices import tune_process
    from toytrans.training.distributed import init_distributed
    from toytrans.training.session import open_session
    from toytrans.training.tensorboard import check_tensorboard

    if log_to:
        check_tensorboard()
    tune_process()
    with init_distributed(settings.device) as context:
        reporter.one_of_several = context.size > 1
        if not context.is_main:
            reporter.fall_silent()
        folder = None if out is None else Path(out)
        with open_session(settings, name, folder, resume, note, context) as trainer:
            _follow(trainer, log_to is not None, watched)
            _report_stop(trainer)
        print_results(trainer, trainer.dataset)


def _saved_config(run: Path, changes: list[str], short: dict[str, Any]) -> "Config":
    """The config that a run was trained with, and what changes. Raises UserError."""
    from toytrans.config.load import load_config
    from toytrans.training.run import CONFIG, RunFolder

    RunFolder.open(run)
    return load_config(run / CONFIG, changes, short, saved=True)


def _follow(trainer: "Trainer", logged: bool, watched: bool) -> None:
    """Train; show each record as the terminal allows, and copy it to TensorBoard if asked to."""
    from toytrans.training.tensorboard import copy_to_tensorboard

    progress = trainer.progress
    match: float | None = None
    before = (progress.target_tokens, progress.elapsed_s)
    copy: Callable[[Record], object] = bool
    if logged and trainer.context.is_main:
        copy = copy_to_tensorboard(trainer.run, progress.step, progress.elapsed_s, note)
    view: Callable[[Trainer], AbstractContextManager[Callable[[Moment], None]]] = _line
    if watched and trainer.context.is_main:
        from toytrans.cli.render.watch import can_watch, watch

        view = watch if can_watch() else view
    with view(trainer) as show:
        for record in trainer.train():
            match = record.get("valid_exact_match", match)
            seconds = record["elapsed_s"] - before[1]
            rate = (record["target_tokens"] - before[0]) / max(seconds, 1e-9)
            before = (int(record["target_tokens"]), record["elapsed_s"])
            show(Moment(record, rate, match))
            copy(record)


@contextlib.contextmanager
def _line(trainer: "Trainer") -> Iterator[Callable[[Moment], None]]:
    """A bar on a terminal, and notes elsewhere."""
    total, step = trainer.config.train.max_steps, trainer.progress.step
    shape = "step {n_fmt}/{total_fmt} {bar} {desc} {remaining} left"
    bar, progress = progress_bar(shape, total=total, initial=step), Progress()

    def show(moment: Moment) -> None:
        step, left = moment.record["step"], moment.seconds_left(total)
        with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
            bar.set_description_str(_status(moment), refresh=False)
            bar.update(int(step) - bar.n)
        if bar.disable:
            progress(f"step {step}/{total} {_status(moment)} {left:.0f} s left")

    yield show
    with contextlib.suppress(OSError):
        bar.close()


def _status(moment: Moment) -> str:
    status = f"loss {moment.record['loss']:.4f} {moment.rate:,.0f} tok/s"
    return (
        status
        if moment.match is None
        else f"{status} free-running exact match {share(moment.match)}"
    )


def _report_stop(trainer: "Trainer") -> None:
    """Exit with the right code if training has diverged or was interrupted, even at its last
    step."""
    from toytrans.training.signals import exit_if_signalled

    if trainer.stop_reason == "diverged":
        note(f"toytrans: {trainer.divergence()}")
        raise typer.Exit(1)
    received = trainer.signals()
    if received and trainer.saved_step is None:
        note("stopped before the first step; nothing is saved")
    elif received:
        several, own_code = trainer.context.size > 1, trainer.config.references
        words = ["torchrun", "...", "-m", "toytrans"] if several else ["toytrans"]
        words += ["train", "--resume", "--out", str(trainer.run)]
        again = shlex.join(words + ["--trust-code"] * bool(own_code))
        note(f"stopped at step {trainer.progress.step} and saved; go on with: {again}")
    exit_if_signalled(received)
