"""`toytrans inspect-masks`: which query may attend to which key."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import (
    AsHtml,
    AsJson,
    RunArgument,
    TrustCode,
    check_forms,
    output,
    print_page,
)
from toytrans.cli.render.panels import Panel, print_names, print_panels
from toytrans.cli.render.tables import step_through
from toytrans.cli.sources import OfConfig, Sources, Targets, batch_of, given_pairs
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.inspection.shown import InspectedBatch
    from toytrans.inspection.table import Table


def inspect_masks(
    run: RunArgument = None,
    config: OfConfig = None,
    trust_code: TrustCode = False,
    src: Sources = None,
    tgt: Targets = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Walk through a forward pass, one key press per step.")
    ] = False,
    panel: Panel = None,
    library: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="LIBRARY",
            help="Convert the masks to the arguments of another library, say torch-mha or hf.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_html: AsHtml = False,
) -> None:
    """Show the masks of a padded batch, and their effect.

    By default the three masks of the pair with the most pads, on one screen.
    --panel all shows every table of every pair.

    The batch holds the first training pairs of a config or run, or sequences
    given with --src and --tgt. With both, the config or run provides the
    vocabulary. With neither, the newest run is taken, and named.
    """
    check_forms({"--json": as_json, "--html": as_html})
    check_forms({"--json": as_json, "--steps": steps})
    if library and (as_json or steps):
        form = "--json" if as_json else "--steps"
        raise UserError(f"--as {library} has no form {form}; leave one out")
    if steps:
        _walk(run, config, src, tgt, as_html)
        return
    inspected = batch_of(run, config, src, tgt)
    if as_json:
        fault = {"weights": inspected.weights} if inspected.fault else {}
        print(json_text(inspected.to_dict() | fault))
    elif as_html:
        from toytrans.report import sections

        tables = sections.tables("tables", "Tables", list(_tables(inspected, library)))
        print_page("inspect-masks", [sections.masks(inspected), tables])
    elif library or panel:
        print_panels(output(), _tables(inspected, library), panel)
    else:
        from toytrans.cli.render.masks import print_overview

        console = output()
        print_overview(console, inspected, inspected.most_padded)
        print_names(console, _tables(inspected, None))


def _tables(inspected: "InspectedBatch", library: str | None) -> "Iterator[Table]":
    from toytrans.inspection import masks

    return masks.converted(inspected, library) if library else masks.tables(inspected)


def _walk(run: RunArgument, config: OfConfig, src: Sources, tgt: Targets, as_html: bool) -> None:
    """Walk the chosen pairs through a tiny model that the walk makes itself."""
    from toytrans.inspection import walkthrough

    pairs, origin = given_pairs(run, config, src or [], tgt or []) or walkthrough.PAIRS, ""
    if run or config:
        pairs = walkthrough.pairs_of(batch_of(run, config, src, tgt))
        origin = "The pairs are yours, the model is not. "
    tables = walkthrough.steps(pairs, origin)
    if as_html:
        from toytrans.report.sections import tables as section_of

        print_page("inspect-masks --steps", [section_of("steps", "Steps", list(tables))])
    else:
        step_through(output(), tables)
