"""`toytrans check`."""

import textwrap
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.common import newest, warn_of_fault
from toytrans.cli.explain import print_card
from toytrans.cli.options import AsJson, Break, Overrides, TrustCode, check_forms
from toytrans.cli.terminal import Progress, output, plain_lines, print_page
from toytrans.config.sealed import fault_remark, is_sealed, opened
from toytrans.errors import UserError, did_you_mean
from toytrans.files import json_text
from toytrans.user_code import RAISED, absolute, failure, load, trust

if TYPE_CHECKING:
    from toytrans.checks.result import Report

FORMS = ("github", "html")

STYLES = {
    "title": "bold",
    "PASS": "green",
    "FAIL": "bold red",
    "cannot judge": "yellow",
    "more": "dim",
    "end": "bold",
}


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
        typer.Option(metavar="FILE.py:FUNCTION", help="Check the model that a function returns."),
    ] = None,
    fault: Break = None,
    trust_code: TrustCode = False,
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Run these checks only, say pads,future.")
    ] = "",
    length: Annotated[
        int | None,
        typer.Option(min=4, max=1000, help="Longest sequence. Default: 64; more is thorough."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every check with its evidence.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMS),
            help="Another form; github: annotations of a workflow.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that masks, loss and layers do what they should.

    Checked are a run, fresh weights of a config, or your own --model: a function
    that returns a Hugging Face model, or a dict with `model`, `pad_id`,
    `vocabulary_size` and other arguments of `toytrans.check`.

    Exit codes: 0 all checks pass, 1 one fails, 2 pads, the future or a given
    loss cannot be judged. One line then says what to give.
    """
    if form not in (None, *FORMS):
        raise UserError(f"--format {form}: no such form; {did_you_mean(form, (*FORMS, '--json'))}")
    check_forms({"--json": as_json, f"--format {form}": form is not None})
    if sum(given is not None for given in (run, config, model)) > 1:
        raise UserError("a RUN, --config and --model exclude each other; give one")
    if overrides and config is None:
        raise UserError("--set changes a config; give --config FILE with it")
    if fault is not None and model is not None:
        raise UserError("--break plants faults in toytrans' own models, not in a --model")
    with warnings.catch_warnings():
        # which nn.Transformer makes, or does not make
        warnings.filterwarnings("ignore", ".*nested.tensor", UserWarning)
        if model is not None:
            given, planted = _made_by(model), None
        else:
            given, planted = _ours(run, config, overrides or [], fault)
        asked = {name: value for name, value in (("length", length), ("only", only)) if value}
        report = _checked(given | asked, model)
    report = replace(report, subject=model or report.subject)
    if as_json:
        print(json_text(report.to_dict() | {"fault": planted}))
    elif form == "html":
        from toytrans.report import sections

        print_page(f"check {report.subject}", [sections.checks(report)])
    elif form == "github":
        print("\n".join(_annotations(report)))
    else:
        _print(report, planted, everything)
    if report.verdict == "cannot judge":
        name, why = report.decisive
        raise UserError(_of_maker(f"cannot judge {report.subject}: {name}: {why}", model))
    if not report.passed:
        raise typer.Exit(1)


def _ours(
    run: Path | None, config: Path | None, overrides: list[str], fault: str | None
) -> tuple[dict[str, Any], str | None]:
    """A run's weights, or fresh weights of a config, as an argument of `check`; and the fault that
    is in them, which may be planted here."""
    import torch

    import toytrans
    from toytrans.checks.adapters.toytrans import of_model
    from toytrans.config.load import check_config, load_config
    from toytrans.config.yaml import Tree
    from toytrans.data.open import open_dataset
    from toytrans.training.faults import build_model, plant

    if config is not None:
        settings = load_config(config, overrides, by_option={"fault": fault})
        vocabulary = open_dataset(settings).facts.vocabulary
        torch.manual_seed(settings.seed)
        fresh, name = build_model(settings, vocabulary), f"{config}, fresh weights"
        return {"model": of_model(fresh, settings, vocabulary, name)}, settings.fault
    loaded = toytrans.load(run or newest(), device="cpu")
    settings = loaded.config
    if fault is not None and settings.fault is not None:
        raise UserError(f"{loaded.path}: {fault_remark(settings.fault)}; leave --break out")
    if fault is not None:
        values = settings.model_dump(mode="json") | {"fault": fault}
        settings = check_config(Tree(f"--break {fault}", values))
        plant(fault, loaded.model)
    name = f"{loaded.path}, step {loaded.step}"
    return {"model": of_model(loaded.model, settings, loaded.vocabulary, name)}, settings.fault


def _made_by(name: str) -> dict[str, Any]:
    """What FILE.py:FUNCTION returns, as arguments of `check`. Raises UserError."""
    from toytrans import check

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
        made = function()
    except RAISED as error:
        what = failure(error, reference)
        raise UserError(f"--model {name}: {function_name}() failed: {what}") from error
    given = dict(made) if isinstance(made, dict) else {"model": made}
    if "model" not in given:
        raise UserError(f"--model {name}: the dict it returns lacks 'model', the callable")
    known = ("model", *(check.__kwdefaults__ or {}))
    if unknown := [argument for argument in given if argument not in known]:
        raise UserError(
            f"--model {name}: the dict it returns holds {', '.join(map(repr, sorted(unknown)))}; "
            f"known are {', '.join(map(repr, known))}"
        )
    return given


def _checked(given: dict[str, Any], model: str | None) -> Any:
    """The report of `check`; what it asks for is a matter of the function of --model."""
    from toytrans import check
    from toytrans.checks.adapters.callables import MoreThanIds

    try:
        return check(**({"progress": Progress()} | given))
    except MoreThanIds as error:
        typer.echo(error.wrapper, err=True)
        raise UserError(f"{error.message}. It is printed above") from None
    except UserError as error:
        raise UserError(_of_maker(str(error), model)) from None


def _of_maker(message: str, model: str | None) -> str:
    """A message that asks for arguments of `check`, with where the command takes them."""
    is_asked = "=..." in message or ("give " in message and "=" in message)
    if model is None or not is_asked:
        return message
    function = model.rpartition(":")[2]
    return f"{message}; {function}() returns it in its dict, beside 'model'"


def _print(report: "Report", fault: str | None, everything: bool) -> None:
    """The lines of a report, and the card of a fault."""
    console = output()
    warn_of_fault(fault)
    for line in report.lines(everything):
        text = textwrap.fill(
            line.text, console.width, subsequent_indent=" " * 6, break_on_hyphens=False
        )
        console.print(plain_lines(text), style=STYLES.get(line.style, ""))
    if not is_sealed(fault) and (name := opened(fault)):
        print_card(name)


def _annotations(report: "Report") -> list[str]:
    """Commands of a GitHub workflow: an error for each failure, a warning where nothing could be
    judged."""
    found = [("error", r, "\n".join(report.cause_of(r))) for r in report.failures]
    found += [("warning", r, r.message) for r in report.of("cannot judge")]
    lines = [
        f"::{kind} title={_escaped(f'toytrans check {r.name}: {r.title}', ':,')}::{_escaped(text)}"
        for kind, r, text in found
    ]
    return lines or [f"::notice title=toytrans check::{report.verdict}"]


def _escaped(text: str, more: str = "") -> str:
    """Text as a workflow command takes it. more: characters that are escaped too."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
