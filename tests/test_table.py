"""One table for people and programs: its cells are the same in HTML, text, JSON and pandas."""

import json
from html.parser import HTMLParser

import pytest

from toytrans.files import json_text
from toytrans.html import beside_html
from toytrans.table import Cell, Table, TextColumn

MASK = Table(
    "Masks <1>",
    ["", "5", "7\x07"],
    [["a", Cell("1", "open", "a sees 5"), Cell("·", "closed", 'a, "7"')], ["b", "1", "\x1b[1m"]],
    ["One & two."],
    above=["(2, 2)"],
    kind="mask",
    panel="4",
)
NUMBERS = Table("", [TextColumn("run"), "exact\nmatch"], [["x", 0.5], ["y", None]])


class Cells(HTMLParser):
    """The cells of a table: their tags, what they carry, and their texts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, carried, text = self.found[-1]
            self.found[-1] = tag, carried, text + data


def test_a_notebook_and_a_page_show_the_same_cells():
    alone, beside = MASK._repr_html_(), beside_html("Pair 1", [MASK])
    shown = {tag: carried for tag, carried, _ in Cells(alone).found}
    assert shown["table"] == {"class": "mask", "tabindex": "0", "aria-label": "4 Masks <1>"}
    of_alone, of_page = (
        [each for each in Cells(text).found if each[0] in ("th", "td")] for text in (alone, beside)
    )
    assert of_alone == of_page
    texts = [text.strip() for _, _, text in of_page]
    assert texts == ["", "5", r"7\x07", "a", "1", "·", "b", "1", r"\x1b[1m"]
    assert of_page[3][1] == {"scope": "row"}, "the first cell names its row"
    assert of_page[4][1] == {"class": "open", "title": "a sees 5"}
    assert of_page[5][1] == {"class": "closed", "title": 'a, "7"'}
    assert "4 Masks &lt;1&gt;<br>(2, 2)" in alone and "<p>One &amp; two.</p>" in alone


def test_text_and_json_have_what_the_cells_are():
    assert str(MASK).splitlines()[:4] == [
        "4 Masks <1>",
        "(2, 2)",
        r"     5    7\x07",
        "  a  1        ·",
    ]
    assert json.loads(json_text(MASK.records()))[0] == {"": "a", "5": "1", "7\x07": "·"}
    assert NUMBERS.records()[1] == {"run": "y", "exact match": None}
    assert str(Table("nothing here")) == "nothing here"
    assert (
        Table("nothing <here>", notes=["so"])
        ._repr_html_()
        .endswith("<p>nothing &lt;here&gt;</p><p>so</p>")
    )


def test_pandas_gets_values_below_the_headings():
    pandas = pytest.importorskip("pandas")
    frame = NUMBERS.to_pandas()
    assert list(frame.columns) == ["run", "exact match"] and frame["exact match"][0] == 0.5
    assert pandas.isna(frame["exact match"][1]) and list(frame["run"]) == ["x", "y"]
    assert list(MASK.to_pandas()["7\x07"]) == ["·", "\x1b[1m"]
