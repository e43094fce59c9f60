"""`toytrans doctor`: what is wrong with a run, or with this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from toytrans.cli.common import run_as_typed
from toytrans.cli.explain import print_pairs
from toytrans.cli.opening import newest
from toytrans.cli.terminal import note, output, plain
from toytrans.config.faults import is_hidden
from toytrans.doctor.findings import Finding, examine
from toytrans.doctor.machine import describe
from toytrans.doctor.record import overview, read_snapshot
from toytrans.errors import UserError
from toytrans.files import json_text

STYLES = {"wrong": "bold red", "odd": "yellow"}

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


def doctor(
    run: Path | None,
    machine: bool,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Diagnose a run, or this machine."""
    if run is None and not machine:
        run = _newest_if_any()
    if run is None:
        document = facts = describe()
        findings: list[tuple[str, ...]] = [("wrong", problem) for problem in facts["problems"]]
        nothing = "nothing would stop a training"
    elif machine:
        raise UserError(f"--machine describes this machine, and not {run}; give one of them")
    else:
        snapshot, nothing = read_snapshot(run, trust_code), "nothing looks wrong"
        symptoms, facts = examine(snapshot), overview(snapshot)
        if is_hidden(snapshot.settings.fault):
            note("an exercise: no remedy that changes a key or trains longer mends its fault")
        healthy = all(each.severity != "wrong" for each in symptoms)
        document = {"run": str(run), "healthy": healthy, "looked_at": facts}
        document["symptoms"] = [each._asdict() for each in symptoms]
        typed = run_as_typed(run, snapshot.settings)
        findings = [(each.severity, each.what, *_more(each, typed)) for each in symptoms]
    if as_json:
        print(json_text(document))
    else:
        _print(facts, findings, nothing)
    if any(severity == "wrong" for severity, *_ in findings):
        raise typer.Exit(1)


def _newest_if_any() -> Path | None:
    """The newest run; None if there is none, which is noted."""
    try:
        return newest()
    except UserError:
        note(
            "no run here to take, so this is about the machine; that of an exercise is taken by "
            "name only: `toytrans doctor runs/exercise`"
        )
        return None


def _print(facts: dict[str, Any], findings: list[tuple[str, ...]], nothing: str) -> None:
    """What was looked at, and what was found. nothing: said where that is nothing."""
    console = output()
    known = {name: value for name, value in facts.items() if value not in (None, [], {})}
    print_pairs(_fact(name, value) for name, value in known.items())
    console.print()
    for severity, what, *lines in findings:
        text = Text("\n").join([plain(what, "bold"), *map(plain, lines)])
        print_pairs([(Text(severity.ljust(5), STYLES[severity]), text)])
    if not findings:
        console.print(nothing)


def _more(symptom: Finding, run: str) -> Iterator[str]:
    """What is said below a finding. run: as it is typed."""
    yield symptom.evidence
    yield f"remedy: {symptom.remedy}"
    if symptom.checks:
        only = ",".join(symptom.checks)
        yield f"look: toytrans check {run} --only {only}"
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
