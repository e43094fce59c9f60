"""Runs whose files or names are odd: a page, a table and a notebook show what is sound of them."""

import contextlib
import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import Command, call, made_once, tiny_yaml, trained_run

import toytrans

CONFIG = tiny_yaml(train={"max_steps": 4})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory, CONFIG)


@pytest.fixture(autouse=True)
def run(trained: Path, here: Path) -> Path:
    """A run in the working directory whose page is made at once: it has no checkpoint."""
    shutil.copytree(trained, here / "whole")
    ignored = shutil.ignore_patterns("checkpoints")
    return Path(shutil.copytree(trained, here / "one", ignore=ignored))


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_records(run: Path, lines: list[str]) -> None:
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def pages(command: Command, *runs: str) -> str:
    """The page of some runs, without its scripts."""
    Path("page.html").unlink(missing_ok=True)
    answer = command("report", *runs, "--out", "page.html")
    assert answer.code == 0, answer.err
    text = Path("page.html").read_text()
    return text[text.index("<main") : text.rindex("</main>")]


# Records --------------------------------------------------------------------------------------


def shown(run: Path, command: Command) -> None:
    """Show a run's records wherever they are shown."""
    pages(command, "one")
    pages(command, "one", "one")
    assert command("doctor", "one").code in (0, 1)
    shutil.copy(run / "metrics.jsonl", "whole/metrics.jsonl")
    kept = toytrans.load("whole").records
    assert repr(kept) and kept._repr_html_() and kept._table()


@pytest.mark.parametrize("value", ["null", "-1", "0", "1e99", "9e300", "1e999", "true", '"text"'])
def test_odd_numbers_end_in_no_traceback(value: str, run: Path, command: Command) -> None:
    """In all records, beside a sound step, and after sound records."""
    sound = records(run)
    odd = []
    for record in sound:
        pairs = [f'"{key}": {value}' for key in list(record)[1:]]
        odd.append(f'{{"step": {record["step"]}, {", ".join(pairs)}}}')
    write_records(run, odd)
    shown(run, command)
    write_records(run, [*map(json.dumps, sound[:-1]), odd[-1]])
    shown(run, command)


@pytest.mark.parametrize("value", [None, -5, 1e99])
def test_one_odd_number_of_the_last_record_ends_in_no_traceback(
    value: float | None, run: Path, command: Command
) -> None:
    *before, last = records(run)
    assert {"valid_loss", "valid_exact_match", "valid_token_accuracy", "elapsed_s"} < set(last)
    for key in list(last)[1:]:
        odd = last | {key: value} if value else {k: v for k, v in last.items() if k != key}
        write_records(run, [json.dumps(record) for record in (*before, odd)])
        pages(command, "one")


def test_what_was_not_measured_says_so(run: Path, command: Command) -> None:
    write_records(run, ['{"step": 1}', '{"step": 2, "loss": null, "valid_exact_match": null}'])
    page = pages(command, "one")
    assert page.count("not measured") >= 2 and "hold no record: " not in page
    assert pages(command, "one", "whole").count("not measured") >= 2
    shutil.copy(run / "metrics.jsonl", "whole/metrics.jsonl")
    assert "not measured" in toytrans.load("whole").records._table()


@pytest.mark.parametrize(
    "line", ["", "[]", '{"step": "2"}', '{"step": true}', '{"step": 2, "loss": "text"}', "{"]
)
def test_a_line_that_is_no_record_is_named(line: str, run: Path, command: Command) -> None:
    first, *rest = (run / "metrics.jsonl").read_text().splitlines()
    write_records(run, [first, line, *rest])
    shutil.copy(run / "metrics.jsonl", "whole/metrics.jsonl")
    said = "one/metrics.jsonl: lines that hold no record: 1"
    assert said in pages(command, "one")
    assert said in pages(command, "one", "whole")
    assert len(toytrans.load("whole").records) == 1 + len(rest)


