"""`toytrans check`."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import (
    Break,
    Checkpoint,
    Overrides,
    Progress,
    RunOption,
    either,
    note,
    open_run,
)
from toytrans.cli.render.proofs import remedy, show
from toytrans.config.names import FaultName
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.training.signals import signals_as_exceptions
from toytrans.user_code import RAISED, absolute, failure, load, trust

if TYPE_CHECKING:
    from toytrans.config.schema import Config
    from toytrans.insight.proofs.report import Report


def _of_model(what: str) -> Any:
    return typer.Option(min=0, help=f"{what} of a --model.")


def check(
    run: Annotated[
        Path | None, typer.Argument(help="A run directory. Default: the newest run.")
    ] = None,
    run_option: RunOption = None,
    config: Annotated[
        Path | None, typer.Option(help="Check fresh weights of a config instead of a run.")
    ] = None,
    overrides: Overrides = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Check your own model: what the function of a file returns.",
        ),
    ] = None,
    fault: Break = None,
    checkpoint: Checkpoint = "best",
    length: Annotated[
        int | None,
        typer.Option(min=4, max=1000, help="Symbols of the longest sequence.", show_default="64"),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Try lengths to 512, and batches of 32 rows.")
    ] = False,
    only: Annotated[
        str, typer.Option(metavar="LETTERS", help="Run these proofs only, say abe.")
    ] = "",
    skip: Annotated[str, typer.Option(metavar="LETTERS", help="Leave these proofs out.")] = "",
    pad_id: Annotated[int | None, _of_model("Pad id")] = None,
    source_pad_id: Annotated[int | None, _of_model("Pad id of the sources")] = None,
    start_id: Annotated[int | None, _of_model("First decoder input")] = None,
    eos_id: Annotated[int | None, _of_model("End id")] = None,
    vocabulary_size: Annotated[int | None, _of_model("Vocabulary size")] = None,
    source_size: Annotated[int | None, _of_model("Vocabulary size of the sources")] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="The longest sequence that a --model takes.")
    ] = None,
    batch_first: Annotated[
        bool | None,
        typer.Option(
            "--batch-first/--time-first", help="Layout of a --model's ids. Default: detected."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**31 - 1,
            help="Seed of the random sequences, or kills.",
            show_default="0, or that of the --model's dict",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Kill and resume training of --config instead.")
    ] = False,
    kills: Annotated[
        int,
        typer.Option(min=2, max=10_000, help="With --resume: how often to kill it."),
    ] = 6,
    steps: Annotated[
        int, typer.Option(min=10, max=10**6, help="With --resume: steps to train.")
    ] = 60,
    form: Annotated[
        Literal["text", "json", "junit", "github", "html"] | None,
        typer.Option(
            "--format",
            help="Form of the output; github: annotations of a workflow.",
            show_default="text",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prove that masks, loss, labels and layers do what they should.

    Checked are a run, fresh weights of a config, or your own --model: a function
    that returns a Hugging Face model, or a dict with `model`, `pad_id`,
    `vocabulary_size` and other arguments of `toytrans.check`. With --resume,
    prove instead that a training which is killed many times ends, bit for bit,
    like one that is not.

    Exit codes: 0 all proofs pass, 1 one fails, 2 pads or the future cannot be
    judged. One line then says what to give.
    """
    run = either(run, run_option, "run")
    if as_json and form not in (None, "json"):
        raise UserError(f"--json and --format {form} are different forms of output; give one")
    if sum(given is not None for given in (run, config, model)) > 1:
        raise UserError("a RUN, --config and --model exclude each other; give one")
    if checkpoint != "best" and (config or model):
        raise UserError(f"--checkpoint {checkpoint} is one of a run's; give a RUN with it")
    if overrides and config is None:
        raise UserError("--set changes a config; give --config FILE with it")
    if resume and config is None:
        raise UserError("--resume trains a config; give --config FILE with it")
    how: dict[str, Any] = {"length": length, "only": only, "skip": skip, "thorough": thorough}
    how |= {} if seed is None else {"seed": seed}
    of_model = {
        "pad_id": pad_id,
        "source_pad_id": source_pad_id,
        "start_id": start_id,
        "eos_id": eos_id,
        "vocabulary_size": vocabulary_size,
        "source_size": source_size,
        "max_length": max_length,
        "batch_first": batch_first,
    }
    facts = {name: value for name, value in of_model.items() if value is not None}
    if facts and model is None:
        name = "--" + next(iter(facts)).replace("_", "-")
        raise UserError(f"{name} is of somebody else's model; give --model with it")
    if config is not None:
        settings = _settings(config, overrides, fault)
        planted: str | None = settings.fault
        if resume:
            report = _check_resume(settings, str(config), steps, kills, seed or 0)
        else:
            report = _check_config(settings, f"{config}, fresh weights", how)
    elif model is not None:
        if fault is not None:
            raise UserError("--break plants faults in toytrans' own models, not in a --model")
        planted, report = None, _check_other(model, how, facts)
    else:
        report, planted = _check_run(run, checkpoint, fault, how)
    show(report, planted, "json" if as_json else form or "text")
    if report.verdict == "cannot judge":
        raise UserError(_with_options(remedy(report)) if model else remedy(report))
    if not report.passed:
        raise typer.Exit(1)


