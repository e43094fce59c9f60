"""`toytrans inspect-masks`: the masks of a ragged batch, and which labels the loss counts."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import typer
from rich.cells import cell_len
from rich.text import Text

from toytrans.cli.common import (
    run_or_config,
)
from toytrans.cli.inspected import batch_of, check_each_has_a_target
from toytrans.cli.new_files import check_new, write_new
from toytrans.cli.tables import (
    axis_names,
    map_of,
    print_beside,
    print_names,
    print_panels,
    step_through,
)
from toytrans.cli.terminal import LOOKS, drawn_cell, note, output, plain, printable
from toytrans.errors import HOW_TO_SEPARATE, UserError
from toytrans.files import json_text
from toytrans.inspection import masks, other_libraries, walkthrough
from toytrans.inspection.panels import CLOSED, count, mark
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.inspection.walkthrough import PAIRS, Pairs
from toytrans.report import inspected as pages
from toytrans.report.page import Section, page
from toytrans.table import Table

MOST_PAIRS = 3
"""Of a batch whose tokens are all on the first screen."""


def inspect_masks(
    context: typer.Context,
    run: Path | None,
    config: Path | None,
    src: list[str] | None,
    tgt: list[str] | None,
    steps: bool,
    panel: str | None,
    library: str | None,
    html: Path | None,
    checkpoint: str,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Show the masks of a padded batch, and which labels the loss counts."""
    check_new(html)
    asked = {"--json": as_json, "--html": html, "--steps": steps, "--as": library}
    forms = [name for name, wanted in asked.items() if wanted]
    if len(forms) > 1 and (as_json or (steps and library)):
        raise UserError(f"{' and '.join(forms)} are different forms of output; give one of them")
    _check_words(context.args, run, src)
    run, config = run_or_config(run, config)
    pairs = _given_pairs(src or [], tgt or [], is_known=bool(run or config))
    if steps and not (run or config):
        _show_tables(walkthrough.steps(pairs or PAIRS), "steps", html)
        return
    inspected = batch_of(
        run, config, pairs, checkpoint=checkpoint, device=device, trust_code=trust_code
    )
    if steps:
        origin = "The pairs are yours, the model is not. "
        _show_tables(walkthrough.steps(walkthrough.pairs_of(inspected), origin), "steps", html)
    elif as_json:
        fault = {"weights": inspected.weights} if inspected.fault else {}
        print(json_text(inspected.to_dict() | fault))
    elif library:
        _show_tables(other_libraries.converted(inspected, library), panel or "all", html)
    elif html:
        every = pages.tables("tables", "Tables", list(masks.tables(inspected)))
        _write_page(html, [pages.masks(inspected), every])
    elif panel:
        print_panels(masks.tables(inspected), panel)
    else:
        _print_first_screen(inspected)
        print_names(masks.tables(inspected))


def _check_words(more: Sequence[str], run: Path | None, src: list[str] | None) -> None:
    """Raise UserError for words that are no RUN: those of a sequence without quotes or option."""
    if more or (src and run and run.parent == Path() and not (run.exists() or run.suffix)):
        raise UserError(
            f"{' '.join([str(run), *more])}: not one RUN; give each sequence an option of "
            'its own, and quotes: --src "5 7 9" --src "2 4"'
        )


def _given_pairs(src: list[str], tgt: list[str], is_known: bool) -> Pairs | None:
    """The pairs of --src and --tgt. Raises UserError. is_known: whether a run or a config says what
    a symbol is, and translates."""
    check_each_has_a_target(src, tgt)
    if is_known or not src:
        return (src, tgt) if src else None
    for sequence in (*src, *tgt):
        if any("," in symbol and len(symbol) > 1 for symbol in sequence.split()):
            raise UserError(f"{sequence!r}: {HOW_TO_SEPARATE}")
        if sequence.isdecimal() and len(sequence) > 1:
            note(f"{sequence} is one symbol; {HOW_TO_SEPARATE}")
    if not tgt:
        note("without --tgt, and without a model that translates: each target is its source")
    return src, tgt or src


# Forms of output ------------------------------------------------------------------------------


