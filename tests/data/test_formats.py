"""How files of pairs are read: formats, the keys that say how, and what is refused."""

import gzip
import re
import subprocess

import pytest
from conftest import config_of_files

from toytrans.config.schema import FilesConfig
from toytrans.data.formats import read_file
from toytrans.data.open import open_dataset
from toytrans.data.selection import Selection, pairs_of_files
from toytrans.errors import UserError
from toytrans.tokens import FIRST_SYMBOL_ID

PAIRS = [(["1", "2"], ["b", "a"]), ([], []), (["3"], ["c"])]


def read(path, **keys):
    """Source and target of each pair of a file, or of two."""
    files = FilesConfig(train=path, **keys)
    return [(pair.src, pair.tgt) for pair in read_file(files.train, files).pairs]


def refusal(path, **keys) -> str:
    """What is said of a file that is refused, in one line."""
    with pytest.raises(UserError) as error:
        read(str(path), **keys)
    assert "\n" not in str(error.value)
    return str(error.value)


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_parallel_text_with_empty_lines_and_windows_line_ends(tmp_path):
    src = written(tmp_path, "a.src", "\ufeff1 2\r\n\r\n3")
    tgt = written(tmp_path, "a.tgt", "b a\n\nc\n")
    assert read((src, tgt)) == PAIRS


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        ("a.tsv", "1 2\tb a\n\t\n3\tc\n", {}),
        ("a.tsv", "1 2\tb a\r\n\t\r\n3\tc\r\n", {}),
        ("a.tsv", "1 2\tx\tb a\t\n\t\t\n3\t\tc\n", {"columns": (1, 3)}),
        ("a.tsv", "tgt\tsrc\nb a\t1 2\n\t\nc\t3\n", {"columns": (2, 1), "header": True}),
        ("a.csv", '1 2,"b\na"\n,\n"3",c\n', {}),  # a line end in a cell is a blank
        ("a.txt", 'id,a,b\n7,"1 2",b a\n8,"",""\n9,3,c\n', {"format": "csv"} | {"columns": (2, 3)}),
        (
            "a.jsonl",  # numbers and words
            '{"src": [1, 2], "tgt": ["b", "a"]}\n{"src": [], "tgt": []}\n'
            '{"src": ["3"], "tgt": ["c"]}',
            {},
        ),
        (
            "a.jsonl",
            '{"src": "1 2", "tgt": "b a"}\n{"src": "", "tgt": ""}\n{"src": 3, "tgt": "c"}',
            {},
        ),
        (
            "a.json",
            '{"translation": {"de": "1 2", "en": "b a"}}\n{"translation": {"de": "", "en": []}}\n\n'
            '{"translation": {"de": "3", "en": ["c"]}}\n',
            {"format": "jsonl", "fields": ("translation.de", "translation.en")},
        ),
        ("a.txt", "IN: 1 2 OUT: b a\nIN: OUT:\nIN: 3 OUT: c\n", {"format": "scan"}),
    ],
)
def test_pairs_of_one_file(tmp_path, name, text, keys):
    if name == "a.txt" and keys["format"] == "csv":
        keys = keys | {"header": True}
    assert read(written(tmp_path, name, text), **keys) == PAIRS


