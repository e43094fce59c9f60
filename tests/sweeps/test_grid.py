"""The grid of a sweep: how values are written, and what is refused before anything starts."""

from pathlib import Path

import pytest

from toytrans.errors import UserError
from toytrans.sweeps.sweep import read_grid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        (" a , b ", ["a", "b"]),
        ("[1,20],[1,40]", ["[1,20]", "[1,40]"]),
        ("[1,20]", ["[1,20]"]),
        ("[[1,2],3],{a: 1, b: 2}", ["[[1,2],3]", "{a: 1, b: 2}"]),
        ("'a,b',\"c,d\",e", ["'a,b'", '"c,d"', "e"]),
        ("1e-3,null,true", ["1e-3", "null", "true"]),
        ("own.py:f,cuda:7", ["own.py:f", "cuda:7"]),
    ],
)
def test_values_are_split_outside_of_brackets_and_quotes(text, values):
    assert read_grid([f"key={text}"]) == {"key": values}


@pytest.mark.parametrize(
    ("sets", "fragment"),
    [
        (["model.positions"], "write it as section.key=value,value"),
        (["=a"], "write it as section.key=value,value"),
        (["a=1,,2"], "an empty value"),
        (["a="], "an empty value"),
        (["a=],b"], "a bracket without its end"),
        (["a=1", "a=2"], "a is given twice"),
        (["seed=1,2"], "--seeds, say 0:9"),
    ],
)
def test_what_is_no_grid_is_refused(sets, fragment):
    with pytest.raises(UserError, match="--set .*" + fragment):
        read_grid(sets)


@pytest.mark.parametrize("seeds", ["9:0", "a", "0:", "-1:3", "0:9999999999", "0,1"])
def test_seeds_are_from_and_to(seeds, here: Path, refused):
    assert f"--seeds {seeds}: write them as FROM:TO" in refused("sweep", "c.yaml", "--seeds", seeds)


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            ["--set", "model.position=rotary,alibi"],
            ["toytrans: --set: model.position: unknown key; did you mean"],
        ),
        (["--set", "model.position=rotary"], ["model.position: unknown key"]),
        (
            ["--set", "model.n_heads=2,3,5", "--set", "model.d_ff=8,16"],
            ["4 of 6 combinations are not valid", "n_heads=3 model.d_ff=8: ", "n_heads=5 model"],
        ),
        (
            ["--set", "model.positions=learned,rotary", "--lengths", "1:4000"],
            ["1 of 2 combinations", "positions=learned: ", "max_positions"],
        ),
        (["--set", "train.lr=1e-3,0.001"], ["lr=1e-3 and train.lr=0.001 are the same config"]),
        (["--seeds", "0:99999"], ["100,000 runs are more than 10,000"]),
        (["--set", "device=cuda:7,cpu"], ["1 of 2 combinations", "device cuda:7 is not on"]),
        (["--set", "fault=wrong_scale,no_causal", "--set", "model.n_heads=1"], ["wrong_scale"]),
        (["--lengths", "9:1"], ["--lengths 9:1: write them as"]),
        (["--lengths", "1:70000"], ["lengths 1:70000: a length is at most 65536"]),
        (["--gpu-share", "0.5"], ["add --on ray"]),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_as_a_whole(words, fragments, here: Path, refused):
    message = refused("sweep", "c.yaml", *words)
    for fragment in fragments:
        assert fragment in message
    assert not (here / "runs").exists()


def test_no_config_is_refused(here: Path, refused):
    assert "no config; name one" in refused("sweep")
    assert "no such file" in refused("sweep", "none.yaml", "--seeds", "0:1")


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--on", "moon"], ["--examples", "0"]])
def test_options_out_of_range_are_refused(words, here: Path, command):
    answer = command("sweep", "c.yaml", *words)
    assert answer.code == 2 and words[0] in answer.err
