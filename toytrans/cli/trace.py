"""`toytrans trace`: what one attention and its layer compute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import AsJson, RunArgument, TrustCode, check_new, note, output, write_new
from toytrans.cli.render.panels import Panel, print_panels
from toytrans.cli.sources import OfConfig, Sources, Targets, batch_of
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.inspection.trace import TraceReport


def trace(
    run: RunArgument = None,
    config: OfConfig = None,
    trust_code: TrustCode = False,
    src: Sources = None,
    tgt: Targets = None,
    part: Annotated[
        Literal["encoder", "decoder", "cross"], typer.Option(help="Which attention.")
    ] = "encoder",
    layer: Annotated[int, typer.Option(min=1, help="Which layer, from 1 to the last.")] = 1,
    head: Annotated[int, typer.Option(min=1, help="The head to print.")] = 1,
    panel: Panel = None,
    as_json: AsJson = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write FILE.safetensors, or a page FILE.html."),
    ] = None,
) -> None:
    """Show every tensor of one attention and its layer.

    By default the batch, the attention weights and a summary, on one screen.
    --panel all shows every tensor.

    Pairs are the first training pairs of a run or of a config with fresh
    weights, or sequences given with --src and --tgt. With neither, the newest
    run is taken, and named. The pair with the most pads is printed.
    """
    from toytrans.inspection import trace as traces

    if save is not None:  # before anything is computed
        check_new("--save", save, (".safetensors", ".html"))
    traced = traces.trace(batch_of(run, config, src, tgt), part, layer)
    heads = traced.inspected.model.config.n_heads
    if head > heads:
        raise UserError(f"--head {head}: this model has {heads} of them; give 1 to {heads}")
    report = traces.report(traced, traced.inspected.most_padded, head - 1)
    if save is not None:
        _save(save, report)
    if as_json:
        print(json_text(report.to_dict()))
    else:
        one_screen = traces.summary(report.tables)
        print_panels(output(), report.tables, panel, one_screen=one_screen)


def _save(path: Path, report: "TraceReport") -> None:
    """Save the tables as a page, or the tensors, each contiguous and with memory of its own."""
    if path.suffix == ".html":
        from toytrans.report.page import page
        from toytrans.report.sections import tables

        made = page("toytrans trace", [tables("trace", "Trace", report.tables)])
        raw = made.encode(errors="replace")
        what = "a page"
    else:
        from safetensors.torch import save

        raw = save({name: tensor.clone().contiguous() for name, tensor in report.tensors.items()})
        what = f"{len(report.tensors)} tensors"
    write_new("--save", path, raw)
    note(f"{what} saved in {path}")
