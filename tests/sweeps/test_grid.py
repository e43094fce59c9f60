"""The grid of a sweep: how values are written, and what is refused before anything starts."""

from pathlib import Path

import pytest

from toytrans.sweeps.sweep import read_grid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (" a , b ", ["a", "b"]),
        ("[1,20],[1,40]", ["[1,20]", "[1,40]"]),
        ("[[1,2],3],{a: 1, b: 2}", ["[[1,2],3]", "{a: 1, b: 2}"]),
        ("'a,b',\"c,d\",e", ["'a,b'", '"c,d"', "e"]),
        ("1e-3,null,true", ["1e-3", "null", "true"]),
        ("own.py:f,cuda:7", ["own.py:f", "cuda:7"]),
    ],
)
def test_values_are_split_outside_of_brackets_and_quotes(text, values):
    assert read_grid([f"key={text}"]) == {"key": values}


SETS = ["--set", "model.n_heads=2,3,5", "--set", "model.d_ff=8,16"]


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--set", "model.positions"], ["write it as section.key=value,value"]),
        (["--set", "a=1,,2"], ["--set a=1,,2: an empty value"]),
        (["--set", "a=],b"], ["a bracket without its end"]),
        (["--set", "a=1", "--set", "a=2"], ["a is given twice"]),
        (["--set", "seed=1,2"], ["--seeds, say 0:9"]),
        (["--seeds", "9:0"], ["--seeds 9:0: write them as FROM:TO"]),
        (["--seeds", "0:9999999999"], ["--seeds 0:9999999999: write them as FROM:TO"]),
        (["--set", "model.position=rotary,alibi"], ["model.position: unknown key; did you mean"]),
        (SETS, ["4 of 6 combinations are not valid", "n_heads=3 model.d_ff=8: ", "n_heads=5 "]),
        (
            ["--set", "model.positions=learned,rotary", "--lengths", "1:4000"],
            ["1 of 2 combinations", "positions=learned: ", "max_positions"],
        ),
        (["--set", "train.lr=1e-3,0.001"], ["lr=1e-3 and train.lr=0.001 are the same config"]),
        (["--seeds", "0:99999"], ["100,000 runs are more than 10,000"]),
        (["--set", "device=cuda:7,cpu"], ["1 of 2 combinations", "device cuda:7 is not on"]),
        (["--set", "fault=wrong_scale,no_causal", "--set", "model.n_heads=1"], ["wrong_scale"]),
        (["--lengths", "1:70000"], ["lengths 1:70000: a length is at most 65536"]),
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


def test_a_mistake_in_the_base_file_is_told_once(here: Path, refused):
    text = Path("c.yaml").read_text().replace("eval_every", "checkpoint_every")
    Path("c.yaml").write_text(text)
    for grid in ("model.positions=rotary,anchored", "model.n_heads=2,3"):
        message = refused("sweep", "c.yaml", "--seeds", "0:2", "--set", grid)
        assert message.count("checkpoint_every") == 1 and "combinations" not in message
