"""The batch that tables show."""

from toytrans.inspection.shown import batch_of_sequences


def test_words_get_ids_too():
    batch, vocabulary = batch_of_sequences(["jump twice"], ["JUMP JUMP"])
    assert vocabulary.symbols == ("JUMP", "jump", "twice")
    assert batch.src.tolist() == [[4, 5, 2]]
