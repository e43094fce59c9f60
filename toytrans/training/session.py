"""One training session: everything that is prepared before the first step, and released after it.

    a run to resume is locked and read -> settings -> device, data, model, all checked
    -> a new run gets its folder -> the newest checkpoint is taken over, or a rehearsal is held
    -> the run is described

A run is described when everything is checked; the folder of a new run that is refused before goes
again. From the folder on, signals are collected: the first one lets the running step end and saves.
No run is ever replaced: an existing run is resumed, or another folder is taken. Of several
processes the first alone writes.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import torch

from toytrans.config.faults import fault_remark
from toytrans.config.load import settings_for_resume
from toytrans.config.schedules import first_difference, learning_rate
from toytrans.config.schema import Config, Settings
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Dataset
from toytrans.errors import UserError
from toytrans.model.build import build_model, check_fault
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.resolve import naming_origins, resolve
from toytrans.training.devices import Precision, choose_device, choose_precision
from toytrans.training.distributed import rank_and_processes
from toytrans.training.environment import changes, environment_of
from toytrans.training.folder import new_folder, run_to_resume
from toytrans.training.graphs import open_recorder
from toytrans.training.rehearsal import check_dtype, rehearse
from toytrans.training.run import Run
from toytrans.training.signals import collect_signals
from toytrans.training.trainer import Trainer
from toytrans.training.writer import RunWriter
from toytrans.user_code import shown


@contextlib.contextmanager
def open_session(
    config: Config,
    name: str,
    out: Path | None,
    resume: bool,
    report: Callable[[str], None],
    device: str | None = None,
    *,
    waits: bool = False,
) -> Iterator[Trainer]:
    """Prepare a run and hold its lock. Yields its trainer. Raises UserError.

    name: of the config; without `out` the run goes to runs/NAME.
    resume: go on with the run that is there, if there is one; the config may then differ from the
        saved one in its limits alone.
    report: gets one sentence at a time for the user.
    device: of this process; None = that of the config.
    waits: as of `collect_signals`; torchrun, too, passes signals on.
    """
    rank, processes = rank_and_processes()
    with contextlib.ExitStack() as stack:
        writer: RunWriter | None = None
        saved: Run | None = None
        path = run_to_resume(name, out) if resume else None
        if path is None:
            settings = resolve(config)
        else:
            if rank == 0:
                writer = stack.enter_context(RunWriter(path).locked())
            saved = Run.open(path)
            settings = _settings_to_resume(saved, config)
        if settings.fault is not None and processes > 1:  # its loss may be no sum over rows
            remark = fault_remark(settings.fault)
            raise UserError(f"{remark}: trains in one process, without torchrun")
        chosen = choose_device(device or settings.device)
        with naming_origins(config):
            check_fault(settings.fault, settings.model)
            dataset = _open_data(settings, saved)
        precision = _precision(settings, saved, chosen)
        recorder = open_recorder(settings, chosen, precision, processes, report)
        model = new_model(settings, dataset, precision, chosen)
        signals = stack.enter_context(collect_signals(waits or processes > 1))
        if writer is None and rank == 0:
            writer = stack.enter_context(new_folder(name, out))
        trainer = Trainer(settings, dataset, model, precision, writer, signals, recorder)
        if saved is not None:
            trainer.resume(saved.path)
        environment = environment_of(chosen, precision, processes)
        environment["config"] = saved.environment.get("config", name) if saved else name
        if writer is not None:
            notes = [*_opening(trainer, writer), *dataset.notes, writer.note]
            if saved is not None and trainer.saved_step is not None:
                notes += _what_changed(saved, trainer, environment)
            elif resume:
                notes.append("no checkpoint to resume from; starting at step 0")
            for sentence in filter(None, notes):
                report(sentence)
        if trainer.saved_step is None:
            rehearse(trainer)
        if writer is not None:
            writer.describe(config, settings, dataset.facts, environment)
        yield trainer


def _settings_to_resume(saved: Run, config: Config) -> Settings:
    """The settings under which a run goes on. Raises UserError if they, or those that its newest
    checkpoint was trained with, are not those of the run."""
    if saved.steps:
        saved.at("last").check_settings()
    return settings_for_resume(saved.given, saved.config, config, saved.path)


def new_model(
    settings: Settings, dataset: Dataset, precision: Precision, device: torch.device
) -> Seq2Seq:
    """A model with fresh weights, which follow from the seed, on its device. Raises UserError for
    one whose weights have another dtype."""
    torch.manual_seed(settings.seed)
    model = build_model(settings, dataset.facts.vocabulary)
    check_dtype(model, precision)
    return model.to(device)


def _open_data(settings: Settings, saved: Run | None) -> Dataset:
    """The data, checked. Raises UserError if it is not that of the saved run."""
    dataset = open_dataset(settings)
    if saved is not None and dataset.facts != saved.facts:
        raise UserError(
            f"{saved.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    check_dataset(settings, dataset)
    return dataset


def _precision(settings: Settings, saved: Run | None, device: torch.device) -> Precision:
    """The precision of the settings. What `auto` chose for the saved run stays."""
    asked = settings.train.precision
    before: Any = saved.environment.get("precision") if saved else None
    if asked == "auto" and before in get_args(Precision):
        asked = before
    return choose_precision(asked, device, settings.model.d_model)


def _opening(trainer: Trainer, writer: RunWriter) -> list[str]:
    """The run, where it is trained, and what a scheme of positions other than the paper's is
    given."""
    model, threads = trainer.model, torch.get_num_threads()
    _, processes = rank_and_processes()
    first = f"{writer.path}: {trainer.device}, {trainer.precision}"
    if processes > 1:
        first += f", {processes} processes"
    if trainer.recorder is not None:
        why = trainer.recorder.why_eager
        first += f", eager steps ({why})" if why else ", recorded steps"
    if trainer.device.type == "cpu" and threads > 1:
        first += f", {threads} threads"
    given = model.positions.summary if isinstance(model, Transformer) else ""
    name = shown(model.settings.positions)
    return [first, f"positions {name}: {given}; not the paper's" if given else ""]


def _what_changed(saved: Run, trainer: Trainer, environment: dict[str, Any]) -> list[str]:
    """Where a resumed run goes on, and what is not as it was when it was saved."""
    return [
        f"resumed at step {trainer.progress.step}",
        *saved.at("last").notes,
        changes(saved.environment, environment),
        _schedule(saved.config, trainer),
    ]


def _schedule(saved: Settings, trainer: Trainer) -> str:
    """A sentence if another limit of steps has changed the learning rate of a step to come; else
    empty."""
    train = trainer.settings.train
    step = first_difference(saved.train, train, trainer.progress.step + 1)
    if step is None:
        return ""
    before, now = (learning_rate(step, each) for each in (saved.train, train))
    from_there = "" if step == trainer.progress.step + 1 else f" from step {step}"
    return (
        f"the {train.schedule} schedule now ends at step {train.max_steps}, not "
        f"{saved.train.max_steps}: the learning rate goes on{from_there} at {now:.3g}, not "
        f"{before:.3g}"
    )
