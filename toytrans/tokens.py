"""Token ids: the three special ones, and the vocabulary between symbols and ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from toytrans.errors import UnseenSymbol, UserError

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
SPECIALS = ("<pad>", "<bos>", "<eos>")
FIRST_SYMBOL_ID = len(SPECIALS)


@dataclass(frozen=True)
class Vocabulary:
    """Symbols and their ids, shared by source and target: symbol number k has id k + 3.

    separators: the symbols at which the anchored positions start to count anew.
    unknown: the symbol as which all others are read; empty where others are an error.
    """

    symbols: tuple[str, ...]
    separators: tuple[str, ...] = ()
    unknown: str = ""
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = {symbol: FIRST_SYMBOL_ID + k for k, symbol in enumerate(self.symbols)}
        if len(ids) != len(self.symbols):
            raise UserError("a vocabulary holds the same symbol twice")
        if missing := {*self.separators, self.unknown} - {"", *ids}:
            raise UserError(f"{sorted(missing)} are not symbols of the vocabulary")
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        """V: the number of ids, special ones included."""
        return FIRST_SYMBOL_ID + len(self.symbols)

    @property
    def separator_ids(self) -> tuple[int, ...]:
        """The ids of the symbols that separate parts of a sequence."""
        return tuple(self._ids[symbol] for symbol in self.separators)

    @property
    def unknown_id(self) -> int:
        """The id of the symbol that stands for all others; -1, which no id is, without one."""
        return self._ids.get(self.unknown, -1)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """Ids of the symbols, without specials. Raises UnseenSymbol."""
        if self.unknown:
            return [self._ids.get(symbol, self.unknown_id) for symbol in symbols]
        try:
            return [self._ids[symbol] for symbol in symbols]
        except KeyError as error:
            raise UnseenSymbol(error.args[0], self.symbols) from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Symbols up to the first EOS; special ids are left out."""
        symbols = []
        for i in ids:
            if i == EOS_ID:
                break
            if i >= FIRST_SYMBOL_ID:
                symbols.append(self.symbols[i - FIRST_SYMBOL_ID])
        return symbols

    def name(self, token_id: int) -> str:
        """The text of one id, special ones by their name: for tables."""
        if token_id < FIRST_SYMBOL_ID:
            return SPECIALS[token_id]
        return self.symbols[token_id - FIRST_SYMBOL_ID]


def vocabulary_of(sequences: Iterable[Sequence[str]], unknown: str = "") -> Vocabulary:
    """The symbols that occur: whole numbers in order of value, then words in order of letters.

    unknown: a symbol for all others, which then comes first.
    """
    seen = {symbol for sequence in sequences for symbol in sequence} - {unknown}
    numbers = {symbol for symbol in seen if symbol.isascii() and symbol.isdigit()}
    first = (unknown,) if unknown else ()
    symbols = (*first, *sorted(numbers, key=_by_value), *sorted(seen - numbers))
    return Vocabulary(symbols, unknown=unknown)


def _by_value(digits: str) -> tuple[int, str, int]:
    """Orders numbers of any length by their value, 7 before 007: of numbers without leading zeros,
    the longer one is larger."""
    significant = digits.lstrip("0")
    return len(significant), significant, len(digits)
