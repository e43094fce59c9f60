"""What is odd about the pairs of files: each finding is a function, and an entry in FINDINGS.

A function reads the data and yields findings: a sentence with counts, and the remedy. `train` shows
them before the first step, and `doctor` before it asks for more pairs, as text and as JSON.
"""

import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from toytrans.config.schema import FilesConfig, Symbols
from toytrans.data.formats import BLANK, TextPair, symbols_of, symbols_of_sides
from toytrans.data.pairs import Side, Split
from toytrans.references import shown
from toytrans.tokens import Vocabulary

WORDS = {"train": "training", "valid": "validation", "test": "test"}
"""The splits in a sentence."""

SIDES: dict[Side, str] = {"src": "source", "tgt": "target"}

NEARLY = 0.9
"""The share of pairs that counts as nearly all."""

FEW = 10
"""Of fewer pairs than these, nothing is said that only many can show."""

MARKS = ("Mn", "Mc", "Me", "Lm", "Sk")
"""The categories of Unicode of what stands on a letter or behind it, such as an accent or ː."""

NAMES_OF_COLUMNS = """
source target src tgt trg input output inputs outputs text label question answer sentence
translation word words form lemma inflected features tags pronunciation phonemes ipa date number
name key value from to command action actions original simplified noisy clean incorrect correct
infix postfix expression result english german french spanish italian russian chinese japanese
korean en de fr es it ru zh ja ko
"""
"""Words that stand in the first row of many files, in lower case."""


@dataclass(frozen=True)
class DataRead:
    """The pairs of files as they were read.

    files: the keys that said how. of_files: all pairs of each file, in its order; train and valid
    may be of one. first_rows: all cells of the first row of each file, for tsv and csv. splits: the
    pairs that are trained on or measured.
    """

    files: FilesConfig
    of_files: dict[Split, list[TextPair]]
    first_rows: dict[Split, tuple[str, ...]]
    splits: dict[Split, list[TextPair]]
    vocabulary: Vocabulary

    def splits_characters(self, side: Side) -> bool:
        """Whether each character of a side is a symbol."""
        return symbols_of_sides(self.files)[side == "tgt"] == "characters"

    def text(self, symbols: Iterable[str], side: Side) -> str:
        """Symbols of a side as they stood in the file."""
        if self.splits_characters(side):
            return "".join(symbols).replace(BLANK, " ")
        return " ".join(symbols)

    def shown(self, symbols: Iterable[str], side: Side) -> str:
        """Symbols as a sentence has them, cut where they are long."""
        text = self.text(symbols, side)
        return repr(text if len(text) <= 40 else f"{text[:37]}...")


class Finding(NamedTuple):
    """One thing to know about the data.

    title: what it is, in a few words. what: a sentence with counts. remedy: what to do about it.
    is_odd: whether the data should perhaps be different; else it is only told.
    """

    name: str
    title: str
    what: str
    remedy: str
    is_odd: bool = True

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def find(data: DataRead) -> tuple[Finding, ...]:
    """Everything that is to be told about the data, in the order of FINDINGS."""
    return tuple(finding for look in FINDINGS for finding in look(data))


def smaller_symbols(pairs: Iterable[TextPair], files: FilesConfig) -> str:
    """The value of data.files.split that takes smaller symbols; empty where nothing does, or where
    only the targets stand between blanks, as sounds do: characters would tear them apart.

    Where nearly all sources are one word, and nearly all targets have blanks, only the sources are
    to be split.
    """
    if symbols_of_sides(files) != ("blanks", "blanks"):
        return "characters" if symbols_of_sides(files) == ("blanks", "characters") else ""
    words = [len(pair.src) == 1 < len(pair.tgt) for pair in pairs]
    return "[characters, blanks]" if sum(words) >= NEARLY * len(words) else "characters"


# The findings --------------------------------------------------------------------------------


def held_out(data: DataRead) -> Iterator[Finding]:
    """Validation pairs were taken from the training file."""
    if data.files.valid is None:
        total, count = len(data.of_files["train"]), len(data.splits["valid"])
        yield Finding(
            "held_out",
            "Many of the training pairs are held out.",
            f"no valid file: {count:,} of {total:,} training pairs ({count / total:.0%}, chosen by "
            "the seed) are held out for validation",
            "data.files.valid names others",
            is_odd=count > total / 10,
        )


