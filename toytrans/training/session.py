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
from toytrans.named import import_named
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
        saved: ResumedRun | None = None
        path = run_to_resume(name, out) if resume else None
        if path is None:
            settings = resolve(config)
        else:
            if rank == 0:
                writer = stack.enter_context(RunWriter(path).locked())
            saved = import_named("toytrans.training.resume:ResumedRun")(path, config)
            settings = saved.settings
        if settings.fault is not None and processes > 1:  # its loss may be no sum over rows
            remark = fault_remark(settings.fault)
            raise UserError(f"{remark}: trains in one process, without torchrun")
        chosen = choose_device(device or settings.device)
        with naming_origins(config.origins):
            check_fault(settings.fault, settings.model)
            dataset = open_dataset(settings)
            if saved is not None:
                saved.check_data(dataset.facts)
            check_dataset(settings, dataset)
        asked = saved.precision if saved else settings.train.precision
        precision = choose_precision(asked, chosen, settings.model.d_model)
        step_graphs = open_graphs(settings, chosen, precision, processes, report)
        model = new_model(settings, dataset, precision, chosen)
        signals = stack.enter_context(collect_signals(waits or processes > 1))
        if writer is None and rank == 0:
            writer = stack.enter_context(new_run(name, out))
        trainer = Trainer(settings, dataset, model, precision, writer, signals, step_graphs)
        if path is not None:
            trainer.resume(path)
        environment = environment_of(chosen, precision, processes)
        environment["config"] = saved.environment.get("config", name) if saved else name
        if writer is not None:
            notes = [*_opening(trainer, writer), *dataset.notes, writer.note]
            if saved is not None and trainer.saved_step is not None:
                notes += saved.what_changed(trainer, environment)
            elif resume:
                notes.append("no checkpoint to resume from; starting at step 0")
            for sentence in filter(None, notes):
                report(sentence)
        if trainer.saved_step is None:
            rehearse(trainer)
        if writer is not None:
            writer.describe(config, settings, dataset.facts, environment)
        yield trainer


def new_model(
    settings: Settings, dataset: Dataset, precision: Precision, device: torch.device
) -> Seq2Seq:
    """A model with fresh weights, which follow from the seed, on its device. Raises UserError for
    one whose weights have another dtype."""
    torch.manual_seed(settings.seed)
    model = build_model(settings, dataset.facts.vocabulary)
    check_dtype(model, precision)
    return model.to(device)


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
    make = import_named("toytrans.training.graphs:graphs_on_cuda")
    graphs: StepGraphs = make(settings, device, precision, processes, report)
    return graphs


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
