"""`toytrans report`: one HTML page about a run, or about several."""

from pathlib import Path

from toytrans.cli.new_files import check_new, free_name, write_new
from toytrans.cli.opening import newest
from toytrans.cli.terminal import Progress, note, printable
from toytrans.report import sections
from toytrans.report.page import lacking, page
from toytrans.training.devices import tune_process


def report(
    paths: list[Path] | None,
    out: Path | None,
    checkpoint: str,
    device: str,
    trust_code: bool,
) -> None:
    """Write one HTML page about a run, or about several."""
    check_new(out)
    tune_process()
    views = sections.views_of(paths or [newest()], trust_code, checkpoint, device)
    title = views[0].name if len(views) == 1 else f"{len(views)} runs"
    parts = list(sections.sections_of(views, Progress()))
    text = page(f"toytrans: {title}", parts)
    out = out or free_name("report", ".html")
    write_new(out, text.encode())
    print(f"wrote {printable(str(out))}")
    for sentence in lacking(parts):
        note(sentence)
