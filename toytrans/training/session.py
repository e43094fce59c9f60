"""One training session: everything that is prepared before the first step, and released after.

    new:      checks -> device, data, precision -> trainer -> folder, made and locked -> description
    resumed:  lock -> saved run -> its config, within new limits -> the same -> trainer, restored

Everything is checked before anything is written. From the first file written on, signals are
collected: the first lets the running step end and saves. Before the first step there is nothing to
save. Rank 0 alone reads and writes the run directory.
"""

import contextlib
import os
import platform
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from toytrans import __version__
from toytrans.config.load import config_for_resume
from toytrans.config.schema import Config
from toytrans.data.files import sha256_of
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Dataset
from toytrans.errors import UserError
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.training.devices import Precision, choose_device, choose_precision
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.environment import settings_of_numbers
from toytrans.training.faults import check_fault
from toytrans.training.folder import choose_folder, locked_folder, new_folder
from toytrans.training.graphs import choose_capture
from toytrans.training.optimizer import learning_rate
from toytrans.training.run import METRICS, RunFolder, create_run, is_run, read_environment
from toytrans.training.signals import ReceivedSignals, collect_signals
from toytrans.training.trainer import Trainer
from toytrans.user_code import digests, shown

MAY_CHANGE = ("config", "id", "launch", "started", "command", "python", "platform")
"""Parts of a run's environment that change no number of the training."""


class Session(NamedTuple):
    """A trainer in its locked run directory. resumed: whether it continues from a checkpoint."""

    trainer: Trainer
    dataset: Dataset
    signals: ReceivedSignals
    resumed: bool


@contextlib.contextmanager
def open_session(
    config: Config,
    name: str,
    out: Path | None,
    resume: bool,
    report: Callable[[str], None],
    context: DistributedContext = SINGLE_PROCESS,
    *,
    remedy: str = ", or name another --out",
    patient: bool = False,
    in_program: bool = False,
) -> Iterator[Session]:
    """Prepare a run and hold its lock. Raises UserError.

    name: of the config; without `out` the run goes to runs/NAME. resume: go on with the run that is
    there, if there is one; the config may then differ from the saved one in its limits alone.
    report: gets one sentence at a time for the user. remedy: what the error suggests if another
    training is writing there. patient: a second signal changes nothing; torchrun passes signals on
    and does not wait for long. in_program: the process is the user's, and no signal ends it.
    """
    with contextlib.ExitStack() as stack:
        given = config
        path, goes_on = context.on_main(lambda: _choose(name, out, resume, context))
        saved, notes = None, list[str]()
        if goes_on:
            locks = context.on_main(lambda: stack.enter_context(locked_folder(path, remedy)))
            saved = context.on_main(lambda: RunFolder.open(path))
            config = context.on_main(partial(config_for_resume, saved.config, config, path))
            notes.append(locks)
        device, dataset = context.on_all(lambda: _open(config, saved, context))
        context.require_equal(config=given, data=dataset.facts, device=device.type)
        asked = config.train.precision
        if saved and asked == "auto":  # the choice holds for the whole run
            asked = saved.precision or asked
        precision = context.on_main(lambda: choose_precision(asked, device, config.model.d_model))
        size = context.size
        capture, remark = context.on_all(lambda: choose_capture(config, device, precision, size))
        trainer = Trainer(config, dataset, path, device, precision, context, capture)
        if resume or goes_on:
            notes += trainer.resume()
        before = saved.environment if saved else {}
        environment = _environment(config, device, precision, context)
        environment |= {
            "cuda_graphs": capture is not None,
            "config": before.get("config", name),
            "id": (saved and saved.id) or secrets.token_hex(4),
        }
        signals = stack.enter_context(
            collect_signals(patient=patient or size > 1, in_program=in_program)
        )
        if not goes_on:
            trainer.run, locks = context.on_main(
                lambda: stack.enter_context(new_folder(name, path if resume else out, remedy))
            )
            notes.append(locks)
        context.on_main(partial(create_run, trainer.run, config, dataset.facts, environment))
        trainer.locked = context.on_main(lambda: os.lstat(trainer.run / METRICS))
        processes = f", {size} processes" if size > 1 else ""
        report(f"{trainer.run}: {device}, {precision}{processes}")
        resumed = trainer.progress.step > 0
        changes = _changes(before, environment) if resumed else []
        told = _given(trainer.model)
        for sentence in filter(None, (told, remark, *dataset.notes, *notes, *changes)):
            report(sentence)
        if resumed and saved:
            _report_schedule(saved.config, config, trainer.progress.step, report)
        signals.act = trainer.interrupt
        signals.end(*context.gather(signals.received))
        yield Session(trainer, dataset, signals, resumed)
    signals.end(signals.received)  # one that came in the moment after the training


