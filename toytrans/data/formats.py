"""Files of pairs: from the bytes of a file to pairs of symbols, as the keys below data.files say.

    bytes -> text -> records (a line, a row of CSV, a JSON object) -> two sides -> symbols

Nothing is guessed. What does not fit its format is refused with file and line, what was read there,
and where a key would help, the line to write. What is only odd is told by `findings`.
"""

import csv
import hashlib
import io
import json
import shlex
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from toytrans.config.schema import FilesConfig, Paths, Symbols
from toytrans.errors import BadKey, UserError
from toytrans.files import read_named
from toytrans.references import shown

MOST_BYTES = 100_000_000
"""The largest file that is read: all of it is held in memory, many times its size."""

BLANK = "\u2581"
"""What stands for a blank where each character is a symbol, as in SentencePiece: ▁."""

SAY_THEIR_FORMAT = (".tsv", ".csv", ".jsonl")
"""Suffixes of files of pairs."""

NOT_TEXT = {
    b"\x1f\x8b": "packed by gzip; unpack it: gunzip -c < {path} > {new}",
    b"BZh": "packed by bzip2; unpack it: bunzip2 -c < {path} > {new}",
    b"\xfd7zXZ": "packed by xz; unpack it: unxz -c < {path} > {new}",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it: unzstd -c < {path} > {new}",
    b"PK\x03\x04": "a spreadsheet or a zip archive; save it as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "a spreadsheet; save it as CSV in UTF-8",
    b"PAR1": "a Parquet file; write it as JSONL, say by pandas: "
    'read_parquet(...).to_json(..., orient="records", lines=True)',
    b"\xff\xfe": "text in UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8 {path} > {new}",
    b"\xfe\xff": "text in UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8 {path} > {new}",
}
"""How files begin that hold no text in UTF-8, what they are, and the remedy."""

FEWEST_ZEROS = 0.05
"""At least this share of the characters of text in UTF-16 has a byte 0: blanks, tabs, line ends."""

NEARLY_ALL = 0.9
"""The share of lines in which a mark stands that seems to divide sources from targets."""


@dataclass(frozen=True)
class TextPair:
    """One source and target as symbols, and where each was read: `file:line`."""

    src: list[str]
    tgt: list[str]
    src_place: str
    tgt_place: str


class TextFile(NamedTuple):
    """The pairs of a file, or of two files of parallel text, and the sha256 of all its bytes.

    first_row: all cells of the first row of tsv and csv, header or not; empty for other formats.
    """

    pairs: list[TextPair]
    sha256: str
    first_row: tuple[str, ...] = ()


class Record(NamedTuple):
    """A source and a target as they stand in a file: text, or a list of JSON; and where."""

    src: Any
    tgt: Any
    place: str


def check_keys(files: FilesConfig) -> None:
    """Raise BadKey for a key below data.files that says nothing of the format of the training file,
    or of the way its symbols are counted."""
    name: str = "text"
    if isinstance(files.train, str):
        name = files.format or Path(files.train).suffix.lower()[1:]
    if name not in ("tsv", "csv"):
        for key in ("columns", "header"):
            if getattr(files, key):
                raise BadKey(f"data.files.{key}", f"belongs to tsv and csv, not to {name}")
    if files.columns and files.columns[0] == files.columns[1]:
        raise BadKey("data.files.columns", "names one column twice; source and target are two")
    if files.fields and name != "jsonl":
        raise BadKey("data.files.fields", f"belongs to jsonl, not to {name}")
    if files.min_frequency > 1 and files.unknown == "error":
        reason = "rarer symbols become <unk>; set data.files.unknown: symbol too"
        raise BadKey("data.files.min_frequency", reason)


def read_file(paths: Paths, files: FilesConfig, sha256: str | None = None) -> TextFile:
    """The pairs of a file, or of two files of parallel text, whose bytes are read once.

    files: the keys that say how. sha256: of the file that a run was trained on; another is refused.
    Raises UserError with file and line for what does not fit the format.
    """
    if not isinstance(paths, str) and files.format not in (None, "text"):
        raise UserError(f"{paths[0]}: format {files.format} takes one file, not two")
    contents = _contents(paths)
    digest = _sha256(contents)
    if sha256 not in (None, digest):
        raise UserError(
            f"{contents[0][0]}: not what the run was trained on; put it back, or train again"
        )
    texts = [(path, _text_of(path, raw)) for path, raw in contents]
    if not isinstance(paths, str):
        return TextFile(_parallel(texts, files), digest)
    path, text = texts[0]
    name = format_of(path, files, text)
    _check_divider(path, name, text)
    pairs = [_pair(record, files) for record in _READERS[name](path, text, files)]
    if not pairs:
        raise UserError(f"{path}: holds no pairs; write one on each line")
    return TextFile(pairs, digest, _first_row(name, text))