def test_each_character_is_a_symbol_where_the_keys_say_so(tmp_path):
    """Blanks inside become ▁, those around go; a list of JSON has its symbols already."""
    tsv = written(tmp_path, "a.tsv", "kagu\tugak\n 3  May \t日本\n")
    assert read(tsv, split="characters") == [
        (list("kagu"), list("ugak")),
        (["3", "▁", "M", "a", "y"], ["日", "本"]),
    ]
    spoken = written(tmp_path, "b.tsv", "anna\ta n\u02d0 a\n")
    assert read(spoken, split=("characters", "blanks")) == [(list("anna"), ["a", "n\u02d0", "a"])]
    words = written(tmp_path, "a.src", "ab cd\n")
    assert read((words, words), split=("blanks", "characters")) == [(["ab", "cd"], list("ab▁cd"))]
    jsonl = written(tmp_path, "a.jsonl", '{"src": "ab", "tgt": ["ab", "c"]}\n')
    assert read(jsonl, split="characters") == [(["a", "b"], ["ab", "c"])]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.tsv", "1 2\t3\n4 5\n", "a.tsv:2: 1 column: '4 5'; expected source, tab, target"),
        ("a.tsv", "1,2\n", "write data.files.format: csv"),
        ("a.csv", "1\t2\n", "write data.files.format: tsv"),
        ("a.csv", '"1,2\n', "a.csv:1: not CSV"),
        ("a.tsv", "a\tb\tc d\n", "1: 3 columns: 'a | b | c d'; say which are source and target, "),
        ("a.tsv", "a\tb\tc\n", "data.files.columns: [1, 2]"),
        ("a.jsonl", "{}", "a.jsonl:1: no src in '{}'; name the two in data.files.fields"),
        ("a.jsonl", '{"t": {"x": "1", "y": [2]}}', "write data.files.fields: [t.x, t.y]"),
        ("a.jsonl", '{"a": "", "b": "", "c": ""}', "[SOURCE, TARGET]; it has a, b, c"),
        ("a.jsonl", '{"src": [1.5], "tgt": []}', "holds '1.5'"),
        ("a.jsonl", '{"src": 1.5, "tgt": []}', "neither text nor a list"),
        ("a.jsonl", "nonsense", "a.jsonl:1: not JSON"),
        ("a.jsonl", '[{"src": "a"}]', "one JSON list; write each of its objects on a line: jq"),
        ("a.json", '[{"src": "a"}]', "one JSON list; write each of its objects on a line: jq"),
        ("a.jsonl", '"a"', "not a JSON object"),
        ("a.jsonl", '{"src": ["\\ud800"], "tgt": []}', "holds half a character"),
        ("a.txt", "1\t2\n", "is '1\\t2'; rename the file, write data.files.format: tsv"),
        ("a.txt", '{"src": 1}\n', "data.files.format: jsonl"),
        (
            "a.txt",
            "a b ||| c\n",
            "||| seems to divide source and target; write a tab: sed 's/ ||| /\\t/' ",
        ),
        ("a.txt", "word\n", "put a tab between source and target, write data.files.format: tsv"),
        ("a.tsv", "IN: jump OUT: I_JUMP\n", "or write data.files.format: scan"),
        ("a.csv", "IN: jump OUT: I_JUMP\n", "or write data.files.format: scan"),
        ("a.tsv", "", "holds no pairs; write one on each line"),
        ("a.tsv", "a\tb\nGr\xfc\xdfe\tc\n".encode("latin-1"), "a.tsv:2: not text in UTF-8"),
        ("a.tsv", "a\tb\n", "UTF-16; write it as UTF-8: iconv -f UTF-16"),
        ("a.tsv.gz", gzip.compress(b"a\tb\n", mtime=0), "packed by gzip; unpack it: gunzip -c < "),
        ("a.xlsx", b"PK\x03\x04...", "a spreadsheet or a zip archive; save it as CSV"),
        ("a.parquet", b"PAR1...", "write it as JSONL"),
        ("a.tsv", b"a\tb\x00\n", "a.tsv:1: a NUL byte"),
        ("a.tsv", "a\tb\n".encode("utf-16-le"), "UTF-8: iconv -f UTF-16LE -t UTF-8 "),
        ("a.tsv", "да\tнет\n".encode("utf-16-be"), "UTF-8: iconv -f UTF-16BE -t UTF-8 "),
    ],
)
def test_what_does_not_fit_is_shown_with_the_remedy(tmp_path, name, text, says):
    content = text.encode("utf-16") if says.endswith("-f UTF-16") else text
    assert says in refusal(written(tmp_path, name, content))


DICTIONARY = "aardema AA0 R D EH1 M AH0\nabarca AH0 B AA1 R K AH0\nabase AH0 B EY1 S\n"


