"""`toytrans trace`: what one attention and its layer compute."""

from typing import Annotated, Literal

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
from toytrans.cli.render.panels import Panel, print_panels
from toytrans.cli.sources import OfConfig, Sources, Targets, batch_of
from toytrans.errors import UserError
from toytrans.files import json_text


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
    as_html: AsHtml = False,
) -> None:
    """Show every tensor of one attention and its layer.

    By default the batch, the attention weights and a summary, on one screen.
    --panel all shows every tensor.

    Pairs are the first training pairs of a run or of a config with fresh
    weights, or sequences given with --src and --tgt. With neither, the newest
    run is taken, and named. The pair with the most pads is printed.
    """
    from toytrans.inspection import trace as traces

    check_forms({"--json": as_json, "--html": as_html})
    traced = traces.trace(batch_of(run, config, src, tgt), part, layer)
    heads = traced.inspected.model.config.n_heads
    if head > heads:
        raise UserError(f"--head {head}: this model has {heads} of them; give 1 to {heads}")
    report = traces.report(traced, traced.inspected.most_padded, head - 1)
    if as_json:
        print(json_text(report.to_dict()))
    elif as_html:
        from toytrans.report.sections import tables

        print_page("trace", [tables("trace", "Trace", report.tables)])
    else:
        one_screen = traces.summary(report.tables)
        print_panels(output(), report.tables, panel, one_screen=one_screen)
