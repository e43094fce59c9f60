"""A report of the proofs as text, JSON, JUnit's XML, or annotations of GitHub's."""

from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from toytrans.cli.common import output, plain, print_page, warn_of_fault
from toytrans.cli.explain import print_card
from toytrans.config.sealed import is_sealed, opened
from toytrans.insight.tables import printable
from toytrans.safe_io import json_text

if TYPE_CHECKING:
    from rich.console import Console

    from toytrans.insight.proofs.report import Finding, Report


def show(report: "Report", fault: str | None, form: str) -> None:
    """Print a report on standard output in one of the formats."""
    if form == "json":
        print(json_text(report.to_dict() | {"fault": fault}))
    elif form == "junit":
        print(junit(report))
    elif form == "html":
        from toytrans.report import sections

        print_page(f"check {report.subject}", [sections.proofs(report)])
    elif form == "github":
        print("\n".join(annotations(report)) or f"::notice title=toytrans check::{report.verdict}")
    else:
        _print(output(), report, fault)


def junit(report: "Report") -> str:
    """JUnit's XML: each proof a test case; what cannot be judged or does not apply is skipped."""
    failed = [f for f in report.findings if f.verdict == "FAIL"]
    skipped = [f for f in report.findings if f.verdict not in ("PASS", "FAIL")]
    suite = ElementTree.Element(
        "testsuite",
        name=f"toytrans check {report.subject}",
        tests=str(len(report.findings)),
        failures=str(len(failed)),
        errors="0",
        skipped=str(len(skipped)),
    )
    for finding in report.findings:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="toytrans.check",
            name=f"({finding.letter}) {finding.title}",
        )
        if finding.verdict == "FAIL":
            cause, *details = report.cause_of(finding)
            failure = ElementTree.SubElement(case, "failure", message=cause)
            failure.text = "\n".join(details)
        elif finding.verdict != "PASS":
            ElementTree.SubElement(
                case, "skipped", message=f"{finding.shown_verdict}: {finding.message}"
            )
    for element in suite.iter():  # XML has no control characters
        element.text = element.text and "\n".join(map(printable, element.text.split("\n")))
        for name, value in element.items():
            element.set(name, printable(value))
    return ElementTree.tostring(suite, encoding="unicode")


def annotations(report: "Report") -> list[str]:
    """Commands of a GitHub workflow: an error for each failure, a warning where nothing could be
    judged."""
    kinds = {"FAIL": "error", "cannot judge": "warning"}
    return [
        f"::{kinds[f.verdict]} title={_escaped(f'toytrans check ({f.letter}) {f.title}', True)}::"
        + _escaped("\n".join(report.cause_of(f)))
        for f in report.shown
        if f.verdict in kinds
    ]


def _escaped(text: str, is_property: bool = False) -> str:
    """Text as a workflow command takes it."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")]
    for character, code in pairs + ([(":", "%3A"), (",", "%2C")] if is_property else []):
        text = text.replace(character, code)
    return text


def remedy(report: "Report") -> str:
    """One line: what could not be judged, and what to give."""
    from toytrans.insight.proofs.report import ESSENTIAL

    unsure = [f for f in report.findings if f.verdict == "cannot judge"]
    first = next((f for f in unsure if f.letter in ESSENTIAL), (unsure or report.findings)[0])
    return f"cannot judge {report.subject}: ({first.letter}) {first.message}"


def _print(console: "Console", report: "Report", fault: str | None) -> None:
    """A line a finding with what it means below, what they sum up to, and the card of a fault."""
    from rich.padding import Padding
    from rich.text import Text

    warn_of_fault(fault)
    title = f"{report.subject}, {report.precision}"
    console.print(plain(title), Text("\nlargest difference, and what is wanted", "dim"), sep="")
    for finding in report.shown:
        style = {"PASS": "green", "FAIL": "bold red", "cannot judge": "yellow"}
        shown = "?" if finding.verdict == "cannot judge" else finding.verdict
        console.print(
            Text.assemble(
                f"({finding.letter}) ",
                (f"{shown:<5}", style[finding.verdict]),
                (f"{finding.title:<49}", "bold"),
                f"{_measured(finding)} {_wanted(finding)}",
            )
        )
        why = "cannot judge: " if finding.verdict == "cannot judge" else ""
        for text in (why + finding.message,) if why else report.cause_of(finding):
            line = plain(text)
            line.style = "" if finding.verdict == "FAIL" else "dim"
            console.print(Padding(line, (0, 0, 0, 9)))
    for text in report.unasked:
        console.print(plain(text), style="dim")
    _print_sum(console, report)
    if not is_sealed(fault) and (name := opened(fault)):
        print_card(name)


def _print_sum(console: "Console", report: "Report") -> None:
    """What was tried, and how many proofs passed."""
    if report.tried is not None:
        console.print(plain(f"tried: {report.tried}"), style="dim")
        for text in report.tried.notes:
            console.print(plain(f"note: {text}"), style="dim")
    counts = Counter(finding.shown_verdict for finding in report.findings)
    failed = " ".join(f"({finding.letter})" for finding in report.failures)
    apart = counts["does not apply"]
    unsure = f"{report.not_judged}, " if report.not_judged else ""
    not_asked = f"{report.not_asked}, " if report.not_asked else ""
    console.print(
        f"{counts['PASS']} passed, {counts['FAIL']} failed{' ' + failed if failed else ''}, "
        f"{unsure}{not_asked}{apart} {'does' if apart == 1 else 'do'} not apply"
    )
    if report.reduced:
        console.print(plain(report.verdict + report.reduced))


def _measured(finding: "Finding") -> str:
    """The difference; where none is allowed it counts places or labels."""
    if finding.difference is None:
        return ""
    return format(finding.difference, "8.1e" if finding.tolerance else "8g")


def _wanted(finding: "Finding") -> str:
    if finding.tolerance is None:
        return ""
    relation = ">" if finding.must_change else "<="
    return f"{relation} {finding.tolerance:.0e}" if finding.tolerance else f"{relation} 0"