def text_that_is_not_split(data: DataRead) -> Iterator[Finding]:
    """Nearly every source, or target, is one symbol that hardly occurs again."""
    train = data.splits["train"]
    unsplit = dict[Side, tuple[int, str]]()  # pairs, and an example
    for side in SIDES:
        alone = [symbols[0] for symbols in _side(train, side) if len(symbols) == 1]
        words = [symbol for symbol in alone if len(symbol) > 1]
        nearly_all = len(train) >= FEW and len(words) >= NEARLY * len(train)
        if nearly_all and len(set(words)) > len(words) / 2 and not data.splits_characters(side):
            unsplit[side] = len(alone), words[0]
    key = "characters" if len(unsplit) == len(SIDES) else "[characters, blanks]"
    if [*unsplit] == ["tgt"]:
        key = "characters" if data.splits_characters("src") else "[blanks, characters]"
    for side, (count, example) in unsplit.items():
        yield Finding(
            "not_split",
            "Text is not split into symbols.",
            f"{count:,} of {len(train):,} training {SIDES[side]}s are one symbol of their own, "
            f"such as {example!r}",
            "nothing can be learned from one about another: put blanks between characters, or set "
            f"data.files.split: {key}",
        )


def blanks_that_split_already(data: DataRead) -> Iterator[Finding]:
    """Each character is a symbol, but blanks stood between the symbols: nearly every second symbol
    is a blank, if the marks on a letter do not count."""
    split: list[Symbols] = [*symbols_of_sides(data.files)]
    already: list[Side] = []
    train = data.splits["train"]
    for place, side in enumerate(SIDES):
        symbols = [s for row in _side(train, side) for s in row]
        blanks = symbols.count(BLANK)
        letters = sum(unicodedata.category(s[0]) not in MARKS for s in symbols) - blanks
        words = blanks + len(train)
        if data.splits_characters(side) and blanks >= len(train) and letters <= 1.5 * words:
            already.append(side)
            split[place] = "blanks"
    remedy = f"data.files.split: [{', '.join(split)}] keeps them whole"
    if split == ["blanks", "blanks"]:
        remedy = "leave data.files.split out"
    for side in already:
        example = next(row for row in _side(train, side) if BLANK in row)
        yield Finding(
            "already_split",
            "Blanks are symbols between symbols.",
            f"the {SIDES[side]}s were already split by blanks, and with split: characters nearly "
            f"every second symbol is a blank: {' '.join(example[:9])!r}",
            remedy,
        )


def unseen_symbols(data: DataRead) -> Iterator[Finding]:
    """Pairs that are measured hold symbols that were never trained."""
    reads_others = bool(data.vocabulary.unknown)
    smaller = smaller_symbols(data.splits["train"], data.files)
    take_smaller = f"take smaller symbols (data.files.split: {smaller}), " if smaller else ""
    trained = set(data.vocabulary.symbols)
    if not reads_others:
        trained = {s for pair in data.splits["train"] for s in (*pair.src, *pair.tgt)}
    for split, pairs in data.splits.items():
        unseen = [p for p in pairs if not trained.issuperset((*p.src, *p.tgt))]
        if not unseen:
            continue
        first = unseen[0]
        symbol = next(s for s in (*first.src, *first.tgt) if s not in trained)
        place = first.tgt_place if trained.issuperset(first.src) else first.src_place
        count = f"{len(unseen):,} of {len(pairs):,} {WORDS[split]} pairs hold a symbol that"
        what = f"{count} training lacks, such as {symbol!r} ({place})"
        remedy = (
            "what was never trained is not known: train on more pairs, "
            f"{take_smaller}or set data.files.unknown: symbol"
        )
        if reads_others:
            remedy = "it is read as <unk>, which counts as wrong in an output"
        if split == "train":
            rare = f"fewer than {data.files.min_frequency} times"
            what = f"{count} occurs {rare} in training, such as {symbol!r} ({place})"
        title = "Symbols were never trained."
        yield Finding("unseen_symbols", title, what, remedy, is_odd=split != "train")


def first_row_is_a_header(data: DataRead) -> Iterator[Finding]:
    """The first row of a file holds names of columns, or is unlike all others."""
    if data.files.header:
        return
    first_rows = {split: pairs[0] for split, pairs in data.of_files.items()}
    rows = [(pair.src, pair.tgt) for pair in first_rows.values()]
    headers = dict[str, TextPair]()
    for split, first in first_rows.items():
        if first.src_place != first.tgt_place or not first.src_place.endswith(":1"):
            continue  # parallel text, or no first line
        cells = data.text(first.src, "src"), data.text(first.tgt, "tgt")
        names = [cell.strip("#'\"").lower() for cell in cells]
        if (
            set(names) <= set(NAMES_OF_COLUMNS.split())
            or rows.count((first.src, first.tgt)) > 1
            or _is_strange(data.of_files[split])
        ):
            headers[WORDS[split]] = first
    if headers:
        first = next(iter(headers.values()))
        files = f"{' and '.join(headers)} file" + "s" * (len(headers) > 1)
        yield Finding(
            "header",
            "A file seems to begin with the names of its columns.",
            f"the first row of the {files} looks like a header: {data.shown(first.src, 'src')} and "
            f"{data.shown(first.tgt, 'tgt')} ({first.src_place})",
            "data.files.header: true leaves it out",
        )


