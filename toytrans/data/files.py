"""Pairs read from files: parallel text, TSV, JSONL, and SCAN's IN: ... OUT: ...

Symbols are what blanks separate. The vocabulary comes from the training file alone; a symbol that
it lacks is an error with file and line.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

from torch import Tensor

from toytrans.config.names import FormatName
from toytrans.config.schema import MOST_IDS, FilesConfig, Paths
from toytrans.data.hashing import Use, permutation
from toytrans.data.pairs import (
    MOST_TARGET_GROWTH,
    TARGET_SLACK,
    DataFacts,
    Pairs,
    Split,
    pad_rows,
)
from toytrans.errors import UnseenSymbol, UserError
from toytrans.files import read_named
from toytrans.tokens import Vocabulary, vocabulary_of

HELD_OUT_SHARE = 0.05
"""Of train, for validation, where no valid file is named."""

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
        self,
        files: FilesConfig,
        seed: int,
        examples: dict[str, int | None],
        facts: DataFacts | None = None,
    ) -> None:
        self._files, self._seed, self._examples, self._facts = files, seed, examples, facts
        self._texts: dict[Split, list[TextPair]] = {}
        self._encoded: dict[Split, Pairs] = {}

    @cached_property
    def facts(self) -> DataFacts:
        """Vocabulary, lengths and target growth of the training file, or those a run has saved."""
        if self._facts:
            return self._facts
        pairs = self._train_text
        lengths = [len(pair.src) for pair in pairs]
        vocabulary = vocabulary_of(side for pair in pairs for side in (pair.src, pair.tgt))
        return DataFacts(
            vocabulary,
            (min(lengths), max(lengths)),
            _target_growth(pairs),
            sha256_of(self._files.train),
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was held out, and how many sources of valid and test are trained on too."""
        notes = []
        train = self._text("train")
        if not self._files.valid:
            total = len(self._train_text)
            held_out = total - len(train)
            notes.append(
                f"no valid file: {held_out:,} of {total:,} training pairs "
                f"({held_out / total:.0%}, chosen by the seed) are held out for validation"
            )
        known = {tuple(pair.src) for pair in train}
        for split in ("valid", "test"):
            if getattr(self._files, split):
                text = self._text(split)
                again = sum(tuple(pair.src) in known for pair in text)
                if again:
                    notes.append(f"{again:,} of {len(text):,} {split} sources are trained on too")
        return tuple(notes)

    def size(self, split: Split) -> int:
        return len(self._split(split))

    def pairs(self, split: Split, indices: Tensor) -> Pairs:
        table = self._split(split)
        if table.src.device != indices.device:
            table = self._encoded[split] = table.to(indices.device)
        return table.take(indices)

    @cached_property
    def _train_text(self) -> list[TextPair]:
        if self._facts and self._facts.train_sha256 != sha256_of(self._files.train):
            raise UserError(
                f"{self._files.train}: not the file that the run was trained on; put it back, or "
                "train again"
            )
        return read_pairs(self._files.train, self._files.format)

    def _split(self, split: Split) -> Pairs:
        if split not in self._encoded:
            text = self._text(split)
            limit = self._examples[split]
            if limit is not None and limit < len(text):
                chosen = permutation(len(text), self._seed, Use.SOME_EXAMPLES)[:limit].sort().values
                text = [text[i] for i in chosen.tolist()]
            self._encoded[split] = encode_pairs(text, self.facts.vocabulary)
        return self._encoded[split]

    def _text(self, split: Split) -> list[TextPair]:
        if split not in self._texts:
            self._texts[split] = self._read_text(split)
        return self._texts[split]

    def _read_text(self, split: Split) -> list[TextPair]:
        """A split's pairs before any limit; without a valid file, its share of train."""
        paths: Paths | None = getattr(self._files, split)
        if paths is None and split == "test":
            raise UserError(
                "this config names no test file; give --set data.files.test=PATH when training, "
                "or --pairs to eval"
            )
        if paths is not None and split != "train":
            return read_pairs(paths, self._files.format)
        text = self._train_text
        if self._files.valid:
            return text
        sources = list(dict.fromkeys(tuple(pair.src) for pair in text))
        if len(sources) < 2:
            raise UserError(
                f"{self._files.train}: one source cannot be shared between train and validation; "
                "name a data.files.valid"
            )
        order = permutation(len(sources), self._seed, Use.VALID_SHARE).tolist()
        chosen = {sources[i] for i in order[: max(1, round(HELD_OUT_SHARE * len(sources)))]}
        return [pair for pair in text if (tuple(pair.src) in chosen) == (split == "valid")]


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