@pytest.mark.parametrize("name", ["new words.txt", "a.tsv", "a.csv", "a.dict"])
@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (DICTIONARY, "the first blank seems"),
        (DICTIONARY.replace(" ", ";", 1).replace("ca ", "ca;").replace("e A", "e;A"), "semicolons"),
    ],
)
def test_a_mark_that_seems_to_divide_is_named_with_a_command_that_works(tmp_path, name, text, mark):
    """The message shows the line, and what its command writes is read as pairs."""
    path = written(tmp_path, name, text)
    said = refusal(path)
    assert mark in said and repr(text.partition("\n")[0]) in said
    assert "format: csv" not in said and "format: tsv" not in said
    command = said[said.index("sed ") :].partition(" > NEW.tsv")[0]
    new = written(tmp_path, "NEW.tsv", subprocess.check_output(["sh", "-c", command]))
    assert read(new)[0] == (["aardema"], ["AA0", "R", "D", "EH1", "M", "AH0"])


def test_the_first_blank_of_sentences_does_not_divide(tmp_path):
    """Sentences begin alike; a line without a tab among others is no dictionary."""
    sentences = written(tmp_path, "a.tsv", "the cat sat\nthe dog sat\nthe cow ate\n")
    assert refusal(sentences).endswith("'the cat sat'; expected source, tab, target")
    assert "first blank" not in refusal(written(tmp_path, "b.tsv", "a\tb\nc d\n"))


def test_a_packed_file_is_unpacked_whatever_its_name(tmp_path):
    path = written(tmp_path, "my words.tsv", gzip.compress(b"a\tb\n"))
    command = refusal(path).partition("unpack it: ")[2].partition(" > NEW.tsv")[0]
    new = written(tmp_path, "NEW.tsv", subprocess.check_output(["sh", "-c", command]))
    assert read(new) == [(["a"], ["b"])]


def test_the_keys_of_a_format_are_refused_for_another(tmp_path):
    tsv, jsonl = (written(tmp_path, name, "") for name in ("a.tsv", "a.jsonl"))
    for train, keys, says in (
        (jsonl, {"columns": [1, 2]}, "data.files.columns: belongs to tsv and csv, not to jsonl"),
        ([tsv, tsv], {"header": True}, "data.files.header: belongs to tsv and csv, not to text"),
        (tsv, {"fields": ["a", "b"]}, "data.files.fields: belongs to jsonl, not to tsv"),
        (tsv, {"columns": [2, 2]}, "data.files.columns: names one column twice"),
        (tsv, {"min_frequency": 2}, "data.files.min_frequency: rarer symbols become <unk>"),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            open_dataset(config_of_files({"train": train, **keys}))
    assert "is a directory; name a file" in refusal(tmp_path)
    tsv = written(tmp_path, "a.tsv", "a\tb\n")
    assert "columns: [1, 3] needs more" in refusal(tsv, columns=(1, 3))


def test_given_pairs_are_read_as_those_of_the_run(tmp_path):
    """Their columns and split are the run's; an ending that tells a format counts."""
    train = written(tmp_path, "train.txt", "word\tx\tdrow\nab\tx\tba\n")
    keys = {"format": "tsv", "columns": [1, 3], "split": "characters"}
    config = config_of_files({"train": train, **keys})
    facts = open_dataset(config).facts
    for name, text in (
        ("a.txt", "bad\t\tdab\n"),
        ("a.csv", "bad,,dab\n"),
        ("a.jsonl", '{"src": "bad", "tgt": "dab"}\n'),
    ):
        path = tmp_path / name
        path.write_text(text)
        pairs = pairs_of_files(path, config, facts, Selection())
        src, tgt = (facts.vocabulary.decode(side[0].tolist()) for side in (pairs.src, pairs.tgt))
        assert (src, tgt) == (list("bad"), list("dab"))
    assert pairs.src.min() >= FIRST_SYMBOL_ID
