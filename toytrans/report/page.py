"""The document: sections, style and scripts in one file that loads nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from toytrans import __version__
from toytrans.errors import printable


class Section(NamedTuple):
    """One part of a page.

    name: of its anchor. missing: what cannot be shown, and why. charts: SVG by title. blocks: below
    one another, a table each or several beside each other, as toytrans/table.py writes them.
    """

    name: str
    title: str
    text: str = ""
    missing: str = ""
    charts: Mapping[str, Markup] = {}
    blocks: Sequence[Markup] = ()


def lacking(sections: Iterable[Section]) -> list[str]:
    """What cannot be shown: a sentence for each reason, with the sections that lack something."""
    titles: dict[str, list[str]] = {}
    for each in sections:
        for reason in each.missing.splitlines():
            titles.setdefault(reason, []).append(each.title)
    return [f"the page lacks parts of {', '.join(t)}: {reason}" for reason, t in titles.items()]


def html(form: str, *texts: str) -> Markup:
    """HTML with texts in its places, escaped, their control characters shown."""
    return Markup(form).format(*map(printable, texts))


def _printable(value: Any) -> Any:
    """Text whose control characters are shown. HTML that is ready stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_environment = Environment(
    loader=PackageLoader("toytrans.report"),
    autoescape=True,
    finalize=_printable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    return _environment.get_template("page.html").render(
        title=title, sections=sections, version=__version__
    )
