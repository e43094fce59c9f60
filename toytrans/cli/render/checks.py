"""A report of the checks as text, JSON, JUnit's XML, or annotations of GitHub's."""

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from toytrans.cli.common import output, plain, print_page, warn_of_fault
from toytrans.cli.explain import print_card
from toytrans.config.sealed import is_sealed, opened
from toytrans.files import json_text
from toytrans.inspection.table import printable

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
    elif form == "junit":
        print(junit(report))
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


def junit(report: "Report") -> str:
    """JUnit's XML: each check a test case; what is not judged is skipped."""
    skipped = [r for r in report.results if r.verdict not in ("PASS", "FAIL")]
    suite = ElementTree.Element(
        "testsuite",
        name=f"toytrans check {report.subject}",
        tests=str(len(report.results)),
        failures=str(len(report.failures)),
        errors="0",
        skipped=str(len(skipped)),
    )
    for result in report.results:
        name = f"{result.name}: {result.title}"
        case = ElementTree.SubElement(suite, "testcase", classname="toytrans.check", name=name)
        if result.verdict == "FAIL":
            cause, *details = report.cause_of(result)
            failure = ElementTree.SubElement(case, "failure", message=cause)
            failure.text = "\n".join(details)
        elif result.verdict != "PASS":
            message = f"{result.verdict}: {result.message}"
            ElementTree.SubElement(case, "skipped", message=message)
    for element in suite.iter():  # XML has no control characters
        element.text = element.text and "\n".join(map(printable, element.text.split("\n")))
        for name, value in element.items():
            element.set(name, printable(value))
    return ElementTree.tostring(suite, encoding="unicode")


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
