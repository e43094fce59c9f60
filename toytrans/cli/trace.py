"""`toytrans trace`: what one attention and its layer compute."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    TrustCode,
    check_forms,
    check_new,
    note,
    output,
    print_page,
    write_new,
)
from toytrans.cli.render.panels import All, AsHtml, Panel, print_panels
from toytrans.cli.sources import Source, with_source
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.inspection.shown import InspectedBatch
    from toytrans.inspection.table import Table
    from toytrans.inspection.trace import Trace, TraceReport

Part = Annotated[
    Literal["encoder", "decoder", "cross"], typer.Option("--part", help="Which attention.")
]


@with_source
def trace(
    source: Source,
    trust_code: TrustCode = False,
    part: Part = "encoder",
    layer: Annotated[int, typer.Option(min=1, help="Which layer, from 1 to the last.")] = 1,
    head: Annotated[int, typer.Option(min=1, help="The head to print.")] = 1,
    panel: Panel = None,
    everything: All = False,
    as_json: AsJson = False,
    as_html: AsHtml = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.safetensors", help="Save the tensors in a new file."),
    ] = None,
) -> None:
    """Show every tensor of one attention and its layer, from ids to output.

    By default the batch, the attention weights and a summary, on one screen. --all
    shows every tensor, --panel one of them.

    Pairs are the first training pairs of a run (default: the newest), of a
    config with fresh weights, or sequences given with --src and --tgt. The pair with
    the most pads is printed.
    """
    from toytrans.inspection.trace import report, summary

    check_forms({"--json": as_json, "--html": as_html})
    if save is not None:  # before anything is computed
        check_new("--save", save)
    traced = traced_of(source, part, layer)
    heads = traced.inspected.model.config.n_heads
    if head > heads:
        raise UserError(f"--head {head}: this model has {heads} of them; give 1 to {heads}")
    made = report(traced, traced.inspected.most_padded, head - 1)
    if save is not None:
        _save(save, made)
    print_report(made, as_json, as_html, panel, None if everything else summary(made.tables))


def _save(path: Path, report: "TraceReport") -> None:
    """Save the tensors, each contiguous and with memory of its own."""
    from safetensors.torch import save

    tensors = {name: tensor.clone().contiguous() for name, tensor in report.tensors.items()}
    write_new("--save", path, save(tensors))
    note(f"{len(tensors)} tensors saved in {path}")


def traced_of(source: Source, part: Any, layer: int) -> "Trace":
    """One attention of the chosen model."""
    from toytrans.inspection.trace import trace

    return trace(batch_of(source), part, layer)


def batch_of(source: Source, default_pairs: bool = False) -> "InspectedBatch":
    """The batch and its model: what is given, else the newest run, else a small fresh model.

    default_pairs: take the pairs of the walkthrough if nothing is given and there is no run.
    """
    if source.run or source.config:
        return source.load()
    newest = source.load_newest()
    if newest is not None:
        return newest
    if default_pairs and not source.src:
        from toytrans.inspection.walkthrough import PAIRS

        src, tgt = ([" ".join(pair[side]) for pair in PAIRS] for side in (0, 1))
        source = replace(source, src=src, tgt=tgt)
    if not source.src:
        raise UserError(
            "nothing to trace: there is no run here; name one, or give --config FILE, "
            '--src "5 7 9" --tgt "9 7 5", or `toytrans demo heads`'
        )
    return source.load()


def print_report(
    report: "TraceReport",
    as_json: bool,
    as_html: bool,
    panel: str | None = None,
    one_screen: "list[Table] | None" = None,
) -> None:
    """Print a report as JSON, as a page, or its panels."""
    if as_json:
        print(json_text(report.to_dict()))
    elif as_html:
        from toytrans.report.sections import tables

        print_page("trace", [tables("trace", "Trace", report.tables)])
    else:
        print_panels(output(), report.tables, panel, one_screen=one_screen or ())