def read_pairs(paths: Paths, format: FormatName | None = None) -> list[TextPair]:
    """The pairs of a file, or of two files of parallel text. Raises UserError."""
    if isinstance(paths, str):
        format = format or _format_by_ending(paths)
        if format == "text":
            raise UserError(f"{paths}: format text takes two files: [SOURCE, TARGET]")
        parse = _PARSERS[format]
        pairs = []
        for place, line in _lines(paths):
            if line.strip(" \r\n"):
                src, tgt = parse(line, place)
                pairs.append(TextPair(src, tgt, place, place))
    else:
        if format not in (None, "text"):
            raise UserError(f"{paths[0]}: format {format} takes one file, not two")
        pairs = list(_parallel(*paths))
    if not pairs:
        raise UserError(f"{paths}: holds no pairs; write one on each line")
    return pairs


def encode_pairs(text: Sequence[TextPair], vocabulary: Vocabulary) -> Pairs:
    """Padded ids of pairs. Raises UserError with file and line: for an unseen symbol, and for a
    sequence to which its side cannot be padded, since that is too many ids."""
    sources = [(pair.src, pair.src_place) for pair in text]
    targets = [(pair.tgt, pair.tgt_place) for pair in text]
    return Pairs(*_encoded(sources, vocabulary), *_encoded(targets, vocabulary))


def _encoded(lines: list[tuple[list[str], str]], vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
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


def _parallel(src_path: str, tgt_path: str) -> Iterator[TextPair]:
    src_lines, tgt_lines = list(_lines(src_path)), list(_lines(tgt_path))
    for path, lines in ((src_path, src_lines), (tgt_path, tgt_lines)):
        if not lines:
            raise UserError(f"{path}: empty; an empty sequence is a blank line")
    if len(src_lines) != len(tgt_lines):
        raise UserError(
            f"{src_path} has {len(src_lines):,} lines and {tgt_path} {len(tgt_lines):,}; "
            "line k of one must translate line k of the other"
        )
    for path, lines in ((src_path, src_lines), (tgt_path, tgt_lines)):
        if all(text.count("\t") == 1 for _, text in lines):
            raise UserError(
                f"{path}: a tab in each line, as of pairs; name this file alone, as format tsv"
            )
    for (src_place, src), (tgt_place, tgt) in zip_longest(src_lines, tgt_lines):
        yield TextPair(src.split(), tgt.split(), src_place, tgt_place)


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """`file:line` and text of every line."""
    raw = read_named(path, MOST_BYTES)
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise UserError(f"{path}:{line}: a NUL byte: not a text file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not text in UTF-8 (byte {error.start})") from None
    if text.count("\n") > MOST_LINES:
        raise UserError(f"{path}: more than {MOST_LINES:,} lines")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line_text in enumerate(lines, 1):
        if len(line_text) > LONGEST_LINE:
            raise UserError(f"{path}:{number}: a line of more than {LONGEST_LINE:,} characters")
        yield f"{path}:{number}", line_text


def _format_by_ending(path: str) -> FormatName:
    endings: dict[str, FormatName] = {".tsv": "tsv", ".jsonl": "jsonl"}
    ending = Path(path).suffix.lower()
    if Path(path).is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    if ending not in endings:
        raise UserError(
            f"{path}: the ending does not tell the format; end the name with .tsv or .jsonl, or "
            "set data.files.format to tsv, jsonl or scan; parallel text is two files"
        )
    return endings[ending]


Parsed = tuple[list[str], list[str]]


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
    for symbol in value:
        whole = isinstance(symbol, int) and not isinstance(symbol, bool)
        if not whole and not (isinstance(symbol, str) and symbol.split() == [symbol]):
            raise UserError(
                f"{place}: {key} holds {str(symbol)[:40]!r}; "
                "a symbol is a whole number or a word without blanks"
            )
        try:
            str(symbol).encode()
        except UnicodeEncodeError:
            raise UserError(f"{place}: {key} holds half a character: {symbol!r}") from None
    return [str(symbol) for symbol in value]


def _parse_scan(line: str, place: str) -> Parsed:
    start, middle, end = line.partition("OUT:")
    if not start.lstrip().startswith("IN:") or not middle:
        raise UserError(f"{place}: expected IN: words OUT: actions")
    return start.lstrip()[len("IN:") :].split(), end.split()


_PARSERS: dict[FormatName, Callable[[str, str], Parsed]] = {
    "tsv": _parse_tsv,
    "jsonl": _parse_jsonl,
    "scan": _parse_scan,
}
