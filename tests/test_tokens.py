"""Symbols and ids."""

import pytest

from toytrans.errors import UnseenSymbol, UserError
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary, vocabulary_of


def test_symbol_k_has_id_k_plus_three_and_decoding_stops_at_the_first_end():
    vocabulary = Vocabulary(("a", "b", "c"))
    assert vocabulary.encode(["c", "a"]) == [5, 3] and len(vocabulary) == 6
    assert vocabulary.decode([BOS_ID, 4, PAD_ID, 3, EOS_ID, 3]) == ["b", "a"]


def test_unseen_symbols_are_named():
    with pytest.raises(UnseenSymbol, match="symbol 'z' is not in the vocabulary"):
        Vocabulary(("a",)).encode(["a", "z"])


def test_numbers_are_ordered_by_value_and_come_before_words():
    found = vocabulary_of([["10", "walk", "9"], ["2", "jump"]])
    assert found.symbols == ("2", "9", "10", "jump", "walk")


def test_a_symbol_twice_is_refused():
    with pytest.raises(UserError, match="twice"):
        Vocabulary(("a", "a"))


def test_whole_numbers_stand_in_order_of_value_with_leading_zeros_too():
    found = vocabulary_of(
        [["10", "007", "9"], ["7", "0", "00", "x1", "b", "9" * 5000, "0" + "8" * 4]]
    )
    numbers = ("0", "00", "7", "007", "9", "10", "08888", "9" * 5000)
    assert found.symbols == (*numbers, "b", "x1")