def _given(model: Seq2Seq) -> str:
    """What a scheme of positions other than the paper's is given; else empty."""
    given = model.positions.given if isinstance(model, Transformer) else ""
    name = shown(model.config.positions)
    return f"positions {name}: {given}; not the paper's" if given else ""


def _choose(
    name: str, out: Path | None, resume: bool, context: DistributedContext
) -> tuple[Path, bool]:
    """The run directory, and whether a run there goes on. Processes that torchrun starts again
    resume by themselves, but only the run that they were training."""
    if context.restarts and not resume:
        path = choose_folder(name, out, resume=True)
        launch = read_environment(path).get("launch")
        resume = context.launch is not None and launch == context.launch
    path = choose_folder(name, out, resume=resume)
    goes_on = resume and is_run(path)
    if goes_on:
        RunFolder.open(path)  # a folder that only looks like a run gets no lock
    return path, goes_on


def _open(
    config: Config, saved: RunFolder | None, context: DistributedContext
) -> tuple[torch.device, Dataset]:
    """The device and the data of this process, checked. Raises UserError."""
    check_fault(config.fault, config.model, context.size)
    device = choose_device(context.device(config.device))
    dataset = open_dataset(config)
    if saved is not None and dataset.facts != saved.facts:
        raise UserError(
            f"{saved.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    check_dataset(config, dataset)
    return device, dataset


def _environment(
    config: Config, device: torch.device, precision: Precision, context: DistributedContext
) -> dict[str, Any]:
    files, code = config.data.files, config.references
    return {
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "precision": precision,
        **settings_of_numbers(),
        "processes": context.size,
        "valid_sha256": sha256_of(files.valid) if files and files.valid else None,
        "code_sha256": dict(zip(code, digests(code.values()), strict=True)),
        "launch": context.launch,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
    }


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """How the environment differs from that of the saved run, one sentence each."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    sentences = []
    if "valid_sha256" in changed:
        sentences.append(
            "the validation file is not the one of before: exact match before and after this "
            "step cannot be compared"
        )
    if "code_sha256" in changed:
        sentences.append("the code has changed since; the pairs and the weights fit it")
    explained = (*MAY_CHANGE, "valid_sha256", "code_sha256")
    if names := [key for key in changed if key not in explained]:
        listed = ", ".join(f"{key} {before[key]} -> {now[key]}" for key in names)
        sentences.append(
            f"the run was saved under other conditions, so its numbers may differ: {listed}"
        )
    return sentences


def _report_schedule(
    saved: Config, config: Config, step: int, report: Callable[[str], None]
) -> None:
    """Say that the end of the learning-rate schedule has moved, if it has."""
    before, now = (learning_rate(step + 1, each.train) for each in (saved, config))
    if before != now and step < config.train.max_steps:
        report(
            f"the {config.train.schedule} schedule now ends at step {config.train.max_steps}, not "
            f"{saved.train.max_steps}: the learning rate goes on at {now:.3g}, not {before:.3g}"
        )
