"""`toytrans doctor`: what looks wrong in a run, or on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toytrans.cli.common import (
    AsJson,
    RunArgument,
    TrustCode,
    argument,
    output,
    plain,
    share,
)
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.doctor.findings import Finding
    from toytrans.doctor.record import RunSnapshot

STYLES = {"wrong": "bold red", "odd": "yellow"}

Rows = list[tuple[str, str]]


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
    if not (_machine(as_json) if run is None else _run(run, as_json)):
        raise typer.Exit(1)


def _machine(as_json: bool) -> bool:
    """Describe this machine, and return whether a training can start."""
    from toytrans.doctor.machine import describe

    facts = describe()
    problems: list[str] = facts["problems"]
    if as_json:
        print(json_text(facts))
        return not problems
    console = output()
    _print_rows(console, _machine_rows(facts))
    for problem in problems:
        _print_finding(console, "wrong", problem, [])
    if not problems:
        console.print("nothing would stop a training")
    return not problems


def _machine_rows(facts: dict[str, Any]) -> Rows:
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    switches = ", ".join(f"{name}={value}" for name, value in facts["switches"].items())
    gpu = f"; CUDA {facts['cuda']}, cuDNN {facts['cudnn']}" if facts["cuda"] else ""
    free, reason = facts["free_bytes"], facts["not_writable_because"]
    return [
        ("toytrans", f"{facts['toytrans']}, Python {facts['python']}"),
        ("packages", packages),
        ("platform", facts["platform"]),
        ("processor", f"{facts['processor']}, {facts['cpu_capability']}"),
        ("cores", f"{facts['cores']}, of which {facts['usable_cores']} may be used"),
        ("threads", f"{facts['threads']}" + (f" ({switches})" if switches else "")),
        ("devices", ", ".join(facts["devices"]) + gpu),
        ("device: auto", facts["device"]),
        ("precision: auto", f"{facts['precision']}: {facts['precision_because']}"),
        ("fp32 products", facts["fp32_products"]),
        ("runs go to", facts["runs"]),
        ("disk free", "unknown" if free is None else f"{free / 2**30:,.1f} GiB"),
        ("writable", f"no ({reason})" if reason else "yes"),
    ]


def _run(path: Path, as_json: bool) -> bool:
    """Diagnose a run, and return whether nothing is wrong with it."""
    from toytrans.doctor.findings import examine
    from toytrans.doctor.record import overview, read_snapshot

    snapshot = read_snapshot(path)
    symptoms = examine(snapshot)
    healthy = all(symptom.severity != "wrong" for symptom in symptoms)
    if as_json:
        findings = [symptom.to_dict() for symptom in symptoms]
        head = {"run": str(path), "healthy": healthy, "symptoms": findings}
        print(json_text(head | {"looked_at": overview(snapshot)}))
        return healthy
    console = output()
    _print_rows(console, _run_rows(snapshot, overview(snapshot)))
    for symptom in symptoms:
        _print_finding(console, symptom.severity, symptom.what, _details(path, symptom))
    if not symptoms:
        console.print("nothing looks wrong")
    return healthy


def _run_rows(run: "RunSnapshot", facts: dict[str, Any]) -> Rows:
    steps = ", ".join(f"{step:,}" for step in facts["checkpoints"]) or "none"
    rows = [
        ("run", f"{run.path}, step {facts['step']:,} of {facts['max_steps']:,}"),
        ("records", f"{facts['records']}, {facts['evaluations']} with validation data"),
        ("checkpoints", steps),
    ]
    if facts["data_not_read"] is not None:
        rows.append(("data", f"not read: {facts['data_not_read']}"))
    if facts["exact_match"] is not None:
        exact, accuracy = share(facts["exact_match"]), share(facts["token_accuracy"])
        step = f"at step {facts['best_step']:,}"
        rows.append(("best", f"exact match {exact}, token accuracy {accuracy} {step}"))
    if "pace" in facts:
        rows += _training_rows(run.environment or {}, facts)
    return rows


def _training_rows(machine: dict[str, Any], facts: dict[str, Any]) -> Rows:
    loss = f"{facts['first_loss']:.2f} at first, {facts['settled_loss']:.4f} in the last quarter"
    if facts["entropy"] is not None:
        loss += f"; token frequencies alone would give {facts['entropy']:.2f}"
    largest, step = facts["grad_norm_largest"], facts["grad_norm_largest_step"]
    gradient = f"median {facts['grad_norm_median']:.2g}, largest {largest:.3g} at step {step:,}"
    data = f"{facts['tokens_a_step']:,.0f} target tokens a step"
    if facts["epochs"] is not None:
        data += f", each pair {facts['epochs']:.1f} times"
    place = [str(machine[name]) for name in ("device", "precision") if name in machine]
    return [
        ("loss", loss),
        ("gradient", gradient),
        ("learning rate", f"at most {facts['highest_lr']:.2g}, {facts['last_lr']:.2g} last"),
        ("data", f"{data}; {facts['padding']:.2f} padded tokens a real one"),
        ("pace", ", ".join([f"{facts['pace'] * 1000:.0f} ms a step", *place])),
    ]


def _details(path: Path, symptom: "Finding") -> list[str]:
    """Evidence, remedy, and where to look further."""
    lines = [symptom.evidence, f"remedy: {symptom.remedy}"]
    if symptom.checks:
        only = ",".join(symptom.checks)
        lines.append(f"look: toytrans check {argument(path)} --only {only}")
    if symptom.cards:
        lines.append(f"looks like {', '.join(symptom.cards)}: toytrans explain {symptom.cards[0]}")
    return lines


def _grid(**first_column: Any) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, **first_column)
    table.add_column(overflow="fold")
    return table


def _print_rows(console: Console, rows: Rows) -> None:
    """Print names and values, and an empty line."""
    table = _grid(style="dim")
    for name, value in rows:
        table.add_row(name, plain(value))
    console.print(table)
    console.print()


def _print_finding(console: Console, severity: str, what: str, details: list[str]) -> None:
    """Print a finding with its details indented below."""
    table = _grid(width=5)
    table.add_row(Text(severity, STYLES[severity]), Text(plain(what).plain, "bold"))
    for line in details:
        table.add_row("", plain(line))
    console.print(table)
