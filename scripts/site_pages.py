"""A hook of MkDocs: README.md is the first page of the site, and the tables of config keys are made
from the schema, so that each is written once."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from toytrans.config.explain import keys

SOURCE = "https://github.com/toytrans/toytrans/blob/main/"
SECTIONS = {
    "": "Top level",
    "data": "Section `data`",
    "data.files": "Section `data.files`",
    "model": "Section `model`",
    "train": "Section `train`",
}
HEAD = "| key | description | type | default | range |\n|---|---|---|---|---|"


def on_files(files: Files, *, config: Any) -> Files:
    """Add README.md as index.md. Links to what lies outside docs/ lead to the repository."""
    text = (Path(config.config_file_path).parent / "README.md").read_text()
    text = re.sub(r"\]\((?!docs/|http|#)", f"]({SOURCE}", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(text: str, *, page: Page, **_: Any) -> str:
    """Add a table for each section of a config to the page on configuration."""
    return f"{text}\n{tables()}" if page.file.src_uri == "configuration.md" else text


def tables() -> str:
    """The tables of all keys."""
    parts = []
    for section, title in SECTIONS.items():
        parts += [f"## {title}\n", HEAD]
        for key in (key for key in keys() if key.section == section):
            shown = key.default in ("", "required")
            default = key.default if shown else f"`{key.default}`"
            meaning = key.meaning.replace("|", "\\|")
            parts.append(f"| `{key.name}` | {meaning} | {key.type} | {default} | {key.range} |")
        parts.append("")
    return "\n".join(parts)
