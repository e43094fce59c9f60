"""Pairs from files: vocabulary, splits, what is held out, unknown symbols."""

import json
from hashlib import sha256

import pytest
import torch
from conftest import config_of, config_of_files

from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import all_pairs
from toytrans.errors import UserError


def file_pairs(tmp_path, train, **others):
    paths = {}
    for name, pairs in {"train": train, **others}.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"src": s, "tgt": t}) + "\n" for s, t in pairs))
        paths[name] = str(path)
    return open_dataset(config_of_files(paths))


def test_the_vocabulary_comes_from_training_alone(tmp_path):
    dataset = file_pairs(
        tmp_path, [([1, 10, 9], ["a"])], valid=[([9], ["a"])], test=[([9], []), ([7], [])]
    )
    assert dataset.facts.vocabulary.symbols == ("1", "9", "10", "a")
    assert dataset.size("valid") == 1
    with pytest.raises(UserError) as error:
        dataset.size("test")
    said = str(error.value)
    assert "test.jsonl:2: symbol '7' is not in the vocabulary" in said
    assert "1 of 2 pairs hold symbols that training lacks: '7'; " in said
    assert "data.files.unknown: symbol" in said


def test_decoding_may_grow_to_twice_what_training_targets_do(tmp_path):
    """growth S + 10 tokens: 12 symbols, twice 6, and their end need growth 3 for one of source."""
    for length, growth in ((5, 2), (6, 3), (10, 11), (900, 1000), (1009, 1000)):
        dataset = file_pairs(tmp_path, [([1, 2], [1]), ([1], [1] * length), ([], [1] * 50)])
        assert dataset.facts.target_growth == growth


def test_a_limit_takes_a_fixed_choice_of_a_file(tmp_path):
    file_pairs(tmp_path, [([k], [k]) for k in range(50)])
    files = dict.fromkeys(("train", "valid", "test"), str(tmp_path / "train.jsonl"))
    config = config_of_files(files, test_examples=20)
    first, second = (open_dataset(config).pairs("test", torch.arange(20)).src for _ in "12")
    assert first.equal(second) and len(first[:, 0].unique()) == 20


def test_a_seeded_share_of_train_is_held_out_and_overlaps_are_counted(tmp_path):
    train = [([k % 100], [k]) for k in range(200)]
    dataset = file_pairs(tmp_path, train, test=[([3], []), ([4, 4], [])])
    held_out = all_pairs(dataset, "valid").src[:, 0].tolist()
    trained = all_pairs(dataset, "train").src[:, 0].tolist()
    assert len(held_out) == 10 and len(set(held_out)) == 5
    assert not set(held_out) & set(trained) and len(trained) == 190
    assert "10 of 200 training pairs (5%" in dataset.notes[0]
    known = 3 + 3 in trained  # symbol 3 has id 6
    assert any("1 of 2 test sources are trained on too" in note for note in dataset.notes) == known
    assert known, "the case occurs with this seed"


def lines_of(source: str, times: int) -> list[tuple[list[str], list[str]]]:
    return [([source], [source])] * times


def test_a_source_of_more_than_the_share_is_never_held_out(tmp_path):
    """With each of many seeds; and the share of the pairs holds where rarer sources allow it."""
    train = [pair for k in range(60) for pair in lines_of(f"s{k}", 1)] + lines_of("often", 40)
    file_pairs(tmp_path, train)
    for seed in range(40):
        config = config_of_files({"train": str(tmp_path / "train.jsonl")}, seed=seed)
        dataset = open_dataset(config)
        often = dataset.facts.vocabulary.encode(["often"])[0]
        assert dataset.size("valid") == 5, "5% of 100 pairs"
        assert often not in all_pairs(dataset, "valid").src
        assert (all_pairs(dataset, "train").src == often).sum() == 40


def test_the_rarest_source_is_held_out_where_none_fits_the_share(tmp_path):
    dataset = file_pairs(tmp_path, lines_of("a", 6) + lines_of("b", 4))
    assert dataset.size("valid") == 4 and dataset.size("train") == 6
    assert "4 of 10 training pairs (40%" in dataset.notes[0]


def test_fingerprints_tell_which_file_has_changed(tmp_path):
    """Of each file that the config names, whether it was read before or not."""
    file_pairs(tmp_path, lines_of("a", 3), valid=lines_of("a", 1), test=lines_of("a", 2))
    names = ("train", "valid", "test")
    config = config_of_files({name: str(tmp_path / f"{name}.jsonl") for name in names})
    unread, read = open_dataset(config), open_dataset(config)
    check_dataset(config, read)
    before = unread.fingerprints
    assert before == read.fingerprints and len(set(before.values())) == 3
    for name in names:
        assert before[name] == sha256((tmp_path / f"{name}.jsonl").read_bytes()).hexdigest()
    with (tmp_path / "test.jsonl").open("a") as file:
        file.write('{"src": ["a"], "tgt": []}\n')
    after = open_dataset(config).fingerprints
    assert [name for name in names if after[name] != before[name]] == ["test"]
    assert open_dataset(config_of("copy")).fingerprints == {}


def test_a_changed_training_file_is_noticed_where_it_matters(tmp_path):
    dataset = file_pairs(tmp_path, [([k], [k]) for k in range(40)], test=[([1], [1])])
    facts = dataset.facts
    config = config_of_files({name: str(tmp_path / f"{name}.jsonl") for name in ("train", "test")})
    assert open_dataset(config, facts).size("valid") == 2
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"src": [1], "tgt": [2]}\n')
    again = open_dataset(config, facts)
    assert again.size("test") == 1
    with pytest.raises(UserError, match="train.jsonl: not what the run was trained on"):
        again.size("valid")


def test_sequences_past_a_learned_table_are_refused_before_training(tmp_path):
    file_pairs(tmp_path, [([1] * k, [1]) for k in range(1, 9)])
    files = {"train": str(tmp_path / "train.jsonl")}
    for cross, rows in (("none", 9), ("anchored", 10)):  # with BOS before the source
        model = {"positions": "learned", "cross_positions": cross, "max_positions": rows}
        config = config_of_files(files, model)
        check_dataset(config, open_dataset(config))
        config = config_of_files(files, model | {"max_positions": rows - 1})
        with pytest.raises(UserError, match="8 symbols are more than the 7 that"):
            check_dataset(config, open_dataset(config))


def test_a_table_of_places_has_room_for_its_last_place(tmp_path):
    """A target of three symbols fits four places with its end, also where sources have BOS too."""
    file_pairs(tmp_path, [([1], [1, 2, 1]), ([2], [2]), ([1, 2], [1])])
    files = {"train": str(tmp_path / "train.jsonl"), "valid": str(tmp_path / "train.jsonl")}
    model = {"positions": "learned", "source_bos": True}
    config = config_of_files(files, model | {"max_positions": 4})
    check_dataset(config, open_dataset(config))
    config = config_of_files(files, model | {"max_positions": 3})
    with pytest.raises(UserError, match="symbols are more than the"):
        check_dataset(config, open_dataset(config))
