"""`toytrans live`: one HTML file in which a transformer runs, that of a run or one that learns in
the page."""

from pathlib import Path

from toytrans.cli.new_files import check_new, free_name, write_new
from toytrans.cli.opening import open_run
from toytrans.cli.terminal import Progress, note
from toytrans.errors import UserError, printable
from toytrans.live_pages.page import learning_page, live_page


def live(
    run: Path | None,
    out: Path | None,
    checkpoint: str,
    trust_code: bool,
) -> None:
    """Write one HTML page in which a transformer runs."""
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
