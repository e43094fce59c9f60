"""The pairs of files in three splits: read once, held out for validation, turned into ids.

    pairs of symbols (`formats` reads them) -> splits -> vocabulary -> a table of ids for each split

The vocabulary comes from training alone. A symbol that it lacks is an error with file and line, or
with data.files.unknown: symbol, it is read as <unk>. Where no validation file is named, some of the
training pairs are held out. `findings` says what is odd about the data.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from toytrans.config.schema import FilesConfig, Paths, Settings
from toytrans.data.findings import DataRead, Finding, find, smaller_symbols
from toytrans.data.formats import (
    TextFile,
    TextPair,
    check_keys,
    read_file,
    sha256_of,
)
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
from toytrans.tokens import Vocabulary, vocabulary_of

HELD_OUT_SHARE = 0.05
"""The share of the training pairs that validates, where no valid file is named."""

UNKNOWN = "<unk>"
"""The symbol that stands for all that training lacks, where the config wants one."""

MOST_NAMED = 3
"""So many unknown symbols are named in an error."""


class FileDataset:
    """The pairs of files. Each file is read once, when it is first asked for."""

    def __init__(
        self,
        files: FilesConfig,
        config: Settings,
        facts: DataFacts | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """files: those that the config names. facts: of the run that was trained on them.
        vocabulary: in place of that of the training file."""
        check_keys(files)
        self.files, self._facts, self._given_vocabulary = files, facts, vocabulary
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
            self._given_vocabulary or self.own_vocabulary(),
            (min(lengths), max(lengths)),
            _target_growth(file.pairs),
            file.sha256,
        )

    def own_vocabulary(self) -> Vocabulary:
        """All symbols of the training file, held out or not, so that one file has one vocabulary.
        Where others become <unk>, those that are trained on often enough."""
        if self.files.unknown == "error":
            pairs = self._read("train").pairs
            return vocabulary_of(side for pair in pairs for side in (pair.src, pair.tgt))
        counts = Counter[str]()
        for pair in self._text("train"):
            counts.update(pair.src)
            counts.update(pair.tgt)
        often = [symbol for symbol, n in counts.items() if n >= self.files.min_frequency]
        return vocabulary_of([often], unknown=UNKNOWN)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is told about the data: reads every file that the config names."""
        splits: list[Split] = ["train", "valid"]
        if self._named["test"]:
            splits.append("test")
        texts = {split: self._text(split) for split in splits}
        files = {split: file.pairs for split, file in self._read_files.items()}
        rows = {split: file.first_row for split, file in self._read_files.items()}
        return find(DataRead(self.files, files, rows, texts, self.facts.vocabulary))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the splits, one sentence each."""
        return tuple(map(str, self.findings))

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
                    f"this config names no {split} file; measure --split valid or --pairs FILE, or "
                    f"train with --set data.files.{split}=PATH"
                )
            of_the_run = self._facts.train_sha256 if self._facts and split == "train" else None
            self._read_files[split] = read_file(paths, self.files, of_the_run)
        return self._read_files[split]

    def _text(self, split: Split) -> list[TextPair]:
        """The pairs of a split, some of them where the config limits their number."""
        if split not in self._texts:
            if split == "test" or self._named["valid"]:
                self._texts[split] = self._some_of(split, self._read(split).pairs)
            else:
                train, valid = hold_out(self._read("train").pairs, self._seed)
                self._texts["train"] = self._some_of("train", train)
                self._texts["valid"] = self._some_of("valid", valid)
        return self._texts[split]

    def _some_of(self, split: Split, pairs: list[TextPair]) -> list[TextPair]:
        """As many pairs of a split as the config wants, chosen by the seed, in their order."""
        limit = self._examples[split]
        if limit is None or limit >= len(pairs):
            return pairs
        chosen = permutation(len(pairs), self._seed, Use.SOME_EXAMPLES)[:limit].sort().values
        return [pairs[i] for i in chosen.tolist()]

    def _table(self, split: Split) -> Pairs:
        """The pairs of a split as ids."""
        if split not in self._tables:
            remedy = "data.files.unknown: symbol reads them as <unk>"
            if smaller := smaller_symbols(self._text(split), self.files):
                remedy += f", data.files.split: {smaller} takes smaller symbols"
            self._tables[split] = encode_pairs(self._text(split), self.facts.vocabulary, remedy)
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


def encode_pairs(text: Sequence[TextPair], vocabulary: Vocabulary, remedy: str = "") -> Pairs:
    """The pairs as padded ids.

    remedy: what helps where symbols of a file are not in the vocabulary; empty for pairs that were
        typed.
    Raises UserError with file and line for such a symbol, and for a sequence so long that its side,
    padded to it, would not fit the memory.
    """
    sources = [(pair.src, pair.src_place) for pair in text]
    targets = [(pair.tgt, pair.tgt_place) for pair in text]
    try:
        return Pairs(*_encoded(sources, vocabulary), *_encoded(targets, vocabulary))
    except UnseenSymbol as error:
        raise UserError(_unseen(text, vocabulary, error, remedy)) from None


def _encoded(lines: list[tuple[list[str], str]], vocabulary: Vocabulary) -> Sequences:
    """One side of some pairs as padded ids. lines: the symbols, and where they were read. Raises
    UnseenSymbol."""
    longest, where = max(lines, key=lambda line: len(line[0]))
    if len(lines) * len(longest) > MOST_IDS:
        raise UserError(
            f"{where}: {len(longest):,} symbols; padded to these, {len(lines):,} sequences are "
            f"more than {MOST_IDS:,} ids; leave the longest out"
        )
    return pad_rows([vocabulary.encode(symbols) for symbols, _ in lines])


def _unseen(
    text: Sequence[TextPair], vocabulary: Vocabulary, error: UnseenSymbol, remedy: str
) -> str:
    """Which pairs hold symbols that the vocabulary lacks: the first one's place, how many, and a
    few of the symbols."""
    known = set(vocabulary.symbols)
    sides = [(pair.src_place, pair.src) for pair in text]
    sides += [(pair.tgt_place, pair.tgt) for pair in text]
    odd = [(place, symbols) for place, symbols in sides if not known.issuperset(symbols)]
    if not remedy:
        return f"{odd[0][0]}: {error}"
    pairs = sum(not known.issuperset((*pair.src, *pair.tgt)) for pair in text)
    unseen = dict.fromkeys(s for _, symbols in odd for s in symbols if s not in known)
    named = ", ".join(map(repr, list(unseen)[:MOST_NAMED]))
    more = f" and {len(unseen) - MOST_NAMED:,} more" if len(unseen) > MOST_NAMED else ""
    return (
        f"{odd[0][0]}: {error.what}. {pairs:,} of {len(text):,} pairs hold symbols that training "
        f"lacks: {named}{more}; {remedy}"
    )
