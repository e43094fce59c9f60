"""`toytrans report`."""

import itertools
import os
from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import Progress, TrustCode, check_new, newest, printable, write_new

PAGE = Path("report.html")
"""What is written without --out. If it is there, report-2.html and so on."""


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories. Default: the newest run."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html, report-2.html and so on."),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page about a run, or about several.

    The page holds everything it needs and opens in any browser. One run: curves, exact match by
    length, masks, attention at every checkpoint, translations, checks, configuration. Several
    runs: the same curves together, and how their configs differ.
    """
    if out is not None:
        check_new("--out", out)
    from toytrans.figures import check_matplotlib
    from toytrans.report import sections
    from toytrans.report.page import page

    check_matplotlib()
    from toytrans.training.devices import tune_process

    tune_process()
    once = {os.path.abspath(path): path for path in paths or [newest()]}
    views = [sections.view_of(path) for path in once.values()]
    title = views[0].name if len(views) == 1 else f"{len(views)} runs"
    text = page(f"toytrans: {title}", list(sections.sections_of(views, Progress())))
    out = out or _free()
    write_new("--out", out, text.encode())
    print(f"wrote {printable(str(out))}")


def _free() -> Path:
    """A name in the working directory that nothing has yet."""
    more = (Path(f"report-{number}.html") for number in itertools.count(2))
    return next(path for path in itertools.chain([PAGE], more) if not os.path.lexists(path))
