"""`toytrans gradients`."""

from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import AsJson, Progress, columns, output
from toytrans.files import json_text
from toytrans.insight.tables import count

if TYPE_CHECKING:
    from toytrans.insight.gradients import Comparison


def gradients(
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of random draws; the worst is shown.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare every manually derived gradient with autograd's.

    The exit code is 1 if one differs. The derivations are docstrings in
    toytrans/model/manual_backward/functions.py. A config with
    `model.backward: by_hand` trains with them.
    """
    from toytrans.insight.gradients import TOLERANCE, compare

    comparisons = compare(seeds, Progress())
    passed = all(each.passed for each in comparisons)
    if as_json:
        head = {"precision": "float64", "seeds": seeds, "tolerance": TOLERANCE, "passed": passed}
        print(json_text(head | {"gradients": [each.to_dict() for each in comparisons]}))
    else:
        _print(comparisons, seeds, TOLERANCE)
    if not passed:
        raise typer.Exit(1)


def _print(comparisons: "list[Comparison]", seeds: int, tolerance: float) -> None:
    """Print one line per gradient, grouped by operation."""
    from rich.box import SIMPLE_HEAD

    headings = ("operation", "gradient of", "shape"), ("absolute", "relative", "")
    table = columns(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    before = None
    for each in comparisons:
        table.add_row(
            "" if each.operation == before else f"[bold]{each.operation}",
            each.of,
            " ".join(map(str, each.shape)) or "one number",
            f"{each.absolute:.1e}",
            f"{each.relative:.1e}",
            "[green]PASS" if each.passed else "[bold red]FAIL",
        )
        before = each.operation
    console = output()
    console.print(table)
    failed = sum(not each.passed for each in comparisons)
    console.print(
        "largest difference from autograd, absolute and divided by the largest number\n"
        f"PASS: both below {tolerance:.0e}; fp64, the worst of {count(seeds, 'seed')}\n"
        f"{len(comparisons) - failed} passed, {failed} failed",
        soft_wrap=True,
    )
