"""One training session: everything that is prepared before the first step, and released after.

    new:      checks -> device, data, precision -> trainer -> folder, made and locked -> description
    resumed:  lock -> saved run -> its config, within new limits -> the same -> trainer, restored

Everything is checked before anything is written. From the first file written on, signals are
collected: the first lets the running step end and saves. Before the first step there is nothing to
save. Rank 0 alone reads and writes the run directory. No run is ever replaced: an existing run is
resumed, or another folder is taken.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from toytrans.config.load import settings_for_resume
from toytrans.config.schema import Config, Settings
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Dataset
from toytrans.errors import UserError
from toytrans.files import disk_errors, drafts_in, open_to_append
from toytrans.model.transformer import Transformer
from toytrans.resolve import resolve
from toytrans.training.devices import (
    Precision,
    changes,
    choose_device,
    choose_precision,
    environment_of,
)
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.faults import check_fault
from toytrans.training.graphs import choose_capture
from toytrans.training.run import (
    DATA,
    ENVIRONMENT,
    METRICS,
    RUNS,
    RunFolder,
    create_run,
    is_run,
    lock,
    read_environment,
)
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
    context.require_equal(config=config)
    with contextlib.ExitStack() as stack:
        path, saved, settings, locks = context.on_main(
            lambda: _find_run(config, name, out, resume, stack)
        )
        trainer = _make_trainer(settings, path, saved, context)
        notes = [locks, trainer.resume() if resume else ""]
        before = saved.environment if saved else {}
        now = environment_of(settings, trainer.device, trainer.precision, context.size)
        now["config"] = before.get("config", name)
        trainer.received = stack.enter_context(collect_signals(waits or context.size > 1))
        if not saved:
            trainer.run, locks = context.on_main(
                lambda: stack.enter_context(new_folder(name, path if resume else out))
            )
            notes.append(locks)
        context.on_main(
            partial(create_run, trainer.run, config, settings, trainer.dataset.facts, now)
        )
        trainer.locked = context.on_main(lambda: os.lstat(trainer.run / METRICS))
        if saved and trainer.progress.step:
            notes += [*changes(before, now), _schedule(saved.config, trainer)]
        for sentence in filter(None, (*_opening(trainer), *trainer.dataset.notes, *notes)):
            report(sentence)
        yield trainer


def _find_run(
    config: Config, name: str, out: Path | None, resume: bool, stack: contextlib.ExitStack
) -> tuple[Path, RunFolder | None, Settings, str]:
    """The folder of a run; to resume one, the run in it, locked; its settings, and what is said of
    the lock. Raises UserError."""
    path = choose_folder(name, out, resume=resume)
    if not resume or not is_run(path):
        return path, None, resolve(config), ""
    saved = RunFolder.open(path)
    locks = stack.enter_context(locked_folder(path))
    return path, saved, settings_for_resume(saved.given, saved.config, config, path), locks


def _make_trainer(
    config: Settings, path: Path, saved: RunFolder | None, context: DistributedContext
) -> Trainer:
    """The trainer of a run on this process's device, with checked data. A precision that `auto` has
    chosen stays. Raises UserError."""
    device, dataset = context.on_all(lambda: _open(config, saved, context))
    context.require_equal(data=dataset.facts, device=device.type)
    asked, width = config.train.precision, config.model.d_model
    before: Any = saved.environment.get("precision") if saved else None
    if asked == "auto" and before in get_args(Precision):
        asked = before
    precision = context.on_main(lambda: choose_precision(asked, device, width))
    capture = context.on_all(lambda: choose_capture(config, device, precision, context.size))
    return Trainer(config, dataset, path, device, precision, context, capture)


def _open(
    config: Settings, saved: RunFolder | None, context: DistributedContext
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


def _opening(trainer: Trainer) -> tuple[str, str]:
    """The run, where it is trained, and what a scheme of positions other than the paper's is
    given."""
    model, processes, threads = trainer.model, trainer.context.size, torch.get_num_threads()
    first = f"{trainer.run}: {trainer.device}, {trainer.precision}"
    if processes > 1:
        first += f", {processes} processes"
    if trainer.device.type == "cpu" and threads > 1:
        first += f", {threads} threads"
    given = model.positions.lesson if isinstance(model, Transformer) else ""
    name = shown(model.config.positions)
    return first, f"positions {name}: {given}; not the paper's" if given else ""


def _schedule(saved: Settings, trainer: Trainer) -> str:
    """A sentence if the end of the learning-rate schedule has moved; else empty."""
    step, train = trainer.progress.step, trainer.config.train
    before, now = (learning_rate(step + 1, each) for each in (saved.train, train))
    if before == now or step >= train.max_steps:
        return ""
    return (
        f"the {train.schedule} schedule now ends at step {train.max_steps}, not "
        f"{saved.train.max_steps}: the learning rate goes on at {now:.3g}, not {before:.3g}"
    )


# The folder --------------------------------------------------------------------------------------


def choose_folder(stem: str, out: Path | None, *, resume: bool) -> Path:
    """The folder for the run of a config named `stem`. Nothing is written.

    out: the folder that the user named; None = runs/stem, runs/stem-2, and so on, or the newest of
    these that a config of that name made, to resume it.
    Raises UserError unless the folder is free, or holds a run and that is resumed.
    """
    path = _default_folder(stem, resume) if out is None else out
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return path
    except OSError as error:
        raise UserError(
            f"{path}: no directory for a run ({error.strerror}); name another --out"
        ) from None
    if is_run(path):
        if resume:
            return path
        raise UserError(
            f"{path}: holds a run; resume it with --resume (in Python: resume=True), or name "
            "another --out"
        )
    # a training that is killed before its run is described leaves no record
    begun = {METRICS, DATA, ENVIRONMENT, *(draft.name for draft in drafts_in(path))}
    file = path / METRICS
    if names and not (names <= begun and file.is_file() and file.stat().st_size == 0):
        raise UserError(
            f"{path}: not empty and not a run directory, so it is left alone; name another --out"
        )
    return path


def _default_folder(stem: str, resume: bool) -> Path:
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    pattern = re.compile(re.escape(stem) + "(?:-([2-9]|[1-9][0-9]{1,8}))?")
    taken = {int(found[1] or 1): found[0] for found in map(pattern.fullmatch, names) if found}
    for number in sorted(taken, reverse=True) if resume else ():
        # runs/exp-2 may be the second run of exp.yaml or the first of exp-2.yaml
        path = RUNS / taken[number]
        if read_environment(path).get("config", stem if number == 1 else "") == stem:
            return path
    return RUNS / (f"{stem}-{max(taken) + 1}" if taken else stem)


@contextlib.contextmanager
def new_folder(stem: str, out: Path | None) -> Iterator[tuple[Path, str]]:
    """Make the folder of a new run and hold its lock. Yields it and a sentence for the user.

    Without `out`, the next number is taken if another training is faster. Raises UserError.
    """
    while True:
        path = choose_folder(stem, out, resume=False)
        try:
            path.mkdir(parents=True, exist_ok=out is not None)
            break
        except OSError as error:
            if out is not None or not path.is_dir():
                raise UserError(
                    f"{path}: cannot be made ({error.filename}: {error.strerror}); name another "
                    "directory"
                ) from None
    with locked_folder(path) as remark:
        choose_folder(stem, path, resume=False)  # another training may have ended here just now
        yield path, remark


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[str]:
    """Hold the lock of a run's folder. Yields a sentence for the user, empty if all is well.

    Raises UserError if another training holds it.
    """
    with disk_errors(path, METRICS):
        file = open_to_append(path / METRICS)
    with file:
        try:
            has_locks = lock(file)
        except BlockingIOError:
            raise UserError(
                f"{path}: another training is writing here; wait for its end, or stop it"
            ) from None
        remark = f"{path}: no file locks here, so let no other training write into it meanwhile"
        yield "" if has_locks else remark
