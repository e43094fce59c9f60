"""Long sequences: attention in blocks, what is counted per length, and what `eval` shows of it."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, Command, call, config_of, model_of

from toytrans import evaluation
from toytrans.cli.render.lengths import plot_lines
from toytrans.data import open_source
from toytrans.data.pairs import DataFacts, Pairs, pad_rows
from toytrans.data.selection import (
    Selection,
    first_of_each,
    pairs_of_split,
    trained_lengths,
)
from toytrans.errors import UserError
from toytrans.evaluation import Counts, Span, over_runs, spans
from toytrans.tokens import EOS_ID

A, B, C = 5, 6, 7


# Counting ------------------------------------------------------------------------------------


def test_outputs_are_compared_place_by_place():
    """Seven outputs of the target A B C, and one of the empty target."""
    expected = torch.tensor([[A, B, C, EOS_ID]] * 7 + [[EOS_ID, 0, 0, 0]])
    said = torch.tensor(
        [
            [A, B, C, EOS_ID, 0],  # right
            [A, C, C, EOS_ID, 0],  # wrong at place 2, ended where the target does
            [A, EOS_ID, 0, 0, 0],  # too early: 2 and 4
            [A, B, C, A, EOS_ID],  # too late: place 4
            [A, B, C, A, B],  # never: place 4
            [C, B, 0, 0, 0],  # ran into a lower limit: place 1
            [EOS_ID, 0, 0, 0, 0],
            [EOS_ID, 0, 0, 0, 0],
        ]
    )
    columns, first = evaluation._free(said, expected)
    found = {name: column.int().tolist() for name, column in columns.items()}
    assert found["right_sequences"] == [1, 0, 0, 0, 0, 0, 0, 1]
    assert found["free_tokens"] == [4, 3, 1, 3, 3, 1, 0, 1]
    assert found["early"] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert found["late"] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert found["never"] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert first.tolist() == [0, 2, 2, 4, 4, 1, 1, 0]
    narrow, _ = evaluation._free(said[2:3, :2], expected[2:3])
    assert {name: column.tolist() for name, column in narrow.items()} == {
        name: [column.tolist()[2]] for name, column in columns.items()
    }


def test_a_summary_divides_once():
    counts = Counts(
        examples=10, forced_sequences=5, tokens=40, right_tokens=30, loss=20.0, decoded=4
    )
    counts += Counts(
        right_sequences=1,
        decoded_forced_sequences=2,
        decoded_tokens=16,
        decoded_right_tokens=12,
        free_tokens=8,
        early=1,
        never=2,
        first_errors=Counter({3: 1, 8: 2}),
    )
    found = counts.summary()
    assert found["exact_match"] == 1 / 4 and found["forced_exact_match"] == 5 / 10
    assert found["exact_match_difference"] == -1 / 4
    assert found["token_accuracy"] == 30 / 40 and found["free_token_accuracy"] == 8 / 16
    assert found["token_accuracy_difference"] == -4 / 16
    assert (found["wrong"], found["first_error_median"], found["first_error_earliest"]) == (3, 8, 3)
    assert (found["eos_early"], found["eos_late"], found["eos_never"]) == (1, 0, 2)
    assert (found["low"], found["high"]) == evaluation.wilson_interval(1, 4)
    nothing = Counts().summary()
    assert nothing["first_error_median"] is None and nothing["exact_match"] == 0


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_greedy_exact_match_is_that_of_teacher_forcing(positions):
    """Of untrained models too: an output is right where every forced token is."""
    torch.manual_seed(3)
    config = config_of("copy", data={"symbols": 2, "train_length": [0, 2]})
    pairs = open_source(config).pairs("test", torch.arange(300))
    total = Counts()
    for _ in range(4):
        model = model_of(VOCABULARY, positions=positions)
        with torch.no_grad():  # says less than it could, so that it is right now and then
            model.src_embedding.weight[5:] = 0
        total += evaluation.evaluate(
            model, pairs, DataFacts(VOCABULARY, (0, 2)), both_ends=positions == "anchored"
        ).total()
    assert total.decoded == total.examples == 1200
    assert 0 < total.right_sequences < 1200, "some are right and some are not"
    assert total.right_sequences == total.forced_sequences == total.decoded_forced_sequences
    assert total.tokens == total.decoded_tokens and total.right_tokens == total.decoded_right_tokens
    assert sum(total.first_errors.values()) == total.decoded - total.right_sequences


def test_only_some_pairs_of_each_length_are_decoded():
    config = config_of("copy", data={"train_length": [1, 5]})
    pairs = open_source(config).pairs("test", torch.arange(60))
    model, facts = model_of(VOCABULARY), DataFacts(VOCABULARY, (1, 5))
    whole = evaluation.evaluate(model, pairs, facts, both_ends=True)
    some = evaluation.evaluate(model, pairs, facts, both_ends=True, decode=3)
    rows = first_of_each(pairs.src_length, 3)
    alone = evaluation.evaluate(model, pairs.take(rows), facts, both_ends=True)
    for length, counts in some.by_length.items():
        assert counts.examples == whole.by_length[length].examples > 3 == counts.decoded
        assert counts.right_tokens == whole.by_length[length].right_tokens
        assert counts.free_tokens == alone.by_length[length].free_tokens
        assert counts.first_errors == alone.by_length[length].first_errors
        assert counts.decoded_right_tokens == alone.by_length[length].right_tokens


def test_the_first_rows_of_each_length():
    lengths = torch.tensor([4, 2, 4, 4, 2, 9])
    assert first_of_each(lengths, 2).tolist() == [0, 1, 2, 4, 5]
    assert first_of_each(lengths, None).tolist() == [0, 1, 2, 3, 4, 5]


def test_spans_are_few_round_and_on_one_side_of_the_training_lengths():
    assert spans([3, 5], (1, 9)) == [Span(3, 3, True), Span(5, 5, True)]
    found = spans(range(1, 401), (1, 25))
    assert found[:3] == [Span(1, 20, True), Span(21, 25, True), Span(26, 40, False)]
    assert found[-1] == Span(381, 400, False) and len(found) == 21
    assert [span.in_range for span in spans([1, 2, 3, 4], (2, 3))] == [False, True, True, False]
    assert len(spans(range(0, 5001, 7), (50, 60))) <= 25


def test_over_runs_takes_every_run_once():
    rows = [Counts(examples=n, decoded=n, right_sequences=1).summary() for n in (1, 2, 4)]
    found = over_runs(rows)
    assert found["runs"] == 3
    assert found["exact_match"] == {"mean": pytest.approx(7 / 12), "min": 0.25, "max": 1.0}


# Which pairs ---------------------------------------------------------------------------------


def test_a_tasks_pairs_are_chosen_by_the_length_of_their_targets():
    config = config_of("duplicate", data={"train_length": [1, 6], "test_examples": 50})
    facts = open_source(config).facts
    pairs = pairs_of_split(config, facts, "test", Selection((9, 14), 30, "tgt"))
    assert len(pairs) == 30
    assert set(pairs.tgt_length.tolist()) == {10, 12, 14}, "every other length has no target"
    assert trained_lengths(config, facts, "tgt") == (2, 12)
    assert trained_lengths(config, facts, "src") == (1, 6)
    with pytest.raises(UserError, match="--lengths 7:7: the data holds no target"):
        pairs_of_split(config, facts, "test", Selection((7, 7), 5, "tgt"))


# The command ---------------------------------------------------------------------------------

TINY = """
data: {task: copy, symbols: 5, train_length: [1, 4], valid_examples: 9, test_examples: 40}
model: {d_model: 16, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 32}
train: {max_steps: 2, precision: fp32}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "copy.yaml"
    config.write_text(TINY)
    paths = [str(folder / name) for name in ("a", "b", "c")]
    for seed, path in enumerate(paths):
        train = ("train", "--config", str(config), "--out", path)
        assert call(*train, "--set", f"seed={seed}") == 0
    return paths


