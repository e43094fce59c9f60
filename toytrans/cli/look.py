"""`toytrans inspect-masks` and `demo`: what a model computes, number by number."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from toytrans.cli.common import (
    AsJson,
    Device,
    RunArgument,
    TrustCode,
    warn_of_fault,
)
from toytrans.cli.runs import newest, open_run
from toytrans.cli.tables import (
    STYLES,
    axis_names,
    map_of,
    print_beside,
    print_names,
    print_panels,
    print_tables,
    step_through,
)
from toytrans.cli.terminal import Progress, note, output, plain, print_table
from toytrans.config.load import load_config
from toytrans.errors import HOW_TO_SEPARATE, UserError, did_you_mean
from toytrans.files import json_text
from toytrans.inspection import demos, masks, walkthrough
from toytrans.inspection.shown import (
    ATTENTIONS,
    InspectedBatch,
    batch_of_config,
    batch_of_pairs,
    batch_of_run,
)
from toytrans.inspection.table import CLOSED
from toytrans.inspection.walkthrough import PAIRS, Pairs
from toytrans.model.manual_backward.gradients import TOLERANCE, compare, train_twice
from toytrans.report import sections
from toytrans.report.page import Section, page
from toytrans.tokens import PAD_ID
from toytrans.training.devices import choose_device

DEMOS = ("sdpa", "projections", "heads", "scale", "decoding", "gradients")
SEEDS = 3
"""Random draws of each gradient; the worst is shown."""

TRAINED_STEPS, SAME_LOSS = 200, 1e-9
"""How long a model is trained on derived gradients, and how far its loss may be from autograd's."""

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--src", metavar="SEQUENCE", help='A source such as "5 7 9". Repeat it for a padded batch.'
    ),
]
Targets = Annotated[
    list[str] | None, typer.Option("--tgt", metavar="SEQUENCE", help="The target of each --src.")
]
OfConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help="Take the training pairs and fresh weights of a config."
    ),
]
Panel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show a panel: its number or a part of its title; or all."),
]

# What is looked at ----------------------------------------------------------------------------


def _given_pairs(
    context: typer.Context,
    run: Path | None,
    config: Path | None,
    src: list[str] | None,
    tgt: list[str] | None,
) -> Pairs | None:
    """The pairs of --src and --tgt. Raises UserError, also for words that are no RUN: those of a
    sequence without quotes or option."""
    src, tgt = src or [], tgt or []
    if context.args or (src and run and run.parent == Path() and not run.exists()):
        raise UserError(
            f"{' '.join([str(run), *context.args])}: not one RUN; give each sequence an option of "
            'its own, and quotes: --src "5 7 9" --src "2 4"'
        )
    if not (run or config):  # whose vocabulary says what a symbol is
        for sequence in (*src, *tgt):
            if any("," in symbol and len(symbol) > 1 for symbol in sequence.split()):
                raise UserError(f"{sequence!r}: {HOW_TO_SEPARATE}")
            if sequence.isdecimal() and len(sequence) > 1:
                note(f"{sequence} is one symbol; {HOW_TO_SEPARATE}")
    if len(src) != len(tgt) and (tgt or not (run or config)):  # a model translates
        raise UserError(f"{len(src)} --src and {len(tgt)} --tgt; give one --tgt for each --src")
    return (src, tgt) if src else None


def batch_of(
    run: Path | None,
    config: Path | None,
    trust_code: bool,
    pairs: Pairs | None = None,
    device: str = "cpu",
) -> InspectedBatch:
    """The batch, and the model that reads it: a run's, a config's, or a small fresh one.

    Where nothing is given, the newest run; without a run, the pairs of the walk.
    device: where the model reads the batch. Raises UserError.
    """
    chosen = choose_device(device)
    return replace(_batch_on_cpu(run, config, trust_code, pairs), device=chosen)


def _batch_on_cpu(
    run: Path | None, config: Path | None, trust_code: bool, pairs: Pairs | None
) -> InspectedBatch:
    if config and run:
        raise UserError(f"--config {config} and run {run}: a run has its own config; give one")
    progress = Progress()
    if not (run or config or pairs):
        with contextlib.suppress(UserError):  # there is none
            run = newest()
    if run is not None:
        loaded = open_run(run, trust_code)
        progress("the model")
        return batch_of_run(loaded, *(pairs or ()))
    if config is not None:
        settings = load_config(config)
        warn_of_fault(settings.fault)
        return batch_of_config(settings, *(pairs or ()))
    return batch_of_pairs(*(pairs or PAIRS))


