"""One training session: everything that is prepared before the first step, and released after it.

    a new run      settings -> device, data, model, all checked -> signals are collected -> its
                   folder is made and locked
    one resumed    it is locked -> its settings -> device, data, model, all checked -> signals are
                   collected -> its newest checkpoint is taken over
    both           -> the user is told -> a rehearsal, unless a checkpoint was taken over -> the run
                   is described -> the trainer

A new run that is refused before it is described leaves no folder. While signals are collected, the
first one lets the running step end and saves. No run is ever replaced: an existing run is resumed,
or another folder is taken. Of several processes the first alone writes.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from toytrans.config.faults import fault_remark
from toytrans.config.schema import Config, Settings
from toytrans.config.yaml import naming_origins
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Dataset
from toytrans.errors import UserError
from toytrans.model.build import build_model, check_fault
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.references import shown
from toytrans.resolve import resolve
from toytrans.training.devices import Precision, choose_device, choose_precision
from toytrans.training.distributed import rank_and_processes
from toytrans.training.folder import run_to_resume
from toytrans.training.provenance import environment_of
from toytrans.training.rehearsal import check_dtype, rehearse
from toytrans.training.signals import collect_signals
from toytrans.training.trainer import Trainer
from toytrans.training.writer import RunWriter, new_run

if TYPE_CHECKING:
    from toytrans.training.graphs import StepGraphs
    from toytrans.training.resume import ResumedRun
    from toytrans.training.start import Start


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
    waits = waits or processes > 1
    path = run_to_resume(name, out) if resume else None
    with contextlib.ExitStack() as stack:
        changes = ["no checkpoint to resume from; starting at step 0"] if resume else []
        if path is None:
            trainer = prepare(config, resolve(config), device, report)
            trainer.signals = stack.enter_context(collect_signals(waits))
            if rank == 0:
                trainer.writer = stack.enter_context(new_run(name, out))
            environment = environment_of(trainer.device, trainer.precision, processes, name)
        else:
            from toytrans.training.resume import ResumedRun

            writer = stack.enter_context(RunWriter(path).locked()) if rank == 0 else None
            saved = ResumedRun(path, config)
            trainer = prepare(config, saved.settings, device, report, saved)
            trainer.signals = stack.enter_context(collect_signals(waits))
            trainer.writer = writer
            trainer.resume(path)
            made_by = saved.environment.get("config", name)
            environment = environment_of(trainer.device, trainer.precision, processes, made_by)
            if trainer.saved_step is not None:
                changes = saved.what_changed(trainer, environment)

        if trainer.writer is not None:
            opening = _opening(trainer, trainer.writer)
            notes = [*opening, *trainer.dataset.notes, trainer.writer.note, *changes]
            for sentence in filter(None, notes):
                report(sentence)
        if trainer.saved_step is None:
            rehearse(trainer)
        if trainer.writer is not None:
            trainer.writer.describe(config, trainer.settings, trainer.dataset.facts, environment)
        yield trainer


def prepare(
    config: Config,
    settings: Settings,
    device: str | None,
    report: Callable[[str], None],
    saved: "ResumedRun | None" = None,
) -> Trainer:
    """The trainer of some settings at step 0, which writes nothing yet.

    config: as it was given, for errors. saved: the run that goes on, whose data and precision stay.
    Raises UserError.
    """
    _, processes = rank_and_processes()
    if settings.fault is not None and processes > 1:  # its loss may be no sum over rows
        remark = fault_remark(settings.fault)
        raise UserError(f"{remark}: trains in one process, without torchrun")
    chosen = choose_device(device or settings.device)
    with naming_origins(config.origins):
        check_fault(settings.fault, settings.model)
        start = start_of(settings) if saved is None or not saved.run.steps else None
        before = saved.run if saved is not None else start.run if start is not None else None
        dataset = open_dataset(settings, vocabulary=before.vocabulary if before else None)
        if saved is not None:
            saved.check_data(dataset.facts)
        if start is not None:
            start.check_symbols(dataset)
        check_dataset(settings, dataset)
    asked = saved.precision if saved is not None else settings.train.precision
    precision = choose_precision(asked, chosen, settings.model.d_model)
    step_graphs = open_graphs(settings, chosen, precision, processes, report)
    model = new_model(settings, dataset, precision, chosen)
    if start is not None:
        with naming_origins(config.origins):
            start.give_weights(model)
        report(str(start))
    return Trainer(settings, dataset, model, precision, step_graphs=step_graphs)


def new_model(
    settings: Settings, dataset: Dataset, precision: Precision, device: torch.device
) -> Seq2Seq:
    """A model with fresh weights, which follow from the seed, on its device. Raises UserError for
    one whose weights have another dtype."""
    torch.manual_seed(settings.seed)
    model = build_model(settings, dataset.facts.vocabulary)
    check_dtype(model, precision)
    return model.to(device)


def start_of(settings: Settings) -> "Start | None":
    """The run whose weights a new training starts with; None for fresh weights."""
    if settings.train.init is None:
        return None
    from toytrans.training.start import Start

    return Start(settings)


def open_graphs(
    settings: Settings,
    device: torch.device,
    precision: Precision,
    processes: int,
    report: Callable[[str], object],
) -> "StepGraphs | None":
    """What takes the steps of a run on a CUDA device; None on others, where all are eager."""
    if device.type != "cuda":
        return None
    from toytrans.training.graphs import graphs_on_cuda

    return graphs_on_cuda(settings, device, precision, processes, report)


def _opening(trainer: Trainer, writer: RunWriter) -> list[str]:
    """The run, where it is trained, and what a scheme of positions other than the paper's is
    given."""
    model, threads = trainer.model, torch.get_num_threads()
    _, processes = rank_and_processes()
    first = f"{writer.path}: {trainer.device}, {trainer.precision}"
    if processes > 1:
        first += f", {processes} processes"
    if trainer.step_graphs is not None:
        why = trainer.step_graphs.why_eager
        first += f", eager steps ({why})" if why else ", CUDA graphs"
    if trainer.device.type == "cpu" and threads > 1:
        first += f", {threads} threads"
    given = model.positions.summary if isinstance(model, Transformer) else ""
    name = shown(model.settings.positions)
    return [first, f"positions {name}: {given}; not the paper's" if given else ""]
