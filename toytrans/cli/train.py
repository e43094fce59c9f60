"""`toytrans train`: read the config, train, and show what was learned.

The config is read and checked before torch is imported, because that takes a second. Of several
processes the first alone shows anything.
"""

import contextlib
import importlib.util
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import (
    Break,
    ConfigArgument,
    ConfigOption,
    Overrides,
    TrustCode,
    as_typed,
    one_config,
    rare,
    run_as_typed,
    warn_of_fault,
)
from toytrans.cli.terminal import Bar, note, output, plain, reporter, show
from toytrans.config.faults import fault_remark
from toytrans.config.load import load_config, load_saved_config
from toytrans.config.schema import Config
from toytrans.errors import UserError, how_to_install, share
from toytrans.training.folder import CONFIG, Record
from toytrans.training.signals import exit_if_signalled

if TYPE_CHECKING:
    from toytrans.data.pairs import Pairs, Split
    from toytrans.training.trainer import Trainer

SAMPLES, SHORT = 4, 10
"""Translations that are shown, and the longest of their sources."""


def train(
    argument: ConfigArgument = None,
    option: ConfigOption = None,
    out_option: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="PATH", help="Run directory. Default: runs/ and the config's name."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto | cpu | cuda | cuda:N | mps. Default: that of the config."),
    ] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Short for --set seed=N.")] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Start from the weights of another run."),
    ] = None,
    fault: Break = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the last checkpoint; --out needs no CONFIG then."
        ),
    ] = False,
    log_to: Annotated[
        Literal["tensorboard"] | None, rare(help="Copy the records to RUN/logs.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Train a model from a YAML file and measure it."""
    file = one_config(argument, option)
    if out_option == "":  # a shell variable that is not set
        raise UserError("--out: empty; name a directory, or leave --out away")
    out = Path(out_option) if out_option else None
    by_option = {"device": device, "fault": fault, "seed": seed, "train.init": init}
    if file is not None:
        name, config = file.stem, load_config(file, overrides or [], by_option, trust_code)
    elif resume and out is not None:
        from toytrans.training.run import Run

        Run.open(out, trust_code)  # code of a run may be trusted where it is opened, and only there
        name, config = out.name, load_saved_config(out / CONFIG, overrides or [], by_option)
    else:
        raise UserError("no config; name one, say `toytrans train textbook`")
    warn_of_fault(config.fault)
    _train(config, name, out, resume, log_to is not None)


def _train(config: Config, name: str, out: Path | None, resume: bool, logged: bool) -> None:
    """Train to the end, and show what was learned."""
    # Torch is imported here, when the config is known to be right.
    from toytrans.training.devices import tune_process
    from toytrans.training.distributed import connect, rank_and_processes
    from toytrans.training.session import open_session

    if logged and importlib.util.find_spec("tensorboard") is None:
        how = how_to_install("tensorboard")
        raise UserError(f"--log-to tensorboard: it is not installed; {how}")
    tune_process()
    with connect(config.device) as device:
        rank, processes = rank_and_processes()
        reporter.one_of_several = processes > 1
        if rank > 0:
            reporter.fall_silent()
        with open_session(config, name, out, resume, note, device) as trainer:
            if trainer.writer is None:  # it helps the first process, which does all the rest
                for _ in trainer.train():
                    pass
                if trainer.stop_reason == "diverged":
                    raise typer.Exit(1)
            else:
                _follow(trainer, trainer.writer.path, logged)
                _report_stop(trainer, trainer.writer.path, processes)
            exit_if_signalled(trainer.signals)
    if trainer.writer is not None:
        step = trainer.take_best()
        pairs = _measured_pairs(trainer)
        _print_scores(trainer, step, pairs)
        split: Split = "test" if "test" in pairs else "valid"
        example = _print_translations(trainer, pairs[split])
        _print_next(trainer, trainer.writer.path, split, example)


def _follow(trainer: "Trainer", run: Path, logged: bool) -> None:
    """Train; show each record in one line, and copy it to TensorBoard if asked to."""
    progress, total = trainer.progress, trainer.settings.train.max_steps
    tokens, seconds = progress.target_tokens, progress.elapsed_s
    match: float | None = None
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Bar(progress.step / max(total, 1)))
        copy: Callable[[Record], None] | None = None
        if logged:
            from toytrans.cli.tensorboard import copied_to_tensorboard

            copy = stack.enter_context(copied_to_tensorboard(run, progress))
        for record in trainer.train():
            step, elapsed = int(record["step"]), record["elapsed_s"]
            rate = (record["target_tokens"] - tokens) / max(elapsed - seconds, 1e-9)
            tokens, seconds = int(record["target_tokens"]), elapsed
            match = record.get("valid_exact_match", match)
            status = f"step {step}/{total} loss {record['loss']:.4f} {rate:,.0f} tok/s"
            if match is not None:
                status += f" free-running exact match {share(match)}"
            bar.show(step / total, status)
            if copy is not None:
                copy(record)


def _report_stop(trainer: "Trainer", run: Path, processes: int) -> None:
    """Exit with code 1 if training has diverged, and say how to go on if it was interrupted, even
    at its last step."""
    if trainer.stop_reason == "diverged":
        note(f"toytrans: {run}: {trainer.divergence()}")
        raise typer.Exit(1)
    if trainer.signals and trainer.saved_step is None:
        note("stopped before the first step; nothing is saved")
    elif trainer.signals:
        words = ["torchrun", "...", "-m", "toytrans"] if processes > 1 else ["toytrans"]
        words += ["train", "--resume", "--out", str(run)]
        words += ["--trust-code"] * bool(trainer.settings.references)
        again = shlex.join(words)
        note(f"stopped at step {trainer.progress.step} and saved; go on with: {again}")


def _measured_pairs(trainer: "Trainer") -> "dict[Split, Pairs]":
    """The pairs to measure at the end, by split: those of validation, and of the test if there are
    any."""
    from toytrans.data.pairs import all_pairs

    files = trainer.settings.data.files
    splits: list[Split] = ["valid", "test"] if files is None or files.test else ["valid"]
    return {split: all_pairs(trainer.dataset, split) for split in splits}


def _print_scores(trainer: "Trainer", step: int, pairs: "dict[Split, Pairs]") -> None:
    """The table at the end of a training: the best checkpoint, measured as by `toytrans eval`.
    step: of that checkpoint, whose weights the model has."""
    from toytrans.evaluation import evaluate
    from toytrans.model.seq2seq import count_parameters
    from toytrans.score_tables import parts_table, rows_of_scores

    progress, settings = trainer.progress, trainer.settings
    rows = []
    for split in pairs:
        scores = evaluate(trainer.model, pairs[split], trainer.dataset.facts)
        rows += rows_of_scores(split, scores)
    reason = {
        "stop_at_exact_match": ", stopped at the exact match asked for",
        "patience": ", stopped for lack of progress",
        "max_seconds": ", stopped at the seconds allowed",
    }.get(trainer.stop_reason or "", "")
    best = " (best validation)" if step != progress.step else ""
    remark = fault_remark(settings.fault)
    title = (
        f"{count_parameters(trainer.model):,} parameters, {progress.step:,} steps in "
        f"{progress.elapsed_s:.1f} s{reason}; measured: step {step}{best}"
    )
    show(parts_table(f"{title}; {remark}" if remark else title, rows))


def _print_translations(trainer: "Trainer", pairs: "Pairs") -> str:
    """What the model makes of a few short sources. Returns the longest of them."""
    from toytrans.evaluation import translate

    console, facts = output(), trainer.dataset.facts
    decode = facts.vocabulary.decode
    console.print("[bold]translations[/bold]")
    short = (pairs.src_length <= SHORT).nonzero()[:, 0]
    shown = pairs.take(short[:SAMPLES] if len(short) else slice(SAMPLES))
    sources = [decode(ids) for ids in shown.src.tolist()]
    answers = translate(trainer.model, sources, facts)
    for source, answer, ids in zip(sources, answers, shown.tgt.tolist(), strict=True):
        expected = decode(ids)
        verdict = "right" if answer == expected else f"wrong: {' '.join(expected)}"
        console.print(plain(f"  {' '.join(source)}  ->  {' '.join(answer)}  ({verdict})"))
    longest: list[str] = max(sources, key=len)
    return " ".join(longest)


def _print_next(trainer: "Trainer", run: Path, split: "Split", example: str) -> None:
    """The run directory, and the next commands. split: what eval measures. example: a source."""
    console, settings = output(), trainer.settings
    where = run_as_typed(run, settings)
    measure = f"eval {where}" + " --split valid" * (split == "valid")
    commands = [measure, f"translate {where} {as_typed(example)}", f"check {where}"]
    if settings.model.class_ is None:  # the layers of others are not known
        commands.insert(2, f"inspect-masks {where}")
    console.print("[bold]run[/bold]", plain(str(run)))
    console.print("[bold]next[/bold]")
    for command in commands:
        console.print(plain(f"  toytrans {command}"), soft_wrap=True)
