"""`toytrans trace`: what one attention and its layer compute."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from toytrans.cli.common import (
    AnyPart,
    AsJson,
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
    from toytrans.insight.attention.trace import Trace, TraceReport
    from toytrans.insight.inspected import InspectedBatch
    from toytrans.insight.tables import Table

Part = Annotated[
    Literal["encoder", "decoder", "cross"], typer.Option("--part", help="Which attention.")
]
WHICH_LAYER = typer.Option("--layer", min=1, help="Which layer, from 1 to the last.")
Layer = Annotated[int, WHICH_LAYER]
Pair = Annotated[
    int | None,
    typer.Option("--pair", min=1, help="The pair to print.", show_default="the most padded"),
]


def _new(path: Path | None) -> Path | None:
    """Refuse a file that exists before anything is computed."""
    if path is not None:
        check_new("--save", path)
    return path


Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE.safetensors",
        callback=_new,
        help="Save the tensors in a new file.",
    ),
]


class _Group(TyperGroup):
    """Sub-commands; `layer` is the default, and flags of earlier versions choose the others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_command(args))

    def _with_command(self, args: list[str]) -> list[str]:
        if args and (args[0] in self.commands or args[0] == "--help"):
            return args
        flags = [part for arg in args for part in _example_apart(arg)]
        if "--example" in flags[:-1]:
            start = flags.index("--example")
            name = flags[start + 1]
            command = [name] if name == "decoding" else ["example", name]
            return command + flags[:start] + flags[start + 2 :]
        for flag, name in (("--no-mask", "leaks"), ("--no-scale", "scale")):
            if flag in flags:
                flags.remove(flag)
                return [name, *flags]
        return ["layer", *flags]


def _example_apart(arg: str) -> list[str]:
    return arg.split("=", 1) if arg.startswith("--example=") else [arg]


app = typer.Typer(
    cls=_Group,
    help="Show what one attention computes: `layer` (default), `leaks`, `scale`, `decoding`, "
    "`example`.\n\nOptions of `layer` need no sub-command: toytrans trace RUN --part cross "
    "--layer 2",
)


@app.command()
@with_source
def layer(
    source: Source,
    part: Part = "encoder",
    layer: Layer = 1,
    head: Annotated[int, typer.Option(min=1, help="The head to print.")] = 1,
    pair: Pair = None,
    panel: Panel = None,
    everything: All = False,
    as_json: AsJson = False,
    as_html: AsHtml = False,
    save: Save = None,
) -> None:
    """Show every tensor of one attention and its layer, from ids to output.

    By default the batch, the attention weights and a summary, on one screen. --all
    shows every tensor, --panel one of them.

    Pairs are the first training pairs of a run (default: the newest), of a
    config with fresh weights, or sequences given with --src and --tgt.
    """
    from toytrans.insight.attention.trace_tables import report, summary

    traced, row = _traced(source, part, layer, pair)
    heads = traced.inspected.model.config.n_heads
    if head > heads:
        raise UserError(f"--head {head}: this model has {heads} of them; give 1 to {heads}")
    made = report(traced, row, head - 1)
    short = None if everything else summary(made.tables)
    _show(made, as_json, as_html, save, panel, short)


@app.command()
@with_source
def leaks(
    source: Source,
    part: Part = "encoder",
    layer: Layer = 1,
    pair: Pair = None,
    as_json: AsJson = False,
    as_html: AsHtml = False,
    save: Save = None,
) -> None:
    """Show how much attention falls on pads and on the future without the mask."""
    from toytrans.insight.attention import ablations

    _show(ablations.leaks(*_traced(source, part, layer, pair)), as_json, as_html, save)


