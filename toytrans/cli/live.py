"""`toytrans live`: one HTML file in which the model of a run runs."""

from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import Checkpoint, RunArgument, TrustCode
from toytrans.cli.new_files import check_new, free_name, write_new
from toytrans.cli.runs import open_run
from toytrans.cli.terminal import Progress, note
from toytrans.errors import UserError, printable
from toytrans.live.page import live_page


def live(
    run: RunArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: live.html, live-2.html and so on."),
    ] = None,
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page in which the model of a run runs.

    Type a source, add pads, switch masks, scale, places or a head off, and see
    what the model writes, what every head reads, and how many validation pairs
    stay right. The page opens in any browser and loads nothing. It holds all
    weights of the model, and some validation and test pairs.
    """
    if run is None:
        raise UserError("name a run: `toytrans live runs/textbook`; the page shows a trained model")
    check_new(out)
    page = live_page(open_run(run, trust_code, checkpoint), Progress()).encode()
    path = out or free_name("live", ".html")
    write_new(path, page)
    print(printable(f"wrote {path}, {len(page) / 1e6:.1f} MB; open it in a browser"))
    note("the page holds all weights of the model, and some validation and test pairs")
