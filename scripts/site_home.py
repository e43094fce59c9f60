"""A hook of MkDocs: README.md is the first page of the site, so that it is written once."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = "https://github.com/toytrans/toytrans/blob/main/"


def on_files(files: Files, *, config: Any) -> Files:
    """Add README.md as index.md. Links to what lies outside docs/ lead to the repository."""
    text = (Path(config.config_file_path).parent / "README.md").read_text()
    text = re.sub(r"\]\((?!docs/|http|#)", f"]({SOURCE}", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files
