"""What is told about the data of files: each finding where it applies, and only there."""

import random
import subprocess

import pytest
from conftest import config_of_files

from toytrans.data.open import open_dataset
from toytrans.errors import UserError


def findings_of(folder, train, keys=None, data=None, **others):
    """The names of the findings, and what is said, of files with these lines."""
    files = dict(keys or {})
    for name, lines in {"train": train, **others}.items():
        path = folder / f"{name}.tsv"
        path.write_text("".join(f"{line}\n" for line in lines))
        files[name] = str(path)
    dataset = open_dataset(config_of_files(files, **(data or {})))
    assert dataset.notes == tuple(map(str, dataset.findings)), "what train shows"
    return {finding.name: str(finding) for finding in dataset.findings if finding.is_odd}


WORDS = [f"{'abcdefghij'[k % 10]}{'klmnopqrst'[k % 10]}{'abc'[k // 10]}" for k in range(30)]
SOUND = [f"{' '.join(word)}\t{' '.join(reversed(word))}" for word in WORDS * 2]
"""Pairs of which nothing is odd: each source occurs twice, so none is held out for the first time
with a symbol that the others lack."""


def test_sound_pairs_are_not_odd(tmp_path):
    assert findings_of(tmp_path, SOUND) == {}
    assert findings_of(tmp_path, SOUND[:30], valid=["a a\ta a"]) == {}


def test_symbols_that_training_lacks_are_counted(tmp_path):
    """Where others are an error, held-out pairs and a limit on training can still hold such."""
    lines = [f"w{k} a\ta w{k}" for k in range(100)]
    said = findings_of(tmp_path, lines)
    assert "5 of 5 validation pairs hold a symbol that training lacks" in said["unseen_symbols"]
    assert "data.files.unknown: symbol" in said["unseen_symbols"]
    others = {"valid": ["w3 a\ta w3", "zz a\ta zz", "a\tq"], "test": ["w99\tw99"]}
    said = findings_of(tmp_path, lines, {"unknown": "symbol"}, **others)
    assert "2 of 3 validation pairs hold a symbol that training lacks" in said["unseen_symbols"]
    assert "'zz'" in said["unseen_symbols"] and "valid.tsv:2" in said["unseen_symbols"]
    assert "counts as wrong" in said["unseen_symbols"]


def test_text_that_is_not_split_is_told(tmp_path):
    lines = [f"{word}{k}\t{' '.join(word)}" for k, word in enumerate(WORDS)]
    said = findings_of(tmp_path, lines)
    assert "training sources are one symbol of their own, such as 'aka0'" in said["not_split"]
    assert "data.files.split: [characters, blanks]" in said["not_split"], "targets have blanks"
    assert "not_split" not in findings_of(tmp_path, lines, {"split": ["characters", "blanks"]})
    both = findings_of(tmp_path, [f"{word}{k}\t{k}{word}" for k, word in enumerate(WORDS)])
    assert both["not_split"].endswith("data.files.split: characters")
    assert "not_split" not in findings_of(tmp_path, lines, {"split": "characters"})
    labels = [f"{' '.join(word)}\t{'even' if k % 2 else 'odd'}" for k, word in enumerate(WORDS)]
    assert "not_split" not in findings_of(tmp_path, labels)  # few targets, of one symbol each
    single = [f"{word[0]}\t{word}" for word in WORDS]
    assert "training targets" in findings_of(tmp_path, single)["not_split"]


SOUNDS = [f"{word}\t{' '.join(word)}\u02d0" for word in WORDS]
"""Words, and their sounds between blanks."""


def test_words_with_sounds_are_split_on_the_side_of_the_words(tmp_path):
    """Characters on both sides would tear the sounds apart, so no message says that."""
    messages = [*findings_of(tmp_path, SOUNDS).values()]
    findings_of(tmp_path, SOUNDS, valid=["zoo\tz o"])
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("train", "valid")}
    dataset = open_dataset(config_of_files(files))
    with pytest.raises(UserError, match="is not in the vocabulary") as error:
        dataset.size("valid")
    about_split = [m for m in [*messages, str(error.value)] if "data.files.split" in m]
    assert len(about_split) == 3, "not split, unseen symbols, and the refusal"
    assert all("data.files.split: [characters, blanks]" in message for message in about_split)
    texts = findings_of(tmp_path, [f"w{k} a\ta w{k}" for k in range(100)])
    assert "(data.files.split: characters)" in texts["unseen_symbols"]
    split = {"split": ["characters", "blanks"]}
    said = findings_of(tmp_path, SOUNDS, split, valid=["aka\tQ"])
    assert "data.files.split" not in said["unseen_symbols"], "nothing is smaller than a sound"


def test_a_side_that_was_already_split_by_blanks_is_told(tmp_path):
    said = findings_of(tmp_path, SOUNDS, {"split": "characters"})
    assert "the targets were already split by blanks" in said["already_split"]
    assert "data.files.split: [characters, blanks] keeps them whole" in said["already_split"]
    both = findings_of(tmp_path, SOUND, {"split": "characters"})
    assert "leave data.files.split out" in both["already_split"]
    assert "already_split" not in findings_of(tmp_path, SOUNDS, {"split": ["characters", "blanks"]})
    text = [f"I am {word} of it\tit is {word}, I say" for word in WORDS]
    assert "already_split" not in findings_of(tmp_path, text, {"split": "characters"})


def test_targets_that_are_all_the_same_are_told(tmp_path):
    rows = [f"{line}\tin_distribution" for line in SOUND]
    said = findings_of(tmp_path, rows, {"columns": [1, 3]})
    assert "training targets are the same: 'in_distribution'" in said["one_target"]
    assert "data.files.columns" in said["one_target"]
    assert "one_target" not in findings_of(tmp_path, rows, {"columns": [1, 2]})


