"""The document: sections, style and scripts in one file that loads nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from toytrans import __version__
from toytrans.errors import printable


class Cell(NamedTuple):
    """Text, its class in style.css, and what a pointer over it reads out."""

    text: str
    looks: str = ""
    says: str = ""


class Grid(NamedTuple):
    """A table. rows: text, HTML, numbers or `Cell`.

    kind: classes in style.css. The first cell of a row names it where the kind is mask, facts or
    labelled. A sortable grid gets buttons in its headings; one with a caption can be read with the
    arrow keys.
    """

    heads: Sequence[str]
    rows: Iterable[Sequence[Any]]
    kind: str = "data"
    caption: str = ""


class Block(NamedTuple):
    """Grids beside each other, with a heading, lines above and sentences below."""

    grids: Sequence[Grid]
    heading: str = ""
    above: Sequence[str] = ()
    below: Sequence[str] = ()


class Section(NamedTuple):
    """One part of a page. name: of its anchor. missing: what cannot be shown, and why. charts: SVG
    by title."""

    name: str
    title: str
    text: str = ""
    missing: str = ""
    charts: Mapping[str, Markup] = {}
    blocks: Sequence[Block] = ()
    table: Grid | None = None


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


def _shown(value: Any) -> Any:
    """Text whose control characters are shown. HTML that is ready stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_environment = Environment(
    loader=PackageLoader("toytrans.report"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    return _environment.get_template("page.html").render(
        title=title, sections=sections, version=__version__
    )
