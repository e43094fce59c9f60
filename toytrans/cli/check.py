"""`toytrans check`: what is wrong with a run, a config or somebody's model."""

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer

import toytrans
from toytrans.checks.adapters.toytrans import of_model
from toytrans.checks.example_script import example_script, failure_to_save
from toytrans.checks.report import Report
from toytrans.cli.common import (
    check_has_checkpoints,
    run_or_config,
    warn_of_fault,
)
from toytrans.cli.explain import print_card
from toytrans.cli.new_files import check_new, write_new
from toytrans.cli.opening import newest
from toytrans.cli.terminal import Progress, note, output, plain_lines
from toytrans.config.faults import check_fault_name, fault_remark, openly_named_fault
from toytrans.config.load import load_config
from toytrans.data.open import open_dataset
from toytrans.errors import UserError
from toytrans.files import json_text
from toytrans.model.build import build_model, plant
from toytrans.references import absolute, trust
from toytrans.resolve import resolve
from toytrans.training.devices import choose_device
from toytrans.user_code import load, refusing

STYLES = {
    "title": "bold",
    "PASS": "green",
    "FAIL": "bold red",
    "cannot judge": "yellow",
    "more": "dim",
    "end": "bold",
}


def check(
    run: Path | None,
    config: Path | None,
    overrides: list[str] | None,
    model: str | None,
    fault: str | None,
    only: str,
    length: int | None,
    quick: bool,
    everything: bool,
    save_example: Path | None,
    checkpoint: str,
    device: str | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Check that masks, loss and layers do what they should."""
    # which nn.Transformer makes, or does not make
    warnings.filterwarnings("ignore", ".*nested.tensor", UserWarning)
    check_new(save_example)
    chosen = None if device is None else choose_device(device)
    run, config = run_or_config(run, config)
    if run is None and config is None and model is None and not overrides:
        run = newest()
    said: dict[str, Any] = {"run": run, "config": config, "overrides": overrides}
    said |= {"model": model, "fault": fault, "checkpoint": checkpoint, "trust_code": trust_code}
    given, planted = subject(**said)
    options = {"length": length, "only": only, "effort": "quick" * quick, "device": chosen}
    asked = {name: value for name, value in options.items() if value}
    report = _ask(given | asked)
    report = replace(report, subject=model or report.subject)
    if as_json:
        print(json_text(report.to_dict() | {"fault": planted}))
    else:
        _print(report, planted, everything)
    if save_example is not None:
        _save_example(save_example, report, said, chosen)
    if report.verdict == "cannot judge" and report.decisive is not None:
        found = report.decisive
        raise UserError(f"cannot judge {report.subject}: {found.name}: {found.message}")
    if not report.passed:
        raise typer.Exit(1)


def _ask(given: dict[str, Any]) -> Report:
    """The report of `toytrans.check`. Raises UserError; a wrapper that it shows is printed."""
    try:
        return toytrans.check(**({"progress": Progress()} | given))
    except UserError as error:
        message, _, wrapper = str(error).partition("\n\n")
        if not wrapper:
            raise
        typer.echo(wrapper, err=True)
        raise UserError(f"{message}. It is printed above") from None


def subject(
    run: str | Path | None = None,
    config: str | Path | None = None,
    overrides: Sequence[str] | None = None,
    model: str | None = None,
    fault: str | None = None,
    checkpoint: str = "best",
    trust_code: bool = False,
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
    check_has_checkpoints(None if run is None else Path(run), checkpoint)
    if model is not None:
        return _made_by(model), None
    if config is not None:
        asked = load_config(Path(config), overrides or (), {"fault": fault}, trust_code)
        settings = resolve(asked)
        vocabulary = open_dataset(settings).facts.vocabulary
        torch.manual_seed(settings.seed)
        fresh, name = build_model(settings, vocabulary), f"{config}, fresh weights"
        return {"model": of_model(fresh, settings, vocabulary, name)}, settings.fault
    if run is None:
        raise UserError("give a RUN, --config or --model")
    loaded = toytrans.load(run, checkpoint, device="cpu", trust_code=trust_code)
    settings = loaded.settings
    if fault is not None and settings.fault is not None:
        raise UserError(f"{loaded.path}: {fault_remark(settings.fault)}; leave --break out")
    if fault is not None:
        try:
            check_fault_name(fault)
        except ValueError as error:
            raise UserError(f"--break: {error}") from None
        plant(fault, loaded.model)
        settings = settings.model_copy(update={"fault": fault})
    name = f"{loaded.path}, {loaded.which_step}"
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


def _save_example(
    path: Path, report: Report, said: dict[str, Any], device: torch.device | None
) -> None:
    """Write a script that shows the first failure again; said: arguments of `subject`. Raises
    UserError."""
    failure = failure_to_save(report)
    if failure is None:
        note(f"nothing fails, so {path} is not written")
        return
    texts = {name: str(said[name]) for name in ("run", "config") if said[name] is not None}
    given = {name: value for name, value in (said | texts).items() if value}
    if given["checkpoint"] == "best":
        del given["checkpoint"]
    words = ", ".join(f"{name}={value!r}" for name, value in given.items())
    loading = "from toytrans.cli.check import subject"
    lines = f"given, _ = subject({words})"
    if device is not None:
        lines += f'\ngiven["device"] = {str(device)!r}'
    script = example_script(report, failure, loading, lines)
    write_new(path, script.encode())
    note(f"wrote {path}, which shows {failure.name} again; run it with: python {path}")


def _print(report: Report, fault: str | None, everything: bool) -> None:
    """The lines of a report, and the card of a fault."""
    console = output()
    warn_of_fault(fault)
    for line, style in report.lines(everything):
        text = textwrap.fill(line, console.width, subsequent_indent=" " * 6, break_on_hyphens=False)
        console.print(plain_lines(text), style=STYLES.get(style, ""))
    if name := openly_named_fault(fault):
        print_card(name)