def header_that_is_a_pair(data: DataRead) -> Iterator[Finding]:
    """The first row was left out as a header, but looks like the others."""
    if not data.files.header:
        return
    columns = data.files.columns or (1, 2)
    for split, row in data.first_rows.items():
        if max(columns) > len(row):
            continue
        cells = [row[column - 1] for column in columns]
        if not set(map(str.lower, cells)) & set(NAMES_OF_COLUMNS.split()) and _is_usual(
            cells, data, split
        ):
            yield Finding(
                "no_header",
                "A pair was left out as a header.",
                f"the first row of the {WORDS[split]} file looks like the others, but data.files."
                f"header: true leaves it out: {cells[0]!r} and {cells[1]!r}",
                "take the key away if it is a pair",
            )


def _is_usual(cells: list[str], data: DataRead, split: Split) -> bool:
    """Whether a row is like the pairs of a file: it has a digit where they all do, or all that
    stands between its blanks occurs in them, on each side that is not split into characters."""
    known = list[bool]()
    for cell, side in zip(cells, SIDES, strict=True):
        others = _side(data.of_files[split], side)
        if _has_digit(cell) and all(_has_digit("".join(other)) for other in others):
            return True
        if not data.splits_characters(side):
            symbols = set(symbols_of(cell, "blanks"))
            known.append(bool(symbols) and symbols <= {s for other in others for s in other})
    return bool(known) and all(known)


def _is_strange(pairs: list[TextPair]) -> bool:
    """Whether the first row is unlike all others: all its symbols occur once in the file, or it
    alone has a side without a digit."""
    first, others = pairs[0], pairs[1:]
    if len(pairs) < FEW or not (first.src and first.tgt):
        return False
    for side in SIDES:
        here, *there = ("".join(symbols) for symbols in _side(pairs, side))
        if not _has_digit(here) and all(map(_has_digit, there)):
            return True
    counts = Counter(s for pair in pairs for s in (*pair.src, *pair.tgt))
    once = (all(counts[s] == 1 for s in (*p.src, *p.tgt)) for p in others if p.src and p.tgt)
    return all(counts[s] == 1 for s in (*first.src, *first.tgt)) and not any(once)


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def several_targets(data: DataRead) -> Iterator[Finding]:
    """One source is trained with different targets."""
    targets = dict[tuple[str, ...], dict[tuple[str, ...], None]]()
    for pair in data.splits["train"]:
        targets.setdefault(tuple(pair.src), {})[tuple(pair.tgt)] = None
    several = [(src, tgts) for src, tgts in targets.items() if len(tgts) > 1]
    if several:
        source, given = several[0][0], [data.shown(each, "tgt") for each in several[0][1]]
        yield Finding(
            "several_targets",
            "Sources have several targets.",
            f"{len(several):,} of {len(targets):,} different training sources have several "
            f"targets: {data.shown(source, 'src')} has {given[0]} and {given[1]}",
            f"a model gives one of them, so {_tell_apart(data)}keep one, or expect an exact match "
            "below 1",
        )


def _tell_apart(data: DataRead) -> str:
    """How a column that was left out comes to the source; empty where there is none."""
    chosen, row = data.files.columns, data.first_rows["train"]
    left_out = [column for column in range(1, len(row) + 1) if column not in (chosen or ())]
    if chosen is None or not left_out:
        return ""
    column, path = left_out[0], shown(str(data.files.train))
    join = "join it to the source"
    if data.files.format == "tsv" or path.lower().endswith(".tsv"):
        join += (
            f" (awk -F'\\t' '{{print ${chosen[0]} \" \" ${column} \"\\t\" ${chosen[1]}}}' "
            f"{shlex.quote(path)} > NEW.tsv, and leave data.files.columns out)"
        )
    names = " or ".join(map(str, left_out))
    return f"if column {names}, which is left out, tells them apart, {join}, "


