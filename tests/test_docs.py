"""The documentation agrees with the code, with the results, and with itself."""

import pkgutil
import re
from pathlib import Path

import pytest
import yaml
from conftest import script

import toytrans
from toytrans.checks.rules import CHECKS

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
README = (ROOT / "README.md").read_text()
PAGES = ("README", "CONTRIBUTING", "EXPERIMENTS", "CHANGELOG")
MADE = {ROOT / "docs/textbook.html", ROOT / "docs/learn.html"}
"""The live pages, which scripts/site_pages.py makes with the site."""
LINKED = [*(ROOT / f"{name}.md" for name in PAGES), ROOT / "results/found.md", *DOCS]


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of each row of the table whose header starts so."""
    table = text[text.index(first) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_relative_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = (page.parent / path).resolve() if path else page
        if target in MADE:  # tests/live opens its states
            continue
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), (path, anchor)


def test_every_page_is_in_the_navigation_and_on_the_front_page():
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"[\w/.-]+\.md", str(sections))
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in DOCS]
    there = [*pages, *script("site_pages").OUTSIDE.values()]
    assert not {*there} - {*listed}, "not in nav of mkdocs.yml"
    assert not {*listed} - {*there} and len(listed) == len(there), "nav of mkdocs.yml has more"
    front = README + (ROOT / "docs/checks.md").read_text().replace("](mistakes", "](docs/mistakes")
    for page in pages:  # README has the first Korean lesson; each has a link to the next
        assert f"(docs/{page})" in front or page[:11] == "lessons/ko/", f"{page}: not in README.md"


def test_links_lead_to_pages_of_the_site():
    """Also those to and from pages that are outside of docs/; what is no page of it is text."""
    linked = script("site_pages").linked
    readme = (
        "[Set up](docs/own.md#tasks) ![heads](docs/heads.png) [MIT](LICENSE) [all](CHANGELOG.md)"
    )
    there = "[Set up](own.md#tasks) ![heads](heads.png) MIT [all](changelog.md)"
    assert linked(readme, "index.md") == there
    lesson = "[first](../../README.md#set-up) [run](../../configs/a.yaml) [2](2-masks.md) [x](#x)"
    there = "[first](../index.md#set-up) run [2](2-masks.md) [x](#x)"
    assert linked(lesson, "lessons/1-attention.md") == there
    assert linked("[t](survey.md) [c](../docs/checks.md)", "found-in-libraries.md") == (
        "[t](survey.md) [c](checks.md)"
    )


def test_tables_that_are_made_from_the_program_are_up_to_date():
    for page, text in script("docs_tables").pages().items():
        assert page.read_text() == text, f"run python scripts/docs_tables.py for {page.name}"
        assert text.count("\n| ") > 12, page


def test_every_public_name_is_described():
    """Each by the path of what is described."""
    text = (ROOT / "docs/api.md").read_text()
    described = [pkgutil.resolve_name(path) for path in re.findall(r"^::: (\S+)$", text, re.M)]
    assert len(described) > 12 and all(each.__doc__ for each in described)
    for name in toytrans.__all__:
        assert getattr(toytrans, name) in described, name


def test_messages_that_are_quoted_under_troubleshooting_are_those_of_the_program():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    cells = [row[0] for row in re.findall(r"^\| (.*?) \| (.*) \|$", text, re.M)]
    quoted = [words for cell in cells for words in re.findall(r"`(.*?)`", cell)]
    code = "".join(path.read_text() for path in (ROOT / "toytrans").rglob("*.py"))
    assert len(quoted) > 8
    for words in quoted:
        assert words in code or words == "toytrans: command not found", words


def test_the_page_of_a_check_is_made_of_what_its_file_says():
    pages = script("site_pages")
    for check in CHECKS.values():
        page = pages.check_page(check)
        assert page.startswith(f"# {check.name}\n") and check.limits in page
        assert all(f"**{part.name}**" in page for part in check.parts)
        listed = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
        failures, doubts = (
            [c.code for c in check.causes if c.is_doubt is d] for d in (False, True)
        )
        assert listed == [*failures, *doubts]
        for link in re.findall(r"\]\(\.\./([^)]*)\)", page):
            assert (ROOT / "docs" / link).exists(), link


def test_a_check_says_what_it_asks():
    for check in CHECKS.values():
        assert check.causes and check.parts and all(part.ask.__doc__ for part in check.parts)
        for cause in check.causes:
            assert cause.when and "".join(cause.pattern), cause.code


def test_the_mistakes_of_the_pages_are_those_of_the_examples():
    """The examples are run by tests/test_documented_commands.py."""
    examples = (ROOT / "docs/examples/mistakes.py").read_text()
    pages = [page for page in DOCS if page.parent.name == "mistakes"]
    assert len(pages) >= 6
    for page in pages:
        shown = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        assert len(shown) >= 2 and all(text in examples for text in shown), page


def test_the_results_of_readme_are_those_of_the_boards():
    table = rows((ROOT / "docs/results.md").read_text(), "| board, ta")
    (row,) = ["|".join(cells) for name, *cells in table if name == "joeynmt reverse"]
    section = README[README.index("## Results beside published numbers") :]
    numbers = re.findall(r"\d\.\d+", section)
    assert len(numbers) >= 4 and all(number in row for number in numbers), numbers


def test_the_table_of_configs_agrees_with_their_headers():
    table = {row[0]: row for row in rows((ROOT / "docs/results.md").read_text(), "| config |")}
    configs = sorted((ROOT / "configs").glob("*.yaml"))
    assert sorted(table) == [path.stem for path in configs]
    for path in configs:
        _, positions, in_range, beyond, seconds = table[path.stem]
        measured = re.search(r"^# measured: (.*)$", path.read_text(), re.MULTILINE)[1]
        assert f"in_range {in_range}," in measured
        assert beyond == "-" or f"beyond {beyond}," in measured
        taken = re.findall(r"([\d.]+)(?: to ([\d.]+))? s\b", measured)
        ends = sorted((end for span in taken for end in span if end), key=float)
        assert seconds == f"{ends[0]} to {ends[-1]}", (path.stem, ends)
        assert (positions == "sinusoidal") == ("positions: sinusoidal" in path.read_text())


def test_the_layout_names_what_is_there():
    page = (ROOT / "docs/internals.md").read_text()
    tree = page[page.index("```\ntoytrans/") :].split("```")[1]
    listed, folder = set(), ""
    for indent, name in re.findall(r"^(  |    )([\w.]+/?)(?:  | |$)", tree, re.MULTILINE):
        listed.add(folder * (len(indent) > 2) + name)
        folder = name if len(indent) == 2 else folder
    assert listed
    for name in listed:
        assert (ROOT / "toytrans" / name).exists(), name
    packages = (path.parent for path in (ROOT / "toytrans").glob("*/**/__init__.py"))
    assert {f"{path.relative_to(ROOT / 'toytrans').as_posix()}/" for path in packages} <= listed
    scripts = {path.name for path in (ROOT / "scripts").glob("*.py")}
    assert scripts == {name for name in scripts if f"`{name}`" in page}


def test_pages_show_the_examples_that_run():
    """tests/test_documented_commands.py runs them."""
    shown = "".join((ROOT / f"docs/{page}.md").read_text() for page in ("own", "checks"))
    examples = [*(ROOT / "docs/examples").glob("my_*.py"), ROOT / "docs/examples/checked_model.py"]
    assert len(examples) == 4
    for example in examples:
        assert f"```python\n{example.read_text()}```" in shown, example
