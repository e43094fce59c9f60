"""`toytrans doctor`: what looks wrong in a run, or on this machine."""

import shlex
from typing import Any

import typer
from rich.text import Text

from toytrans.cli.common import AsJson, RunArgument, TrustCode
from toytrans.cli.terminal import output, plain, print_pairs
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


def doctor(run: RunArgument = None, trust_code: TrustCode = False, as_json: AsJson = False) -> None:
    """Diagnose a run, or without RUN describe this machine.

    A run is diagnosed from its records, checkpoints and data. Each finding has
    its evidence, a remedy, and the checks to run. The exit code is 1 if something
    is wrong, or would stop a training.
    """
    document: dict[str, Any]
    findings: list[tuple[str, str, list[str]]]
    if run is None:
        from toytrans.doctor.machine import describe

        document = facts = describe()
        findings = [("wrong", problem, []) for problem in facts["problems"]]
        healthy, nothing = not findings, "nothing would stop a training"
    else:
        from toytrans.doctor.findings import examine
        from toytrans.doctor.record import overview, read_snapshot

        snapshot = read_snapshot(run)
        symptoms, facts = examine(snapshot), overview(snapshot)
        healthy = all(symptom.severity != "wrong" for symptom in symptoms)
        found = [symptom._asdict() for symptom in symptoms]
        document = {"run": str(run), "healthy": healthy, "symptoms": found, "looked_at": facts}
        findings = []
        for symptom in symptoms:
            lines = [symptom.evidence, f"remedy: {symptom.remedy}"]
            if symptom.checks:
                only = ",".join(symptom.checks)
                lines.append(f"look: toytrans check {shlex.quote(str(run))} --only {only}")
            if cards := symptom.cards:
                lines.append(f"looks like {', '.join(cards)}: toytrans explain {cards[0]}")
            findings.append((symptom.severity, symptom.what, lines))
        nothing = "nothing looks wrong"
    if as_json:
        print(json_text(document))
    else:
        console = output()
        known = {name: value for name, value in facts.items() if value not in (None, [], {})}
        print_pairs(console, ((_name(name), _value(name, x)) for name, x in known.items()))
        console.print()
        for severity, what, lines in findings:
            text = Text("\n").join([plain(what, "bold"), *map(plain, lines)])
            print_pairs(console, [(Text(severity.ljust(5), STYLES[severity]), text)])
        if not findings:
            console.print(nothing)
    if not healthy:
        raise typer.Exit(1)


def _name(name: str) -> Text:
    decoded = "free-running " if name == "exact_match" else ""
    return Text(decoded + name.replace("_", " "), "dim")


def _value(name: str, value: Any) -> Text:
    """A fact as text, with what it counts."""
    if isinstance(value, dict):
        value = [f"{key} {number}" for key, number in value.items()]
    if isinstance(value, list):
        text = ", ".join(map(str, value))
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = f"{value:,}" if type(value) is int else str(value)
    return plain(f"{text} {UNITS.get(name, '')}".rstrip())
