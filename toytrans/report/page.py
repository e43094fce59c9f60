"""The document: sections, style and scripts in one file that loads nothing."""

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from toytrans import __version__
from toytrans.errors import UserError, how_to_install
from toytrans.inspection.table import printable
from toytrans.report.charts import Chart

MISSING = f"a page with plots needs Altair: {how_to_install('altair', 'vl-convert-python')}"


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
    """One part of a page. name: of its anchor. missing: what cannot be shown, and why."""

    name: str
    title: str
    text: str = ""
    missing: str = ""
    charts: Sequence[Chart] = ()
    blocks: Sequence[Block] = ()


def section(name: str, title: str, *, table: Any = None, **parts: Any) -> Section:
    """A section. table: headings, rows and the rest of a `Grid`. parts: fields of `Section`."""
    blocks = [*parts.pop("blocks", ()), *([Block([Grid(*table)])] if table else ())]
    return Section(name, title, blocks=blocks, **parts)


def html(form: str, *texts: str) -> Markup:
    """HTML with texts in its places, escaped, their control characters shown."""
    return Markup(form).format(*map(printable, texts))


def _shown(value: Any) -> Any:
    """Text whose control characters are shown. HTML that is ready stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def as_script(values: Any) -> Markup:
    """JSON for a script element, which no text in it can end. Control characters are shown."""
    text = json.dumps(_plain(values), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _plain(values: Any) -> Any:
    if isinstance(values, dict):
        return {_shown(key): _plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    return _shown(values)


_environment = Environment(
    loader=PackageLoader("toytrans.report"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters["script"] = as_script


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole document. Raises UserError where plots are asked for without Altair."""
    library = _plot_library() if any(part.charts for part in sections) else ""
    return _environment.get_template("page.html").render(
        title=title, sections=sections, version=__version__, library=Markup(library)
    )


def check_plots() -> None:
    """Raise UserError where the libraries for plots are not installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise UserError(MISSING) from None


@functools.cache
def _plot_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    check_plots()
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    bundle = bundle.replace("</script", "<\\/script")
    return bundle.encode("ascii", "backslashreplace").decode()  # it has such letters in strings
