"""`toytrans attention`: what every head looks at in a translation, and what each head does."""

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    Checkpoint,
    Progress,
    TrustCode,
    note,
    open_run,
    output,
    run_and_sequences,
    warn_of_fault,
)
from toytrans.cli.render.heat_maps import PAGE, check_plot, draw, print_maps
from toytrans.cli.render.panels import paged
from toytrans.files import json_text


def attention(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] SEQUENCE",
            help='Sequences such as "5 7 9" (default: two validation pairs). A RUN may come first.',
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
    part: Annotated[
        Literal["encoder", "decoder", "cross", "all"] | None,
        typer.Option(help="Show a part, or all.", show_default=False),
    ] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Show one layer, from 1.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Show one head, from 1.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the maps into FILE.png, .svg, or a page .html."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what every attention head looks at in a translation.

    By default the last cross-attention in the first translation, on one screen.
    --part all shows every attention of every translation.

    The label of a head is the rule that it follows (same place, mirror place,
    previous, next, itself, first, end), measured on 200 validation pairs. A head
    may follow no rule.
    """
    if plot is not None:
        check_plot(plot, (".png", ".svg", PAGE))
    from toytrans.inspection.heads import ALL, Choice, maps_of

    path, sequences = run_and_sequences(arguments)
    loaded = open_run(path, checkpoint)
    warn_of_fault(loaded.config.fault)
    choice, most = Choice(None if part == "all" else part, layer, head), None
    if one_screen := choice == ALL and not (part or plot or as_json):
        choice, most = Choice("cross", loaded.config.model.n_decoder_layers), 1
    maps = maps_of(loaded, sequences, choice=choice, most=most, follow=Progress())
    if plot is not None:
        draw(plot, maps)
        note(f"wrote {plot}")
    if as_json:
        print(json_text(maps.to_dict()))
        return
    console = output()
    with paged(console) if part == "all" else contextlib.nullcontext():
        print_maps(console, maps, draw=plot is None)
    if one_screen:
        console.print(
            "[dim]--part encoder|decoder|cross shows a part, --part all everything.[/dim]"
        )
