"""`toytrans doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.common import output, plain, share
from toytrans.safe_io import json_text
from toytrans.training.signals import collect_signals, exit_if_signalled

if TYPE_CHECKING:
    from rich.console import Console

    from toytrans.insight.diagnosis.rules import Symptom
    from toytrans.insight.diagnosis.snapshot import Case

STYLES = {"wrong": "bold red", "odd": "yellow", "note": "dim"}


def doctor(
    run: Annotated[
        Path | None, typer.Argument(help="A run directory; left out: this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Say what looks wrong in a run, or what this machine offers a training.

    A run: from its records, checkpoints and data alone, with the numbers, the remedy and the proof
    to turn to. Exit code 1 where something is wrong, or would stop a training.
    """
    if not (_machine(as_json) if run is None else _run(run, as_json)):
        raise typer.Exit(1)


def _machine(as_json: bool) -> bool:
    """Describe this machine; whether a training can start."""
    from toytrans.training.machine import describe

    with collect_signals() as signals:  # it writes a file to runs/ and removes it
        found = describe()
    exit_if_signalled(signals.received)
    problems: list[str] = found["problems"]
    if as_json:
        print(json_text(found))
        return not problems
    console = output()
    _print_rows(console, _machine_rows(found))
    console.print()
    for problem in problems:
        _print_block(console, "wrong", problem, [])
    if not problems:
        console.print("nothing would stop a training")
    return not problems


def _machine_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    switches = ", ".join(f"{name}={value}" for name, value in found["switches"].items())
    gpu = f"; CUDA {found['cuda']}, cuDNN {found['cudnn']}" if found["cuda"] else ""
    free, reason = found["free_bytes"], found["not_writable_because"]
    locks = {True: "flock works", False: "flock does not work", None: "not tried"}
    return [
        ("toytrans", f"{found['toytrans']}, Python {found['python']}"),
        ("packages", packages),
        ("platform", found["platform"]),
        ("processor", f"{found['processor']}, {found['cpu_capability']}"),
        ("cores", f"{found['cores']}, of which {found['usable_cores']} may be used"),
        ("threads", f"{found['threads']}" + (f" ({switches})" if switches else "")),
        ("devices", ", ".join(found["devices"]) + gpu),
        ("device: auto", found["device"]),
        ("precision: auto", f"{found['precision']}: {found['precision_because']}"),
        ("fp32 products", f"{found['matmul_precision']}: {found['matmul_because']}"),
        ("runs go to", found["runs"]),
        ("disk free", "unknown" if free is None else f"{free / 2**30:,.1f} GiB"),
        ("writable", f"no ({reason})" if reason else "yes"),
        ("locks", locks[found["lockable"]]),
    ]


def _run(path: Path, as_json: bool) -> bool:
    """Examine a run; whether nothing is wrong with it."""
    from toytrans.insight.diagnosis.doctor import examine
    from toytrans.insight.diagnosis.snapshot import overview, read_case

    case = read_case(path)
    symptoms = examine(case)
    healthy = all(symptom.severity != "wrong" for symptom in symptoms)
    if as_json:
        found = [symptom.document() for symptom in symptoms]
        head = {"run": str(path), "healthy": healthy, "symptoms": found}
        print(json_text(head | {"looked_at": overview(case)}))
        return healthy
    console = output()
    _print_rows(console, _run_rows(case, overview(case)))
    console.print()
    for symptom in symptoms:
        _print_block(console, symptom.severity, symptom.what, _below(path, symptom))
    if not symptoms:
        console.print("nothing looks wrong")
    return healthy


def _run_rows(case: "Case", found: dict[str, Any]) -> list[tuple[str, str]]:
    steps = ", ".join(f"{step:,}" for step in found["checkpoints"]) or "none"
    rows = [
        ("run", f"{case.path}, step {found['step']:,} of {found['max_steps']:,}"),
        ("records", f"{found['records']}, {found['evaluations']} with validation data"),
        ("checkpoints", steps),
    ]
    if found["exact_match"] is not None:
        exact, accuracy = share(found["exact_match"]), share(found["token_accuracy"])
        words = f"exact match {exact}, token accuracy {accuracy} at step {found['best_step']:,}"
        rows.append(("best", words))
    if "pace" in found:
        entropy = ""
        if found["entropy"] is not None:  # the data is still there
            entropy = f"; one who knows how often tokens occur: {found['entropy']:.2f}"
        epochs = f", each pair {found['epochs']:.1f} times" if found["epochs"] is not None else ""
        clipped = f", {found['clipped']:.0%} above clip_norm" if found["clip_norm"] else ""
        machine = case.environment or {}
        there = [str(machine[name]) for name in ("device", "precision") if name in machine]
        rows += [
            (
                "loss",
                f"{found['first_loss']:.2f} at first, {found['settled_loss']:.4f} in the last "
                f"quarter{entropy}",
            ),
            (
                "gradient",
                f"median {found['grad_norm_median']:.2g}, largest "
                f"{found['grad_norm_largest']:.3g} at step "
                f"{found['grad_norm_largest_step']:,}{clipped}",
            ),
            ("learning rate", f"at most {found['highest_lr']:.2g}, {found['last_lr']:.2g} last"),
            (
                "data",
                f"{found['tokens_a_step']:,.0f} target tokens a step{epochs}; "
                f"{found['padding']:.2f} padded tokens a real one",
            ),
            ("pace", ", ".join([f"{found['pace'] * 1000:.0f} ms a step", *there])),
        ]
    return rows


def _below(path: Path, symptom: "Symptom") -> list[str]:
    """What stands below a symptom: evidence, remedy, where to look further."""
    lines = [symptom.evidence, f"remedy: {symptom.remedy}"]
    if symptom.proofs:
        letters = " ".join(f"({letter})" for letter in symptom.proofs)
        lines.append(f"proofs {letters} of: toytrans check {path}")
    if symptom.cards:
        lines.append(f"looks like {', '.join(symptom.cards)}: toytrans faults {symptom.cards[0]}")
    return lines


def _print_rows(console: "Console", rows: list[tuple[str, str]]) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, words in rows:
        table.add_row(name, plain(words))
    console.print(table)


def _print_block(console: "Console", severity: str, what: str, below: list[str]) -> None:
    """A finding, its lines indented below."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, width=5)
    table.add_column(overflow="fold")
    table.add_row(Text(severity, STYLES[severity]), Text(plain(what).plain, "bold"))
    for line in below:
        table.add_row("", plain(line))
    console.print(table)
