"""The document: parts, style and scripts in one file that loads nothing."""

import functools
import json
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from toytrans import __version__
from toytrans.errors import UserError, how_to_install
from toytrans.inspection.table import printable
from toytrans.report.charts import Chart

MISSING = f"a page with plots needs Altair: {how_to_install('altair', 'vl-convert-python')}"


class Section(NamedTuple):
    """name: of its anchor. body: HTML. charts: whether it has plots."""

    name: str
    title: str
    body: Markup
    has_charts: bool


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


def section(name: str, title: str, **parts: Any) -> Section:
    """One part of a page.

    parts: what `parts.html` knows: text, missing, facts, charts, table, masks, translations,
    checks, config, tables.
    """
    charts: list[Chart] = parts.get("charts", [])
    specs = [(chart.title, as_script(chart.spec)) for chart in charts]
    body = _environment.get_template("parts.html").render(parts | {"name": name, "charts": specs})
    return Section(name, title, Markup(body), bool(charts))


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


def page(title: str, sections: list[Section]) -> str:
    """The whole document. Raises UserError where plots are asked for without Altair."""
    library = _plot_library() if any(part.has_charts for part in sections) else ""
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
