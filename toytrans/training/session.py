"""One training session: everything that is prepared before the first step, and released after.

    request -> plan -> device, data, precision -> folder, locked -> trainer, resumed -> description

Everything is checked before anything is written. From the first file written on, signals are
collected: the first lets the running step end and saves. Before the first step there is nothing to
save, and the run directory stays as it was. Rank 0 alone reads and writes the run directory.
"""

import contextlib
import platform
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from toytrans import __version__
from toytrans.config.load import differences
from toytrans.config.schema import Config
from toytrans.data.files import sha256_of
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import DataFacts, Dataset
from toytrans.errors import UserError
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.training import run, run_folder
from toytrans.training.devices import Precision, choose_device, choose_precision
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.faults import check_fault
from toytrans.training.graphs import choose_capture
from toytrans.training.machine import settings_of_numbers
from toytrans.training.optimizer import learning_rate
from toytrans.training.signals import ReceivedSignals, collect_interrupts, collect_signals
from toytrans.training.trainer import Trainer
from toytrans.user_code import digests, shown

MAY_CHANGE = ("config", "id", "launch", "started", "command", "python", "platform")
"""Parts of a run's environment that change no number of the training."""


class Request(NamedTuple):
    """What to train, and where.

    name: of the config; the run goes to runs/<name> if `out` is None.
    config: the config as it is asked for.
    again: the same config, with derived values taken from the saved config of a run.
    remedy: what the error suggests if another training is writing there.
    """

    name: str
    config: Config
    again: Callable[[Config], Config]
    out: Path | None = None
    resume: bool = False
    remedy: str = ", or name another --out"


class Session(NamedTuple):
    """A trainer in its locked run directory. resumed: whether it continues from a checkpoint."""

    trainer: Trainer
    dataset: Dataset
    signals: ReceivedSignals
    resumed: bool


class _Plan(NamedTuple):
    """Where the run goes, and with which settings. saved: config and data of a run to resume."""

    path: Path
    config: Config
    precision: Precision | Literal["auto"]
    saved: tuple[Config, DataFacts] | None
    resume: bool


@contextlib.contextmanager
def open_session(
    request: Request,
    report: Callable[[str], None],
    context: DistributedContext = SINGLE_PROCESS,
    *,
    patient: bool = False,
    in_program: bool = False,
) -> Iterator[Session]:
    """Prepare a run and hold its lock. Raises UserError.

    report: gets one sentence at a time for the user. patient: a second signal changes nothing;
    torchrun passes signals on and does not wait for long. in_program: the process is the user's,
    and no signal ends it.
    """
    plan = context.on_main(lambda: _plan(request, context))
    device, dataset = context.on_all(lambda: _open(plan, context))
    context.require_equal(config=request.config, data=dataset.facts, device=device.type)
    precision = context.on_main(
        lambda: choose_precision(plan.precision, device, plan.config.model.d_model)
    )
    size = context.size
    capture, remark = context.on_all(lambda: choose_capture(plan.config, device, precision, size))
    collected = collect_signals(patient=patient or context.size > 1)
    with (
        collect_interrupts() if in_program else collected as signals,
        contextlib.ExitStack() as lock,
    ):
        path, notes = context.on_main(lambda: lock.enter_context(_held(plan, request)))
        trainer = Trainer(plan.config, dataset, path, device, precision, context, capture)
        notes += trainer.resume() if plan.resume else []
        resumed = trainer.progress.step > 0
        before = context.on_main(lambda: run.read_environment(path)) if resumed else {}
        environment = _environment(plan.config, device, precision, context)
        environment["cuda_graphs"] = capture is not None
        environment["config"] = before.get("config", request.name)
        environment["id"] = _id_of(before)
        signals.end(*context.gather(signals.received))
        context.on_main(lambda: run.create_run(path, plan.config, dataset.facts, environment))
        processes = f", {context.size} processes" if context.size > 1 else ""
        report(f"{path}: {device}, {precision}{processes}")
        notes = [_given(trainer.model), remark, *dataset.notes, *notes]
        for sentence in filter(None, (*notes, *_changes(before, environment))):
            report(sentence)
        if resumed and plan.saved:
            _report_schedule(plan.saved[0], plan.config, trainer.progress.step, report)
        signals.act = trainer.interrupt
        signals.end(*context.gather(signals.received))
        yield Session(trainer, dataset, signals, resumed)
    signals.end(signals.received)  # one that came in the moment after the training


def _given(model: Seq2Seq) -> str:
    """What a scheme of positions other than the paper's is given; else empty."""
    given = model.positions.given if isinstance(model, Transformer) else ""
    name = shown(model.config.positions)
    return f"positions {name}: {given}; not the paper's" if given else ""


def _plan(request: Request, context: DistributedContext) -> _Plan:
    """What is decided before anything is written. Processes that torchrun starts again resume by
    themselves, but only the run that they were training."""
    name, out, resume = request.name, request.out, request.resume
    if context.restarts and not resume:
        path = run_folder.choose_folder(name, out, resume=True)
        resume = run.is_of_launch(path, context.launch)
    path = run_folder.choose_folder(name, out, resume=resume)
    config, precision, saved = request.config, request.config.train.precision, None
    if resume and run.is_run(path):
        saved = run.read_run(path)
        config = _config_to_resume(request, path, saved[0])
        if precision == "auto":  # the choice holds for the whole run
            precision = run.read_precision(path) or precision
    return _Plan(path, config, precision, saved, resume)


def _config_to_resume(request: Request, path: Path, saved: Config) -> Config:
    """The config, which may differ from the saved run's in its limits alone. Raises UserError."""
    try:
        config = request.again(saved)
    except UserError:  # derived values of the saved run can contradict what the file now says
        config = request.config
    if changed := differences(saved, config):
        raise UserError(
            f"{path}: cannot resume with other settings: {', '.join(changed)}; "
            "set them back, or start another run with --out"
        )
    return config


def _open(plan: _Plan, context: DistributedContext) -> tuple[torch.device, Dataset]:
    """The device and the data of this process, checked. Raises UserError."""
    check_fault(plan.config.fault, plan.config.model, context.size)
    device = choose_device(context.device(plan.config.device))
    dataset = open_dataset(plan.config)
    if plan.saved is not None and dataset.facts != plan.saved[1]:
        raise UserError(
            f"{plan.path}: the training data is not that of the saved run; put it back, or start "
            "another run with --out"
        )
    check_dataset(plan.config, dataset)
    return device, dataset


def _held(plan: _Plan, request: Request) -> contextlib.AbstractContextManager[Any]:
    """The run's folder, locked, and sentences for the user."""
    out = plan.path if plan.resume else request.out
    return run_folder.held(request.name, out, resume=plan.resume, remedy=request.remedy)


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


def _id_of(before: dict[str, Any]) -> str:
    """The id of the run that is resumed, or a new one. Logs bear it."""
    id = before.get("id")
    valid = isinstance(id, str) and re.fullmatch(r"[0-9a-f]{8}", id)
    return str(id) if valid else secrets.token_hex(4)


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
