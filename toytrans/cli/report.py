"""`toytrans report`."""

import itertools
import os
from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import TrustCode, check_new, newest, write_new
from toytrans.cli.terminal import Progress, note, printable


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN", help="Run directories, or folders of them. Default: the newest run."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html, report-2.html and so on."),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page about a run, or about several.

    The page holds everything it needs and opens in any browser. One run: curves,
    exact match by length, masks, attention at every checkpoint, translations,
    checks, configuration. Several runs: the same curves together, and how their
    configs differ.
    """
    if out is not None:
        check_new(out)
    from toytrans.figures import check_matplotlib
    from toytrans.report import sections
    from toytrans.report.page import lacking, page
    from toytrans.training.devices import tune_process

    check_matplotlib()
    tune_process()
    views = sections.views_of(paths or [newest()])
    title = views[0].name if len(views) == 1 else f"{len(views)} runs"
    parts = list(sections.sections_of(views, Progress()))
    text = page(f"toytrans: {title}", parts)
    if out is None:
        names = (f"report{f'-{n}' if n > 1 else ''}.html" for n in itertools.count(1))
        out = Path(next(name for name in names if not os.path.lexists(name)))
    write_new(out, text.encode())
    print(f"wrote {printable(str(out))}")
    for sentence in lacking(parts):
        note(sentence)
