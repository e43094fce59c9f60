"""`toytrans translate`: arguments, files, beams, and words that form no sequence."""

from pathlib import Path

import pytest
from conftest import Command


def test_a_file_is_translated_line_by_line(run: Path, command: Command, refused):
    Path("in.txt").write_text("\ufeff1 2\n\n3 4 0\n")
    typed = [command("translate", "runs/c", text).out for text in ("1 2", "", "3 4 0")]
    printed = command("translate", "runs/c", "--file", "in.txt")
    assert printed.code == 0 and printed.out == "".join(typed)
    written = command("translate", "--file", "in.txt", "--out", "out.txt")
    assert (written.code, written.out) == (0, "") and "wrote out.txt: 3 sequences" in written.err
    assert Path("out.txt").read_text() == printed.out
    assert "exists already" in refused("translate", "--file", "in.txt", "--out", "out.txt")
    assert "not both" in refused("translate", "runs/c", "1 2", "--file", "in.txt")
    assert "none.txt: no such file" in refused("translate", "--file", "none.txt")
    Path("in.txt").write_text("1 2\nx\n")
    said = refused("translate", "runs/c", "--file", "in.txt", "--out", "new.txt")
    assert "in.txt, line 2: symbol 'x'" in said and not Path("new.txt").exists()


def test_a_beam_gives_what_eval_measures_with_it(run: Path, command: Command):
    import json

    given = ("eval", "runs/c", "--split", "valid", "--beam", "3", "--save", "o.jsonl", "--json")
    assert command(*given).code == 0
    lines = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    told = command("translate", "runs/c", *(f"{line['source']} " for line in lines), "--beam", "3")
    assert told.out.splitlines() == [line["output"] for line in lines]


@pytest.mark.parametrize("name", ["translate", "trace"])
def test_words_without_quotes_are_not_taken_for_sequences(run: Path, command, refused, name):
    for words in (("runs/c", "1", "2", "3"), ("1", "2", "3")):
        assert 'put quotes around it: "1 2 3"' in refused(name, *words)
    assert command(name, "runs/c", "1 2", "3").code == 0
