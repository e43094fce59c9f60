"""A hook of MkDocs, which makes the pages of the site that are no files of docs/.

README and other pages of the project's folder become pages of the site, and so does what the file
of each check says, so that each is written once. The live page to which the lessons link is of the
textbook model, which is trained here for some ten seconds.
"""

import inspect
import posixpath
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import toytrans
from toytrans.checks.outcome import Cause
from toytrans.checks.registry import ALL_KINDS, Check
from toytrans.checks.rules import CHECKS
from toytrans.live_pages.page import learning_page, live_page

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

OUTSIDE = {
    "README.md": "index.md",
    "README.ko.md": "index.ko.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "EXPERIMENTS.md": "experiments.md",
    "results/found.md": "found-in-libraries.md",
    "results/survey.md": "survey.md",
}
"""Pages of the project that stand outside of docs/, and where they are on the site."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """The page of each check stands in the navigation behind what is looked up."""
    sections = {name: pages for section in config.nav for name, pages in section.items()}
    every = [f"checks/{name}.md" for name in CHECKS]
    sections["Look up"].append({"Each check": every})
    return config


def on_files(files: "Files", *, config: Any) -> "Files":
    """Add the pages from outside of docs/, a page for each check, the live page of the textbook
    model as textbook.html, and that in which a model learns as learn.html."""
    from mkdocs.structure.files import File  # the pages below are made without mkdocs too

    root = Path(config.config_file_path).parent
    for origin, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(root / origin).read_text()))
    for check in CHECKS.values():
        path = f"checks/{check.name}.md"
        files.append(File.generated(config, path, content=check_page(check)))
    torch.set_num_threads(1)  # the model is small, and another build may run beside this one
    with tempfile.TemporaryDirectory() as folder:
        run = toytrans.train(root / "configs/textbook.yaml", Path(folder) / "textbook")
        files.append(File.generated(config, "textbook.html", content=live_page(run)))
    files.append(File.generated(config, "learn.html", content=learning_page()))
    return files


def on_page_markdown(text: str, *, page: "Page", **_: Any) -> str:
    """Links lead to pages of the site, and the table of checks links to the page of each."""
    here = page.file.src_uri
    text = linked(text, here)
    if here == "checks.md":
        for name in CHECKS:
            text = text.replace(f"\n| {name} |", f"\n| [{name}](checks/{name}.md) |")
    return text


def linked(text: str, here: str) -> str:
    """A page whose links lead to where their files are on the site. What is no page of it becomes
    text.

    here: where the page is on the site
    """
    origins = {place: origin for origin, place in OUTSIDE.items()}
    folder = posixpath.dirname(origins.get(here, f"docs/{here}"))

    def link(found: re.Match[str]) -> str:
        mark, name, path, anchor = found.groups()
        target = posixpath.normpath(posixpath.join(folder, path))
        if target not in OUTSIDE and not target.startswith("docs/"):
            return str(name)
        place = OUTSIDE.get(target) or target.removeprefix("docs/")
        place = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{mark}[{name}]({place}{anchor or ''})"

    return LINK.sub(link, text)


def check_page(check: Check) -> str:
    """The page of a check: what is asked, how, its limits, and its causes with their remedies."""
    parts = [f"# {check.name}\n", f"{check.title[0].upper()}{check.title[1:]}.\n"]
    if check.kinds is not ALL_KINDS:
        kinds = " and ".join(f"{name}s" for name in check.kinds.names)
        parts.append(f"It is asked of {kinds}: otherwise {check.kinds.otherwise}.\n")
    if check.essential:
        parts.append("A model of which it cannot be judged does not pass.\n")
    if check.follows or check.follows_in:
        others = [f"*{name}*" for name in check.follows]
        others += [f"*{n}* in a {kind}" for kind, names in check.follows_in.items() for n in names]
        parts.append(f"Its failure may follow from one of {', '.join(others)}: mend that first.\n")
    parts += [f"```\ntoytrans check RUN --only {check.name}\n```\n", "## How it is asked\n"]
    for part in check.parts:
        asked_of = {
            "first": "the shortest batch",
            "every": "every batch, in every mode and precision",
            "both ends": "the shortest and the longest batch",
            "last": "the shortest batch, after all other checks",
        }[part.on]
        text = " ".join((inspect.getdoc(part.ask) or "").partition("\n\n")[0].split())
        parts.append(f"- **{part.name}**, of {asked_of}. {text}")
    if check.limits:
        parts += ["\n## What it does not see\n", check.limits]
    doubts = [cause for cause in check.causes if cause.is_doubt]
    parts += table_of_causes("Why it fails", [c for c in check.causes if not c.is_doubt])
    parts += table_of_causes("Why it may give no verdict", doubts) if doubts else []
    return "\n".join(parts) + "\n"


def table_of_causes(title: str, causes: list[Cause]) -> list[str]:
    """A table of causes with their remedies, under a heading."""
    lines = [f"\n## {title}\n", "| cause | seen | remedy |", "|---|---|---|"]
    for cause in causes:
        words, remedy = (text.replace("<", "*").replace(">", "*") for text in cause.pattern)
        more = f" [More](../{cause.read})" if cause.read else ""
        whole = f"{remedy}{more}" if remedy else more or words
        lines.append(f"| `{cause.code}` | {cause.when} | {whole} |".replace("||", r"\|\|"))
    return lines