def test_a_last_line_that_was_cut_is_normal(run: Path, command: Command) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert "hold no record: " not in pages(command, "one")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of one run."""

    def make(folder: Path) -> None:
        (folder / "c.yaml").write_text(CONFIG)
        with contextlib.chdir(folder):
            assert call("sweep", "c.yaml", "--seeds", "0:0") == 0

    return made_once(tmp_path_factory, "swept", make)


@pytest.mark.parametrize("value", ["null", '"text"', "-1", "1e15", "1e999", "true", "[]"])
def test_an_odd_result_of_a_sweep_ends_in_no_traceback(
    value: str, swept: Path, command: Command
) -> None:
    (of_sweep,) = (swept / "runs/sweeps/c").glob("*/eval.json")
    whole = json.loads(of_sweep.read_text())
    (name,) = whole["measures"]
    for key in ("measure", "parts", "spans", "train_length"):
        odd = whole["measures"][name] | {key: "VALUE"}
        text = json.dumps(whole | {"measures": {name: odd}}).replace('"VALUE"', value)
        Path("whole/eval.json").write_text(text)
        answer = command("doctor", "whole")
        assert answer.code in (0, 1) and "internal error" not in answer.err, (key, answer.err)
        answer = command("eval", "whole")
        assert answer.code in (0, 1, 2) and "internal error" not in answer.err, (key, answer.err)


# Several runs ----------------------------------------------------------------------------------


def test_a_page_of_several_runs_says_which_are_broken(run: Path, command: Command) -> None:
    sealed = toytrans.config.sealed.seal("no_causal", b"8 bytes.")
    for name, fault in (("broken", "no_causal"), ("exercise", sealed)):
        shutil.copytree(run, name)
        config = Path(name, "config.yaml")
        config.write_text(config.read_text().replace("fault: null", f"fault: {fault}"))
    page = pages(command, "one", "broken", "exercise")
    assert page.count("broken on purpose: no_causal") == 1
    assert page.count("a sealed exercise") == 1
    assert "no_causal" not in pages(command, "one", "exercise")


# Names -----------------------------------------------------------------------------------------

NO_UTF8 = os.fsdecode(b"run-\xff\xfe")


def test_a_name_that_is_no_utf8_is_written_as_it_is(command: Command, refused) -> None:
    os.rename("whole", NO_UTF8)
    assert command("eval", NO_UTF8, "--csv", "table.csv", "--plot", "plot.svg").code == 0
    assert os.fsencode(NO_UTF8) in Path("table.csv").read_bytes()
    assert command("report", NO_UTF8, "one", "--out", "page.html").code == 0
    words = ("export", NO_UTF8, "--format", "safetensors")
    assert "no name that every runtime can open; name another --out" in refused(*words)
    assert command(*words, "--out", "weights").code == 0


def test_a_sweep_in_a_folder_that_is_no_utf8_keeps_its_tables(command: Command) -> None:
    os.rename("c.yaml", f"{NO_UTF8}.yaml")
    answer = command("sweep", f"{NO_UTF8}.yaml", "--seeds", "0:0")
    assert answer.code in (0, 2) and "internal error" not in answer.err, answer.err
    if answer.code == 0:
        assert os.fsencode(NO_UTF8) in Path(f"runs/sweeps/{NO_UTF8}/table.csv").read_bytes()
    os.mkdir(NO_UTF8)
    shutil.copy(f"{NO_UTF8}.yaml", f"{NO_UTF8}/d.yaml")
    with contextlib.chdir(NO_UTF8):
        answer = command("sweep", "d.yaml", "--seeds", "0:0")
        assert answer.code == 0, answer.err
        assert command("eval", os.path.abspath("runs/sweeps/d"), "--csv", "table.csv").code == 0
        assert os.fsencode(NO_UTF8) in Path("table.csv").read_bytes()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(start: str, command: Command) -> None:
    name = f"{start}HYPERLINK(1)"
    os.rename("whole", name)
    assert command("eval", "--csv", "table.csv", "--", name).code == 0
    rows = list(csv.DictReader(io.StringIO(Path("table.csv").read_bytes().decode(), newline="")))
    assert rows and {(row["run"], row["seed"]) for row in rows} == {(f"'{name}", "0")}