def test_eval_of_several_runs_gives_each_and_their_mean_and_range(runs, command, monkeypatch):
    wanted = ("--lengths", "1:9", "--examples", "60", "--json")
    alone = [json.loads(command("eval", path, *wanted).out) for path in runs]
    found = json.loads(command("eval", *runs, *wanted).out)
    assert found["runs"] == alone
    assert [run["seed"] for run in found["runs"]] == [0, 1, 2]
    for part in ("in_range", "out_of_range"):
        values = [run[part]["token_accuracy"] for run in alone]
        together = found["over_runs"][part]["token_accuracy"]
        assert together["mean"] == pytest.approx(sum(values) / 3)
        assert (together["min"], together["max"]) == (min(values), max(values))
        assert together["min"] < together["max"], "the runs differ"
    assert [row["length"] for row in found["over_runs"]["by_length"]] == list(range(1, 10))
    monkeypatch.setenv("COLUMNS", "200")
    shown = command("eval", *runs, *wanted[:-1]).out
    for words in (*runs, "mean", "lowest", "highest", "in range: test", "beyond: test"):
        assert words in shown
    errors = shown[shown.index("errors per source length, all runs together") :]
    _, decoded, wrong, *_, early, late, never = next(
        line for line in errors.splitlines() if line.strip().startswith("all ")
    ).split()
    assert [int(n) for n in (decoded, wrong, early, late, never)] == [
        sum(run[key] for run in alone)
        for key in ("decoded", "wrong", "eos_early", "eos_late", "eos_never")
    ]


