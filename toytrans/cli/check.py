"""`toytrans check` and `toytrans doctor`: what is wrong with a model, a run or this machine."""

import shlex
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

import toytrans
from toytrans.checks.adapters.toytrans import of_model
from toytrans.checks.report import Report
from toytrans.cli.common import (
    AsJson,
    Break,
    Overrides,
    RunArgument,
    TrustCode,
    warn_of_fault,
)
from toytrans.cli.explain import print_card, print_pairs
from toytrans.cli.runs import newest
from toytrans.cli.terminal import Progress, output, plain, plain_lines
from toytrans.config.faults import check_fault_name, fault_remark, openly_named_fault
from toytrans.config.load import load_config
from toytrans.data.open import open_dataset
from toytrans.doctor.findings import Finding, examine
from toytrans.doctor.machine import describe
from toytrans.doctor.record import overview, read_snapshot
from toytrans.errors import UserError
from toytrans.files import json_text
from toytrans.model.build import build_model, plant
from toytrans.references import absolute, trust
from toytrans.resolve import resolve
from toytrans.user_code import load, refusing

STYLES = {
    "title": "bold",
    "PASS": "green",
    "FAIL": "bold red",
    "cannot judge": "yellow",
    "more": "dim",
    "end": "bold",
    "wrong": "bold red",
    "odd": "yellow",
}

UNITS = {
    "entropy": "nats: the loss that token frequencies alone would give",
    "epochs": "times each training pair",
    "first_loss": "nats",
    "settled_loss": "nats, in the last quarter",
    "padding": "padded tokens a real one",
    "tokens_a_step": "target tokens",
    "pace": "seconds a step",
}
"""What a number of a run counts."""


def check(
    run: RunArgument = None,
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
    as_json: AsJson = False,
) -> None:
    """Check that masks, loss and layers do what they should.

    Checked are a run (by default the newest), fresh weights of a config, or your
    own --model: a function that returns a Hugging Face model, or a dict with
    `model`, `pad_id`, `vocabulary_size` and other arguments of `toytrans.check`.

    Exit codes: 0 all checks pass, 1 one fails, 2 pads, the future or a given
    loss cannot be judged. One line then says what to give.
    """
    # which nn.Transformer makes, or does not make
    warnings.filterwarnings("ignore", ".*nested.tensor", UserWarning)
    given, planted = _subject(run, config, overrides or [], model, fault, trust_code)
    asked = {name: value for name, value in (("length", length), ("only", only)) if value}
    try:
        report = toytrans.check(**({"progress": Progress()} | given | asked))
    except UserError as error:
        message, _, wrapper = str(error).partition("\n\n")
        if not wrapper:
            raise
        typer.echo(wrapper, err=True)
        raise UserError(f"{message}. It is printed above") from None
    report = replace(report, subject=model or report.subject)
    if as_json:
        print(json_text(report.to_dict() | {"fault": planted}))
    else:
        _print(report, planted, everything)
    if report.verdict == "cannot judge" and report.decisive is not None:
        found = report.decisive
        raise UserError(f"cannot judge {report.subject}: {found.name}: {found.message}")
    if not report.passed:
        raise typer.Exit(1)


def _subject(
    run: Path | None,
    config: Path | None,
    overrides: list[str],
    model: str | None,
    fault: str | None,
    trust_code: bool,
) -> tuple[dict[str, Any], str | None]:
    """What is checked, as arguments of `toytrans.check`: what a function of the user's makes, fresh
    weights of a config, or those of a run; and the fault that is in them, perhaps planted here.
    Raises UserError."""
    if sum(given is not None for given in (run, config, model)) > 1:
        raise UserError("a RUN, --config and --model exclude each other; give one")
    if overrides and config is None:
        raise UserError("--set changes a config; give --config FILE with it")
    if fault is not None and model is not None:
        raise UserError("--break plants faults in toytrans' own models, not in a --model")
    if model is not None:
        return _made_by(model), None
    if config is not None:
        settings = resolve(load_config(config, overrides, by_option={"fault": fault}))
        vocabulary = open_dataset(settings).facts.vocabulary
        torch.manual_seed(settings.seed)
        fresh, name = build_model(settings, vocabulary), f"{config}, fresh weights"
        return {"model": of_model(fresh, settings, vocabulary, name)}, settings.fault
    loaded = toytrans.load(run or newest(), device="cpu", trust_code=trust_code)
    settings = loaded.config
    if fault is not None and settings.fault is not None:
        raise UserError(f"{loaded.path}: {fault_remark(settings.fault)}; leave --break out")
    if fault is not None:
        try:
            check_fault_name(fault)
        except ValueError as error:
            raise UserError(f"--break: {error}") from None
        plant(fault, loaded.model)
        settings = settings.model_copy(update={"fault": fault})
    name = f"{loaded.path}, step {loaded.step}"
    return {"model": of_model(loaded.model, settings, loaded.vocabulary, name)}, settings.fault


