"""`toytrans attention`: what every head looks at in a translation, and what each head does."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import note, output, warn_of_fault
from toytrans.cli.render.heat_maps import Found, check_plot, draw, print_maps
from toytrans.errors import UnseenSymbol, UserError
from toytrans.safe_io import json_text

if TYPE_CHECKING:
    from torch import Tensor

    from toytrans.data.pairs import Pairs
    from toytrans.training.run import Run

FEW_OF = 200
"""Validation pairs among which those to show are looked for."""


def attention(
    sequences: Annotated[
        list[str] | None, typer.Argument(help='Say "5 7 9"; none: two validation pairs.')
    ] = None,
    run: Annotated[Path | None, typer.Option(help="A run directory; the newest one.")] = None,
    checkpoint: Annotated[str, typer.Option(help="best | last | STEP")] = "best",
    part: Annotated[
        Literal["encoder", "decoder", "cross"] | None, typer.Option(help="One part; all.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="One layer, from 1; all.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="One head, from 1; all.")] = None,
    sample: Annotated[
        int,
        typer.Option(
            min=0,
            max=10**7,
            help="Validation pairs that labels are measured on; 0 = the sequences shown.",
        ),
    ] = 200,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the maps into FILE.png or FILE.svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show what every attention head looks at in a translation, and what each head does.

    A head is labelled by the rule it follows (same place, mirror place, previous, next, itself,
    first, end), measured over validation pairs; by none where none holds.
    """
    if plot is not None:
        check_plot(plot)
    from toytrans import load
    from toytrans.insight.attention.heads import Choice, attend, batches_of, measure, translated
    from toytrans.training.run import newest_run

    loaded = load(run or newest_run(), checkpoint, "cpu")
    warn_of_fault(loaded.config.fault)
    choice = Choice(part, layer, head)
    choice.check(loaded.model)
    src, valid = _pairs(loaded, sequences or [], sample)
    batch = translated(loaded.model, src, loaded.facts.max_len_a)
    seen = attend(loaded.model, batch, choice)
    if valid is None:
        heads = measure(loaded.model, [batch], choice)
        basis = f"the translations shown ({len(src)})"
    else:
        heads = measure(loaded.model, batches_of(loaded, valid), choice)
        basis = f"{len(valid)} validation pairs"
    found = Found(loaded, batch, seen, heads, basis)
    if plot is not None:
        draw(plot, found)
        note(f"wrote {plot}")
    if as_json:
        print(json_text(found.document()))
    else:
        print_maps(output(), found, maps=plot is None)


def _pairs(run: "Run", sequences: list[str], sample: int) -> "tuple[Tensor, Pairs | None]":
    """Source ids to show (B, S), and the pairs that labels are measured on, if not these."""
    from toytrans.data.batches import make_batch
    from toytrans.insight.attention.heads import few, sources_of, validation_pairs

    for number, sequence in enumerate(sequences, 1):
        try:
            run.vocabulary.encode(sequence.split())
        except UnseenSymbol as error:
            raise UserError(f"argument {number}: {error}") from None
    valid = validation_pairs(run, sample) if sample else None
    if sequences:
        shown = sources_of(run, sequences)
    else:
        shown = few(valid if valid is not None else validation_pairs(run, FEW_OF))
    return make_batch(shown, run.config.source_bos).src, valid
