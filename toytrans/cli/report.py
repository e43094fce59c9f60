"""`toytrans report`."""

from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import Progress, check_new, newest, printable
from toytrans.errors import UserError


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories. Default: the newest run."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
) -> None:
    """Write one HTML page about a run, or about several runs beside each other.

    The page holds everything it needs and opens in any browser. One run: curves, exact match by
    length, masks, attention at every checkpoint, translations, proofs, configuration. Several
    runs: the same curves together, and how their configs differ.
    """
    if not overwrite:
        check_new("--out", out, "give --overwrite, or name another")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it, or name another")
    from toytrans.report.page import check_plots, page

    check_plots()
    from toytrans.report import compared, sections
    from toytrans.report.runs import read_view
    from toytrans.training.devices import tune_process

    tune_process()
    views = [read_view(path) for path in paths or [newest()]]
    follow = Progress()
    if len(views) == 1:
        title, parts = views[0].name, list(sections.sections_of(views[0], follow))
    else:
        title, parts = f"{len(views)} runs", list(compared.sections_of(views, follow))
    _write(out, page(f"toytrans: {title}", parts), overwrite)
    print(f"wrote {printable(str(out))}")


def _write(out: Path, text: str, overwrite: bool) -> None:
    """Write the page under a draft's name first, so that a full disk loses no earlier page."""
    draft = out.with_name(f".{out.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        if not overwrite:
            check_new("--out", out, "give --overwrite, or name another")
        draft.replace(out)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
