"""The files that pages are made of, and how they stand in a page."""

import re
from importlib.resources import files

TEMPLATES = files("toytrans.live_pages.templates")

COMMENTED = ("model.js",)
"""Scripts that keep their comments in a page: whoever opens its source wants to read how the
transformer computes. The others save room."""


def template(name: str) -> str:
    """The text of a file in this folder."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def script(name: str) -> str:
    """The text of a script as it stands in a page."""
    text = template(name)
    return text if name in COMMENTED else re.sub(r"(?m)^ *(//.*)?\n", "", text)