def _made_by(name: str) -> dict[str, Any]:
    """What FILE.py:FUNCTION returns, as arguments of `check`. Raises UserError."""
    place, _, function_name = name.rpartition(":")
    try:
        reference = absolute(name)
    except ValueError as error:
        raise UserError(f"--model {error}") from None
    trust([reference])
    function = load(reference)
    if not callable(function):
        raise UserError(f"--model {name}: {place} has no function {function_name}")
    with refusing(f"--model {name}: {function_name}() failed:", reference):
        made = function()
    given = dict(made) if isinstance(made, dict) else {"model": made}
    if "model" not in given:
        raise UserError(f"--model {name}: the dict it returns lacks 'model', the callable")
    known = ("model", *(toytrans.check.__kwdefaults__ or {}))
    if unknown := [argument for argument in given if argument not in known]:
        raise UserError(
            f"--model {name}: the dict it returns holds {', '.join(map(repr, sorted(unknown)))}; "
            f"known are {', '.join(map(repr, known))}"
        )
    return given


def _print(report: Report, fault: str | None, everything: bool) -> None:
    """The lines of a report, and the card of a fault."""
    console = output()
    warn_of_fault(fault)
    for line, style in report.lines(everything):
        text = textwrap.fill(line, console.width, subsequent_indent=" " * 6, break_on_hyphens=False)
        console.print(plain_lines(text), style=STYLES.get(style, ""))
    if name := openly_named_fault(fault):
        print_card(name)


# doctor ---------------------------------------------------------------------------------------


def doctor(run: RunArgument = None, trust_code: TrustCode = False, as_json: AsJson = False) -> None:
    """Diagnose a run, or without RUN describe this machine.

    A run is diagnosed from its records, checkpoints and data. Each finding has
    its evidence, a remedy, and the checks to run. The exit code is 1 if something
    is wrong, or would stop a training.
    """
    if run is None:
        document = facts = describe()
        findings: list[tuple[str, ...]] = [("wrong", problem) for problem in facts["problems"]]
        nothing = "nothing would stop a training"
    else:
        snapshot, nothing = read_snapshot(run, trust_code), "nothing looks wrong"
        symptoms, facts = examine(snapshot), overview(snapshot)
        healthy = all(each.severity != "wrong" for each in symptoms)
        document = {"run": str(run), "healthy": healthy, "looked_at": facts}
        document["symptoms"] = [each._asdict() for each in symptoms]
        findings = [(each.severity, each.what, *_more(each, run)) for each in symptoms]
    if as_json:
        print(json_text(document))
    else:
        console = output()
        known = {name: value for name, value in facts.items() if value not in (None, [], {})}
        print_pairs(_fact(name, value) for name, value in known.items())
        console.print()
        for severity, what, *lines in findings:
            text = Text("\n").join([plain(what, "bold"), *map(plain, lines)])
            print_pairs([(Text(severity.ljust(5), STYLES[severity]), text)])
        if not findings:
            console.print(nothing)
    if any(severity == "wrong" for severity, *_ in findings):
        raise typer.Exit(1)


def _more(symptom: Finding, run: Path) -> Iterator[str]:
    """What is said below a finding."""
    yield symptom.evidence
    yield f"remedy: {symptom.remedy}"
    if symptom.checks:
        only = ",".join(symptom.checks)
        yield f"look: toytrans check {shlex.quote(str(run))} --only {only}"
    if cards := symptom.cards:
        yield f"looks like {', '.join(cards)}: toytrans explain {cards[0]}"


def _fact(name: str, value: Any) -> tuple[Text, Text]:
    """The name of a fact, and its value with what it counts."""
    if isinstance(value, dict):
        value = [f"{key} {number}" for key, number in value.items()]
    if isinstance(value, list):
        text = ", ".join(map(str, value))
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = f"{value:,}" if type(value) is int else str(value)
    decoded = "free-running " * (name == "exact_match")
    shown = Text(decoded + name.replace("_", " "), "dim")
    return shown, plain(f"{text} {UNITS.get(name, '')}".rstrip())
