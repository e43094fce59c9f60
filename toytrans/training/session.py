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
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from toytrans.training.graphs import CudaSteps
    from toytrans.training.init_run import InitRun
    from toytrans.training.resume import ResumedRun


Opened = tuple[Trainer, dict[str, Any], list[str]]
"""A trainer, the environment that its run writes down, and sentences on how it goes on."""


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
    waits = waits or rank_and_processes()[1] > 1
    path = run_to_resume(name, out) if resume else None
    if path is None:
        opening = _new(config, name, out, report, device, waits)
    else:
        opening = _resumed(config, name, path, report, device, waits)
    with opening as (trainer, environment, how_it_goes_on):
        if resume and trainer.saved_step is None:
            how_it_goes_on = ["no checkpoint to resume from; starting at step 0"]
        if trainer.writer is not None:
            first = _first_sentences(trainer, trainer.writer)
            notes = [*first, *trainer.dataset.notes, trainer.writer.note, *how_it_goes_on]
            for sentence in filter(None, notes):
                report(sentence)
        if trainer.saved_step is None:
            rehearse(trainer)
        if trainer.writer is not None:
            trainer.writer.describe(config, trainer.settings, trainer.dataset.facts, environment)
        yield trainer


@contextlib.contextmanager
def _new(
    config: Config,
    name: str,
    out: Path | None,
    report: Callable[[str], None],
    device: str | None,
    waits: bool,
) -> Iterator[Opened]:
    """A new run, whose folder is made when all else is known to be right."""
    rank, processes = rank_and_processes()
    parts = prepare(config, resolve(config), device, report)
    folder = new_run(name, out) if rank == 0 else contextlib.nullcontext()
    with collect_signals(waits) as signals, folder as writer:
        trainer = parts.trainer(writer, signals)
        environment = environment_of(trainer.device, trainer.precision, processes, name)
        yield trainer, environment, []


@contextlib.contextmanager
def _resumed(
    config: Config,
    name: str,
    path: Path,
    report: Callable[[str], None],
    device: str | None,
    waits: bool,
) -> Iterator[Opened]:
    """A run that goes on. It is locked before it is read, so that no other training changes it
    meanwhile."""
    from toytrans.training.resume import ResumedRun

    rank, processes = rank_and_processes()
    lock = RunWriter(path).locked() if rank == 0 else contextlib.nullcontext()
    with lock as writer:
        saved = ResumedRun(path, config)
        parts = prepare(config, saved.settings, device, report, saved)
        with collect_signals(waits) as signals:
            trainer = parts.trainer(writer, signals)
            trainer.resume(path)
            made_by = saved.environment.get("config", name)
            environment = environment_of(trainer.device, trainer.precision, processes, made_by)
            changes = []
            if trainer.saved_step is not None:
                changes = saved.what_changed(trainer, environment)
            yield trainer, environment, changes


class Parts(NamedTuple):
    """What a trainer is made of, checked. Nothing is written yet."""

    settings: Settings
    dataset: Dataset
    model: Seq2Seq
    precision: Precision
    cuda_steps: "CudaSteps | None"

    def trainer(self, writer: RunWriter | None, signals: list[int]) -> Trainer:
        """The trainer at step 0."""
        settings, dataset, model, precision, cuda_steps = self
        return Trainer(settings, dataset, model, precision, writer, signals, cuda_steps)


def prepare(
    config: Config,
    settings: Settings,
    device: str | None,
    report: Callable[[str], None],
    saved: "ResumedRun | None" = None,
) -> Parts:
    """Device, data and model of some settings, checked.

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
        init = open_init_run(settings) if saved is None or not saved.run.steps else None
        dataset = open_data(settings, init, saved)
    asked = saved.precision if saved is not None else settings.train.precision
    precision = choose_precision(asked, chosen, settings.model.d_model)
    cuda_steps = open_cuda_steps(settings, chosen, precision, processes, report)
    model = new_model(settings, dataset, precision, chosen)
    if init is not None:
        with naming_origins(config.origins):
            init.give_weights(model)
        report(str(init))
    return Parts(settings, dataset, model, precision, cuda_steps)


def open_data(settings: Settings, init: "InitRun | None", saved: "ResumedRun | None") -> Dataset:
    """The dataset, which must fit the model. Its vocabulary is that of the run that goes on, or of
    the one whose weights a new run starts with, or else its own."""
    vocabulary = None
    if saved is not None:
        vocabulary = saved.run.vocabulary
    elif init is not None:
        vocabulary = init.run.vocabulary
    dataset = open_dataset(settings, vocabulary=vocabulary)
    if saved is not None:
        saved.check_data(dataset.facts)
    if init is not None:
        init.check_symbols(dataset)
    check_dataset(settings, dataset)
    return dataset


def new_model(
    settings: Settings, dataset: Dataset, precision: Precision, device: torch.device
) -> Seq2Seq:
    """A model with fresh weights, which follow from the seed, on its device. Raises UserError for
    one whose weights have another dtype."""
    torch.manual_seed(settings.seed)
    model = build_model(settings, dataset.facts.vocabulary)
    check_dtype(model, precision)
    return model.to(device)


def open_init_run(settings: Settings) -> "InitRun | None":
    """The run whose weights a new training starts with; None for fresh weights."""
    if settings.train.init is None:
        return None
    from toytrans.training.init_run import InitRun

    return InitRun(settings)


def open_cuda_steps(
    settings: Settings,
    device: torch.device,
    precision: Precision,
    processes: int,
    report: Callable[[str], object],
) -> "CudaSteps | None":
    """What takes the steps of a run on a CUDA device; None on others, where all are eager."""
    if device.type != "cuda":
        return None
    from toytrans.training.graphs import graphs_on_cuda

    return graphs_on_cuda(settings, device, precision, processes, report)


def _first_sentences(trainer: Trainer, writer: RunWriter) -> list[str]:
    """The run, where it is trained, and what a scheme of positions other than the paper's is
    given."""
    model, threads = trainer.model, torch.get_num_threads()
    _, processes = rank_and_processes()
    first = f"{writer.path}: {trainer.device}, {trainer.precision}"
    if processes > 1:
        first += f", {processes} processes"
    if trainer.cuda_steps is not None:
        why = trainer.cuda_steps.why_eager
        first += f", eager steps ({why})" if why else ", CUDA graphs"
    if trainer.device.type == "cpu" and threads > 1:
        first += f", {threads} threads"
    given = model.positions.summary if isinstance(model, Transformer) else ""
    name = shown(model.settings.positions)
    return [first, f"positions {name}: {given}; not the paper's" if given else ""]
