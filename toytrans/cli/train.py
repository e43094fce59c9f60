"""`toytrans train`."""

import contextlib
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from toytrans.cli.common import Break, fall_silent, note, share, told_once, warn_of_fault
from toytrans.cli.render.results import print_results
from toytrans.cli.signals import Noted, leave_by, noted
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
        str | None,
        typer.Option(metavar="PATH", help="Run directory; left out: runs/<config's name>."),
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
        if out == "":  # a variable of the shell's that is not set
            raise UserError("--out: empty; name a directory, or leave --out away")
        settings = load_config(config, changes)
    warn_of_fault(settings.fault)
    from toytrans.training.devices import tune_process
    from toytrans.training.distributed import joined

    tune_process()
    with joined(settings.device, note) as team:
        if not team.is_first:
            fall_silent()
        asked = _Asked(
            config, None if out is None else Path(out), changes, settings, resume, overwrite
        )
        with _prepared(asked, team) as (trainer, source, signals):
            _follow(trainer, trainer.config.train.max_steps)
            _report_stop(trainer, config, changes, signals)
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
def _prepared(asked: _Asked, team: "Team") -> "Iterator[tuple[Trainer, PairSource, Noted]]":
    """A trainer in its run directory, locked. Everything is checked before anything is written.

    From the first thing written on signals are noted. The first lets the running step end and
    saves; a second leaves at once, except under torchrun, which passes them on and does not wait
    for long. Before the first step there is nothing to save, and the run is as it was.
    """
    from toytrans.training import devices, run
    from toytrans.training.trainer import Trainer

    plan = team.first(lambda: _plan(asked, team))
    place, source = team.together(lambda: _open(plan, team))
    team.require_alike(config=asked.settings, data=source.facts, device=place.type)
    precision = team.first(
        lambda: devices.choose_precision(plan.precision, place, plan.settings.model.d_model)
    )
    with noted(patient=team.size > 1) as signals:
        path, made = team.first(lambda: _claim(plan, asked.config.stem, asked.out))
        with _held(plan, path, made, team) as notes:
            trainer = Trainer(plan.settings, source, path, place, precision, team)
            resumed = trainer.resume() if plan.resume else []
            before = run.read_environment(path) if trainer.progress.step else {}
            environment = _environment(plan.settings, place, precision, team)
            environment["config"] = before.get("config", asked.config.stem)
            leave_by(*team.gather(signals.received))
            team.first(lambda: run.create_run(path, plan.settings, source.facts, environment))
            processes = f", {team.size} processes" if team.size > 1 else ""
            about = f"{path}: {place}, {precision}{processes}"
            for sentence in (
                about,
                *notes,
                *source.notes,
                *resumed,
                *_changes(before, environment),
            ):
                note(sentence)
            signals.act = trainer.interrupt
            leave_by(*team.gather(signals.received))
            yield trainer, source, signals
    leave_by(signals.received)  # one that came in the moment after the training


@contextlib.contextmanager
def _held(plan: _Plan, path: Path, made: bool, team: "Team") -> Iterator[list[str]]:
    """A run's folder, locked. A run that is replaced is set aside, and put back where the new one
    saves nothing; a folder in which nothing was written is free again. Yields what a person should
    know."""
    from toytrans.training import owned, run

    with contextlib.ExitStack() as lock:
        keeping_out = run.locked(path, ", or name another --out")
        notes = list(team.first(lambda: lock.enter_context(keeping_out)))
        try:
            if plan.overwrite and (others := team.first(lambda: owned.set_aside(path))):
                notes.append(f"{path}: kept what training did not write: {', '.join(others)}")
            yield notes
        finally:
            if team.is_first:
                if owned.put_back(path):
                    note(f"{path}: the new run saved nothing, so the one before is back")
                owned.forget_claim(path, made=made)


def _open(plan: _Plan, team: "Team") -> "tuple[torch.device, PairSource]":
    """The device and the data of this process, checked."""
    from toytrans.data import check_splits, open_source
    from toytrans.training.devices import choose_device

    team.check(plan.settings)
    place = choose_device(team.device(plan.settings.device))
    source = open_source(plan.settings)
    if plan.known is not None and source.facts != plan.known:
        raise UserError(
            f"{plan.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    check_splits(plan.settings, source)
    return place, source


def _claim(plan: _Plan, stem: str, out: Path | None) -> tuple[Path, bool]:
    """The run's folder, and whether it was made for this run."""
    from toytrans.training import run

    existed = os.path.exists(plan.path)
    if plan.resume or plan.overwrite:
        return plan.path, not existed
    path = run.claim_folder(stem, out)
    return path, out is None or not existed


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


def _environment(
    settings: "Config", place: "torch.device", precision: str, team: "Team"
) -> dict[str, Any]:
    import torch

    from toytrans import __version__
    from toytrans.data.files import sha256_of
    from toytrans.training.machine import settings_of_numbers

    gpu = torch.cuda.get_device_name(place) if place.type == "cuda" else None
    files = settings.data.files
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
        "valid_sha256": sha256_of(files.valid) if files and files.valid else None,
        "launch": team.launch,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
    }


MAY_CHANGE = ("config", "launch", "started", "command", "python", "platform")
"""Parts of a run's environment that change no number of the training."""


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs from where a resumed run was started, one sentence each."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    sentences = []
    if "valid_sha256" in changed:
        sentences.append(
            "the validation file is not the one of before: exact match before and after this "
            "step cannot be compared"
        )
    if names := [key for key in changed if key not in (*MAY_CHANGE, "valid_sha256")]:
        listed = ", ".join(f"{key} {before[key]} -> {now[key]}" for key in names)
        sentences.append(f"the run was saved elsewhere, so its numbers may differ: {listed}")
    return sentences


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
        with contextlib.suppress(OSError):  # a terminal that was closed: what it sent saves
            bar.set_description_str(words, refresh=False)
            bar.update(int(record["step"]) - bar.n)
        if not terminal and time.monotonic() - spoken >= SECONDS_BETWEEN_LINES:
            spoken = time.monotonic()
            left = seconds_left(record, max_steps)
            note(f"step {record['step']}/{max_steps} {words} {left:.0f} s left")
    with contextlib.suppress(OSError):
        bar.close()


def seconds_left(record: "Record", max_steps: int) -> float:
    """To max_steps, at the mean pace so far."""
    return float(record["elapsed_s"] / max(record["step"], 1) * (max_steps - record["step"]))


def _report_stop(trainer: "Trainer", config: Path, changes: list[str], signals: Noted) -> None:
    """Leave with the right code where training was interrupted, if at its last step, or has
    diverged."""
    step, path = trainer.progress.step, trainer.run
    if trainer.stop_reason == "diverged":
        good = trainer.saved_step
        left = "no checkpoint yet" if good is None else f"the last good checkpoint is step {good}"
        note(
            f"toytrans: {path}: training diverged: the {trainer.cause} is not finite by step "
            f"{step}; {left}; lower train.lr or train.clip_norm"
        )
        raise typer.Exit(1)
    came = trainer.team.gather(signals.received)
    if any(came):
        sets = [word for change in changes for word in ("--set", change)]
        again = shlex.join(
            [*trainer.team.command(), "train", "--config", str(config), *sets]
            + ["--out", str(path), "--resume"]
        )
        if trainer.saved_step is None:
            note("stopped before the first step; nothing is saved")
        else:
            note(f"stopped at step {step} and saved; go on with: {again}")
        leave_by(*came)
