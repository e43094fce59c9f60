"""Pairs read from files: parallel text, TSV, JSONL, and SCAN's IN: ... OUT: ...

    the bytes of a file -> its lines -> pairs of symbols -> a table of ids for each split

Symbols are what blanks separate. The vocabulary comes from the training file alone; a symbol that
it lacks is an error with file and line. Where no validation file is named, some of the training
pairs are held out.
"""

import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from toytrans.config.schema import FilesConfig, FormatName, Paths, Settings
from toytrans.data.hashing import Use, permutation
from toytrans.data.pairs import (
    MOST_IDS,
    MOST_TARGET_GROWTH,
    TARGET_SLACK,
    DataFacts,
    Pairs,
    Sequences,
    Split,
    pad_rows,
)
from toytrans.errors import UnseenSymbol, UserError
from toytrans.files import read_named
from toytrans.tokens import Vocabulary, vocabulary_of

HELD_OUT_SHARE = 0.05
"""The share of the training pairs that validates, where no valid file is named."""

MOST_BYTES = 100_000_000
"""The largest file that is read: all of it is held in memory, many times its size."""


@dataclass(frozen=True)
class TextPair:
    """One source and target as symbols, and where each was read: `file:line`."""

    src: list[str]
    tgt: list[str]
    src_place: str
    tgt_place: str


class TextFile(NamedTuple):
    """The pairs of a file, or of two files of parallel text, and the sha256 of all its bytes."""

    pairs: list[TextPair]
    sha256: str


