"""Tries wheels and sdists as somebody who has nothing else would:

    python scripts/try_package.py dist/*

Each file is installed into an empty environment, with what it needs from the package index. The
commands of a first hour then run in an empty folder, so that whatever the project's own folder
would lend to them is missed. The release workflow calls this on every system that it has.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

COMMANDS = (
    "--version",
    "doctor --machine",
    "inspect-masks --src '5 7 9' --tgt '9 7'",
    "new sort --out sort.yaml",
    "train textbook --set train.max_steps=3",
    "eval runs/textbook --examples 20",
    "translate '5 7 9'",
    "check runs/textbook --quick",
    "report runs/textbook",
    "live runs/textbook",
    "live",
)
"""Between them they need the shipped configs and the templates of all pages."""


def try_package(package: Path) -> None:
    """Install one file and run all commands. Raises CalledProcessError where one fails."""
    with tempfile.TemporaryDirectory() as name:
        environment, folder = Path(name, "environment"), Path(name, "folder")
        folder.mkdir()
        venv.create(environment, with_pip=True)
        programs = environment / ("Scripts" if os.name == "nt" else "bin")
        python, toytrans = programs / "python", programs / "toytrans"
        subprocess.run([python, "-m", "pip", "install", "-q", package.resolve()], check=True)
        for command in COMMANDS:
            print(f"{package.name}: toytrans {command}", flush=True)
            subprocess.run([toytrans, *shlex.split(command)], cwd=folder, check=True)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        try_package(Path(word))
