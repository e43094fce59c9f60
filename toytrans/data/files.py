"""Pairs read from files: parallel text, TSV, JSONL, and SCAN's IN: ... OUT: ...

Symbols are what blanks separate. The vocabulary comes from the training file alone; a symbol that
it lacks is an error with file and line.
"""

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from toytrans.config.names import FormatName
from toytrans.config.schema import FilesConfig, Paths, Settings
from toytrans.data.hashing import Use, permutation
from toytrans.data.pairs import (
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
"""Of train, for validation, where no valid file is named."""

MOST_IDS = 2**27
"""Ids of one side of a file, padded to its longest sequence; less than fills a machine."""

MOST_BYTES, MOST_LINES, LONGEST_LINE = 100_000_000, 2_000_000, 1_000_000
"""Of a file, its lines, and characters of one; all of it is held in memory, many times its size."""


@dataclass(frozen=True)
class TextPair:
    """One source and target as symbols, and where each was read: `file:line`."""

    src: list[str]
    tgt: list[str]
    src_place: str
    tgt_place: str


class FilePairs:
    """The pairs of files. Splits are read when they are first asked for."""

    def __init__(
        self, files: FilesConfig, config: Settings, facts: DataFacts | None = None
    ) -> None:
        """files: those that the config names. facts: of the run that was trained on them."""
        self._files, self._facts = files, facts
        self._seed, self._examples = config.data_seed, config.data.examples
        self._texts: dict[Split, list[TextPair]] = {}
        self._encoded: dict[Split, Pairs] = {}

    @cached_property
    def facts(self) -> DataFacts:
        """Vocabulary, lengths and target growth of the training file, or those a run has saved."""
        if self._facts:
            return self._facts
        pairs = self._train_text
        lengths = [len(pair.src) for pair in pairs]
        return DataFacts(
            vocabulary_of(side for pair in pairs for side in (pair.src, pair.tgt)),
            (min(lengths), max(lengths)),
            _target_growth(pairs),
            sha256_of(self._files.train),
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was held out, and how many sources of valid and test are trained on too."""
        notes: list[str] = []
        train = self._text("train")
        if not self._files.valid:
            total = len(self._train_text)
            held_out = total - len(train)
            notes.append(
                f"no valid file: {held_out:,} of {total:,} training pairs "
                f"({held_out / total:.0%}, chosen by the seed) are held out for validation"
            )
        known = {tuple(pair.src) for pair in train}
        named: dict[Split, Paths | None] = {"valid": self._files.valid, "test": self._files.test}
        for split in (split for split, paths in named.items() if paths):
            text = self._text(split)
            if again := sum(tuple(pair.src) in known for pair in text):
                notes.append(f"{again:,} of {len(text):,} {split} sources are trained on too")
        return tuple(notes)

    @property
    def fingerprints(self) -> dict[str, str]:
        named = (("train", self._files.train), ("valid", self._files.valid))
        every = (*named, ("test", self._files.test))
        return {split: sha256_of(paths) for split, paths in every if paths}

    def size(self, split: Split) -> int:
        return len(self._split(split))

    def pairs(self, split: Split, indices: Tensor) -> Pairs:
        return self._split(split).take(indices)

    def pairs_of_every_length(self) -> Pairs:
        return self._split("train")

    @cached_property
    def _train_text(self) -> list[TextPair]:
        """The pairs of the training file. Raises UserError where it is not that of the run."""
        if self._facts and self._facts.train_sha256 != sha256_of(self._files.train):
            raise UserError(
                f"{self._files.train}: not the file that the run was trained on; put it back, or "
                "train again"
            )
        return read_pairs(self._files.train, self._files.format)

    def _split(self, split: Split) -> Pairs:
        if split not in self._encoded:
            text, limit = self._text(split), self._examples[split]
            if limit is not None and limit < len(text):
                chosen = permutation(len(text), self._seed, Use.SOME_EXAMPLES)[:limit].sort().values
                text = [text[i] for i in chosen.tolist()]
            self._encoded[split] = encode_pairs(text, self.facts.vocabulary)
        return self._encoded[split]

    def _text(self, split: Split) -> list[TextPair]:
        """A split's pairs before any limit."""
        if split not in self._texts:
            if split == "test" and self._files.test is None:
                raise UserError(
                    "this config names no test file; give --set data.files.test=PATH when "
                    "training, or --pairs to eval"
                )
            paths: Paths | None = getattr(self._files, split)
            if split != "train" and paths is not None:
                self._texts[split] = read_pairs(paths, self._files.format)
            elif self._files.valid:
                self._texts[split] = self._train_text
            else:
                self._texts |= self._shared_out()
        return self._texts[split]

    def _shared_out(self) -> dict[Split, list[TextPair]]:
        """The training file as train and valid. Pairs of equal sources stay together."""
        text = self._train_text
        sources = list(dict.fromkeys(tuple(pair.src) for pair in text))
        if len(sources) < 2:
            raise UserError(
                f"{self._files.train}: one source cannot be shared between train and validation; "
                "name a data.files.valid"
            )
        order = permutation(len(sources), self._seed, Use.VALID_SHARE).tolist()
        chosen = {sources[i] for i in order[: max(1, round(HELD_OUT_SHARE * len(sources)))]}
        return {
            "train": [pair for pair in text if tuple(pair.src) not in chosen],
            "valid": [pair for pair in text if tuple(pair.src) in chosen],
        }


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


def sha256_of(paths: Paths) -> str:
    """Of the contents of a file, or of two after each other."""
    digest = hashlib.sha256()
    for path in (paths,) if isinstance(paths, str) else paths:
        digest.update(read_named(path, MOST_BYTES))
    return digest.hexdigest()


def encode_pairs(text: Sequence[TextPair], vocabulary: Vocabulary) -> Pairs:
    """Padded ids of pairs. Raises UserError with file and line: for an unseen symbol, and for a
    sequence to which its side cannot be padded, since that is too many ids."""
    sources = [(pair.src, pair.src_place) for pair in text]
    targets = [(pair.tgt, pair.tgt_place) for pair in text]
    return Pairs(*_encoded(sources, vocabulary), *_encoded(targets, vocabulary))


def _encoded(lines: list[tuple[list[str], str]], vocabulary: Vocabulary) -> Sequences:
    """Padded ids of one side: of symbols, and of where each line was read."""
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
    """The pairs of a file, or of two files of parallel text. Raises UserError."""
    if not isinstance(paths, str):
        if format not in (None, "text"):
            raise UserError(f"{paths[0]}: format {format} takes one file, not two")
        return _parallel(*paths)
    parse = _parser(paths, format)
    pairs = [
        TextPair(*parse(line, place), place, place)
        for place, line in _lines(paths)
        if line.strip(" \r\n")
    ]
    if not pairs:
        raise UserError(f"{paths}: holds no pairs; write one on each line")
    return pairs


def _parallel(*paths: str) -> list[TextPair]:
    sides = [list(_lines(path)) for path in paths]
    for path, lines in zip(paths, sides, strict=True):
        if not lines:
            raise UserError(f"{path}: empty; an empty sequence is a blank line")
        if all(text.count("\t") == 1 for _, text in lines):
            raise UserError(
                f"{path}: a tab in each line, as of pairs; name this file alone, as format tsv"
            )
    src_lines, tgt_lines = sides
    if len(src_lines) != len(tgt_lines):
        raise UserError(
            f"{paths[0]} has {len(src_lines):,} lines and {paths[1]} {len(tgt_lines):,}; "
            "line k of one must translate line k of the other"
        )
    return [
        TextPair(src.split(), tgt.split(), src_place, tgt_place)
        for (src_place, src), (tgt_place, tgt) in zip(src_lines, tgt_lines, strict=True)
    ]


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """`file:line` and text of every line."""
    raw = read_named(path, MOST_BYTES).removeprefix(BOM_UTF8)
    if raw.count(b"\n") > MOST_LINES:
        raise UserError(f"{path}: more than {MOST_LINES:,} lines")
    for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else (), 1):
        place = f"{path}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise UserError(f"{place}: not text in UTF-8") from None
        if "\0" in text:
            raise UserError(f"{place}: a NUL byte: not a text file")
        if len(text) > LONGEST_LINE:
            raise UserError(f"{place}: a line of more than {LONGEST_LINE:,} characters")
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