class FilePairs:
    """The pairs of files. Each file is read once, when it is first asked for."""

    def __init__(
        self, files: FilesConfig, config: Settings, facts: DataFacts | None = None
    ) -> None:
        """files: those that the config names. facts: of the run that was trained on them."""
        self._format, self._facts = files.format, facts
        self._named: dict[Split, Paths | None] = {
            "train": files.train,
            "valid": files.valid,
            "test": files.test,
        }
        self._seed, self._examples = config.data_seed, config.data.examples
        self._read_files: dict[Split, TextFile] = {}
        self._texts: dict[Split, list[TextPair]] = {}
        self._tables: dict[Split, Pairs] = {}

    @cached_property
    def facts(self) -> DataFacts:
        """Vocabulary, lengths and target growth of the training file, or those a run has saved."""
        if self._facts:
            return self._facts
        file = self._read("train")
        lengths = [len(pair.src) for pair in file.pairs]
        return DataFacts(
            vocabulary_of(side for pair in file.pairs for side in (pair.src, pair.tgt)),
            (min(lengths), max(lengths)),
            _target_growth(file.pairs),
            file.sha256,
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was held out, and how many sources of valid and test are trained on too."""
        notes: list[str] = []
        train = self._text("train")
        if not self._named["valid"]:
            total, held_out = len(self._read("train").pairs), len(self._text("valid"))
            notes.append(
                f"no valid file: {held_out:,} of {total:,} training pairs "
                f"({held_out / total:.0%}, chosen by the seed) are held out for validation"
            )
        trained = {tuple(pair.src) for pair in train}
        others: tuple[Split, ...] = ("valid", "test")
        for split in (split for split in others if self._named[split]):
            text = self._text(split)
            if again := sum(tuple(pair.src) in trained for pair in text):
                notes.append(f"{again:,} of {len(text):,} {split} sources are trained on too")
        return tuple(notes)

    @property
    def fingerprints(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for split, paths in self._named.items():
            if split in self._read_files:
                found[split] = self._read_files[split].sha256
            elif paths is not None:
                found[split] = sha256_of(paths)
        return found

    def size(self, split: Split) -> int:
        return len(self._table(split))

    def pairs(self, split: Split, indices: Tensor) -> Pairs:
        return self._table(split).take(indices)

    def pairs_of_every_length(self) -> Pairs:
        return self._table("train")

    def _read(self, split: Split) -> TextFile:
        """The file that the config names for a split. Raises UserError for a training file that is
        not that of the run."""
        if split not in self._read_files:
            paths = self._named[split]
            if paths is None:
                raise UserError(
                    f"this config names no {split} file; give --set data.files.{split}=PATH when "
                    "training, or --pairs to eval"
                )
            of_the_run = self._facts.train_sha256 if self._facts and split == "train" else None
            self._read_files[split] = read_file(paths, self._format, of_the_run)
        return self._read_files[split]

    def _text(self, split: Split) -> list[TextPair]:
        """A split's pairs before any limit."""
        if split not in self._texts:
            if split == "test" or self._named["valid"]:
                self._texts[split] = self._read(split).pairs
            else:
                train, valid = hold_out(self._read("train").pairs, self._seed)
                self._texts |= {"train": train, "valid": valid}
        return self._texts[split]

    def _table(self, split: Split) -> Pairs:
        """The pairs of a split as ids, some of them where the config limits their number."""
        if split not in self._tables:
            text, limit = self._text(split), self._examples[split]
            if limit is not None and limit < len(text):
                chosen = permutation(len(text), self._seed, Use.SOME_EXAMPLES)[:limit].sort().values
                text = [text[i] for i in chosen.tolist()]
            self._tables[split] = encode_pairs(text, self.facts.vocabulary)
        return self._tables[split]


def hold_out(pairs: list[TextPair], seed: int) -> tuple[list[TextPair], list[TextPair]]:
    """The pairs to train on, and about HELD_OUT_SHARE of them to validate with.

    Pairs of equal sources stay together. Sources are taken in an order that the seed decides, each
    if its pairs still fit the share. So a source that makes up more than the share is trained on,
    unless all sources do: then the rarest is held out. Raises UserError if there is only one.
    """
    counts = Counter(tuple(pair.src) for pair in pairs)
    sources = list(counts)
    if len(sources) < 2:
        raise UserError(
            f"{pairs[0].src_place.rpartition(':')[0]}: one source cannot be shared between train "
            "and validation; name a data.files.valid"
        )
    room = max(1, round(HELD_OUT_SHARE * len(pairs)))
    held_out = set()
    for i in permutation(len(sources), seed, Use.VALID_SHARE).tolist():
        if counts[sources[i]] <= room:
            held_out.add(sources[i])
            room -= counts[sources[i]]
    if not held_out:
        held_out.add(min(sources, key=counts.__getitem__))
    train = [pair for pair in pairs if tuple(pair.src) not in held_out]
    return train, [pair for pair in pairs if tuple(pair.src) in held_out]


def _target_growth(pairs: Sequence[TextPair]) -> int:
    """The least g from 2 to 1,000 for which g S + TARGET_SLACK tokens hold twice every target and
    its end: other sources may need more tokens than those of training."""
    growth = 2
    for pair in pairs:
        if len(pair.tgt) + 1 > MOST_TARGET_GROWTH * len(pair.src) + TARGET_SLACK and pair.src:
            raise UserError(
                f"{pair.tgt_place}: {len(pair.tgt):,} symbols for a source of {len(pair.src):,}; "
                f"a target may have {MOST_TARGET_GROWTH:,} for each of its source's"
            )
        if pair.src:
            growth = max(growth, -(-(2 * len(pair.tgt) + 1 - TARGET_SLACK) // len(pair.src)))
    return min(growth, MOST_TARGET_GROWTH)


def encode_pairs(text: Sequence[TextPair], vocabulary: Vocabulary) -> Pairs:
    """The pairs as padded ids. Raises UserError with file and line: for a symbol that training did
    not have, and for a sequence so long that its side, padded to it, would not fit the memory."""
    sources = [(pair.src, pair.src_place) for pair in text]
    targets = [(pair.tgt, pair.tgt_place) for pair in text]
    return Pairs(*_encoded(sources, vocabulary), *_encoded(targets, vocabulary))


def _encoded(lines: list[tuple[list[str], str]], vocabulary: Vocabulary) -> Sequences:
    """One side of some pairs as padded ids. lines: the symbols, and where they were read."""
    longest, where = max(lines, key=lambda line: len(line[0]))
    if len(lines) * len(longest) > MOST_IDS:
        raise UserError(
            f"{where}: {len(longest):,} symbols; padded to these, {len(lines):,} sequences are "
            f"more than {MOST_IDS:,} ids; leave the longest out"
        )
    rows = []
    for symbols, place in lines:
        try:
            rows.append(vocabulary.encode(symbols))
        except UnseenSymbol as error:
            raise UserError(f"{place}: {error}; it must occur in training") from None
    return pad_rows(rows)


# Reading -------------------------------------------------------------------------------------


def read_pairs(paths: Paths, format: FormatName | None = None) -> list[TextPair]:
    """The pairs of a file, or of two files of parallel text. Raises UserError with file and line
    for what does not fit the format."""
    return read_file(paths, format).pairs


def read_file(paths: Paths, format: FormatName | None, sha256: str | None = None) -> TextFile:
    """What a file holds, or two files of parallel text; their bytes are read once.

    sha256: the fingerprint of the file that a run was trained on; another is refused.
    """
    if not isinstance(paths, str) and format not in (None, "text"):
        raise UserError(f"{paths[0]}: format {format} takes one file, not two")
    parse = _parser(paths, format) if isinstance(paths, str) else None
    contents = _contents(paths)
    digest = _sha256(contents)
    if sha256 not in (None, digest):
        raise UserError(
            f"{paths}: not the file that the run was trained on; put it back, or train again"
        )
    if parse is None:
        return TextFile(_parallel(contents), digest)
    pairs = [
        TextPair(*parse(line, place), place, place)
        for path, raw in contents
        for place, line in _lines(path, raw)
        if line.strip(" \r\n")
    ]
    if not pairs:
        raise UserError(f"{paths}: holds no pairs; write one on each line")
    return TextFile(pairs, digest)


def sha256_of(paths: Paths) -> str:
    """The fingerprint of a file, or of two files, one after the other. Raises UserError."""
    return _sha256(_contents(paths))


def _contents(paths: Paths) -> list[tuple[str, bytes]]:
    """The path and the bytes of a file, or of two."""
    every = (paths,) if isinstance(paths, str) else paths
    return [(path, read_named(path, MOST_BYTES)) for path in every]


def _sha256(contents: list[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for _, raw in contents:
        digest.update(raw)
    return digest.hexdigest()


def _parallel(contents: list[tuple[str, bytes]]) -> list[TextPair]:
    """Line k of one file is translated by line k of the other."""
    sides = [(path, list(_lines(path, raw))) for path, raw in contents]
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
    return [
        TextPair(src.split(), tgt.split(), src_place, tgt_place)
        for (src_place, src), (tgt_place, tgt) in zip(src_lines, tgt_lines, strict=True)
    ]


def _lines(path: str, raw: bytes) -> Iterator[tuple[str, str]]:
    """`file:line` and text of every line of a file's bytes."""
    raw = raw.removeprefix(BOM_UTF8)
    for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else (), 1):
        place = f"{path}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise UserError(f"{place}: not text in UTF-8") from None
        if "\0" in text:
            raise UserError(f"{place}: a NUL byte: not a text file")
        yield place, text


Parsed = tuple[list[str], list[str]]


def _parser(path: str, format: FormatName | None) -> Callable[[str, str], Parsed]:
    """What reads a line of a file, in its format or that which its ending tells."""
    ending = Path(path).suffix.lower()
    if format == "text":
        raise UserError(f"{path}: format text takes two files: [SOURCE, TARGET]")
    if format is None and Path(path).is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    name = format or ending[1:]
    if name not in _PARSERS:
        raise UserError(
            f"{path}: the ending does not tell the format; end the name with .tsv or .jsonl, or "
            "set data.files.format to tsv, jsonl or scan; parallel text is two files"
        )
    return _PARSERS[name]


def _parse_tsv(line: str, place: str) -> Parsed:
    columns = line.rstrip("\r").split("\t")
    if len(columns) != 2:
        found = f"{len(columns)} columns" if len(columns) > 1 else "no tab"
        raise UserError(f"{place}: {found}; expected source, tab, target")
    return columns[0].split(), columns[1].split()


def _parse_jsonl(line: str, place: str) -> Parsed:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error})") from None
    if not isinstance(value, dict) or not {"src", "tgt"} <= value.keys():
        raise UserError(f'{place}: expected {{"src": [...], "tgt": [...]}}')
    return _symbols(value["src"], "src", place), _symbols(value["tgt"], "tgt", place)


def _symbols(value: object, key: str, place: str) -> list[str]:
    if not isinstance(value, list):
        raise UserError(f"{place}: {key} is not a list of symbols")
    symbols = []
    for symbol in value:
        text = symbol if isinstance(symbol, str) else str(symbol) if type(symbol) is int else ""
        if text.split() != [text]:
            raise UserError(
                f"{place}: {key} holds {str(symbol)[:40]!r}; "
                "a symbol is a whole number or a word without blanks"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{place}: {key} holds half a character: {text!r}") from None
        symbols.append(text)
    return symbols


def _parse_scan(line: str, place: str) -> Parsed:
    start, middle, end = line.partition("OUT:")
    if not start.lstrip().startswith("IN:") or not middle:
        raise UserError(f"{place}: expected IN: words OUT: actions")
    return start.lstrip()[len("IN:") :].split(), end.split()


_PARSERS: dict[str, Callable[[str, str], Parsed]] = {
    "tsv": _parse_tsv,
    "jsonl": _parse_jsonl,
    "scan": _parse_scan,
}
