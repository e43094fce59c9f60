"""`toytrans inspect-masks`: who may look at what."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import broken, output, printable, warn_of_fault
from toytrans.cli.render.tables import fitting, print_html, print_panels, step_through
from toytrans.errors import UserError
from toytrans.safe_io import json_text

if TYPE_CHECKING:
    from toytrans.config import Config
    from toytrans.insight.tables import Panel, View

Library = Literal["torch-mha", "torch-sdpa", "additive", "hf", "x-transformers", "sockeye", "t2t"]


def inspect_masks(
    config: Annotated[
        Path | None, typer.Option(help="Take the first training pairs of this config.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the config's.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="A run directory: its config, vocabulary and weights.")
    ] = None,
    src: Annotated[
        list[str] | None, typer.Option(help='A source, say "5 7 9"; repeat for a padded batch.')
    ] = None,
    tgt: Annotated[list[str] | None, typer.Option(help="Its target; as many as --src.")] = None,
    rows: Annotated[
        int, typer.Option(min=1, max=1000, help="Pairs to take from the config or run.")
    ] = 2,
    steps: Annotated[
        bool, typer.Option("--steps", help="Walk through a pass of a tiny model, a key a step.")
    ] = False,
    library: Annotated[
        Library | None, typer.Option("--as", help="The masks as this library takes them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One CSV document, a row a cell.")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="One HTML document.")] = False,
) -> None:
    """Show the masks of a padded batch, and what they do.

    From a config's or a run's first training pairs, or from sequences given with --src and --tgt;
    with both, the config or the run decides the vocabulary.
    """
    from toytrans.config_file import load_config

    src, tgt = src or [], tgt or []
    _one_form({"--json": as_json, "--csv": as_csv, "--html": as_html, "--steps": steps}, library)
    check_sources(config, f"--run {run}" if run else None, overrides or [], src, tgt)
    settings = load_config(config, overrides or ()) if config else None

    if steps:
        _walk(settings, run, src, tgt, rows)
        return
    view = view_of(settings, run, src, tgt, rows)
    if as_json:
        from toytrans.insight.masks.mask_tables import masks_as_data

        fault = {"weights": view.weights} if "broken on purpose" in view.weights else {}
        print(json_text(masks_as_data(view) | fault))
    elif as_csv:
        _print_csv(view)
    elif as_html:
        print_html(_panels(view, library), "toytrans inspect-masks")
    else:
        print_panels(output(), _panels(view, library))


def _one_form(forms: dict[str, bool], library: str | None) -> None:
    given = [name for name, wanted in forms.items() if wanted]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} are different forms of output; give one of them")
    if library and given and given != ["--html"]:
        raise UserError(f"--as {library} is for people to read, not for {given[0]}; leave one out")


def check_sources(
    config: Path | None, run: str | None, overrides: list[str], src: list[str], tgt: list[str]
) -> None:
    """Raise UserError where what names the pairs and the model does not go together. run: as it
    was named."""
    if len(src) != len(tgt):
        raise UserError(f"{len(src)} --src and {len(tgt)} --tgt; give one --tgt for each --src")
    if config and run:
        raise UserError(f"--config {config} and {run}: a run has its own config; give one")
    if overrides and not config:
        raise UserError(f"--set {overrides[0]}: changes a config; give --config FILE with it")


def view_of(
    settings: "Config | None", run: Path | None, src: list[str], tgt: list[str], rows: int
) -> "View":
    """The pairs given, or those of the config or run; and the model that reads them."""
    from toytrans.config import ModelConfig
    from toytrans.data import open_source
    from toytrans.insight.masks.mask_tables import batch_of_config, batch_of_sequences
    from toytrans.insight.tables import View, fresh
    from toytrans.model.transformer import Transformer
    from toytrans.training.faults import build_model

    if not (settings or run or src):
        raise UserError(
            'nothing to inspect; give --config FILE, --run RUN, or --src "5 7 9" --tgt "9 7 5"'
        )
    loaded = None
    if run is not None:
        from toytrans import load

        loaded = load(run, "best", "cpu")
        settings = loaded.config
    warn_of_fault(settings.fault if settings else None)
    if settings is None:
        batch, vocabulary = batch_of_sequences(src, tgt)
        small = ModelConfig(positions="sinusoidal", n_encoder_layers=1, n_decoder_layers=1)
        model = fresh(lambda: Transformer(small, vocabulary), 0)
        return View(batch, vocabulary, model, "fresh weights")
    facts = loaded.facts if loaded else None
    if src:
        vocabulary = (facts or open_source(settings).facts).vocabulary
        batch, _ = batch_of_sequences(src, tgt, vocabulary, settings.source_bos)
    else:
        batch, vocabulary = batch_of_config(settings, rows, facts)
    if loaded:
        weights = f"weights of {run}, step {loaded.step}{broken(settings.fault)}"
        return View(batch, vocabulary, loaded.model, weights)
    model = fresh(lambda: build_model(settings, vocabulary), settings.seed)
    weights = f"fresh weights, seed {settings.seed}{broken(settings.fault)}"
    return View(batch, vocabulary, model, weights)


def _panels(view: "View", library: str | None) -> "Iterator[Panel]":
    from toytrans.insight.masks import mask_tables, softmax

    if library is None:
        yield from mask_tables.panels(view)
        yield from softmax.panels(view)
    else:
        yield from mask_tables.batch_panels(view)
        for row in range(len(view.batch.src)):
            yield from mask_tables.converted(view, row, library)
    yield mask_tables.polarity(library)


def _print_csv(view: "View") -> None:
    from toytrans.insight.masks.mask_tables import COLUMNS, masks_as_rows

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in masks_as_rows(view):
        writer.writerow(
            [fitting(printable(cell)) if isinstance(cell, str) else cell for cell in row]
        )


def _walk(
    settings: "Config | None", run: Path | None, src: list[str], tgt: list[str], rows: int
) -> None:
    """The pairs given, or those of the config or run, through a tiny model of the walk's own."""
    from toytrans.insight.masks import walkthrough

    pairs, origin = walkthrough.PAIRS, ""
    if settings or run:
        pairs = walkthrough.pairs_of(view_of(settings, run, src, tgt, rows))
        origin = "The pairs are those asked for, the model is not. "
    elif src:
        pairs = [(s.split(), t.split()) for s, t in zip(src, tgt, strict=True)]
    step_through(output(), walkthrough.steps(pairs, origin))