@app.command()
@with_source
def scale(
    source: Source,
    part: AnyPart = None,
    layer: Annotated[int | None, WHICH_LAYER] = None,
    as_json: AsJson = False,
    as_html: AsHtml = False,
    save: Save = None,
) -> None:
    """Show how scores and softmax change as heads grow, with and without the scale.

    With a run, config, sequences, --part or --layer: what the scale does in that
    model's heads.
    """
    from toytrans.insight.attention import ablations

    if source.given or part or layer:
        traced, _ = _traced(source, part or "encoder", layer or 1)
        report = ablations.sharpness(traced)
    else:
        report = ablations.scales()
    _show(report, as_json, as_html, save)


@app.command()
@with_source
def decoding(
    source: Source,
    pair: Pair = None,
    as_json: AsJson = False,
    as_html: AsHtml = False,
    save: Save = None,
) -> None:
    """Compare one masked pass with decoding step by step."""
    from toytrans.insight.attention import examples

    inspected = _load(source, default_pairs=True)
    _show(examples.decoding(inspected, _row(inspected, pair)), as_json, as_html, save)


@app.command()
def example(
    name: Annotated[Literal["heads", "sdpa", "projections"], typer.Argument(metavar="NAME")],
    as_json: AsJson = False,
    as_html: AsHtml = False,
    save: Save = None,
) -> None:
    """Show an example with numbers of its own.

    heads: ten ragged lists become eight heads and are merged again.
    sdpa: attention of 30 queries and 50 keys.
    projections: one projection for all heads equals one per head.
    """
    from toytrans.insight.attention import examples

    made = {"heads": examples.heads, "sdpa": examples.sdpa, "projections": examples.projections}
    _show(made[name](), as_json, as_html, save)


def _traced(source: Source, part: Any, layer: int, pair: int | None = None) -> "tuple[Trace, int]":
    """One attention of the chosen model, and the index of the pair to print."""
    from toytrans.insight.attention.trace import trace

    inspected = _load(source)
    row = _row(inspected, pair)
    return trace(inspected, part, layer), row


def _load(source: Source, default_pairs: bool = False) -> "InspectedBatch":
    """The batch and its model: what is given, else the newest run, else a small fresh model.

    default_pairs: take the pairs of the walkthrough if nothing is given and there is no run.
    """
    if source.run or source.config:
        return source.load()
    newest = source.load_newest()
    if newest is not None:
        return newest
    if default_pairs and not source.src:
        from toytrans.insight.masks.walkthrough import PAIRS

        src, tgt = ([" ".join(pair[side]) for pair in PAIRS] for side in (0, 1))
        source = replace(source, src=src, tgt=tgt)
    if not source.src:
        raise UserError(
            "nothing to trace: there is no run here; name one, or give --config FILE, "
            '--src "5 7 9" --tgt "9 7 5", or `trace example heads`'
        )
    return source.load()


def _row(inspected: "InspectedBatch", pair: int | None) -> int:
    """The index of the chosen pair; by default the pair with the most pads."""
    pairs = len(inspected.batch.src)
    if pair is None:
        return inspected.most_padded
    if pair > pairs:
        raise UserError(f"--pair {pair}: the batch has {pairs} of them; give 1 to {pairs}")
    return pair - 1


def _show(
    report: "TraceReport",
    as_json: bool,
    as_html: bool,
    save: Path | None,
    panel: str | None = None,
    one_screen: "list[Table] | None" = None,
) -> None:
    """Save the tensors, each contiguous and with memory of its own, and print the report."""
    check_forms({"--json": as_json, "--html": as_html})
    if save is not None:
        from safetensors.torch import save as as_bytes

        tensors = {name: tensor.clone().contiguous() for name, tensor in report.tensors.items()}
        write_new("--save", save, as_bytes(tensors))
        note(f"{len(tensors)} tensors saved in {save}")
    if as_json:
        print(json_text(report.to_dict()))
    elif as_html:
        from toytrans.report.sections import tables

        print_page("trace", [tables("trace", "Trace", report.tables)])
    else:
        print_panels(output(), report.tables, panel, one_screen=one_screen or ())
