"""`toytrans train`."""

import contextlib
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import Break, Overrides, either, note, share, warn_of_fault
from toytrans.cli.render.results import print_results
from toytrans.cli.reporter import reporter
from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.training.run import Record
    from toytrans.training.session import Session
    from toytrans.training.trainer import Trainer

SECONDS_BETWEEN_LINES = 5.0


def train(
    path: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="YAML file that describes the run.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="The same as the argument CONFIG.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Run directory. Default: runs/<name of the config>."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto | cpu | cuda | cuda:N | mps. Default: that of the config."),
    ] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Short for --set seed=N.")] = None,
    fault: Break = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run from its last checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing run.")
    ] = False,
) -> None:
    """Train a model from a YAML file and measure it."""
    from toytrans.config_file import load_config

    file = either(path, config, "config")
    if file is None:
        raise UserError("no config; name one, say `toytrans train configs/reverse.yaml`")
    if resume and overwrite:
        raise UserError("--resume goes on with a run and --overwrite replaces it; give one")
    if out == "":  # a shell variable that is not set
        raise UserError("--out: empty; name a directory, or leave --out away")
    changes = [*(overrides or ()), *([f"device={device}"] if device else ())]
    changes += [f"fault={fault}"] if fault else []
    changes += [f"seed={seed}"] if seed is not None else []
    settings = load_config(file, changes)
    warn_of_fault(settings.fault)
    from toytrans.training.devices import tune_process
    from toytrans.training.distributed import init_distributed
    from toytrans.training.session import Request, open_session

    tune_process()
    request = Request(
        file.stem,
        settings,
        lambda saved: load_config(file, changes, base=saved),
        None if out is None else Path(out),
        resume,
        overwrite,
    )
    with init_distributed(settings.device, note) as context:
        if not context.is_main:
            reporter.fall_silent()
        with open_session(request, note, context) as session:
            _follow(session.trainer)
            _report_stop(session, file, changes)
        print_results(session.trainer, session.source)


def _follow(trainer: "Trainer") -> None:
    """Train, with a bar on a terminal and a line every few seconds elsewhere."""
    from tqdm import tqdm

    terminal, max_steps = sys.stderr.isatty(), trainer.config.train.max_steps
    bar = tqdm(
        total=max_steps,
        initial=trainer.progress.step,
        unit="step",
        disable=not terminal,
        dynamic_ncols=True,
        bar_format="step {n_fmt}/{total_fmt} {bar} {desc} {remaining} left",
    )
    printed_at, match = time.monotonic(), None
    before = (trainer.progress.target_tokens, trainer.progress.elapsed_s)
    for record in trainer.train():
        match = record.get("valid_exact_match", match)
        seconds = record["elapsed_s"] - before[1]
        rate = (record["target_tokens"] - before[0]) / max(seconds, 1e-9)
        before = (int(record["target_tokens"]), record["elapsed_s"])
        status = f"loss {record['loss']:.4f} {rate:,.0f} tok/s"
        if match is not None:
            status += f" exact match {share(match)}"
        with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
            bar.set_description_str(status, refresh=False)
            bar.update(int(record["step"]) - bar.n)
        if not terminal and time.monotonic() - printed_at >= SECONDS_BETWEEN_LINES:
            printed_at = time.monotonic()
            left = seconds_left(record, max_steps)
            note(f"step {record['step']}/{max_steps} {status} {left:.0f} s left")
    with contextlib.suppress(OSError):
        bar.close()


def seconds_left(record: "Record", max_steps: int) -> float:
    """To max_steps, at the mean pace so far."""
    return float(record["elapsed_s"] / max(record["step"], 1) * (max_steps - record["step"]))


def _report_stop(session: "Session", config: Path, changes: list[str]) -> None:
    """Exit with the right code if training has diverged or was interrupted, even at its last
    step."""
    from toytrans.training.signals import exit_if_signalled

    trainer = session.trainer
    step, path = trainer.progress.step, trainer.run
    if trainer.stop_reason == "diverged":
        note(f"toytrans: {trainer.divergence()}")
        raise typer.Exit(1)
    received = trainer.context.gather(session.signals.received)
    if any(received):
        sets = [word for change in changes for word in ("--set", change)]
        again = shlex.join(
            [*trainer.context.command(), "train", "--config", str(config), *sets]
            + ["--out", str(path), "--resume"]
        )
        if trainer.saved_step is None:
            note("stopped before the first step; nothing is saved")
        else:
            note(f"stopped at step {step} and saved; go on with: {again}")
        exit_if_signalled(*received)
