"""A report of the checks as text, JSON, a page, or annotations of GitHub's."""

from typing import TYPE_CHECKING

from toytrans.cli.common import output, plain, print_page, warn_of_fault
from toytrans.cli.explain import print_card
from toytrans.config.sealed import is_sealed, opened
from toytrans.files import json_text

if TYPE_CHECKING:
    from rich.console import Console

    from toytrans.checks import Report

STYLES = {
    "title": "bold",
    "PASS": "green",
    "FAIL": "bold red",
    "cannot judge": "yellow",
    "more": "dim",
    "end": "bold",
}


def show(report: "Report", fault: str | None, form: str, everything: bool) -> None:
    """Print a report on standard output in one of the formats. everything: each check in text."""
    if form == "json":
        print(json_text(report.to_dict() | {"fault": fault}))
    elif form == "html":
        from toytrans.report import sections

        print_page(f"check {report.subject}", [sections.checks(report)])
    elif form == "github":
        print("\n".join(annotations(report)) or f"::notice title=toytrans check::{report.verdict}")
    else:
        _print(output(), report, fault, everything)


def _print(console: "Console", report: "Report", fault: str | None, everything: bool) -> None:
    """The lines of a report, and the card of a fault."""
    from rich.padding import Padding

    warn_of_fault(fault)
    for line in report.lines(everything):
        text = plain(line.text.strip())
        text.stylize(STYLES.get(line.style, ""))
        indent = len(line.text) - len(line.text.lstrip())
        console.print(Padding(text, (0, 0, 0, indent)))
    if not is_sealed(fault) and (name := opened(fault)):
        print_card(name)


def annotations(report: "Report") -> list[str]:
    """Commands of a GitHub workflow: an error for each failure, a warning where nothing could be
    judged."""
    found = [("error", r, "\n".join(report.cause_of(r))) for r in report.failures]
    found += [("warning", r, r.message) for r in report.of("cannot judge")]
    return [
        f"::{kind} title={_escaped(f'toytrans check {r.name}: {r.title}', True)}::{_escaped(text)}"
        for kind, r, text in found
    ]


def _escaped(text: str, is_property: bool = False) -> str:
    """Text as a workflow command takes it."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")]
    for character, code in pairs + ([(":", "%3A"), (",", "%2C")] if is_property else []):
        text = text.replace(character, code)
    return text
