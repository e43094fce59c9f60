"""One training session: everything that is prepared before the first step, and released after.

    new:      checks -> device, data, precision -> trainer -> folder, made and locked -> description
    resumed:  lock -> saved run -> its config, within new limits -> the same -> trainer, restored

Everything is checked before anything is written. From the first file written on, signals are
collected: the first lets the running step end and saves. Before the first step there is nothing to
save. Rank 0 alone reads and writes the run directory.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import torch

from toytrans.config.load import config_for_resume
from toytrans.config.schema import Config
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Dataset
from toytrans.errors import UserError
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.training.devices import Precision, choose_device, choose_precision
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.environment import changes, environment_of
from toytrans.training.faults import check_fault
from toytrans.training.folder import choose_folder, locked_folder, new_folder
from toytrans.training.graphs import choose_capture
from toytrans.training.run import METRICS, RunFolder, create_run, is_run
from toytrans.training.signals import collect_signals
from toytrans.training.step import learning_rate
from toytrans.training.trainer import Trainer
from toytrans.user_code import shown


@contextlib.contextmanager
def open_session(
    config: Config,
    name: str,
    out: Path | None,
    resume: bool,
    report: Callable[[str], None],
    context: DistributedContext = SINGLE_PROCESS,
    *,
    waits: bool = False,
) -> Iterator[Trainer]:
    """Prepare a run and hold its lock. Yields its trainer. Raises UserError.

    name: of the config; without `out` the run goes to runs/NAME. resume: go on with the run that is
    there, if there is one; the config may then differ from the saved one in its limits alone.
    report: gets one sentence at a time for the user. waits: as of `collect_signals`; torchrun,
    too, passes signals on.
    """
    if context.max_restarts and not resume:
        raise UserError("torchrun --max-restarts: add --resume, so that a restart goes on")
    several = context.size > 1
    with contextlib.ExitStack() as stack:
        notes = list[str]()

        def saved_run() -> tuple[Path, RunFolder | None, Config]:
            path = choose_folder(name, out, resume=resume)
            if not resume or not is_run(path):
                return path, None, config
            found = RunFolder.open(path)
            notes.append(stack.enter_context(locked_folder(path)))
            return path, found, config_for_resume(found.config, config, path)

        path, saved, settings = context.on_main(saved_run)
        device, dataset = context.on_all(lambda: _open(settings, saved, context))
        context.require_equal(config=config, data=dataset.facts, device=device.type)
        asked, width = settings.train.precision, settings.model.d_model
        before = saved.environment if saved else {}
        if asked == "auto" and before.get("precision") in get_args(Precision):
            asked = before["precision"]  # the choice holds for the whole run
        precision = context.on_main(lambda: choose_precision(asked, device, width))
        capture = context.on_all(lambda: choose_capture(settings, device, precision, context.size))
        trainer = Trainer(settings, dataset, path, device, precision, context, capture)
        if resume:
            notes.append(trainer.resume())
        now = environment_of(settings, device, precision, context.size)
        now |= {"cuda_graphs": capture is not None, "config": before.get("config", name)}
        trainer.received = stack.enter_context(collect_signals(waits or several))
        if not saved:
            trainer.run, locks = context.on_main(
                lambda: stack.enter_context(new_folder(name, path if resume else out))
            )
            notes.append(locks)
        context.on_main(partial(create_run, trainer.run, settings, dataset.facts, now))
        trainer.locked = context.on_main(lambda: os.lstat(trainer.run / METRICS))
        if saved and trainer.progress.step:
            step = trainer.progress.step
            notes += [*changes(before, now), _schedule(saved.config, settings, step)]
        said = f"{trainer.run}: {device}, {precision}" + f", {context.size} processes" * several
        threads = torch.get_num_threads()
        report(said + f", {threads} threads" * (device.type == "cpu" and threads > 1))
        for sentence in filter(None, (_given(trainer.model), *dataset.notes, *notes)):
            report(sentence)
        yield trainer


def _given(model: Seq2Seq) -> str:
    """What a scheme of positions other than the paper's is given; else empty."""
    given = model.positions.given if isinstance(model, Transformer) else ""
    name = shown(model.config.positions)
    return f"positions {name}: {given}; not the paper's" if given else ""


def _open(
    config: Config, saved: RunFolder | None, context: DistributedContext
) -> tuple[torch.device, Dataset]:
    """The device and the data of this process, checked. Raises UserError."""
    check_fault(config.fault, config.model, context.size)
    device = choose_device(context.device(config.device))
    if context.size > 1 and device.type == "cuda":
        torch.cuda.set_device(device)
    dataset = open_dataset(config)
    if saved is not None and dataset.facts != saved.facts:
        raise UserError(
            f"{saved.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    check_dataset(config, dataset)
    return device, dataset


def _schedule(saved: Config, config: Config, step: int) -> str:
    """A sentence if the end of the learning-rate schedule has moved; else empty."""
    before, now = (learning_rate(step + 1, each.train) for each in (saved, config))
    if before == now or step >= config.train.max_steps:
        return ""
    return (
        f"the {config.train.schedule} schedule now ends at step {config.train.max_steps}, not "
        f"{saved.train.max_steps}: the learning rate goes on at {now:.3g}, not {before:.3g}"
    )
