"""`toytrans live`: one HTML file in which a transformer runs, that of a run or one that learns in
the page."""

from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import Checkpoint, TrustCode
from toytrans.cli.new_files import check_new, free_name, write_new
from toytrans.cli.opening import open_run
from toytrans.cli.terminal import Progress, note
from toytrans.errors import UserError, printable
from toytrans.live_pages.page import learning_page, live_page


def live(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run directory. Default: a model that learns."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: live.html, live-2.html and so on."),
    ] = None,
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page in which a transformer runs.

    Without RUN a model learns in the page itself, in seconds, before your eyes.
    With RUN the page has the model of that run, with all its weights and some
    validation and test pairs. Either way, type a source, add pads, switch masks,
    scale, position codes or a head off, and see what the model writes, what every
    head reads, and how many validation pairs stay right. The page opens in any
    browser and loads nothing.
    """
    check_new(out)
    if run is None:
        if checkpoint != "best" or trust_code:
            raise UserError(
                "--checkpoint and --trust-code are about a run; name one, as in `toytrans live "
                "runs/textbook --checkpoint last`"
            )
        page, what = learning_page().encode(), "a model learns in it as soon as it is open"
    else:
        page = live_page(open_run(run, trust_code, checkpoint), Progress()).encode()
        what = "the page holds all weights of the model, and some validation and test pairs"
    path = out or free_name("live", ".html")
    write_new(path, page)
    size = f"{len(page) / 1e6:.1f} MB" if len(page) >= 1e6 else f"{len(page) / 1e3:.0f} KB"
    print(printable(f"wrote {path}, {size}; open it in a browser"))
    note(what)
