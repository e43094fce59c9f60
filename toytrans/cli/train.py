"""`toytrans train`."""

import contextlib
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from toytrans.cli.common import Break, fall_silent, note, share, told_once, warn_of_fault
from toytrans.cli.results import print_results
from toytrans.cli.signals import leave_by, noted
from toytrans.errors import UserError

if TYPE_CHECKING:
    import torch

    from toytrans.config import Config
    from toytrans.data.pairs import DataFacts, PairSource
    from toytrans.training.distributed import Team
    from toytrans.training.run import Record
    from toytrans.training.trainer import Trainer

SECONDS_BETWEEN_LINES = 5.0


def train(
    config: Annotated[Path, typer.Option(help="The YAML file that describes the run.")],
    out: Annotated[
        Path | None, typer.Option(help="Run directory; left out: runs/<config's name>.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto | cpu | cuda | cuda:N | mps; over the config's.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the config's.")
    ] = None,
    fault: Break = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run.")] = False,
) -> None:
    """Train a model from a YAML file and measure it."""
    from toytrans.config_file import load_config

    changes = [*(overrides or ()), *([f"device={device}"] if device else ())]
    changes += [f"fault={fault}"] if fault else []
    with told_once():
        if resume and overwrite:
            raise UserError("--resume goes on with a run and --overwrite replaces it; give one")
        settings = load_config(config, changes)
    warn_of_fault(settings.fault)
    from toytrans.training.devices import tune_process
    from toytrans.training.distributed import joined

    tune_process()
    with joined(settings.device, note) as team:
        if not team.is_first:
            fall_silent()
        asked = _Asked(config, out, changes, settings, resume, overwrite)
        with _prepared(asked, team) as (trainer, source), _stopping_on_signals(trainer) as signals:
            _follow(trainer, trainer.config.train.max_steps)
            _report_stop(trainer, config, changes, signals)
        if signals:  # one came while nothing had to be reported
            leave_by(signals)
        print_results(trainer, source)


class _Asked(NamedTuple):
    """What the command line asks for; settings: of the config with its changes."""

    config: Path
    out: Path | None
    changes: list[str]
    settings: "Config"
    resume: bool
    overwrite: bool


class _Plan(NamedTuple):
    """Where a run goes, with which settings; of a run that goes on the facts of its data."""

    path: Path
    settings: "Config"
    precision: Any
    known: "DataFacts | None"
    resume: bool
    overwrite: bool


def _plan(asked: _Asked, team: "Team") -> _Plan:
    """What is decided before anything is written. What torchrun starts again goes on by itself,
    but only with a run that it was training."""
    from toytrans.training import run

    stem, out, resume, overwrite = asked.config.stem, asked.out, asked.resume, asked.overwrite
    if team.restarts and not resume:
        path = run.choose_folder(stem, out, resume=True, overwrite=False)
        resume = run.is_of_launch(path, team.launch)
        overwrite = overwrite and not resume
    path = run.choose_folder(stem, out, resume=resume, overwrite=overwrite)
    settings, precision, known = asked.settings, asked.settings.train.precision, None
    if resume and run.is_run(path):
        settings, known = _settings_to_resume(asked.config, asked.changes, path)
        if precision == "auto":  # what it chose once holds for the whole run
            precision = run.read_precision(path) or precision
    return _Plan(path, settings, precision, known, resume, overwrite)


@contextlib.contextmanager
def _prepared(asked: _Asked, team: "Team") -> "Iterator[tuple[Trainer, PairSource]]":
    """A trainer in its run directory, locked. Everything is checked before anything is written."""
    from toytrans.training import devices, run
    from toytrans.training.trainer import Trainer

    plan = team.first(lambda: _plan(asked, team))
    place, source = team.together(lambda: _open(plan, team))
    team.require_alike(config=asked.settings, data=source.facts, device=place.type)
    precision = team.first(
        lambda: devices.choose_precision(plan.precision, place, plan.settings.model.d_model)
    )
    path = team.first(lambda: _claim(plan, asked.config.stem, asked.out))
    with contextlib.ExitStack() as lock:
        keeping_out = run.locked(path, ", or name another --out")
        unguarded = team.first(lambda: lock.enter_context(keeping_out))
        if plan.overwrite:
            team.first(lambda: run.clear_folder(path))
        trainer = Trainer(plan.settings, source, path, place, precision, team)
        resumed = trainer.resume() if plan.resume else []
        environment = _environment(place, precision, team)
        team.first(lambda: run.create_run(path, plan.settings, source.facts, environment))
        processes = f", {team.size} processes" if team.size > 1 else ""
        about = f"{path}: {place}, {precision}{processes}"
        for sentence in (about, *unguarded, *source.notes, *resumed):
            note(sentence)
        yield trainer, source


