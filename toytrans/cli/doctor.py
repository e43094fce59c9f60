"""`toytrans doctor`: what looks wrong in a run, or on this machine."""

from collections.abc import Iterator
from typing import Any

import typer
from rich.text import Text

from toytrans.cli.common import AsJson, RunArgument, TrustCode, argument, output, plain, print_pairs
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
    run: RunArgument = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
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
                lines.append(f"look: toytrans check {argument(run)} --only {only}")
            if cards := symptom.cards:
                lines.append(f"looks like {', '.join(cards)}: toytrans explain {cards[0]}")
            findings.append((symptom.severity, symptom.what, lines))
        nothing = "nothing looks wrong"
    if as_json:
        print(json_text(document))
    else:
        console = output()
        print_pairs(console, ((Text(name, "dim"), plain(text)) for name, text in _rows(facts)))
        console.print()
        for severity, what, lines in findings:
            text = Text("\n").join([plain(what, "bold"), *map(plain, lines)])
            print_pairs(console, [(Text(severity.ljust(5), STYLES[severity]), text)])
        if not findings:
            console.print(nothing)
    if not healthy:
        raise typer.Exit(1)


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The names and the texts of the facts that are known."""
    for name, value in facts.items():
        if value in (None, [], {}):
            continue
        if isinstance(value, dict):
            text = ", ".join(f"{key} {number}" for key, number in value.items())
        elif isinstance(value, list):
            text = ", ".join(map(str, value))
        elif isinstance(value, float):
            text = f"{value:.4g}"
        else:
            text = f"{value:,}" if type(value) is int else str(value)
        yield name.replace("_", " "), f"{text} {UNITS.get(name, '')}".rstrip()
