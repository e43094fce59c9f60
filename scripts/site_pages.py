"""A hook of MkDocs: README.md is the first page, the tables of config keys are made from the
schema, the list of commands from the application, and the page of each check from what its file
says, so that each is written once. The live page to which the lessons link is of the textbook
model, which is trained here for some ten seconds."""

import inspect
import posixpath
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from typer.cli import get_docs_for_click

import toytrans
from toytrans.checks.outcome import Cause
from toytrans.checks.registry import ALL_KINDS, Check
from toytrans.checks.rules import CHECKS
from toytrans.cli.app import COMMANDS, imported
from toytrans.glossary import keys
from toytrans.live.page import learning_page, live_page

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

SECTIONS = {
    "": "Top level",
    "data": "Section `data`",
    "data.files": "Section `data.files`",
    "model": "Section `model`",
    "train": "Section `train`",
}
HEAD = "| key | description | type | default | range |\n|---|---|---|---|---|"


PLACE_OF_CHECKS = "<!-- the table of checks -->"
"""Where in checks.md the table of all checks is put."""

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """The page of each check stands in the navigation behind that of all of them."""
    sections = {name: pages for section in config.nav for name, pages in section.items()}
    pages = sections["See and prove"]
    every = [f"checks/{name}.md" for name in CHECKS]
    pages.insert(pages.index("checks.md") + 1, {"Each check": every})
    return config


def on_files(files: "Files", *, config: Any) -> "Files":
    """Add README.md as index.md, a page for each check, the live page of the textbook model as
    textbook.html, and that in which a model learns as learn.html."""
    from mkdocs.structure.files import File  # the tables below are made without mkdocs too

    root = Path(config.config_file_path).parent
    text = (root / "README.md").read_text()
    text = re.sub(r"\[([^\]]*)\]\((?!docs/|http|#)[^)]*\)", r"\1", text)  # no page of the site
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
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
    """Links that leave docs/ lead to the first page, or become text. The pages on configuration and
    on commands get what is made from the program."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, link[2]))
        if not place.startswith("../"):
            return link[0]
        home = posixpath.relpath("index.md", folder or ".")
        return f"[{link[1]}]({home}{link[3] or ''})" if place == "../README.md" else link[1]

    text = LINK.sub(inside, text)
    if page.file.src_uri == "checks.md":
        return text.replace(PLACE_OF_CHECKS, table_of_checks())
    made = {"configuration.md": tables, "commands.md": commands}.get(page.file.src_uri)
    return f"{text}\n{made()}" if made else text


def table_of_checks() -> str:
    """All checks, each with a link to its page."""
    head = "| check | what must hold | how it is asked |\n|---|---|---|"
    rows = (f"| [{c.name}](checks/{c.name}.md) | {c.title} | {c.how} |" for c in CHECKS.values())
    return "\n".join([head, *rows])


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


def commands() -> str:
    """A list of all commands by their groups, then each with its arguments and options."""
    every: list[Any] = [imported(name) for name in COMMANDS]  # Typer's own kinds of commands
    for command, entry in zip(every, COMMANDS.values(), strict=True):
        command.rich_help_panel = entry.group
    parts = []
    for group in dict.fromkeys(command.rich_help_panel for command in every):
        parts.append(f"**{group}**\n")
        parts += [
            f"- [`{command.name}`](#toytrans-{command.name}): {command.get_short_help_str(200)}"
            for command in every
            if command.rich_help_panel == group
        ]
        parts.append("")
    for command in every:
        context = typer.Context(command, info_name=command.name)
        parts.append(get_docs_for_click(obj=command, ctx=context, indent=2, call_prefix="toytrans"))
    return "\n".join(parts)


def tables() -> str:
    """The tables of all keys."""
    parts = []
    for section, title in SECTIONS.items():
        parts += [f"## {title}\n", HEAD]
        for key in (key for key in keys() if key.section == section):
            shown = key.default in ("", "required")
            default = key.default if shown else f"`{key.default}`"
            meaning = key.meaning.replace("|", "\\|")
            span = ", ".join(f"`{name}`" for name in key.names) or key.range
            parts.append(f"| `{key.name}` | {meaning} | {key.type} | {default} | {span} |")
        parts.append("")
    return "\n".join(parts)
