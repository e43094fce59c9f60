"""The page: what it holds of a run, the model in JavaScript and the screen, in one file that loads
nothing."""

from html import escape
from importlib.resources import files

from toytrans import __version__
from toytrans.live.payload import Follow, as_script, payload
from toytrans.training.run import Run

HEIGHT = 820
"""Pixels of the page in a cell of a notebook."""

SCRIPTS = (
    *("model.js", "count.js", "draw.js", "subject.js", "state.js", "parts.js"),
    *("experiments.js", "page.js"),
)
"""In the order in which they are read; the first two know nothing of a page."""


def template(name: str) -> str:
    """The text of a file in templates/."""
    return (files("toytrans.live") / "templates" / name).read_text(encoding="utf-8")


def live_page(run: Run, follow: Follow = lambda what: None) -> str:
    """The whole document. Raises UserError for a run whose model does not run in a page."""
    data = payload(run, follow)
    parts = {
        "TITLE": escape(f"{data['about']['run']}: a transformer to take apart"),
        "VERSION": __version__,
        "STYLE": template("style.css"),
        "DATA": as_script(data),
        "SCRIPTS": "\n".join(map(template, SCRIPTS)),
    }
    page = template("page.html")
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text)
    return page


class LivePage:
    """The page of a run, which a notebook shows in a cell. text: the whole document."""

    def __init__(self, run: Run) -> None:
        self.text, self._title = live_page(run), run.title

    def __repr__(self) -> str:
        return f"the live page of {self._title}; `toytrans live` writes it to a file"

    def _repr_html_(self) -> str:
        """It stands in a frame of its own, which can reach nothing of the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" title="{escape(self._title)}" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0" srcdoc="{escape(self.text)}">'
            "</iframe>"
        )
