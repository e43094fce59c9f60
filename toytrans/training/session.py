"""One training session: everything that is prepared before the first step, and released after it.

    a run to resume is locked and read -> config -> device, data, model, all checked
    -> a new run gets its folder -> the newest checkpoint is taken over, or a rehearsal is held

Everything is checked before anything is written. From the first file written on, signals are
collected: the first one lets the running step end and saves. No run is ever replaced: an existing
run is resumed, or another folder is taken. Of several processes the first alone writes.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import torch

from toytrans.config.load import settings_for_resume
from toytrans.config.schema import Config, Settings
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Dataset
from toytrans.errors import UserError
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.resolve import resolve
from toytrans.training.devices import Precision, choose_device, choose_precision
from toytrans.training.distributed import place
from toytrans.training.environment import changes, environment_of
from toytrans.training.faults import build_model, check_fault
from toytrans.training.folder import new_folder, run_to_resume
from toytrans.training.graphs import open_recorder
from toytrans.training.rehearsal import check_dtype, rehearse
from toytrans.training.run import Run
from toytrans.training.schedules import first_difference, learning_rate
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
    rank, processes = place()
    with contextlib.ExitStack() as stack:
        writer: RunWriter | None = None
        saved: Run | None = None
        path = run_to_resume(name, out) if resume else None
        if path is not None:
            if rank == 0:
                writer = stack.enter_context(RunWriter(path).locked())
            saved = Run.open(path)
            if saved.steps:
                saved.at("last").check_settings()
            settings = settings_for_resume(saved.given, saved.config, config, path)
        else:
            settings = resolve(config)
        check_fault(settings.fault, settings.model, processes)
        chosen = choose_device(device or settings.device)
        dataset = _open_data(settings, saved)
        precision = _precision(settings, saved, chosen)
        recorder = open_recorder(settings, chosen, precision, processes, report)
        model = new_model(settings, dataset, precision, chosen)
        signals = stack.enter_context(collect_signals(waits or processes > 1))
        if writer is None and rank == 0:
            writer = stack.enter_context(new_folder(name, out))
        trainer = Trainer(settings, dataset, model, precision, writer, signals, recorder)
        resumed = path is not None and trainer.resume(path)
        environment = environment_of(settings, chosen, precision, processes)
        before = saved.environment if saved else {}
        environment["config"] = before.get("config", name)
        if writer is not None:
            writer.describe(config, settings, dataset.facts, environment)
            notes = [*_opening(trainer, writer), *dataset.notes, writer.note]
            if resumed:
                notes.append(f"resumed at step {trainer.progress.step}")
            elif resume:
                notes.append("no checkpoint to resume from; starting at step 0")
            if saved is not None and trainer.progress.step:
                notes += [*changes(before, environment), _schedule(saved.config, trainer)]
            for sentence in filter(None, notes):
                report(sentence)
        if not resumed:
            rehearse(trainer)
        yield trainer


def new_model(
    config: Settings, dataset: Dataset, precision: Precision, device: torch.device
) -> Seq2Seq:
    """A model with fresh weights, which follow from the config's seed, on its device. Raises
    UserError for one whose weights have another dtype."""
    torch.manual_seed(config.seed)
    model = build_model(config, dataset.facts.vocabulary)
    check_dtype(model, precision)
    return model.to(device)


def _open_data(config: Settings, saved: Run | None) -> Dataset:
    """The data, checked. Raises UserError if it is not that of the saved run."""
    dataset = open_dataset(config)
    if saved is not None and dataset.facts != saved.facts:
        raise UserError(
            f"{saved.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    check_dataset(config, dataset)
    return dataset


def _precision(config: Settings, saved: Run | None, device: torch.device) -> Precision:
    """The precision of the config. What `auto` chose for the saved run stays."""
    asked = config.train.precision
    before: Any = saved.environment.get("precision") if saved else None
    if asked == "auto" and before in get_args(Precision):
        asked = before
    return choose_precision(asked, device, config.model.d_model)


def _opening(trainer: Trainer, writer: RunWriter) -> list[str]:
    """The run, where it is trained, and what a scheme of positions other than the paper's is
    given."""
    model, processes, threads = trainer.model, place()[1], torch.get_num_threads()
    first = f"{writer.path}: {trainer.device}, {trainer.precision}"
    if processes > 1:
        first += f", {processes} processes"
    if trainer.recorder is not None:
        why = trainer.recorder.why_eager
        first += f", eager steps ({why})" if why else ", recorded steps"
    if trainer.device.type == "cpu" and threads > 1:
        first += f", {threads} threads"
    given = model.positions.lesson if isinstance(model, Transformer) else ""
    name = shown(model.config.positions)
    return [first, f"positions {name}: {given}; not the paper's" if given else ""]


def _schedule(saved: Settings, trainer: Trainer) -> str:
    """A sentence if another limit of steps has changed the learning rate of a step to come; else
    empty."""
    train = trainer.config.train
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