def test_a_column_that_was_left_out_may_tell_targets_apart(tmp_path):
    """The command of the message makes a file whose sources have one target each."""
    rows = [f"{word}\t{word[::k]}\tV;{k}" for word in WORDS for k in (1, -1)]
    said = findings_of(tmp_path, rows, {"columns": [1, 2]})["several_targets"]
    assert "if column 3, which is left out, tells them apart, join it to the source" in said
    command = said[said.index("awk ") :].partition(" > NEW.tsv")[0]
    lines = subprocess.check_output(["sh", "-c", command], text=True).splitlines()
    assert lines[:2] == ["aka V;1\taka", "aka V;-1\taka"]
    assert "several_targets" not in findings_of(tmp_path, lines)
    pairs = [line.rpartition("\t")[0] for line in rows]
    assert "column" not in findings_of(tmp_path, [*pairs, "aka\tx"])["several_targets"]


def test_a_pair_that_is_left_out_as_a_header_is_told(tmp_path):
    said = findings_of(tmp_path, SOUND, {"header": True})["no_header"]
    assert "the first row of the training file looks like the others" in said
    assert "'a k a' and 'a k a'" in said
    split = {"split": ["characters", "blanks"], "header": True}
    assert "no_header" in findings_of(tmp_path, SOUNDS * 2, split)
    assert "no_header" not in findings_of(tmp_path, ["word\tsounds", *SOUNDS], split)
    assert "no_header" not in findings_of(tmp_path, ["source\ttarget", *SOUND], {"header": True})
    dates = [f"May {k % 28 + 1}\t1999-05-{k % 28 + 1}" for k in range(56)]
    characters = {"split": "characters", "header": True}
    assert "no_header" in findings_of(tmp_path, dates, characters)
    assert "no_header" not in findings_of(tmp_path, ["may\tmay", *dates], characters)


@pytest.mark.parametrize(
    "header", ["Source\tTarget", "lemma\tform", "strange words\tthat none has"]
)
def test_a_first_row_that_looks_like_a_header_is_told(tmp_path, header):
    said = findings_of(tmp_path, [header, *SOUND])
    assert "the first row of the training file looks like a header" in said["header"]
    assert "data.files.header: true leaves it out" in said["header"]
    assert findings_of(tmp_path, [header, *SOUND], {"header": True}) == {}
    assert "header" not in findings_of(tmp_path, ["f p b\tb p f", *SOUND])
    dates = [f"May {k % 28 + 1}\t1999-05-{k % 28 + 1}" for k in range(56)]
    assert "header" in findings_of(tmp_path, ["written\tiso", *dates], {"split": "characters"})
    assert "header" not in findings_of(tmp_path, dates, {"split": "characters"})
    both = findings_of(tmp_path, ["k a\ta k", *SOUND], test=["k a\ta k", "f p b\tb p f"])
    assert "header" in both, "two files begin alike"
    characters = findings_of(tmp_path, ["form\tlemma", *SOUND], {"split": "characters"})
    assert "header" in characters


def test_several_targets_and_shared_pairs_are_counted(tmp_path):
    train = [*SOUND, "a b\tx", "a b\tk", "a b\tk"]
    said = findings_of(
        tmp_path,
        [*train, "x\tx"],
        valid=["a b\tk", "a b\tb", "k k k\tk"],
        test=["a b\tb", "l l l\tl"],
    )
    different = len({line.partition("\t")[0] for line in train}) + 1
    assert f"1 of {different} different training sources have several" in said["several_targets"]
    assert "'a b' has 'x' and 'k'" in said["several_targets"]
    notes = open_dataset(
        config_of_files({s: str(tmp_path / f"{s}.tsv") for s in ("train", "valid", "test")})
    ).notes
    assert any(
        "2 of 3 valid sources are trained on too, 1 of them with the same target" in note
        for note in notes
    )
    assert any("1 of 2 test sources are trained on too, 0 of them" in note for note in notes)
    assert any("1 of 2 test sources validate too, 1 of them" in note for note in notes)


def test_a_letter_in_two_unicode_forms_is_told(tmp_path):
    """é as one character, and as e with an accent behind it; either form alone is not odd."""
    one, two = "\u00e9", "e\u0301"
    both = [*SOUND, f"a {one}\ta", f"b {two}\tb"] * 2
    assert "2 (U+0065 U+0301)" in findings_of(tmp_path, both)["two_unicode_forms"]
    apart = findings_of(tmp_path, both, {"split": "characters"})
    assert "two_unicode_forms" in apart
    for form in (one, two):
        lines = [*SOUND, *[f"a {form}\ta"] * 3]
        assert "two_unicode_forms" not in findings_of(tmp_path, lines)


def test_empty_sides_and_quotation_marks_are_told(tmp_path):
    said = findings_of(tmp_path, [*SOUND, "\ta", "a\t", "\t", "a\ta"])
    assert "2 have an empty source" in said["empty_sides"]
    assert "2 have an empty target" in said["empty_sides"]
    quoted = [f'"{src}"\t"{tgt}"' for src, _, tgt in (line.partition("\t") for line in SOUND)]
    assert (
        "in 60 of 60 pairs a side stands in quot"
        in findings_of(tmp_path, quoted)["quotation_marks"]
    )


def test_a_large_share_that_is_held_out_is_odd(tmp_path):
    said = findings_of(tmp_path, ["a\ta"] * 6 + ["a b\tb a"] * 4)
    assert "4 of 10 training pairs (40%" in said["held_out"]


def test_findings_take_no_longer_than_reading(tmp_path):
    """No finding compares each pair with each."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=8)) for _ in range(5000)]
    said = findings_of(tmp_path, [f"{line}\t{line[::-1]}" for line in lines])
    assert said == {}