def one_target(data: DataRead) -> Iterator[Finding]:
    """All sources are trained with one and the same target."""
    targets = _side(data.splits["train"], "tgt")
    if len(targets) >= FEW and all(target == targets[0] for target in targets):
        yield Finding(
            "one_target",
            "All targets are the same.",
            f"all {len(targets):,} training targets are the same: {data.shown(targets[0], 'tgt')}",
            "there is nothing to learn: does data.files.columns or fields name the targets?",
        )


def trained_on_too(data: DataRead) -> Iterator[Finding]:
    """Files that are measured share sources with those that are trained on, or with each other."""
    earlier = dict[Split, tuple[set[tuple[str, ...]], set[tuple[tuple[str, ...], ...]]]]()
    for split, pairs in data.splits.items():
        rows = [(tuple(pair.src), tuple(pair.tgt)) for pair in pairs]
        for before, (sources, both) in earlier.items():
            again = sum(src in sources for src, _ in rows)
            if again and not (split == "valid" and data.files.valid is None):
                equal = sum(row in both for row in rows)
                where = "are trained on too" if before == "train" else "validate too"
                yield Finding(
                    "trained_on_too",
                    "Splits share sources.",
                    f"{again:,} of {len(rows):,} {split} sources {where}, {equal:,} of them with "
                    "the same target",
                    "take them out of one file, unless that is meant",
                )
        earlier[split] = {src for src, _ in rows}, set(rows)


def two_unicode_forms(data: DataRead) -> Iterator[Finding]:
    """A letter is written in two ways: as one character, and as several."""
    pairs = [pair for of_file in data.of_files.values() for pair in of_file]
    texts = ["".join((*pair.src, "\n", *pair.tgt)) for pair in pairs]
    apart = [text for text in texts if not unicodedata.is_normalized("NFC", text)]
    composed = {c for text in apart for c in unicodedata.normalize("NFC", text)}
    composed -= {c for text in apart for c in text}
    together = {c for text in texts for c in composed.intersection(text)} if composed else set()
    if together:
        letter = min(together)
        yield Finding(
            "two_unicode_forms",
            "A letter has two Unicode forms.",
            f"{letter!r} is written in two ways, as one character and as {len(_parts(letter))} "
            f"({' '.join(f'U+{ord(c):04X}' for c in _parts(letter))}); {len(apart):,} of "
            f"{len(texts):,} pairs hold such letters",
            "to a model these are different symbols: bring the files into one form, NFC "
            "(unicodedata.normalize in Python)",
        )


def _parts(letter: str) -> str:
    return unicodedata.normalize("NFD", letter)


def empty_sides(data: DataRead) -> Iterator[Finding]:
    """Pairs without a source or without a target."""
    pairs = [pair for of_file in data.of_files.values() for pair in of_file]
    sources = [pair.src_place for pair in pairs if not pair.src]
    targets = [pair.tgt_place for pair in pairs if not pair.tgt]
    empty = [
        f"{len(places):,} have an empty {name} ({places[0]})"
        for name, places in (("source", sources), ("target", targets))
        if places
    ]
    if empty:
        yield Finding(
            "empty_sides",
            "Pairs have an empty side.",
            f"of {len(pairs):,} pairs {' and '.join(empty)}",
            "take them out, unless an empty sequence is meant",
        )


def quotation_marks(data: DataRead) -> Iterator[Finding]:
    """Sides that stand in quotation marks, as in CSV."""
    pairs = [pair for of_file in data.of_files.values() for pair in of_file]
    quoted = [pair for pair in pairs if any(map(_is_quoted, (pair.src, pair.tgt)))]
    if len(quoted) > len(pairs) / 2:
        yield Finding(
            "quotation_marks",
            "Quotation marks are symbols.",
            f"in {len(quoted):,} of {len(pairs):,} pairs a side stands in quotation marks, which "
            f"are a part of its symbols ({quoted[0].src_place})",
            "take them out; in a file of commas, data.files.format: csv does",
        )


def _is_quoted(symbols: list[str]) -> bool:
    return len("".join(symbols)) > 1 and symbols[0][0] == symbols[-1][-1] == '"'


def _side(pairs: list[TextPair], side: Side) -> list[list[str]]:
    return [pair.src if side == "src" else pair.tgt for pair in pairs]


FINDINGS: tuple[Callable[[DataRead], Iterator[Finding]], ...] = (
    held_out,
    text_that_is_not_split,
    blanks_that_split_already,
    one_target,
    unseen_symbols,
    first_row_is_a_header,
    header_that_is_a_pair,
    several_targets,
    trained_on_too,
    two_unicode_forms,
    empty_sides,
    quotation_marks,
)
"""What is looked for; what says most comes first."""
