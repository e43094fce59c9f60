"""What a sweep has measured is printed again only as long as it is true of the run, and runs whose
files hold the same are one group."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, call, tiny_yaml

SWEEP = Path("runs/sweeps/c")
WORDS = ("sweep", "c.yaml", "--seeds", "0:1", "--lengths", "1:6", "--examples", "30")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the sweep of `WORDS` has run, on files."""
    folder = tmp_path_factory.mktemp("kept")
    rows = [" ".join(text) for text in ("a", "b", "ab", "ba", "aab", "bba", "abab", "babab")]
    lines = {name: "".join(f"{row}\t{row}\n" for row in rows) for name in ("train", "test")}
    lines["test"] += "a a a a a\ta a a a a\nb b\tb b\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, text in lines.items():
            Path(f"{name}.tsv").write_text(text)
        files = {"train": "train.tsv", "valid": "test.tsv", "test": "test.tsv"}
        train = {"max_steps": 12, "lr": 0.01, "eval_every": 6}
        Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train=train))
        assert call(*WORDS) == 0
    return folder


@pytest.fixture
def runs(done: Path, here: Path) -> list[Path]:
    """The runs of that sweep, of which this test may spoil what it likes."""
    for path in done.iterdir():
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, here / path.name)
    return sorted(path for path in SWEEP.iterdir() if path.is_dir())


