"""`toytrans check` and `toytrans faults`."""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.common import Break, note, output, plain, warn_of_fault
from toytrans.cli.signals import unwound
from toytrans.errors import UserError
from toytrans.names import FaultName

if TYPE_CHECKING:
    from rich.console import Console

    from toytrans.insight.fault_cards import FaultCard
    from toytrans.insight.findings import Finding, Report


def check(
    run: Annotated[Path | None, typer.Argument(help="A run directory; the newest one.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Fresh weights of this config in place of a run.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the config's.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FUNCTION",
            help="Somebody else's model: what the function returns.",
        ),
    ] = None,
    fault: Break = None,
    checkpoint: Annotated[str, typer.Option(help="best | last | STEP")] = "best",
    length: Annotated[
        int, typer.Option(min=4, max=1000, help="Symbols of the longest sequence tried.")
    ] = 7,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Of the sequences or kills tried.")
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Kill and resume training of --config instead.")
    ] = False,
    kills: Annotated[int, typer.Option(min=1, max=10_000, help="With --resume: how often.")] = 6,
    steps: Annotated[int, typer.Option(min=10, max=10**6, help="With --resume: how many.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Prove that masks, loss, labels and layers do what they should; exit code 1 if one fails.

    On a run's weights, on fresh ones of a config, or on somebody else's model: a function that
    returns a Hugging Face encoder-decoder model, or a dict with `model`, `pad_id`,
    `vocabulary_size` and whatever else `toytrans.check` takes. With --resume: prove instead that a
    training which is killed again and again ends, bit for bit, as one that is not.
    """
    if sum(given is not None for given in (run, config, model)) > 1:
        raise UserError("a RUN, --config and --model exclude each other; give one")
    if checkpoint != "best" and (config or model):
        raise UserError(f"--checkpoint {checkpoint} is one of a run's; give a RUN with it")
    if overrides and config is None:
        raise UserError("--set changes a config; give --config FILE with it")
    if resume:
        if config is None:
            raise UserError("--resume trains a config; give --config FILE with it")
        report, fault = _check_resume(config, overrides or [], fault, steps, kills, seed)
    elif model is not None:
        if fault is not None:
            raise UserError("--break plants faults in toytrans' own models, not in a --model")
        report = _check_other(model, length, seed)
    elif config is not None:
        report, fault = _check_config(config, overrides or [], fault, length, seed)
    else:
        report, fault = _check_run(run, checkpoint, fault, length, seed)
    if as_json:
        print(json.dumps(report.document() | {"fault": fault}))
    else:
        _print(output(), report, fault)
    if not report.passed:
        raise typer.Exit(1)


def faults(
    name: Annotated[FaultName | None, typer.Argument(metavar="[FAULT]", help="One.")] = None,
) -> None:
    """The mistakes to make on purpose, or one of them: symptom, proof, where people met it."""
    from toytrans.insight.fault_cards import CARDS

    console = output()
    if name is not None:
        _print_card(console, name, CARDS[name])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for heading in ("fault", "what it is", "found by"):
        table.add_column(heading)
    for fault, card in CARDS.items():
        table.add_row(fault, plain(card.what), " ".join(f"({letter})" for letter in card.proofs))
    console.print(table)
    console.print("one of them: toytrans faults FAULT; try it: toytrans check --break FAULT")


def _check_config(
    path: Path, overrides: list[str], fault: FaultName | None, length: int, seed: int
) -> "tuple[Report, FaultName | None]":
    """The proofs on fresh weights of a config."""
    from toytrans.config_file import load_config

    settings = load_config(path, [*overrides, *([f"fault={fault}"] if fault else [])])
    import torch

    from toytrans.data import open_source
    from toytrans.insight.proofs import check_own
    from toytrans.training.faults import build_model

    vocabulary = open_source(settings).facts.vocabulary
    torch.manual_seed(settings.seed)
    fresh = build_model(settings, vocabulary)
    name = f"{path}, fresh weights"
    return check_own(fresh, settings, vocabulary, name, length, seed), settings.fault


def _check_resume(
    path: Path, overrides: list[str], fault: FaultName | None, steps: int, kills: int, seed: int
) -> "tuple[Report, FaultName | None]":
    """Whether killed and resumed training of a config is the training that was not."""
    from toytrans.config_file import load_config

    settings = load_config(path, [*overrides, *([f"fault={fault}"] if fault else [])])
    from toytrans.insight.resume_proof import prove_resume

    note(f"training {steps} steps, then again with {kills} kills")
    with unwound():  # the trainings' folder is removed
        return prove_resume(settings, str(path), steps, kills, seed), settings.fault


def _check_run(
    path: Path | None, checkpoint: str, fault: FaultName | None, length: int, seed: int
) -> "tuple[Report, FaultName | None]":
    """The proofs on a run's weights, with another fault planted if asked for."""
    from toytrans import load
    from toytrans.insight.proofs import check_own
    from toytrans.training.faults import plant
    from toytrans.training.run import newest_run

    loaded = load(path or newest_run(), checkpoint, "cpu")
    settings, found = loaded.config, loaded.config.fault
    if fault is not None and found is not None:
        raise UserError(f"{loaded.path}: broken already ({found}); leave --break out")
    if fault is not None:
        values = settings.model_dump(mode="json") | {"fault": fault}
        settings = _checked(loaded.path, values)
        plant(fault, loaded.model)
    name = f"{loaded.path}, step {loaded.step}"
    report = check_own(loaded.model, settings, loaded.vocabulary, name, length, seed)
    return report, settings.fault


def _checked(path: Path, values: dict[str, Any]) -> Any:
    from toytrans.config_file import check_config
    from toytrans.yaml_tree import Tree

    return check_config(Tree(str(path), values))


def _check_other(name: str, length: int, seed: int) -> "Report":
    """The proofs on what a function returns."""
    from toytrans import check

    given = _made_by(name)
    arguments = dict(given) if isinstance(given, dict) else {"model": given}
    if "model" not in arguments:
        raise UserError(f"--model {name}: the dict it returns lacks 'model', the callable")
    model = arguments.pop("model")
    allowed = check.__kwdefaults__
    if unknown := sorted(set(arguments) - set(allowed)):
        raise UserError(
            f"--model {name}: the dict it returns holds {', '.join(map(repr, unknown))}; known "
            f"are 'model', {', '.join(map(repr, allowed))}"
        )
    report: Report = check(model, **({"length": length, "seed": seed} | arguments))
    return report


def _made_by(name: str) -> Any:
    """What package.module:function returns; the working directory is searched too."""
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UserError(f"--model {name}: write it as package.module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    with _explaining(f"--model {name}: {module_name} cannot be imported"):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"--model {name}: {module_name} has no function {function_name}")
    with _explaining(f"--model {name}: {function_name}() failed"):
        return function()


@contextlib.contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Somebody else's code may raise anything; the user is told in one line."""
    try:
        yield
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"{what}: {type(error).__name__}: {first}") from error


def _print(console: "Console", report: "Report", fault: FaultName | None) -> None:
    """A line a finding with what it means below, what they sum up to, and the card of a fault."""
    from rich.padding import Padding
    from rich.text import Text

    warn_of_fault(fault)
    title = f"{report.subject}, {report.precision}"
    console.print(plain(title), Text("\nlargest difference, and what is wanted", "dim"), sep="")
    for finding in report.findings:
        style = {"PASS": "green", "FAIL": "bold red"}.get(finding.verdict, "dim")
        shown = "-" if finding.verdict == "does not apply" else finding.verdict
        number = "" if finding.difference is None else f"{finding.difference:8.1e}"
        console.print(
            Text.assemble(
                f"({finding.letter}) ",
                (f"{shown:<5}", style),
                (f"{finding.title:<49}", "bold"),
                f"{number} {_wanted(finding)}",
            )
        )
        words = plain(finding.words)
        words.style = "" if finding.verdict == "FAIL" else "dim"
        console.print(Padding(words, (0, 0, 0, 9)))
    counts = {verdict: 0 for verdict in ("PASS", "FAIL", "does not apply")}
    for finding in report.findings:
        counts[finding.verdict] += 1
    failed = " ".join(f"({finding.letter})" for finding in report.failures)
    console.print(
        f"{counts['PASS']} passed, {counts['FAIL']} failed{' ' + failed if failed else ''}, "
        f"{counts['does not apply']} do not apply"
    )
    if fault is not None:
        from toytrans.insight.fault_cards import CARDS

        _print_card(console, fault, CARDS[fault])


def _wanted(finding: "Finding") -> str:
    if finding.tolerance is None:
        return ""
    relation = ">" if finding.must_change else "<="
    return f"{relation} {finding.tolerance:.0e}" if finding.tolerance else f"{relation} 0"


def _print_card(console: "Console", name: FaultName, card: "FaultCard") -> None:
    from rich.padding import Padding

    console.print(f"\n[bold]{name}[/bold]")
    for heading, words in (
        ("what", card.what),
        ("symptom", card.symptom),
        ("found by", " ".join(f"({letter})" for letter in card.proofs)),
        ("met in", card.threads),
    ):
        console.print(Padding(plain(f"{heading}: {words}"), (0, 0, 0, 2)))
