"""The sheet for the student; its text is in sheet.LANGUAGE.yaml."""

from pathlib import Path
from typing import Literal

MOST_STUDENTS = 1000
MOST_ANSWERS = 100

Language = Literal["en", "ko"]

COMMANDS = {
    1: ('toytrans translate runs/exercise "5 7 9"', "toytrans doctor runs/exercise"),
    2: (
        "toytrans doctor runs/exercise",
        "toytrans inspect-masks runs/exercise",
        "toytrans check runs/exercise",
    ),
    3: (
        "toytrans check runs/exercise",
        "toytrans trace runs/exercise",
        "toytrans eval runs/exercise",
    ),
}
"""Where to look, for each level."""


def sheet(level: int, language: Language, closed: bool, limit: int | None) -> str:
    """The student's sheet, as Markdown. limit: the most answers that count."""
    from toytrans.config.yaml import read_yaml

    text = read_yaml(Path(__file__).parent / f"sheet.{language}.yaml").values
    words, kind = text["words"], "closed_" if closed else ""
    count = words["limit"].format(limit=limit, s="s" * (limit > 1)) if limit else ""
    written: str = text["sheet"].format(
        level=level,
        **text["levels"][f"level_{level}"],
        commands="\n".join(f"   {line}" for line in COMMANDS[level]),
        or_none=words["or_none"] if level == 3 else "",
        or_why=words["or_why"] if level == 3 else "",
        answers=count + words[f"{kind}answers"],
        hints=words[f"{kind}hints"],
    )
    return written