def _show_tables(tables: Iterator[Table], panel: str, html: Path | None) -> None:
    """Tables on the terminal, or all of them in a page. panel: as of --panel, or "steps"."""
    if html is not None:
        _write_page(html, [pages.tables("tables", "Tables", list(tables))])
    elif panel == "steps":
        step_through(tables)
    else:
        print_panels(tables, panel)


def _write_page(path: Path, sections: list[Section]) -> None:
    write_new(path, page("toytrans inspect-masks", sections).encode())
    print(f"wrote {printable(str(path))}")


# The first screen -----------------------------------------------------------------------------


def _print_first_screen(inspected: InspectedBatch) -> None:
    """The batch, the three masks of the pair with the most pads, and what to read off them."""
    console, row, pairs = output(), inspected.most_padded, len(inspected.batch.src)
    masks_of_pair, facts = _masks_of_pair(inspected, row), " ".join(_facts(inspected, row))
    console.print(plain(f"{count(pairs, 'pair')}; {inspected.weights}"), soft_wrap=True)
    for shown in range(pairs) if pairs <= MOST_PAIRS else [row]:
        _print_tokens(inspected, shown)
    if pairs > 1:
        console.print(f"Pair {row + 1}, the one with the most pads:")
    print_beside(masks_of_pair)
    console.print(Text(f"\n1 = may attend, {CLOSED} = masked. {facts}"))


def _masks_of_pair(inspected: InspectedBatch, row: int) -> list[Text]:
    """The three masks of a pair, a cell of two columns for each query and key."""
    names, blocks = axis_names(inspected.vocabulary.symbols), []
    for attention, title in ATTENTIONS.items():
        queries, keys = ([names[i] for i in ids[row].tolist()] for ids in inspected.ids(attention))
        styled = [
            [(cell.ljust(2), LOOKS[cell.look]) for cell in line]
            for line in inspected.cells(attention, row)
        ]
        blocks.append(map_of([Text(title, "bold")], queries, keys, styled, 2))
    return blocks


def _print_tokens(inspected: InspectedBatch, row: int) -> None:
    """The tokens of a pair, and below each label whether the loss counts it."""
    console = output()
    lines = {name: inspected.names(ids[row]) for name, ids in inspected.batch.named().items()}
    lines["loss"] = list(map(mark, inspected.loss_marks(row)))
    columns = zip_longest(*lines.values(), fillvalue="")
    widths = [max(cell_len(printable(cell)) for cell in column) for column in columns]
    for name, cells in lines.items():
        text = Text(f"{name:8}")
        for cell, width in zip(cells, widths, strict=False):
            shown = drawn_cell(cell)
            text.append_text(shown).append(" " * (width - cell_len(shown.plain) + 1))
        text.rstrip()
        console.print(text)
    console.print()


def _facts(inspected: InspectedBatch, row: int) -> Iterator[str]:
    """What the masks do right, or the cells that are wrong; and which labels the loss counts."""
    is_sound, batch = True, inspected.batch
    for name, title in ATTENTIONS.items():
        cells = [cell for line in inspected.reasons(name)[row] for cell in line]
        for letter, what in (("!", "open on a pad or the future"), ("?", "closed for no reason")):
            if wrong := cells.count(letter):
                is_sound = False
                yield f"{title}: {wrong} cells ({letter}) are {what}."
    if is_sound:
        src, tgt_in = (inspected.pads(ids[row]) for ids in (batch.src, batch.tgt_in))
        there = f"No query sees a pad; src has {src}, tgt_in {tgt_in}."
        yield there if src or tgt_in else "The pair has no pads."
        yield "The decoder sees no later token. Cross-attention sees every real source token."
    marks = inspected.loss_marks(row)
    pads = f" and ignores {count(marks.count(CLOSED), 'pad')}" if CLOSED in marks else ""
    yield f"The loss counts {count(marks.count('1'), 'label')}{pads}."
    if wrong := marks.count("!"):
        yield f"It counts {count(wrong, 'pad')} (!) too."
    if wrong := marks.count("?"):
        yield f"It ignores {count(wrong, 'label')} (?) that should count."
