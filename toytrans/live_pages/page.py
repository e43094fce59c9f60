"""The two pages: that of a run, and that in which a model learns. Each is one file that loads
nothing: the model in JavaScript, the screen, and what it holds."""

import re
from html import escape

from toytrans import __version__
from toytrans.live_pages.learning import engine_script, learning_payload
from toytrans.live_pages.payload import Follow, as_script, payload
from toytrans.live_pages.templates import script, template
from toytrans.training.run import Run

HEIGHT = 820
"""Pixels of the page in a cell of a notebook."""

SCREEN = ("count.js", "draw.js", "subject.js", "state.js", "parts.js", "experiments.js", "page.js")
"""What both pages have behind model.js, in the order in which it is read."""

RUN_SCRIPTS = ("model.js", *SCREEN, "run_experiments.js", "run_start.js")
LEARNING_SCRIPTS = (*SCREEN, "shelf.js", "learn_experiments.js", "learn_start.js")


def live_page(run: Run, follow: Follow = lambda what: None) -> str:
    """The page of a run. Raises UserError for a run whose model does not run in a page."""
    data = payload(run, follow)
    return _filled(
        TITLE=escape(f"{data['about']['run']}: a transformer to take apart"),
        DATA=_json_element("data", data),
        SCRIPTS="\n".join(map(script, RUN_SCRIPTS)),
    )


def learning_page() -> str:
    """The page in which a model learns; it needs no run."""
    engine = f'<script id="engine">\n{engine_script()}\n</script>'  # a worker runs its text too
    return _filled(
        TITLE="A transformer learns",
        MAY=" 'wasm-unsafe-eval'; worker-src blob:",
        CHOICES=template("choices.html"),
        LEARN=template("learn_row.html"),
        SHELF=template("shelf.html"),
        TAKING=template("taking.html"),
        DATA=_json_element("learning", learning_payload()) + engine,
        SCRIPTS="\n".join(map(script, LEARNING_SCRIPTS)),
    )


def _filled(**parts: str) -> str:
    """The document with its places filled in; those that are not named stay empty."""
    empty = dict.fromkeys(("MAY", "CHOICES", "LEARN", "SHELF", "TAKING"), "")
    page = template("page.html")
    texts = empty | parts | {"VERSION": __version__, "STYLE": template("style.css")}
    return re.sub("@([A-Z]+)@", lambda place: texts[place[1]], page)


def _json_element(name: str, data: dict[str, object]) -> str:
    return f'<script type="application/json" id="{name}">{as_script(data)}</script>'


class LivePage:
    """A page, which a notebook shows in a cell. text: the whole document."""

    def __init__(self, run: Run | None) -> None:
        """run: whose model runs in it; None = one learns in it. Raises UserError for a run whose
        model does not run in a page."""
        self.text = learning_page() if run is None else live_page(run)
        self._title = "a model that learns" if run is None else run.title

    def __repr__(self) -> str:
        return f"the live page of {self._title}; `toytrans live` writes it to a file"

    def _repr_html_(self) -> str:
        """It stands in a frame of its own, which can reach nothing of the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" title="{escape(self._title)}" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0" srcdoc="{escape(self.text)}">'
            "</iframe>"
        )
