"""`toytrans check`."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import (
    Break,
    Overrides,
    Progress,
    TrustCode,
    open_run,
)
from toytrans.cli.render.checks import show
from toytrans.config.names import FaultName
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.user_code import RAISED, absolute, failure, load, trust

if TYPE_CHECKING:
    from toytrans.checks import Report
    from toytrans.config.schema import Config


def check(
    run: Annotated[
        Path | None, typer.Argument(help="A run directory. Default: the newest run.")
    ] = None,
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
    trust_code: TrustCode = False,
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Run these checks only, say pads,future.")
    ] = "",
    length: Annotated[
        int | None,
        typer.Option(min=4, max=1000, help="Symbols of the longest sequence.", show_default="64"),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Try lengths to 512, and batches of 32 rows.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every check with its evidence.")
    ] = False,
    form: Annotated[
        Literal["junit", "github", "html"] | None,
        typer.Option("--format", help="Another form; github: annotations of a workflow."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that masks, loss and layers do what they should.

    Checked are a run, fresh weights of a config, or your own --model: a function
    that returns a Hugging Face model, or a dict with `model`, `pad_id`,
    `vocabulary_size` and other arguments of `toytrans.check`.

    Exit codes: 0 all checks pass, 1 one fails, 2 pads or the future cannot be
    judged. One line then says what to give.
    """
    if as_json and form is not None:
        raise UserError(f"--json and --format {form} are different forms of output; give one")
    if sum(given is not None for given in (run, config, model)) > 1:
        raise UserError("a RUN, --config and --model exclude each other; give one")
    if overrides and config is None:
        raise UserError("--set changes a config; give --config FILE with it")
    how: dict[str, Any] = {"length": length, "only": only, "thorough": thorough}
    planted: str | None = None
    if config is not None:
        report, planted = _check_config(config, overrides, fault, how)
    elif model is None:
        report, planted = _check_run(run, fault, how)
    elif fault is None:
        report = _check_other(model, how)
    else:
        raise UserError("--break plants faults in toytrans' own models, not in a --model")
    show(report, planted, "json" if as_json else form or "text", everything)
    if report.verdict == "cannot judge":
        name, why = report.decisive
        raise UserError(_of_build(f"cannot judge {report.subject}: {name}: {why}"))
    if not report.passed:
        raise typer.Exit(1)


def _check_config(
    path: Path, overrides: list[str] | None, fault: FaultName | None, how: dict[str, Any]
) -> "tuple[Report, str | None]":
    """The checks of fresh weights of a config, with overrides and, if given, another fault."""
    import torch

    from toytrans.checks import check_own
    from toytrans.config.load import load_config
    from toytrans.data.open import open_dataset
    from toytrans.training.faults import build_model

    settings = load_config(path, overrides or (), by_option={"fault": fault})
    vocabulary = open_dataset(settings).facts.vocabulary
    torch.manual_seed(settings.seed)
    fresh = build_model(settings, vocabulary)
    name = f"{path}, fresh weights"
    report = check_own(fresh, settings, vocabulary, name, **how, progress=Progress())
    return report, settings.fault


def _check_run(
    path: Path | None, fault: FaultName | None, how: dict[str, Any]
) -> "tuple[Report, str | None]":
    """The checks of a run's weights, with another fault planted if asked for."""
    from toytrans.checks import check_own
    from toytrans.training.faults import plant

    loaded = open_run(path, "best")
    settings, planted = loaded.config, loaded.config.fault
    if fault is not None and planted is not None:
        raise UserError(f"{loaded.path}: {fault_remark(planted)}; leave --break out")
    if fault is not None:
        settings = _with_fault(loaded.path, settings, fault)
        plant(fault, loaded.model)
    name = f"{loaded.path}, step {loaded.step}"
    of = (loaded.model, settings, loaded.vocabulary, name)
    return check_own(*of, **how, progress=Progress()), settings.fault


def _with_fault(path: Path, settings: "Config", fault: FaultName) -> "Config":
    from toytrans.config.load import check_config
    from toytrans.config.yaml import Tree

    return check_config(Tree(str(path), settings.model_dump(mode="json") | {"fault": fault}))


def _check_other(name: str, how: dict[str, Any]) -> "Report":
    """The checks of what a function returns."""
    from toytrans import check
    from toytrans.checks.adapters.wrapper import MoreThanIds

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
    asked = {name: value for name, value in how.items() if value}
    try:
        with _without_nested_tensors():
            report: Report = check(model, **({"progress": Progress()} | arguments | asked))
    except MoreThanIds as error:
        typer.echo(error.wrapper, err=True)
        raise UserError(f"{error.message}. It is printed above") from None
    except UserError as error:
        raise UserError(_of_build(str(error))) from None
    return replace(report, subject=name)


def _of_build(message: str) -> str:
    """A message that asks for arguments of `check`, with where the command takes them."""
    is_asked = "=..." in message or "give " in message and "=" in message
    return f"{message}; build() gives it in its dict, beside 'model'" if is_asked else message


@contextlib.contextmanager
def _without_nested_tensors() -> Iterator[None]:
    """Silence torch's warnings on nested tensors, which nn.Transformer makes or does not make."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*nested.tensor", UserWarning)
        yield


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
