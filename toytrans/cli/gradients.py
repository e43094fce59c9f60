"""`toytrans gradients`."""

from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import output
from toytrans.safe_io import json_text

if TYPE_CHECKING:
    from toytrans.insight.gradients import Comparison


def gradients(
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Draws of numbers; the worst is shown.")
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Compare every gradient that is derived by hand with autograd's. Exit code 1 if one differs.

    The derivations are docstrings in toytrans/model/manual_backward/functions.py. A config with
    `backward: by_hand` under `model` trains with them.
    """
    from toytrans.insight.gradients import TOLERANCE, compare

    found = compare(seeds)
    passed = all(each.passed for each in found)
    if as_json:
        head = {"precision": "float64", "seeds": seeds, "tolerance": TOLERANCE, "passed": passed}
        print(json_text(head | {"gradients": [each.document() for each in found]}))
    else:
        _print(found, seeds, TOLERANCE)
    if not passed:
        raise typer.Exit(1)


def _print(found: "list[Comparison]", seeds: int, tolerance: float) -> None:
    """A line a gradient, operations one below the other."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("operation", "gradient of", "shape"):
        table.add_column(heading, no_wrap=True)
    for heading in ("absolute", "relative", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for each in found:
        verdict = "[green]PASS" if each.passed else "[bold red]FAIL"
        table.add_row(
            "" if each.operation == before else f"[bold]{each.operation}",
            each.of,
            " ".join(map(str, each.shape)) or "one number",
            f"{each.absolute:.1e}",
            f"{each.relative:.1e}",
            verdict,
        )
        before = each.operation
    console = output()
    console.print(table)
    failed = sum(not each.passed for each in found)
    console.print(
        "largest difference from autograd's, and its share of the largest number there;\n"
        f"PASS: both below {tolerance:.0e}; fp64, the worst of {seeds} seed{'s'[: seeds > 1]}\n"
        f"{len(found) - failed} passed, {failed} failed"
    )
