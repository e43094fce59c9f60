"""A training that starts from the weights of another run, and the mean of several checkpoints."""

from pathlib import Path

import pytest
import torch
from conftest import Command, tiny_yaml

from toytrans.errors import UserError
from toytrans.training.run import Run

pytestmark = pytest.mark.usefixtures("here")
STOP_AT_ONCE = ("--set", "train.max_steps=0")


def weights(run: str, checkpoint: str = "best") -> dict[str, torch.Tensor]:
    return dict(Run.open(Path(run), checkpoint=checkpoint).model.state_dict())


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def first(command: Command) -> Path:
    Path("c.yaml").write_text(tiny_yaml(train={"max_steps": 4, "eval_every": 2, "lr": 0.01}))
    assert command("train", "c.yaml", "--out", "first").code == 0
    return Path("first")


def test_a_training_starts_with_the_best_weights_of_another_run(first: Path, command: Command):
    fresh = ("train", "c.yaml", "--seed", "7", *STOP_AT_ONCE)
    assert command(*fresh, "--out", "fresh").code == 0
    begun = command(*fresh, "--init", "first", "--out", "begun")
    assert begun.code == 0 and "starts from the weights of" in begun.err
    assert equal(weights("begun"), weights("first"))
    assert not equal(weights("fresh"), weights("first"))


def test_its_vocabulary_is_that_of_the_other_run_and_a_resume_keeps_it(command: Command):
    """The second file has other symbols first, so by itself it would give them other ids."""
    Path("a.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcd" for b in "abcd"))
    Path("b.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "bcd" for b in "bcd"))
    Path("c.yaml").write_text(tiny_yaml(data={"files": {"train": "a.tsv"}}, train={"max_steps": 2}))
    Path("d.yaml").write_text(
        tiny_yaml(data={"files": {"train": "b.tsv"}}, train={"max_steps": 2, "init": "first"})
    )
    assert command("train", "c.yaml", "--out", "first").code == 0
    assert command("train", "d.yaml", "--out", "second").code == 0
    assert Run.open(Path("second")).vocabulary.symbols == ("a", "b", "c", "d")
    more = command("train", "--resume", "--out", "second", "--set", "train.max_steps=4")
    assert more.code == 0 and "resumed at step 2" in more.err
    assert Run.open(Path("second")).vocabulary.symbols == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"d_model": 8}}, "differs in model.d_model (16 there, 8 here)"),
        ({"data": {"symbols": 9}}, "and the task here 9"),
        ({"train": {"init": "nowhere"}}, "no such run directory"),
        ({"data": {"files": {"train": "words.tsv"}}}, "has no symbols 'x', 'y', 'z'"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(first: Path, refused, sections, says):
    Path("words.tsv").write_text("x y\ty x\nz\tz\ny y z\tz y y\n")
    Path("d.yaml").write_text(tiny_yaml(**{"train": {"init": "first"}} | sections))
    assert says in refused("train", "d.yaml", "--out", "d")
    assert not Path("d").exists()


def test_average_is_the_mean_of_the_last_checkpoints(first: Path, command: Command):
    mean = weights("first", "average:2")
    both = [weights("first", step) for step in ("2", "4")]
    assert not equal(*both)
    for name, values in mean.items():
        expected = (both[0][name].double() + both[1][name].double()) / 2
        assert torch.equal(values, expected.to(values.dtype)), name
    assert command("eval", "first", "--checkpoint", "average:2", "--json").code == 0
    with pytest.raises(UserError, match="no 3 checkpoints to average, but 2"):
        weights("first", "average:3")


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_from_the_other_again(
    first: Path, command: Command
):
    words = ("train", "c.yaml", *STOP_AT_ONCE, "--init", "first", "--out", "begun")
    assert command(*words).code == 0
    for file in (Path("begun/checkpoints/step-0.safetensors"), Path("begun/checkpoints.json")):
        file.unlink()
    gone_on = command("train", "--resume", "--out", "begun")
    assert gone_on.code == 0 and "starts from the weights of" in gone_on.err
    assert equal(weights("begun"), weights("first"))


def test_a_resume_without_the_other_run_is_refused_and_the_other_may_lie_elsewhere(
    first: Path, command: Command, refused
):
    begun = ("train", "c.yaml", "--set", "train.max_steps=1", "--init", "first", "--out", "begun")
    assert command(*begun).code == 0
    longer = ("--resume", "--out", "begun", "--set", "train.max_steps=2")
    assert "train.init" in refused("train", "c.yaml", *longer)
    first.rename("moved")
    gone_on = command("train", "c.yaml", "--init", "moved", *longer)
    assert gone_on.code == 0 and "resumed at step 1" in gone_on.err


def test_the_other_run_is_looked_for_beside_the_config(first: Path, command: Command, monkeypatch):
    Path("d.yaml").write_text(tiny_yaml(train={"max_steps": 0, "init": "first"}))
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert command("train", "../d.yaml", "--out", "../begun").code == 0
    monkeypatch.chdir("..")
    assert equal(weights("begun"), weights("first"))
    assert command("train", "d.yaml", "--out", "again").code == 0
    assert "init: ../first" in Path("again/config.yaml").read_text()