def test_runs_of_other_lengths_have_no_mean(runs, command: Command, tmp_path: Path):
    Path(tmp_path / "c.yaml").write_text(TINY.replace("[1, 4]", "[1, 5]"))
    other = str(tmp_path / "other")
    assert command("train", "--config", str(tmp_path / "c.yaml"), "--out", other).code == 0
    answer = command("eval", runs[0], other)
    assert (answer.code, answer.out) == (2, "")
    assert "lengths 1 to 5" in answer.err and answer.err.count("\n") == 1


def test_four_hundred_lengths_fit_eighty_columns(runs, command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    options = ("--lengths", "1:400", "--examples", "40", "--decode", "1")
    out = command("eval", runs[0], *options).out
    assert max(map(len, out.splitlines())) <= 80 and out.count("\n") < 100
    assert "…" not in out and "\x1b" not in out
    assert re.search(r"^ +2\d\d-2\d\d ", out, re.M) and "o = in range, x = beyond" in out
    found = json.loads(command("eval", runs[0], *options, "--json").out)
    assert len(found["by_length"]) > 30, "each length in JSON"
    assert found["examples"] == 40 >= found["decoded"] == len(found["by_length"])


def test_one_length_makes_no_plot(runs, command: Command):
    out = command("eval", runs[0], "--lengths", "3", "--examples", "4").out
    assert "o = in range" not in out and "per source length" in out


def test_a_plot_is_ascii_and_marks_both_ranges():
    found = [Span(1, 2, True), Span(3, 4, True), Span(5, 10, False)]
    lines = list(plot_lines(found, [1.0, 0.72, 0.0], 40))
    assert lines[0] == " 1.0 |  o"
    assert lines[3] == " 0.7 |     o"
    assert lines[10] == " 0.0 |        x"
    assert lines[12].split() == ["1", "3", "5"]
    assert "".join(lines).isascii() and len(lines) == 13
    many = [Span(n, n, False) for n in range(100, 125)]
    assert max(map(len, plot_lines(many, [0.5] * 25, 40))) <= 40


def test_lengths_may_be_those_of_targets(command: Command, tmp_path: Path, monkeypatch):
    """SCAN's way: training targets of 2 to 5 symbols, tested on longer ones of as short sources."""
    monkeypatch.chdir(tmp_path)
    rows = [(f"w{a}", " ".join(["x"] * a)) for a in range(2, 9)]
    Path("train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows[:4]) + "w6 w7 w8\tx x\n")
    Path("test.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    Path("c.yaml").write_text(
        "data: {files: {train: train.tsv, valid: train.tsv, test: test.tsv}}"
        + TINY[TINY.index("\nm") :]
    )
    assert command("train", "--config", "c.yaml", "--out", "r").code == 0
    found = json.loads(command("eval", "r", "--length-of", "tgt", "--json").out)
    assert [row["length"] for row in found["by_length"]] == [2, 3, 4, 5, 6, 7, 8]
    assert (found["length_of"], found["train_length"]) == ("tgt", [2, 5])
    assert (found["in_range"]["examples"], found["out_of_range"]["examples"]) == (4, 3)
    some = json.loads(command("eval", "r", "--length-of", "tgt", "--lengths", "6:7", "--json").out)
    assert [row["length"] for row in some["by_length"]] == [6, 7]
    assert "per target length" in command("eval", "r", "--length-of", "tgt").out
    refused = command("eval", "r", "--length-of", "tgt", "--lengths", "20:30")
    assert refused.code == 2 and "no target of such a length" in refused.err
    Path("train.tsv").unlink()
    gone = command("eval", "r", "--length-of", "tgt")
    assert gone.code == 2 and "train.tsv" in gone.err and gone.err.count("\n") == 1


def test_whoever_follows_an_evaluation_hears_of_every_pair():
    model, facts = model_of(VOCABULARY, positions="none"), DataFacts(VOCABULARY, (0, 5))
    rows = [[3 + k % 7] * (k % 5) for k in range(40)]
    pairs, heard = Pairs(*pad_rows(rows), *pad_rows(rows)), []
    evaluation.evaluate(
        model,
        pairs,
        facts,
        both_ends=False,
        decode=2,
        batch_tokens=60,
        follow=lambda done, total: heard.append((done, total)),
    )
    assert {total for _, total in heard} == {40 + 10}
    assert sum(done for done, _ in heard) == 50 and len(heard) > 4