# inspect-masks --------------------------------------------------------------------------------


def inspect_masks(
    context: typer.Context,
    run: RunArgument = None,
    config: OfConfig = None,
    device: Device = "auto",
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
            "--as", metavar="LIBRARY", help="Masks as another library takes them, say hf."
        ),
    ] = None,
    as_json: AsJson = False,
    as_html: Annotated[bool, typer.Option("--html", help="Print one HTML document.")] = False,
) -> None:
    """Show the masks of a padded batch, and their effect.

    By default the three masks of the pair with the most pads, on one screen.
    --panel all shows every table of every pair.

    The batch holds the first training pairs of a config or run, or sequences
    given with --src and --tgt. With both, the config or run provides the
    vocabulary, and the targets where there is no --tgt. With neither, the newest
    run is taken, and named.
    """
    pairs = _given_pairs(context, run, config, src, tgt)
    asked = {"--json": as_json, "--html": as_html, "--steps": steps, "--as": library}
    forms = [name for name, wanted in asked.items() if wanted]
    if len(forms) > 1 and forms[0] != "--html":  # a page may hold the others
        raise UserError(f"{' and '.join(forms)} are different forms of output; give one of them")
    if steps:
        _walk(run, config, trust_code, pairs, as_html)
        return
    inspected = batch_of(run, config, trust_code, pairs, device)
    tables = masks.converted(inspected, library) if library else masks.tables(inspected)
    if as_json:
        fault = {"weights": inspected.weights} if inspected.fault else {}
        print(json_text(inspected.to_dict() | fault))
    elif as_html:
        every = sections.tables("tables", "Tables", list(tables))
        _print_page("inspect-masks", [sections.masks(inspected), every])
    elif library or panel:
        print_panels(tables, panel or "all")
    else:
        _print_masks(inspected, inspected.most_padded)
        print_names(tables)


def _walk(
    run: Path | None,
    config: Path | None,
    trust_code: bool,
    pairs: Pairs | None,
    as_html: bool,
) -> None:
    """The walk through one pass, on the pairs of a run or a config too."""
    origin = ""
    if run or config:
        pairs = walkthrough.pairs_of(batch_of(run, config, trust_code, pairs))
        origin = "The pairs are yours, the model is not. "
    tables = walkthrough.steps(pairs or PAIRS, origin)
    if as_html:
        _print_page("inspect-masks --steps", [sections.tables("steps", "Steps", list(tables))])
    else:
        step_through(tables)


def _print_page(title: str, sections: list[Section]) -> None:
    """Print one HTML document, with character references, so that any encoding will do."""
    print(page(f"toytrans {title}", sections).encode("ascii", "xmlcharrefreplace").decode())


def _print_masks(inspected: InspectedBatch, row: int) -> None:
    """A pair, its three masks side by side, and what to read off them."""
    console, names = output(), axis_names(inspected.vocabulary.symbols)
    blocks = []
    for attention, title in ATTENTIONS.items():
        queries, keys = ([names[i] for i in ids[row].tolist()] for ids in inspected.ids(attention))
        styled = [
            [(mark.ljust(2), STYLES[mark]) for mark, _ in line]
            for line in inspected.cells(attention, row)
        ]
        blocks.append(map_of([Text(title, "bold")], queries, keys, styled, 2))
    pairs = len(inspected.batch.src)
    which = f"Pair {row + 1} of {pairs}" + (", the one with the most pads" if pairs > 1 else "")
    console.print(plain(f"{which}; {inspected.weights}"), soft_wrap=True)
    for name, ids in inspected.batch.named().items():
        console.print(plain(f"{name:8} {' '.join(inspected.names(ids[row]))}"))
    console.print()
    print_beside(blocks)
    facts = " ".join(_facts(inspected, row))
    console.print(Text(f"\n1 = may attend, {CLOSED} = masked. {facts}"))


