"""`toytrans train`."""

import contextlib
import os
import platform
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.common import RUNS, note, output, plain, ranges, results_table, share
from toytrans.config import Config, differences, load_config
from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.data.pairs import DataFacts, PairSource, Split
    from toytrans.training.run import Record
    from toytrans.training.trainer import Trainer

SECONDS_BETWEEN_LINES = 5.0
SAMPLES = 4
SHORT = 10
"""Translations of so many symbols fit a line."""


def train(
    config: Annotated[Path, typer.Option(help="The YAML file that describes the run.")],
    out: Annotated[
        Path | None, typer.Option(help="Run directory; left out: runs/<config's name>.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto | cpu | cuda | cuda:N | mps; over the config's.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the config's.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run.")] = False,
) -> None:
    """Train a model from a YAML file and measure it."""
    if resume and overwrite:
        raise UserError("--resume goes on with a run and --overwrite replaces it; give one")
    changes = [*(overrides or ()), *([f"device={device}"] if device else ())]
    settings = load_config(config, changes)
    path = _run_path(config, out, resume, overwrite)
    known = None

    from toytrans.data import check_splits, open_source
    from toytrans.training import devices
    from toytrans.training.run import create_run, is_run, read_precision
    from toytrans.training.trainer import Trainer

    wanted = settings.train.precision
    if resume and is_run(path):
        settings, known = _settings_to_resume(config, changes, path)
        if wanted == "auto":  # what it chose once holds for the whole run
            wanted = read_precision(path) or wanted
    place = devices.choose_device(settings.device)
    precision = devices.choose_precision(wanted, place)
    source = open_source(settings)
    check_splits(settings, source)
    if known is not None and source.facts != known:
        raise UserError(
            f"{path}: the training data is not that of the saved run (other symbols or lengths); "
            "put it back, or start another run with --out"
        )
    if overwrite and path.exists():
        folder = path.resolve()  # a link to a run keeps pointing at it
        shutil.rmtree(folder)
        folder.mkdir()
    elif not resume:
        path = _claimed(config, out, path)
    create_run(path, settings, source.facts, _environment(place, precision))
    for sentence in (f"{path}: {place}, {precision}", *source.notes):
        note(sentence)
    trainer = Trainer(settings, source, path, place, precision)
    if resume:
        for sentence in trainer.resume():
            note(sentence)
    with _stopping_on_signals(trainer) as signals:
        _follow(trainer, settings.train.max_steps)
    _report_stop(trainer, config, changes, signals)
    _report_results(trainer, source)


def _run_path(config: Path, out: Path | None, resume: bool, overwrite: bool) -> Path:
    """Where the run goes. Raises UserError rather than write into something else."""
    if out is None:
        taken = sorted(
            (p for p in _entries(RUNS) if _number(p.name, config.stem)),
            key=lambda p: _number(p.name, config.stem),
        )
        if resume or overwrite:
            return _checked(taken[-1], True) if taken else RUNS / config.stem
        if not taken:
            return RUNS / config.stem
        return RUNS / f"{config.stem}-{_number(taken[-1].name, config.stem) + 1}"
    return _checked(out, resume or overwrite)


def _claimed(config: Path, out: Path | None, path: Path) -> Path:
    """Make the run's folder; where another training was faster, the next free one."""
    while True:
        try:
            path.mkdir(parents=True, exist_ok=out is not None)
            return path
        except FileExistsError:
            path = _run_path(config, out, resume=False, overwrite=False)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be made ({error.strerror}); name another --out"
            ) from None


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _checked(out: Path, may_exist: bool) -> Path:
    """A path where a run may be written: nothing, an empty folder, or a run if it may exist."""
    if not os.path.exists(out):
        return out
    if not out.is_dir():
        raise UserError(f"{out}: is a file; name a directory for the run")
    if not any(out.iterdir()):
        return out
    if not may_exist:
        raise UserError(f"{out}: not empty; go on with --resume, replace it with --overwrite")

    from toytrans.training.run import is_run

    if not is_run(out):
        raise UserError(f"{out}: not a run directory, so it is left alone; name another --out")
    return out


def _number(name: str, stem: str) -> int:
    """1 for stem, k for stem-k, 0 for other names."""
    if name == stem:
        return 1
    rest = name.removeprefix(f"{stem}-")
    return int(rest) if rest != name and rest.isascii() and rest.isdigit() else 0


def _settings_to_resume(config: Path, changes: list[str], path: Path) -> "tuple[Config, DataFacts]":
    """The config, which may differ from the saved run's in its limits alone; the run's data."""
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


