"""`toytrans trace`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import check_new, note, output, write_new
from toytrans.cli.inspect import check_sources, view_of
from toytrans.cli.render.tables import print_panels
from toytrans.errors import UserError
from toytrans.safe_io import json_text
from toytrans.tokens import PAD_ID

if TYPE_CHECKING:
    from toytrans.insight.attention.trace import Sheet
    from toytrans.insight.tables import View

Part = Literal["encoder", "decoder", "cross"]
Example = Literal["heads", "sdpa", "projections", "decoding"]


def trace(
    run: Annotated[Path | None, typer.Argument(help="A run directory; the newest one.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Fresh weights of this config in place of a run.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the config's.")
    ] = None,
    src: Annotated[
        list[str] | None, typer.Option(help='A source, say "5 7 9"; repeat for a padded batch.')
    ] = None,
    tgt: Annotated[list[str] | None, typer.Option(help="Its target; as many as --src.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Training pairs to take; 2.")
    ] = None,
    part: Annotated[Part | None, typer.Option(help="Which attention; encoder.")] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Which layer; 1.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Whose values to show; 1.")] = None,
    pair: Annotated[
        int | None, typer.Option(min=1, help="Whose values to show; that with the most pads.")
    ] = None,
    no_mask: Annotated[
        bool, typer.Option("--no-mask", help="How much attention leaks onto pads.")
    ] = False,
    no_scale: Annotated[
        bool, typer.Option("--no-scale", help="What becomes of softmax as heads grow.")
    ] = False,
    example: Annotated[
        Example | None,
        typer.Option(
            help="heads: ten ragged lists into eight heads and back. sdpa: 30 queries, 50 keys. "
            "projections: one for all heads, or one per head? decoding: one masked pass, or step "
            "by step? (this one takes a RUN or config)"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="Keep the tensors in a file.")
    ] = None,
) -> None:
    """Show every tensor inside one attention and its layer, from ids to output.

    Of a run's first training pairs, of a config's with fresh weights, or of sequences given with
    --src and --tgt.
    """
    src, tgt = src or [], tgt or []
    source: dict[str, Any] = {"RUN": run, "--config": config, "--set": overrides}
    source |= {"--src": src, "--tgt": tgt, "--rows": rows}
    place, values = {"--part": part, "--layer": layer}, {"--head": head, "--pair": pair}
    if example == "decoding":
        _refuse("--example decoding", no_mask, no_scale, place | {"--head": head})
    elif example is not None:
        _refuse(f"--example {example}", no_mask, no_scale, source | place | values)
    elif no_scale:
        _refuse("--no-scale", no_mask, False, values)
    elif no_mask:
        _refuse("--no-mask", False, False, {"--head": head})
    check_sources(config, f"run {run}" if run else None, overrides or [], src, tgt)
    if save is not None:
        check_new("--save", save)

    if example in ("heads", "sdpa", "projections"):
        sheet = _example(example)
    elif no_scale and not any((*source.values(), *place.values())):
        from toytrans.insight.attention.trace_tables import scales

        sheet = scales()
    else:
        view = _view_of(run, config, overrides or [], src, tgt, rows or 2, example == "decoding")
        row = _row(view, pair)
        if example == "decoding":
            from toytrans.insight.attention.examples import decoding

            sheet = decoding(view, row)
        else:
            sheet = _trace(view, part or "encoder", layer or 1, row, head, no_mask, no_scale)
    if save is not None:
        _save(sheet, save)
    if as_json:
        print(json_text(sheet.document()))
    else:
        print_panels(output(), sheet.panels)


def _refuse(asked: str, no_mask: bool, no_scale: bool, unused: dict[str, Any]) -> None:
    """Raise UserError for options that play no part with another."""
    given = {"--no-mask": no_mask, "--no-scale": no_scale} | unused
    for name, value in given.items():
        if value not in (None, False, []):
            raise UserError(f"{name} plays no part with {asked}; leave one of them out")


def _view_of(
    run: Path | None,
    config: Path | None,
    overrides: list[str],
    src: list[str],
    tgt: list[str],
    rows: int,
    any_pairs: bool,
) -> "View":
    """The batch and its model: of what is named, else of the newest run, else a fresh model.

    any_pairs: take those of the walk where there is nothing else.
    """
    newest = _newest() if run is None and config is None else None
    run = run or newest
    if run is None and config is None and not src:
        if not any_pairs:
            raise UserError(
                "nothing to trace: there is no run here; name one, or give --config FILE, "
                '--src "5 7 9" --tgt "9 7 5", or --example heads'
            )
        from toytrans.insight.masks.walkthrough import PAIRS

        src, tgt = ([" ".join(pair[side]) for pair in PAIRS] for side in (0, 1))
    from toytrans.config_file import load_config

    settings = load_config(config, overrides) if config else None
    try:
        return view_of(settings, run, src, tgt, rows)
    except UserError as error:
        if newest is None:
            raise
        raise UserError(f"{newest}, the newest run: {error}") from None


def _newest() -> Path | None:
    from toytrans.training.run import newest_run

    try:
        return newest_run()
    except UserError:
        return None


def _row(view: "View", pair: int | None) -> int:
    """The pair asked for, counted from 0; else that with the most pads."""
    src, tgt_in, _ = view.batch
    if pair is None:
        return int(((src == PAD_ID).sum(1) + (tgt_in == PAD_ID).sum(1)).argmax())
    if pair > len(src):
        raise UserError(f"--pair {pair}: the batch has {len(src)} of them; name one from 1 up")
    return pair - 1


def _trace(
    view: "View",
    part: Part,
    layer: int,
    row: int,
    head: int | None,
    no_mask: bool,
    no_scale: bool,
) -> "Sheet":
    from toytrans.insight.attention import trace_tables
    from toytrans.insight.attention.trace import trace as pass_through

    found = pass_through(view, part, layer)
    if no_mask:
        return trace_tables.leaks(found, row)
    if no_scale:
        return trace_tables.scales().and_then(trace_tables.sharpness(found))
    heads = view.model.config.n_heads
    if head is not None and head > heads:
        raise UserError(f"--head {head}: this model has {heads} of them; name one from 1 up")
    return trace_tables.sheet(found, row, (head or 1) - 1)


def _example(name: str) -> "Sheet":
    from toytrans.insight.attention import examples

    sheet: Sheet = getattr(examples, name)()
    return sheet


def _save(sheet: "Sheet", path: Path) -> None:
    """The tensors as safetensors, each in one piece and in memory of its own."""
    from safetensors.torch import save

    tensors = {name: tensor.clone().contiguous() for name, tensor in sheet.tensors.items()}
    write_new("--save", path, save(tensors))
    note(f"{len(tensors)} tensors saved in {path}")
