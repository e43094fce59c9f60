"""`toytrans demo`: what the lessons show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import AsJson, Progress, RunArgument, TrustCode, columns, output
from toytrans.cli.render.panels import print_panels
from toytrans.cli.sources import OfConfig, batch_of
from toytrans.files import json_text
from toytrans.inspection.table import count

if TYPE_CHECKING:
    from toytrans.inspection.record import Part
    from toytrans.inspection.trace import TraceReport
    from toytrans.model.manual_backward.gradients import Comparison

Name = Literal["sdpa", "projections", "heads", "leaks", "scale", "decoding", "gradients"]
SEEDS = 3
"""Random draws of each gradient; the worst is shown."""


def demo(
    name: Annotated[Name, typer.Argument(help="Which idea.")],
    run: RunArgument = None,
    config: OfConfig = None,
    trust_code: TrustCode = False,
    part: Annotated[
        Literal["encoder", "decoder", "cross"] | None, typer.Option(help="Which attention.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Which layer, from 1.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show one idea of attention in numbers.

    sdpa: attention of 30 queries and 50 keys, step by step.
    projections: one projection for all heads equals one for each.
    heads: ten ragged lists become eight heads and are merged again.
    leaks: how much attention falls on pads and on the future without the mask.
    scale: scores and softmax as heads grow, with and without the scale; with a
    run, config, --part or --layer, in that model's heads.
    decoding: one masked pass beside decoding step by step.
    gradients: every gradient derived by hand beside autograd's; exit code 1 if
    one differs.

    leaks, scale and decoding take the first training pairs of a run or of a
    config with fresh weights. With neither, the newest run is taken, and named.
    Lessons 1 to 5 explain them.
    """
    if name == "gradients":
        _gradients(as_json)
        return
    report = _report(name, run, config, part, layer)
    if as_json:
        print(json_text(report.to_dict()))
    else:
        print_panels(output(), report.tables, "all")


def _report(
    name: str, run: Path | None, config: Path | None, part: "Part | None", layer: int | None
) -> "TraceReport":
    from toytrans.inspection import demos
    from toytrans.inspection.trace import trace
    from toytrans.inspection.walkthrough import PAIRS

    if name in ("sdpa", "projections", "heads"):
        own = {"heads": demos.heads, "sdpa": demos.sdpa, "projections": demos.projections}
        return own[name]()
    if name == "scale" and not (run or config or part or layer):
        return demos.scales()
    inspected = batch_of(run, config, otherwise=PAIRS)
    if name == "decoding":
        return demos.decoding(inspected, inspected.most_padded)
    traced = trace(inspected, part or "encoder", layer or 1)
    if name == "scale":
        return demos.sharpness(traced)
    return demos.leaks(traced, inspected.most_padded)


def _gradients(as_json: bool) -> None:
    from toytrans.model.manual_backward.gradients import TOLERANCE, compare

    comparisons = compare(SEEDS, Progress())
    passed = all(each.passed for each in comparisons)
    if as_json:
        head = {"precision": "float64", "seeds": SEEDS, "tolerance": TOLERANCE, "passed": passed}
        print(json_text(head | {"gradients": [each.to_dict() for each in comparisons]}))
    else:
        _print_gradients(comparisons, SEEDS, TOLERANCE)
    if not passed:
        raise typer.Exit(1)


def _print_gradients(comparisons: "list[Comparison]", seeds: int, tolerance: float) -> None:
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
