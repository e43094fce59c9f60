"""A hook of MkDocs: README.md is the first page, the tables of config keys are made from the
schema, and the list of commands from the application, so that each is written once. The live page
to which the lessons link is of the textbook model, which is trained here for some ten seconds."""

import posixpath
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from typer.cli import get_docs_for_click

import toytrans
from toytrans.cli.app import COMMANDS, imported
from toytrans.glossary import keys
from toytrans.live.page import live_page

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


LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)")


def on_files(files: "Files", *, config: Any) -> "Files":
    """Add README.md as index.md, and the live page of the textbook model as textbook.html."""
    from mkdocs.structure.files import File  # the tables below are made without mkdocs too

    root = Path(config.config_file_path).parent
    text = (root / "README.md").read_text()
    text = re.sub(r"\[([^\]]*)\]\((?!docs/|http|#)[^)]*\)", r"\1", text)  # no page of the site
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    torch.set_num_threads(1)  # the model is small, and another build may run beside this one
    with tempfile.TemporaryDirectory() as folder:
        run = toytrans.train(root / "configs/textbook.yaml", Path(folder) / "textbook")
        files.append(File.generated(config, "textbook.html", content=live_page(run)))
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
    made = {"configuration.md": tables, "commands.md": commands}.get(page.file.src_uri)
    return f"{text}\n{made()}" if made else text


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