def _environment(place: Any, precision: str) -> dict[str, Any]:
    import torch

    from toytrans import __version__

    gpu = torch.cuda.get_device_name(place) if place.type == "cuda" else None
    return {
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": str(place),
        "gpu": gpu,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
    }


@contextlib.contextmanager
def _stopping_on_signals(trainer: "Trainer") -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM lets the step end and saves; a second leaves at once."""
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        if received:
            sys.exit(128 + number)
        received.append(number)
        trainer.interrupted = True

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        bar_format="step {n_fmt}/{total_fmt} {bar} {postfix} {remaining} left",
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
        bar.set_postfix_str(words, refresh=False)
        bar.update(int(record["step"]) - bar.n)
        if not terminal and time.monotonic() - spoken >= SECONDS_BETWEEN_LINES:
            spoken = time.monotonic()
            left = seconds_left(record, max_steps)
            note(f"step {record['step']}/{max_steps} {words} {left:.0f} s left")
    bar.close()


def seconds_left(record: "Record", max_steps: int) -> float:
    """To max_steps, at the mean pace so far."""
    pace: float = record["elapsed_s"] / max(record["step"], 1)
    return pace * (max_steps - record["step"])


def _report_stop(trainer: "Trainer", config: Path, changes: list[str], signals: list[int]) -> None:
    """Leave with the right code where training was interrupted or has diverged."""
    step, path = trainer.progress.step, trainer.run
    if trainer.stop_reason == "diverged":
        from toytrans.training.checkpoint import saved_steps

        good = saved_steps(path)
        left = f"the last good checkpoint is step {good[-1]}" if good else "no checkpoint yet"
        note(
            f"toytrans: {path}: training diverged: loss or gradient not finite by step {step}; "
            f"{left}; lower train.lr or train.clip_norm"
        )
        raise typer.Exit(1)
    if trainer.stop_reason == "interrupted":
        sets = [word for change in changes for word in ("--set", change)]
        again = shlex.join(
            ["toytrans", "train", "--config", str(config), *sets, "--out", str(path), "--resume"]
        )
        note(f"stopped at step {step} and saved; go on with: {again}")
        raise typer.Exit(128 + signals[0])


def _report_results(trainer: "Trainer", source: "PairSource") -> None:
    """The table that ends a training: measured with the best checkpoint, like `toytrans eval`."""
    from toytrans import load
    from toytrans.data.pairs import all_pairs
    from toytrans.evaluation import evaluate
    from toytrans.model.transformer import count_parameters

    run = load(trainer.run, "best", str(trainer.device))
    console, progress = output(), trainer.progress
    reason = {
        "stop_at_exact_match": ", stopped at the exact match asked for",
        "patience": ", stopped for lack of progress",
        "max_seconds": ", stopped at the seconds allowed",
    }.get(trainer.stop_reason or "", "")
    title = (
        f"{count_parameters(run.model):,} parameters, {progress.step:,} steps in "
        f"{progress.elapsed_s:.1f} s{reason}; measured: step {run.step}"
    )
    rows: list[tuple[str, dict[str, Any]]] = []
    files = run.config.data.files
    splits: list[Split] = ["valid", "test"] if files is None or files.test else ["valid"]
    for split in splits:
        pairs = all_pairs(source, split)
        report = evaluate(run.model, pairs, run.facts, both_ends=run.config.marks_both_ends)
        rows += ranges(split, report, run.facts)
    console.print(results_table(title, rows))
    console.print("[bold]translations[/bold]")
    decode = run.vocabulary.decode
    short = (pairs.src_length <= SHORT).nonzero()[:, 0]
    shown = pairs.take(short[:SAMPLES] if len(short) else slice(SAMPLES))
    sources = [decode(ids) for ids in shown.src.tolist()]
    answers = run.translate([" ".join(symbols) for symbols in sources])
    for symbols, answer, ids in zip(sources, answers, shown.tgt.tolist(), strict=True):
        expected = " ".join(decode(ids))
        verdict = "right" if answer == expected else f"wrong: {expected}"
        console.print(plain(f"  {' '.join(symbols)}  ->  {answer}  ({verdict})"))
    where, example = shlex.quote(str(trainer.run)), shlex.quote(" ".join(sources[0]))
    console.print("[bold]run[/bold]", plain(str(trainer.run)))
    console.print("[bold]next[/bold]")
    for command in (
        f"toytrans eval {where}",
        f"toytrans translate --run {where} {example}",
        f"toytrans inspect-masks --config {shlex.quote(str(trainer.run / 'config.yaml'))}",
    ):
        console.print(plain(f"  {command}"), soft_wrap=True)