def _facts(inspected: InspectedBatch, row: int) -> Iterator[str]:
    """What the masks do right, or the cells that are wrong."""
    is_sound = True
    for name, title in ATTENTIONS.items():
        cells = [cell for line in inspected.reasons(name)[row] for cell in line]
        for mark, what in (("!", "open on a pad or the future"), ("?", "closed for no reason")):
            if wrong := cells.count(mark):
                is_sound = False
                yield f"{title}: {wrong} cells ({mark}) are {what}."
    if is_sound:
        batch = inspected.batch
        src, tgt_in = (int((ids[row] == PAD_ID).sum()) for ids in (batch.src, batch.tgt_in))
        there = f"No query sees a pad; src has {src}, tgt_in {tgt_in}."
        yield there if src or tgt_in else "The pair has no pads."
        yield "The decoder sees no later token. Cross-attention sees every real source token."


# demo -----------------------------------------------------------------------------------------


def demo(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"Which idea: {', '.join(DEMOS)}.")],
    run: RunArgument = None,
    config: OfConfig = None,
    trust_code: TrustCode = False,
) -> None:
    """Show one idea of attention in numbers.

    sdpa: attention of 30 queries and 50 keys, step by step.
    projections: one projection for all heads equals one for each.
    heads: ten ragged lists become eight heads and are merged again.
    scale: scores and softmax as heads grow, with and without the scale.
    decoding: one masked pass beside decoding step by step.
    gradients: every gradient derived by hand beside autograd's, and a training
    on them; exit code 1 if one differs.

    decoding takes the first training pairs of a run or of a config with fresh
    weights. With neither, the newest run is taken, and named.
    Lessons 1 to 5 explain them.
    """
    if name not in DEMOS:
        raise UserError(f"no demo {name!r}; {did_you_mean(name, DEMOS)}")
    if name == "gradients":
        agree = _compare_gradients()
        if not (_train_twice() and agree):
            raise typer.Exit(1)
        return
    if name == "decoding":
        inspected = batch_of(run, config, trust_code)
        print_tables(demos.decoding(inspected, inspected.most_padded))
    elif run or config:
        raise UserError(f"demo {name} shows numbers of its own; give no run and no config")
    else:
        makers = demos.sdpa, demos.projections, demos.heads, demos.scale
        print_tables(dict(zip(DEMOS, makers, strict=False))[name]())


def _compare_gradients() -> bool:
    """One line per gradient, grouped by operation. Returns whether all agree."""
    compared, rows, before = compare(SEEDS, Progress()), [], ""
    for each in compared:
        operation = Text("" if each.operation == before else each.operation, "bold")
        shape = " ".join(map(str, each.shape)) or "one number"
        differences = (f"{each.absolute:.1e}", f"{each.relative:.1e}")
        verdict = Text("PASS", "green") if each.passed else Text("FAIL", "bold red")
        rows.append((operation, each.of, shape, *differences, verdict))
        before = each.operation
    print_table(("operation", "gradient of", "shape"), ("absolute", "relative", ""), rows)
    failed = sum(not each.passed for each in compared)
    output().print(
        "largest difference from autograd, absolute and divided by the largest number\n"
        f"PASS: both below {TOLERANCE:.0e}; fp64, the worst of {SEEDS} seeds\n"
        f"{len(compared) - failed} passed, {failed} failed",
        soft_wrap=True,
    )
    return not failed


def _train_twice() -> bool:
    """The losses of a training on autograd's gradients and on those derived by hand, side by side.
    Returns whether they are the same."""
    Progress()(f"training, {TRAINED_STEPS} steps")
    trained = train_twice(TRAINED_STEPS)
    shown = (1, *range(TRAINED_STEPS // 4, TRAINED_STEPS + 1, TRAINED_STEPS // 4))
    rows = [
        (str(step), f"{trained.autograd[step - 1]:.4f}", f"{trained.by_hand[step - 1]:.4f}")
        for step in shown
    ]
    output().print()
    print_table(("step",), ("loss by autograd", "loss by hand"), rows)
    same = trained.difference < SAME_LOSS
    output().print(
        "a small model that learns to reverse, trained on either; nats per token, fp64\n"
        f"largest difference of any step {trained.difference:.1e}; PASS below {SAME_LOSS:.0e}: "
        f"{'PASS' if same else 'FAIL'}",
        soft_wrap=True,
    )
    return same
