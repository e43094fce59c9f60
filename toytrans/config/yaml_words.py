"""What is wrong with a YAML file, in words of people who write configs and not of the library.

`yaml` asks for these words where a file cannot be read, and for nothing else.
"""

import re

import yaml

FULL_WIDTH = "\uff1a"
"""A colon of Chinese, Japanese and Korean keyboards."""


def explain(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """The line where a mistake is, counted from 0, and what it is with the remedy."""
    problem, context = error.problem or "", error.context or ""
    at, begun = error.problem_mark or error.context_mark, error.context_mark
    line = at.line if at else 0
    here = text.splitlines()[line] if line < len(text.splitlines()) else ""
    start = begun.line if begun else line
    if "'\\t'" in problem:
        return line, "a tab; indent with blanks"
    if "another document" in problem:
        return line, "a second document begins; keep one, and leave out ---"
    if "quoted scalar" in context:
        return start, "a quotation mark that opens here is not closed"
    if wide := [n for n, each in enumerate(text.splitlines()[: line + 1]) if FULL_WIDTH in each]:
        return wide[-1], f"a full-width colon {FULL_WIDTH}; write : and a blank"
    if re.search("expected ',' or '[]}]'", problem):
        return start, "a bracket that opens here is not closed, or a comma is missing behind it"
    if "mapping values are not allowed" in problem:
        return line, "a colon in an odd place; indent keys alike, and put text with : in quotes"
    if "<block end>" in problem:
        return line, "odd indentation; the keys of a section start in the same column"
    if "cannot start any token" in problem:
        sign = here[at.column : at.column + 1] if at else ""
        return line, f"a value cannot begin with {sign}; put it in quotes"
    if "expected the node content" in problem:
        return line, "a value is missing here"
    if "constructor for the tag" in problem:
        return line, "a tag, which begins with !; write a plain value"
    return line, problem or context