def _open(plan: _Plan, team: "Team") -> "tuple[torch.device, PairSource]":
    """The device and the data of this process, checked."""
    from toytrans.data import check_splits, open_source
    from toytrans.training.devices import choose_device

    team.check(plan.settings)
    place = choose_device(team.device(plan.settings.device))
    source = open_source(plan.settings)
    check_splits(plan.settings, source)
    if plan.known is not None and source.facts != plan.known:
        raise UserError(
            f"{plan.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    return place, source


def _claim(plan: _Plan, stem: str, out: Path | None) -> Path:
    """The run's folder: as it is for a run that goes on or is replaced, else made."""
    from toytrans.training import run

    if plan.resume or plan.overwrite:
        return plan.path
    return run.claim_folder(stem, out)


def _settings_to_resume(config: Path, changes: list[str], path: Path) -> "tuple[Config, DataFacts]":
    """The config, which may differ from the saved run's in its limits alone; the run's data."""
    from toytrans.config_file import differences, load_config
    from toytrans.training.run import read_run

    saved, facts = read_run(path)
    try:
        settings = load_config(config, changes, base=saved)
    except UserError:  # derived values of the saved run can contradict what the file now says
        settings = load_config(config, changes)
    if changed := differences(saved, settings):
        raise UserError(
            f"{path}: cannot resume with other settings: {', '.join(changed)}; "
            "set them back, or start another run with --out"
        )
    return settings, facts


def _environment(place: Any, precision: str, team: "Team") -> dict[str, Any]:
    import torch

    from toytrans import __version__
    from toytrans.training.machine import settings_of_numbers

    gpu = torch.cuda.get_device_name(place) if place.type == "cuda" else None
    return {
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(place),
        "gpu": gpu,
        "precision": precision,
        **settings_of_numbers(),
        "processes": team.size,
        "launch": team.launch,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
    }


def _stopping_on_signals(trainer: "Trainer") -> contextlib.AbstractContextManager[list[int]]:
    """The first signal lets the step end and saves; a second leaves at once, except under torchrun,
    which passes signals on and does not wait for long."""

    def stop() -> None:
        trainer.interrupted = True

    return noted(stop, patient=trainer.team.size > 1)


def _follow(trainer: "Trainer", max_steps: int) -> None:
    """Train, with a bar on a terminal and a line every few seconds elsewhere."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    bar = tqdm(
        total=max_steps,
        initial=trainer.progress.step,
        unit="step",
        disable=not terminal,
        dynamic_ncols=True,
        bar_format="step {n_fmt}/{total_fmt} {bar} {desc} {remaining} left",
    )
    spoken, match = time.monotonic(), None
    before = (trainer.progress.target_tokens, trainer.progress.elapsed_s)
    for record in trainer.train():
        match = record.get("valid_exact_match", match)
        seconds = record["elapsed_s"] - before[1]
        rate = (record["target_tokens"] - before[0]) / max(seconds, 1e-9)
        before = (int(record["target_tokens"]), record["elapsed_s"])
        words = f"loss {record['loss']:.4f} {rate:,.0f} tok/s"
        if match is not None:
            words += f" exact match {share(match)}"
        bar.set_description_str(words, refresh=False)
        bar.update(int(record["step"]) - bar.n)
        if not terminal and time.monotonic() - spoken >= SECONDS_BETWEEN_LINES:
            spoken = time.monotonic()
            left = seconds_left(record, max_steps)
            note(f"step {record['step']}/{max_steps} {words} {left:.0f} s left")
    bar.close()


def seconds_left(record: "Record", max_steps: int) -> float:
    """To max_steps, at the mean pace so far."""
    return float(record["elapsed_s"] / max(record["step"], 1) * (max_steps - record["step"]))


def _report_stop(trainer: "Trainer", config: Path, changes: list[str], signals: list[int]) -> None:
    """Leave with the right code where training was interrupted, if at its last step, or has
    diverged."""
    step, path = trainer.progress.step, trainer.run
    if trainer.stop_reason == "diverged":
        from toytrans.training.checkpoint import saved_steps

        good = saved_steps(path)
        left = f"the last good checkpoint is step {good[-1]}" if good else "no checkpoint yet"
        note(
            f"toytrans: {path}: training diverged: the {trainer.cause} is not finite by step "
            f"{step}; {left}; lower train.lr or train.clip_norm"
        )
        raise typer.Exit(1)
    if everyones := [n for own in trainer.team.gather(signals) for n in own]:
        sets = [word for change in changes for word in ("--set", change)]
        again = shlex.join(
            [*trainer.team.command(), "train", "--config", str(config), *sets]
            + ["--out", str(path), "--resume"]
        )
        note(f"stopped at step {step} and saved; go on with: {again}")
        leave_by(everyones)