def sha256_of(paths: Paths) -> str:
    """The fingerprint of a file, or of two files, one after the other. Raises UserError."""
    return _sha256(_contents(paths))


def _contents(paths: Paths) -> list[tuple[str, bytes]]:
    """The path, as messages show it, and the bytes of a file, or of two."""
    every = [shown(path) for path in ((paths,) if isinstance(paths, str) else paths)]
    return [(path, read_named(path, MOST_BYTES)) for path in every]


def _sha256(contents: list[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for _, raw in contents:
        digest.update(raw)
    return digest.hexdigest()


def format_of(path: str, files: FilesConfig, text: str) -> str:
    """The format of one file: what the keys say, or its ending. Raises UserError, whose remedy
    shows how the text begins."""
    if files.format == "text":
        raise UserError(f"{path}: format text takes two files: [SOURCE, TARGET]")
    name = files.format or Path(path).suffix.lower()[1:]
    if name in ("json", "jsonl") and text.lstrip().startswith("["):
        raise UserError(
            f"{path}: one JSON list; write each of its objects on a line: "
            f"jq -c '.[]' {path} > NEW.jsonl"
        )
    if name in _READERS:
        return name
    first = text.partition("\n")[0].rstrip("\r")
    remedy = "put a tab between source and target, write data.files.format: tsv"
    if like := _looks_like(first):
        remedy = f"rename the file, write data.files.format: {like}"
    elif how := _how_to_divide(path, text):
        remedy = how
    raise UserError(
        f"{path}: the ending does not tell the format, as .tsv, .csv and .jsonl do. The first line "
        f"is {_shown(first)}; {remedy}, or name two files of parallel text"
    )


def _looks_like(line: str) -> str:
    """The format that a line could be of, for a remedy; empty if none."""
    if line.lstrip().startswith(("{", "[")):
        return "jsonl"
    if line.lstrip().startswith("IN:"):
        return "scan"
    return "tsv" if "\t" in line else "csv" if "," in line else ""


def _check_divider(path: str, name: str, text: str) -> None:
    """Raise UserError for tsv without a tab, or csv without a comma, if another mark seems to
    divide its lines."""
    divider = {"tsv": "\t", "csv": ","}.get(name)
    if divider is None or divider in text:
        return
    for place, line in _lines(path, text):
        if line.strip(" "):
            how = "" if _looks_like(line) else _how_to_divide(path, text)
            if how:
                raise UserError(f"{place}: 1 column: {_shown(line)}; {how}")
            return


def _how_to_divide(path: str, text: str) -> str:
    """The command that puts tabs into lines with neither tab nor comma; empty where no mark seems
    to divide them.

    A mark divides if it stands in nearly all lines. The first blank does only if they begin with a
    word of their own, as in a dictionary, because sentences have blanks too.
    """
    lines = [line for _, line in _lines(path, text) if line.strip(" ")]
    for mark, name, how_often in (
        (" ||| ", "||| seems", ""),
        (";", "semicolons seem", "g"),
        (" ", "the first blank seems", ""),
    ):
        parts = [line.partition(mark) for line in lines]
        divided = [src for src, found, tgt in parts if found and src.strip() and tgt.strip()]
        if len(divided) < NEARLY_ALL * len(lines) or not divided:
            continue
        if mark != " " or len(set(divided)) >= NEARLY_ALL * len(lines):
            return (
                f"{name} to divide source and target; write a tab: "
                f"sed 's/{mark}/\\t/{how_often}' {shlex.quote(path)} > NEW.tsv"
            )
    return ""


def _first_row(name: str, text: str) -> tuple[str, ...]:
    """All cells of the first row that is not blank, in tsv and csv."""
    if name == "csv":
        return tuple(next(cells for cells in csv.reader(io.StringIO(text, newline="")) if cells))
    lines = (line for _, line in _lines("", text) if line.strip(" "))
    return tuple(next(lines).split("\t")) if name == "tsv" else ()


# Text and lines ------------------------------------------------------------------------------


def _text_of(path: str, raw: bytes) -> str:
    """The text of a file. Raises UserError where it is none in UTF-8."""
    for start, what in NOT_TEXT.items():
        if raw.startswith(start):
            new = "NEW" + next((s for s in Path(path).suffixes if s in SAY_THEIR_FORMAT), "")
            raise UserError(f"{path}: {what.format(path=shlex.quote(path), new=new)}")
    if encoding := _utf_16_without_mark(raw):
        raise UserError(
            f"{path}: text in UTF-16 without a mark at its start; write it as UTF-8: "
            f"iconv -f {encoding} -t UTF-8 {shlex.quote(path)} > NEW{Path(path).suffix}"
        )
    try:
        text = raw.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not text in UTF-8; if it is in Latin-1, write it as UTF-8: "
            f"iconv -f ISO-8859-1 -t UTF-8 {path} > NEW"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}:{line}: a NUL byte: not a text file")
    return text


def _utf_16_without_mark(raw: bytes) -> str:
    """The name of UTF-16 if the bytes seem to be text in it, either byte first: zeros stand only in
    the higher byte, and most bytes of line ends are ends of its lines. Empty for other bytes."""
    for encoding, higher, lower in (("UTF-16LE", 1, 0), ("UTF-16BE", 0, 1)):
        zeros = raw[higher::2].count(0)
        if len(raw) % 2 or zeros <= FEWEST_ZEROS * len(raw) / 2 or raw[lower::2].count(0):
            continue
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        if 2 * text.count("\n") > raw.count(b"\n"):
            return encoding
    return ""


def _lines(path: str, text: str) -> Iterator[tuple[str, str]]:
    """`file:line` and text of every line, without its end."""
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        yield f"{path}:{number}", line.removesuffix("\r")


def _shown(text: str) -> str:
    """A line as it was read, for an error: cut where it is long."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# Formats: from the text of a file to records --------------------------------------------------


def _parallel(texts: list[tuple[str, str]], files: FilesConfig) -> list[TextPair]:
    """Line k of one file is translated by line k of the other."""
    sides = [(path, list(_lines(path, text))) for path, text in texts]
    for path, lines in sides:
        if not lines:
            raise UserError(f"{path}: empty; an empty sequence is a blank line")
        if all(text.count("\t") == 1 for _, text in lines):
            raise UserError(
                f"{path}: a tab in each line, as of pairs; name this file alone, as format tsv"
            )
    (src_path, src_lines), (tgt_path, tgt_lines) = sides
    if len(src_lines) != len(tgt_lines):
        raise UserError(
            f"{src_path} has {len(src_lines):,} lines and {tgt_path} {len(tgt_lines):,}; "
            "line k of one must translate line k of the other"
        )
    of_src, of_tgt = symbols_of_sides(files)
    return [
        TextPair(symbols_of(src, of_src), symbols_of(tgt, of_tgt), src_place, tgt_place)
        for (src_place, src), (tgt_place, tgt) in zip(src_lines, tgt_lines, strict=True)
    ]


def _read_tsv(path: str, text: str, files: FilesConfig) -> Iterator[Record]:
    """Lines of columns with tabs between them."""
    lines = ((place, line) for place, line in _lines(path, text) if line.strip(" "))
    for number, (place, line) in enumerate(lines):
        if number or not files.header:
            yield _of_columns(line.split("\t"), place, files)


def _read_csv(path: str, text: str, files: FilesConfig) -> Iterator[Record]:
    """Rows of columns with commas between them. A column may stand in quotation marks."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 0
    try:
        for cells in rows:
            if cells:
                if number or not files.header:
                    yield _of_columns(cells, f"{path}:{rows.line_num}", files)
                number += 1
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: not CSV ({error})") from None


def _of_columns(cells: list[str], place: str, files: FilesConfig) -> Record:
    """Source and target among the columns of a row."""
    if files.columns is None and len(cells) == 2:
        return Record(cells[0], cells[1], place)
    count = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
    found = f"{place}: {count}: {_shown(' | '.join(cells))}"
    if files.columns is None and len(cells) > 2:
        raise UserError(
            f"{found}; say which are source and target, data.files.columns: [1, 2] for the first "
            "two"
        )
    if files.columns is None:
        is_csv = place.rpartition(":")[0].lower().endswith(".csv")
        name, divider = "tsv", "tab"
        if files.format == "csv" or (files.format is None and is_csv):
            name, divider = "csv", "comma"
        how = f"source, {divider}, target"
        if (like := _looks_like("".join(cells))) not in ("", name):
            how += f", or write data.files.format: {like}"
        raise UserError(f"{found}; expected {how}")
    if max(files.columns) > len(cells):
        raise UserError(f"{found}; data.files.columns: {list(files.columns)} needs more")
    first, second = files.columns
    return Record(cells[first - 1], cells[second - 1], place)


def _read_jsonl(path: str, text: str, files: FilesConfig) -> Iterator[Record]:
    """Lines of one JSON object each."""
    names = files.fields or ("src", "tgt")
    for place, line in _lines(path, text):
        if not line.strip(" "):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON ({error}): {_shown(line)}") from None
        if not isinstance(value, dict):
            raise UserError(
                f"{place}: not a JSON object: {_shown(line)}; write one object on each line, "
                'say {"src": "5 7", "tgt": "7 5"}'
            )
        sides = [_field(value, name) for name in names]
        for name, side in zip(names, sides, strict=True):
            if side is None:
                raise UserError(f"{place}: no {name} in {_shown(line)}; {_fields_to_write(value)}")
        yield Record(sides[0], sides[1], place)


def _field(value: Any, name: str) -> Any:
    """What an object holds under a name, which dots may lead inside; None if there is nothing."""
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _fields_to_write(value: dict[str, Any]) -> str:
    """The line to write for an object whose fields have other names."""
    names = list(_names_of_fields(value))
    if len(names) == 2:
        return f"write data.files.fields: [{', '.join(names)}]"
    found = f"; it has {', '.join(names[:10])}" if names else ""
    return f"name the two in data.files.fields: [SOURCE, TARGET]{found}"


def _names_of_fields(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of all text and lists in an object."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _names_of_fields(inner, f"{prefix}{name}.")
        elif isinstance(inner, str | list):
            yield prefix + name


def _read_scan(path: str, text: str, files: FilesConfig) -> Iterator[Record]:
    """Lines `IN: words OUT: actions`."""
    for place, line in _lines(path, text):
        if not line.strip(" "):
            continue
        start, middle, end = line.partition("OUT:")
        if not start.lstrip().startswith("IN:") or not middle:
            raise UserError(f"{place}: {_shown(line)}; expected IN: words OUT: actions")
        yield Record(start.lstrip()[len("IN:") :], end, place)


_READERS: dict[str, Callable[[str, str, FilesConfig], Iterator[Record]]] = {
    "tsv": _read_tsv,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "scan": _read_scan,
}


# Symbols -------------------------------------------------------------------------------------


def symbols_of_sides(files: FilesConfig) -> tuple[Symbols, Symbols]:
    """What a symbol is in sources, and in targets."""
    return (files.split, files.split) if isinstance(files.split, str) else files.split


def symbols_of(text: str, symbols: Symbols) -> list[str]:
    """The symbols of a text: what blanks part, or each character, with BLANK between the words."""
    words = text.split()
    return list(BLANK.join(words)) if symbols == "characters" else words


def _pair(record: Record, files: FilesConfig) -> TextPair:
    """The symbols of a record. Raises UserError."""
    place = record.place
    of_src, of_tgt = symbols_of_sides(files)
    src, tgt = _symbols(record.src, of_src, place), _symbols(record.tgt, of_tgt, place)
    return TextPair(src, tgt, place, place)


def _symbols(side: Any, kind: Symbols, place: str) -> list[str]:
    """The symbols of a text, or of a list of JSON, each of which is one."""
    if isinstance(side, str):
        symbols = symbols_of(side, kind)
    elif isinstance(side, list):
        symbols = [_symbol(symbol, place) for symbol in side]
    elif type(side) is int:
        symbols = symbols_of(str(side), kind)
    else:
        raise UserError(f"{place}: {_shown(json.dumps(side))}: neither text nor a list of symbols")
    try:
        "".join(symbols).encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: holds half a character: {_shown(str(side))}") from None
    return symbols


def _symbol(symbol: Any, place: str) -> str:
    """A symbol of a list of JSON."""
    text = symbol if isinstance(symbol, str) else str(symbol) if type(symbol) is int else ""
    if text.split() != [text]:
        raise UserError(
            f"{place}: holds {str(symbol)[:40]!r}; "
            "a symbol is a whole number or a word without blanks"
        )
    return text
