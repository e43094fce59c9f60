"""`toytrans inspect-masks`: which query may attend to which key."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import AsJson, TrustCode, check_forms, output, print_page
from toytrans.cli.render.panels import All, AsHtml, Panel, print_names, print_panels
from toytrans.cli.render.tables import step_through
from toytrans.cli.sources import Source, with_source
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.inspection.shown import InspectedBatch
    from toytrans.inspection.table import Table

Library = Literal[
    "torch-mha",
    "torch-sdpa",
    "additive",
    "hf",
    "x-transformers",
    "sockeye",
    "t2t",
    "joeynmt",
    "annotated",
]


@with_source
def inspect_masks(
    source: Source,
    trust_code: TrustCode = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Walk through a forward pass, one key press per step.")
    ] = False,
    library: Annotated[
        Library | None,
        typer.Option("--as", help="Convert the masks to the arguments of another library."),
    ] = None,
    panel: Panel = None,
    everything: All = False,
    as_json: AsJson = False,
    as_html: AsHtml = False,
) -> None:
    """Show the masks of a padded batch, and their effect on attention.

    By default the three masks of the pair with the most pads, on one screen. --all
    shows every table of every pair, --panel one of them.

    The batch holds the first training pairs of a config or run, or sequences
    given with --src and --tgt. With both, the config or run provides the
    vocabulary. With neither, the newest run is taken.
    """
    forms = {"--json": as_json, "--html": as_html, "--steps": steps}
    check_forms(forms)
    form = next((name for name, wanted in forms.items() if wanted and name != "--html"), None)
    if library and form:
        raise UserError(f"--as {library} has no form {form}; leave one out")
    if steps:
        _walk(source)
        return
    inspected = _load(source)
    if as_json:
        fault = {"weights": inspected.weights} if inspected.fault else {}
        print(json_text(inspected.to_dict() | fault))
    elif as_html:
        from toytrans.report import sections

        tables = sections.tables("tables", "Tables", list(_tables(inspected, library)))
        print_page("inspect-masks", [sections.masks(inspected), tables])
    elif everything or library or panel:
        print_panels(output(), _tables(inspected, library), panel)
    else:
        from toytrans.cli.render.masks import print_overview

        console = output()
        print_overview(console, inspected, inspected.most_padded)
        print_names(console, _tables(inspected, None))


def _load(source: Source) -> "InspectedBatch":
    """The batch and its model: what is given, else the newest run."""
    if source.config or source.run or source.src:
        return source.load()
    newest = source.load_newest()
    if newest is None:
        raise UserError(
            "nothing to inspect: there is no run here; name one, or give --config FILE, or "
            '--src "5 7 9" --tgt "9 7 5"'
        )
    return newest


def _tables(inspected: "InspectedBatch", library: str | None) -> "Iterator[Table]":
    from toytrans.inspection import masks as mask_tables
    from toytrans.inspection import softmax

    if library is None:
        yield from mask_tables.tables(inspected)
        yield from softmax.tables(inspected)
    else:
        yield from mask_tables.batch_tables(inspected)
        for row in range(len(inspected.batch.src)):
            yield from mask_tables.converted(inspected, row, library)
    yield mask_tables.polarity(library)


def _walk(source: Source) -> None:
    """Walk the chosen pairs through a tiny model that the walk makes itself."""
    from toytrans.inspection import walkthrough

    pairs, origin = walkthrough.PAIRS, ""
    if source.config or source.run:
        pairs = walkthrough.pairs_of(source.load())
        origin = "The pairs are yours, the model is not. "
    elif source.src:
        pairs = [(s.split(), t.split()) for s, t in zip(source.src, source.tgt, strict=True)]
    step_through(output(), walkthrough.steps(pairs, origin))