def _settings(path: Path, overrides: list[str] | None, fault: FaultName | None) -> "Config":
    """A config with overrides and, if given, another fault."""
    from toytrans.config.load import load_config

    return load_config(path, overrides or (), by_option={"fault": fault})


def _check_config(settings: "Config", name: str, how: dict[str, Any]) -> "Report":
    """The proofs on fresh weights of a config."""
    import torch

    from toytrans.data.open import open_dataset
    from toytrans.insight.proofs import check_own
    from toytrans.training.faults import build_model

    vocabulary = open_dataset(settings).facts.vocabulary
    torch.manual_seed(settings.seed)
    fresh = build_model(settings, vocabulary)
    return check_own(fresh, settings, vocabulary, name, **how, progress=Progress())


def _check_resume(settings: "Config", name: str, steps: int, kills: int, seed: int) -> "Report":
    """Whether training that is killed and resumed equals training that is not."""
    from toytrans.insight.proofs.resume import prove_resume

    note(f"training {steps} steps, then again with {kills} kills")
    with signals_as_exceptions():  # the trainings' folder is removed
        return prove_resume(settings, name, steps, kills, seed, Progress())


def _check_run(
    path: Path | None, checkpoint: str, fault: FaultName | None, how: dict[str, Any]
) -> "tuple[Report, str | None]":
    """The proofs on a run's weights, with another fault planted if asked for."""
    from toytrans.insight.proofs import check_own
    from toytrans.training.faults import plant

    loaded = open_run(path, checkpoint)
    settings, planted = loaded.config, loaded.config.fault
    if fault is not None and planted is not None:
        raise UserError(f"{loaded.path}: {fault_remark(planted)}; leave --break out")
    if fault is not None:
        values = settings.model_dump(mode="json") | {"fault": fault}
        settings = _checked(loaded.path, values)
        plant(fault, loaded.model)
    name = f"{loaded.path}, step {loaded.step}"
    of = (loaded.model, settings, loaded.vocabulary, name)
    report = check_own(*of, **how, progress=Progress())
    return report, settings.fault


def _checked(path: Path, values: dict[str, Any]) -> Any:
    from toytrans.config.load import check_config
    from toytrans.config.yaml import Tree

    return check_config(Tree(str(path), values))


def _check_other(name: str, how: dict[str, Any], facts: dict[str, Any]) -> "Report":
    """The proofs on what a function returns."""
    from toytrans import check
    from toytrans.insight.proofs.wrapper import MoreThanIds

    with _without_nested_tensors():
        given = _made_by(name)
    arguments = dict(given) if isinstance(given, dict) else {"model": given}
    if "model" not in arguments:
        raise UserError(f"--model {name}: the dict it returns lacks 'model', the callable")
    model = arguments.pop("model")
    if not callable(model):
        raise UserError(
            f"--model {name}: the model it returns is of type {type(model).__name__}, which cannot "
            "be called; return f(src, tgt_in) -> logits, or a Hugging Face model"
        )
    allowed = check.__kwdefaults__ or {}
    if unknown := sorted(set(arguments) - set(allowed)):
        raise UserError(
            f"--model {name}: the dict it returns holds {', '.join(map(repr, unknown))}; known "
            f"are 'model', {', '.join(map(repr, allowed))}"
        )
    given = {name: value for name, value in how.items() if value or name == "seed"}  # asked for
    try:
        with _without_nested_tensors():
            report: Report = check(model, **({"progress": Progress()} | arguments | facts | given))
    except MoreThanIds as error:
        typer.echo(error.wrapper, err=True)
        raise UserError(f"{error.message}. It is printed above") from None
    except UserError as error:
        raise UserError(_with_options(str(error))) from None
    return replace(report, subject=name)


@contextlib.contextmanager
def _without_nested_tensors() -> Iterator[None]:
    """Silence torch's warnings on nested tensors, which nn.Transformer makes or does not make."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*nested.tensor", UserWarning)
        yield


def _with_options(message: str) -> str:
    """A message with options in the place of the arguments to give: --pad-id for pad_id=..."""
    message = message.replace("batch_first=False", "--time-first")
    names = "pad_id|source_pad_id|start_id|eos_id|vocabulary_size|source_size|max_length"
    arguments = rf"\b({names})=(?:\.{{3}}|(?<=give source_pad_id=)(\d+))"
    option = lambda m: f"--{m[1].replace('_', '-')} {m[2] or ''}".rstrip()  # noqa: E731
    message = re.sub(arguments, option, message)
    if re.search(r"\b(kind|batch|loss|embedding|generate|scale|pad_side)=", message):
        message += "; build() gives it in its dict, beside 'model'"
    return message


def _made_by(name: str) -> Any:
    """What FILE.py:FUNCTION returns. Raises UserError."""
    place, _, function_name = name.rpartition(":")
    try:
        reference = absolute(name)
    except ValueError as error:
        raise UserError(f"--model {error}") from None
    trust([reference])
    function = load(reference)
    if not callable(function):
        raise UserError(f"--model {name}: {place} has no function {function_name}")
    try:
        return function()
    except RAISED as error:
        what = failure(error, reference)
        raise UserError(f"--model {name}: {function_name}() failed: {what}") from error