def parts_of(command: Command, *words: str) -> dict[str, Any]:
    """The numbers that eval prints of each run, by its path."""
    answer = command("eval", *words, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    if "groups" not in found:
        return {found["run"]: found["parts"]}
    return {run["run"]: run["parts"] for each in found["groups"] for run in each["runs"]}


def test_sweep_and_runs_are_shown_by_the_same_numbers(runs: list[Path], command: Command):
    """Those that the sweep has kept: of one run alone too. None is measured again."""
    together = parts_of(command, str(SWEEP))
    assert together.keys() == {str(run) for run in runs}
    for run in runs:
        (kept,) = json.loads((run / "eval.json").read_text())
        assert together[str(run)] == kept["parts"] == parts_of(command, str(run))[str(run)]
        assert kept["measure"]["lengths"] == [1, 6] and kept["parts"]["all"]["pairs"] == 10
        assert kept["trained_on"] == 8, "of ten"
        (run / "eval.json").write_text(json.dumps([kept | {"steps": 77}]))
        assert json.loads(command("eval", str(run), "--json").out)["steps"] == 77, "as it was kept"
    shown = command("eval", str(SWEEP)).out
    assert "8 of 10 sources are trained on too" in shown
    assert "8 of 10 sources are trained on too" in command("eval", str(runs[0])).out


def test_a_report_of_a_run_shows_what_its_sweep_has_kept(runs: list[Path], command: Command):
    (kept,) = json.loads((runs[0] / "eval.json").read_text())
    (runs[0] / "eval.json").write_text(json.dumps([kept | {"checkpoint": "as it was kept"}]))
    assert command("report", str(runs[0]), "--out", "kept.html").code == 0
    assert ", as it was kept, greedy search" in Path("kept.html").read_text()
    command("report", str(runs[0]), "--checkpoint", "last", "--out", "last.html")
    assert "as it was kept" not in Path("last.html").read_text(), "another checkpoint"


def test_runs_that_are_missing_or_only_to_be_measured_are_counted(
    runs: list[Path], command: Command
):
    assert " runs are counted" not in command("eval", str(SWEEP)).out, "nothing is wrong"
    (runs[0] / "eval.json").unlink()
    shutil.rmtree(runs[1])
    said = "1 of 2 runs are counted, 1 of them measured now; 1 missing\n"
    assert said in command("eval", str(SWEEP)).out
    counts = json.loads(command("eval", str(SWEEP), "--json").out)["counts"]
    assert counts == {"counted": 1, "measured now": 1, "missing": 1}
    assert "measured now" not in command("eval", str(SWEEP), "--examples", "5").out


def test_a_run_that_went_on_is_measured_again(runs: list[Path], command: Command):
    before = parts_of(command, str(SWEEP))
    (run, other) = map(str, runs)
    more = ("--set", "train.max_steps=40")
    assert command("train", "--resume", "--out", run, *more).code == 0
    after = parts_of(command, str(SWEEP))
    assert after[run] == parts_of(command, run)[run] != before[run]
    assert after[other] == before[other]


def test_one_that_was_stopped_on_the_way_is_not_counted(runs: list[Path], command: Command):
    saved = runs[0] / "resolved.yaml"
    saved.write_text(saved.read_text().replace("max_steps: 12", "max_steps: 99"))
    answer = command("eval", str(SWEEP))
    assert "unfinished: step 12 of 99" in answer.out and "in 1 of 2 runs" in answer.out


def test_other_test_pairs_are_measured_and_nothing_is_trained(runs: list[Path], command: Command):
    before = parts_of(command, str(SWEEP))
    Path("test.tsv").write_text("a\tb\nb\ta\n")
    after = parts_of(command, str(SWEEP))
    assert {parts["all"]["pairs"] for parts in before.values()} == {10}
    assert {parts["all"]["pairs"] for parts in after.values()} == {2}


def test_the_run_of_another_seed_is_no_run_of_the_sweep(runs: list[Path], command: Command):
    shutil.rmtree(runs[1])
    shutil.copytree(runs[0], runs[1])
    answer = command(*WORDS)
    assert answer.code == 0 and "2 runs (1 done, 1 new)" in answer.err
    trained = json.loads((SWEEP / "seed=1-2/eval.json").read_text())
    assert trained[0]["seed"] == 1, "in a folder of its own"


def test_a_failure_of_before_is_none_of_a_finished_run(runs: list[Path], command: Command):
    """As after a full disk, when the run was gone on with by hand."""
    (runs[0] / "failed.json").write_text('{"reason": "no space left on device"}')
    assert "not counted" not in command("eval", str(SWEEP)).out


# What a group is ----------------------------------------------------------------------------------


def test_runs_on_other_data_of_the_same_name_are_another_group(runs: list[Path], command: Command):
    """A training file edited in place, and the sweep again: two groups, each with its own seeds."""
    text = Path("train.tsv").read_text()
    Path("train.tsv").write_text(text + "b a b\tb a b\n")
    assert command("train", "c.yaml", "--out", str(SWEEP / "later")).code == 0
    groups = json.loads(command("eval", str(SWEEP), "--json").out)["groups"]
    assert [len(each["runs"]) for each in groups] == [2, 1]
    first, second = (each["differs"]["data.files.train"] for each in groups)
    assert first != second and first.startswith("train.tsv (") and second.startswith("train.tsv (")


def test_the_same_data_elsewhere_are_the_same_group(runs: list[Path], command: Command):
    Path("data").mkdir()
    for name in ("train.tsv", "test.tsv"):
        shutil.copy(name, "data")
    words = ("--set", "data.files.train=data/train.tsv", "--set", "data.files.valid=data/test.tsv")
    words += ("--set", "data.files.test=data/test.tsv", "--seed", "2", "--out", "runs/third")
    assert command("train", "c.yaml", *words).code == 0
    (group,) = json.loads(command("eval", str(SWEEP), "runs/third", "--json").out)["groups"]
    assert [run["seed"] for run in group["runs"]] == [0, 1, 2]


def test_a_folder_with_config_data_and_runs_is_moved_whole(
    done: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """No path in it is of the old place."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(done, moved)
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    hidden = done.rename(done.with_name("hidden"))
    try:
        answer = command("eval", str(moved / SWEEP), "--json")
        assert answer.code == 0, answer.err
        (group,) = json.loads(answer.out)["groups"]
        assert [run["problem"] for run in group["runs"]] == [None, None]
        words = ("sweep", str(moved / "c.yaml"), *WORDS[2:], "--out", str(moved / SWEEP))
        assert "2 runs (2 done)" in command(*words).err, "the config's data lie beside it"
        (moved / "test.tsv").unlink()
        said = command("eval", str(moved / SWEEP)).err
        assert (
            "test.tsv: no such file, and the run names it as data.files.test" in said
            and "put it back there" in said
        )
    finally:
        hidden.rename(done)


def test_other_versions_in_a_group_are_told(runs: list[Path], command: Command):
    path = runs[1] / "environment.json"
    path.write_text(path.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    assert (
        "runs of different precision stand together: bf16, fp32" in command("eval", str(SWEEP)).out
    )
