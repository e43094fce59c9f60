"""What each head does: rules on hand-made weights, on hand-set and on trained models, and
`toytrans attention` as a person sees it."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, Command, call, config_of, model_of
from torch import Tensor

from toytrans import load
from toytrans.data.batches import Batch, make_batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.insight.attention import heads as h
from toytrans.insight.attention.heads import AttentionWeights
from toytrans.insight.capture import PARTS, Part, capture, intermediates
from toytrans.insight.tables import CLOSED
from toytrans.model.context import AttentionContext
from toytrans.model.masks import MaskMaker
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID

ROWS = [[5, 6, 7, 8, 9, 10, 11], [9, 3, 4, 5, 12], [6, 7, 8, 9]]


def batch_of(rows: list[list[int]], both_ends: bool) -> Batch:
    """Sources and their reverses as symbol ids."""
    return make_batch(Pairs(*pad_rows(rows), *pad_rows([row[::-1] for row in rows])), both_ends)


def visible_of(part: str, batch: Batch) -> Tensor:
    """What the masks of a sound model open, (B, Tq, Tk)."""
    masks = MaskMaker("keys")
    mask = {
        "encoder": masks.encoder_self(batch.src),
        "decoder": masks.decoder_self(batch.tgt_in),
        "cross": masks.cross(batch.src, batch.tgt_in),
    }[part][:, 0]
    return mask.expand(-1, h.axes(part, batch)[0].shape[1], -1)


def by_hand(part: str, rule: str, n: int, t: int, both_ends: bool) -> int:
    """The index of the key that a rule names for the symbol at place t = 1 .. n, or -1."""
    place = {
        "itself": t,
        "same place": t,
        "mirror place": n + 1 - t,
        "before mirror": n - t,
        "after mirror": n + 2 - t,
        "previous": t - 1,
        "next": t + 1,
        "end": n + 1,
    }.get(rule)
    if rule == "first":
        return 0
    starts_with_bos = both_ends or part == "decoder"
    names = [*(["bos"] if starts_with_bos else []), *range(1, n + 1)]
    names += [] if part == "decoder" else ["end"]
    wanted = "bos" if place == 0 else "end" if place == n + 1 else place
    return names.index(wanted) if wanted in names else -1


def following(
    part: str, rule: str, batch: Batch, both_ends: bool, weight: float
) -> AttentionWeights:
    """An attention of one head that puts `weight` on the key a rule names, where that is seen,
    and the rest evenly on the others; where it is not, all of it evenly."""
    visible = visible_of(part, batch)
    weights = visible / visible.sum(-1, keepdim=True).double()
    for b, row in enumerate(ROWS):
        for t in range(1, len(row) + 1):
            query = t - (part == "cross" or (part == "encoder" and not both_ends))
            key = by_hand(part, rule, len(row), t, both_ends)
            if key >= 0 and visible[b, query, key]:
                others = int(visible[b, query].sum()) - 1
                weights[b, query] = visible[b, query] * (1 - weight) / others
                weights[b, query, key] = weight
    return AttentionWeights(part, 1, (1,), weights[:, None], visible)


CASES = [(part, rule) for part, rules in h.RULES.items() for rule in rules]


@pytest.mark.parametrize("both_ends", [False, True])
@pytest.mark.parametrize(("part", "rule"), CASES)
def test_a_head_made_by_a_rule_gets_its_label(part: Part, rule: str, both_ends: bool) -> None:
    batch = batch_of(ROWS, both_ends)
    assert (batch.src == PAD_ID).any() and (batch.tgt_in == PAD_ID).any()
    (head,) = h.count(following(part, rule, batch, both_ends, 0.9), batch).result()
    symbols = sum(map(len, ROWS))
    named = sum(
        by_hand(part, rule, len(row), t, both_ends) >= 0
        for row in ROWS
        for t in range(1, len(row) + 1)
    )
    if (part, rule) == ("decoder", "next"):
        named = 0  # the mask closes it
    found = next(fit for fit in head.fits if fit.rule == rule)
    assert head.queries == symbols
    assert found.share == pytest.approx(named / symbols)
    assert found.weight == pytest.approx(0.9 * named / symbols)
    assert head.label == (rule if named else h.NO_RULE)
    assert found.low <= found.share <= found.high


def test_chance_by_hand() -> None:
    batch = batch_of([[5, 6, 7]], False)
    found = {}
    for part in PARTS:
        visible = visible_of(part, batch)
        seen = AttentionWeights(
            part, 1, (1,), visible[:, None] / visible.sum(-1)[:, None, :, None], visible
        )
        (head,) = h.count(seen, batch).result()
        found |= {(part, fit.rule): fit.chance for fit in head.fits}
    # four keys, three queries; the first symbol has nothing before it
    assert found["encoder", "itself"] == pytest.approx(1 / 4)
    assert found["encoder", "previous"] == pytest.approx((0 + 1 / 4 + 1 / 4) / 3)
    assert found["cross", "end"] == pytest.approx(1 / 4)
    assert found["cross", "before mirror"] == pytest.approx((1 / 4 + 1 / 4 + 0) / 3)
    # queries that have read a symbol see two, three and four keys
    assert found["decoder", "previous"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found["decoder", "next"] == 0


@pytest.mark.parametrize("part", PARTS)
def test_even_weights_follow_no_rule(part: Part) -> None:
    """Not even "first", which the first of equal weights would give; nor by rounding."""
    batch = batch_of(ROWS, True)
    visible = visible_of(part, batch)
    even = (visible / visible.sum(-1, keepdim=True))[:, None]
    shaken = even * (1 + 1e-6 * torch.rand_like(even))
    seen = AttentionWeights(part, 2, (1, 2), torch.cat((even, shaken), 1), visible)
    for head in h.count(seen, batch).result():
        assert head.label == h.NO_RULE
        assert all(fit.share == 0 for fit in head.fits)
        assert all(fit.weight == pytest.approx(fit.chance) for fit in head.fits)


@pytest.mark.parametrize("part", PARTS)
def test_random_weights_follow_no_rule_and_shares_are_near_chance(part: Part) -> None:
    batch = batch_of(ROWS * 40, True)
    visible = visible_of(part, batch)
    scores = torch.randn(len(visible), 1, *visible.shape[1:]).masked_fill(
        ~visible[:, None], -torch.inf
    )
    (head,) = h.count(AttentionWeights(part, 1, (1,), scores.softmax(-1), visible), batch).result()
    assert head.label == h.NO_RULE
    assert head.queries == 40 * sum(map(len, ROWS))
    for fit in head.fits:
        assert fit.low - 0.03 < fit.chance < fit.high + 0.03


def test_half_of_the_queries_are_not_enough_for_a_label() -> None:
    batch = batch_of(ROWS * 20, False)
    seen = following("cross", "same place", batch_of(ROWS, False), False, 0.9)
    other = following("cross", "mirror place", batch_of(ROWS, False), False, 0.9)
    mixed = torch.cat([seen.weights, other.weights] * 10)
    of_both = AttentionWeights("cross", 1, (1,), mixed, seen.visible.repeat(20, 1, 1))
    (head,) = h.count(of_both, batch).result()
    assert {fit.rule for fit in head.fits[:2]} == {"same place", "mirror place"}
    assert 0.5 <= head.best.share < 0.6, "the middle symbol is its own mirror"
    assert head.label == h.NO_RULE


def test_few_queries_prove_nothing_and_many_of_the_same_do() -> None:
    batch = batch_of([[5, 6]], False)
    seen = AttentionWeights("cross", 1, (1,), torch.eye(3)[None, None], visible_of("cross", batch))
    (few,) = h.count(seen, batch).result()
    assert (few.best.rule, few.best.share, few.label) == ("same place", 1, h.NO_RULE)
    (many,) = sum([h.count(seen, batch)] * 9, h.count(seen, batch)).result()
    assert (many.queries, many.label) == (20, "same place")


def test_rules_that_the_data_cannot_tell_apart_are_all_named() -> None:
    batch = batch_of([[5]] * 30, True)
    weights = torch.tensor([0.0, 1.0, 0.0]).expand(30, 1, 2, 3)
    seen = AttentionWeights("cross", 1, (1,), weights, visible_of("cross", batch))
    (head,) = h.count(seen, batch).result()
    assert head.label == "same place or mirror place"


def test_queries_without_a_choice_do_not_count() -> None:
    batch = batch_of([[5, 6, 7]], False)
    visible = visible_of("encoder", batch).clone()
    visible[0, 1] = torch.tensor([False, True, False, False])
    seen = AttentionWeights("encoder", 1, (1,), torch.eye(4)[None, None], visible)
    (head,) = h.count(seen, batch).result()
    assert (head.queries, head.best.rule, head.best.share) == (2, "itself", 1)
    assert head.best.chance == pytest.approx(1 / 4)


def test_without_symbols_no_query_counts() -> None:
    batch = batch_of([[], []], False)
    for part in PARTS:
        visible = visible_of(part, batch)
        (head,) = h.count(
            AttentionWeights(part, 1, (1,), visible[:, None] * 1.0, visible), batch
        ).result()
        assert (head.queries, head.label, head.best.share) == (0, h.NO_RULE, 0)


# Weights of a model ---------------------------------------------------------------------------


def test_the_weights_are_those_of_the_pass() -> None:
    batch = batch_of(ROWS, False)
    model = model_of(VOCABULARY, positions="sinusoidal", n_encoder_layers=2, n_decoder_layers=1)
    seen = h.attend(model, batch)
    assert [(one.part, one.layer) for one in seen] == [
        *(("encoder", 1), ("encoder", 2)),
        *(("decoder", 1), ("cross", 1)),
    ]
    calls = capture(model, batch)
    for one in seen:
        assert torch.equal(one.weights, calls[one.part, one.layer].intermediates().weights)
    context = AttentionContext.of(model.masks.encoder_self(batch.src), None, torch.float64)
    with torch.no_grad():
        x = model.embed(model.src_embedding, batch.src)
        one, two = model.encoder_stack()
        x = two.residuals[0].norm(one(x, context))
        assert torch.equal(
            seen[1].weights, intermediates(two.self_attention, x, context)[0].weights
        )
    for one in seen:
        sums = one.weights.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        keys = h.axes(one.part, batch)[1]
        pads = (keys == PAD_ID)[:, None, None].expand_as(one.weights)
        assert pads.any() and not one.visible[pads[:, 0]].any()
        assert (one.weights[pads] == 0).all()


def test_shared_layers_are_seen_once_each() -> None:
    batch = batch_of(ROWS, False)
    model = model_of(VOCABULARY, n_encoder_layers=3, n_decoder_layers=2, share_layers=True)
    seen = h.attend(model, batch)
    assert [(one.part, one.layer) for one in seen] == [
        *(("encoder", k) for k in (1, 2, 3)),
        *(("decoder", k) for k in (1, 2)),
        *(("cross", k) for k in (1, 2)),
    ]
    assert not torch.equal(seen[0].weights, seen[1].weights)
    (one,) = h.attend(model, batch, h.Choice("encoder", 2, 3))
    assert one.heads == (3,) and torch.equal(one.weights, seen[1].weights[:, 2:3])
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_set_by_hand_does_what_its_tables_say() -> None:
    """Anchored heads without scores see only their tables: place i of the distance d = i - 3."""
    config = config_of(
        model={
            "n_heads": 4,
            "n_encoder_layers": 1,
            "n_decoder_layers": 1,
            "positions": "anchored",
            "cross_anchors": ["end", "end", "start", "start"],
        }
    )
    model = Transformer(config.model, VOCABULARY).eval()
    (encoder,), (decoder,) = model.encoder_stack(), model.decoder_stack()
    distances = {
        # of query and key; the decoder's query t says symbol t + 1, and the end is n + 1
        encoder.self_attention: ([0, 1, -1, 1], ["itself", "previous", "next", "previous"]),
        decoder.self_attention: ([0, 1, 0, 1], ["itself", "previous", "itself", "previous"]),
        decoder.cross_attention: (
            [-1, 0, -1, 0],
            ["mirror place", "after mirror", "same place", "previous"],
        ),
    }
    with torch.no_grad():
        for module, (wanted, _) in distances.items():
            module.in_proj.weight.zero_()
            module.bias_table.zero_()
            for head, distance in enumerate(wanted):
                module.bias_table[head, distance + 3] = 20 / config.model.bias_gain
    found = h.measure(model, [batch_of(ROWS, True), batch_of(ROWS[:2], True)])
    labels = [label for _, names in distances.values() for label in names]
    assert [head.label for head in found] == labels
    assert all(head.best.share == 1 and head.best.weight > 0.99 for head in found)
    queries = sum(map(len, ROWS)) + sum(map(len, ROWS[:2]))
    assert all(head.queries == queries for head in found)


def test_a_head_that_sees_the_future_is_called_next() -> None:
    batch = batch_of(ROWS, False)
    visible = (batch.tgt_in != PAD_ID)[:, None].expand(-1, batch.tgt_in.shape[1], -1)
    weights = torch.zeros(visible.shape).diagonal_scatter(torch.ones(3, 7), 1, 1, 2) * visible
    (head,) = h.count(
        AttentionWeights("decoder", 1, (1,), weights[:, None], visible), batch
    ).result()
    assert head.best.rule == "next"
    assert head.best.share == pytest.approx(13 / 16), "the last symbol has nothing after it"


# Commands -------------------------------------------------------------------------------------

TINY = """\
seed: 3
data: {task: copy, symbols: 5, train_length: [1, 6], valid_examples: 30, test_examples: 8}
model: {d_model: 8, n_heads: 2, n_encoder_layers: 2, n_decoder_layers: 1, d_ff: 8}
train: {max_steps: 2, precision: fp32}
"""
REVERSE = """\
data: {task: reverse, symbols: 10, train_length: [1, 8], valid_examples: 100, test_examples: 50}
model: {d_model: 32, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 64}
train: {max_steps: 120, precision: fp32}
"""


def trained(folder: Path, config: str, *arguments: str) -> str:
    (folder / "config.yaml").write_text(config)
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        given = ("--config", str(folder / "config.yaml"), "--out", str(folder / "run"))
        assert call("train", *given, *arguments) == 0
    return str(folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture(scope="module")
def reverse(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(tmp_path_factory.mktemp("reverse"), REVERSE)


@pytest.fixture(autouse=True)
def _as_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_what_is_shown_is_what_translate_says(run: str, command: Command) -> None:
    given = ("1 2 3 4", "2")
    answer = command("attention", *given, "--run", run, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    loaded = load(run, device="cpu")
    assert [loaded.vocabulary.decode(row) for row in found["tgt_out"]] == [
        line.split() for line in command("translate", *given, "--run", run).out.split("\n")[:-1]
    ]
    for read, said in zip(found["tgt_in"], found["tgt_out"], strict=True):
        end = said.index(PAD_ID) if PAD_ID in said else len(said)
        assert read[:end] == [BOS_ID, *said[: end - 1]] and not any(read[end:])
    batch = Batch(*(torch.tensor(found[name]) for name in ("src", "tgt_in", "tgt_out")))
    seen = {(one.part, one.layer): one.weights for one in h.attend(loaded.model, batch)}
    assert len(found["heads"]) == 2 * 4
    for head in found["heads"]:
        weights = seen[head["part"], head["layer"]][:, head["head"] - 1]
        assert torch.tensor(head["weights"]).equal(weights)
        assert {rule["rule"] for rule in head["rules"]} == set(h.RULES[head["part"]])
    assert found["measured_on"] == "30 validation pairs", "all that there are"


def test_a_trained_reverse_model_shows_the_anti_diagonal(reverse: str, command: Command) -> None:
    """A symbol is fetched from its mirror, or from the place beside it, to where the encoder had
    copied it."""
    given = ("attention", "1 2 3 4 5 6", "--run", reverse, "--part", "cross")
    found = json.loads(command(*given, "--json").out)
    (head,) = [one for one in found["heads"] if "mirror" in one["label"]]
    best = head["rules"][0]
    assert best["share"] > 0.9 and best["weight"] > 0.5 and best["chance"] < 0.25
    answer = command(*given, "--head", str(head["head"]))
    assert "1 2 3 4 5 6  ->  6 5 4 3 2 1" in answer.out and head["label"] in answer.out
    rows = [
        line for line in answer.out.splitlines() if re.match(r"[1-6$] [ \u2591-\u2593█]+$", line)
    ]
    darkest = [max(range(2, len(row)), key=lambda k: " ░▒▓█".index(row[k])) for row in rows[:6]]
    assert darkest == list(range(darkest[0], darkest[0] - 12, -2))


def test_pads_are_closed_columns_of_weight_zero(run: str, command: Command) -> None:
    given = ("--run", run, "--part", "encoder", "--layer", "1", "--head", "1")
    answer = command("attention", "1 2 3 4", "2", *given)
    assert "the largest weight on a pad is 0" in " ".join(answer.out.split())
    first, second = answer.out.split("\n\n2  ->")
    assert CLOSED not in first.split("Encoder")[1]
    (header, *rows) = second.split("\n\n")[1].splitlines()[4:]
    assert header == "  ^ 2 $ _ _ _"
    assert [row[0] for row in rows] == ["^", "2", "$"], "pads are no rows"
    assert all(row.endswith(f"{CLOSED} {CLOSED} {CLOSED}") for row in rows)


def test_without_a_sequence_validation_pairs_are_shown(run: str, command: Command) -> None:
    answer = command("attention", "--run", run)
    sources = re.findall(r"^([\d ]+)  ->  ", answer.out, re.MULTILINE)
    assert [len(source.split()) for source in sources] == [6, 4]
    assert max(map(len, answer.out.splitlines())) <= 80
    of_shown = command("attention", "--run", run, "--sample", "0").out
    assert "Measured on the translations shown (2)" in of_shown
    assert "encoder 10" in of_shown, "symbols of both"


def test_heads_stand_side_by_side_where_there_is_room(
    run: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("attention", "1 2 3", "--run", run, "--part", "encoder")
    monkeypatch.setenv("COLUMNS", "200")
    assert "layer 2 head 2" in next(x for x in command(*given).out.split("\n") if "layer 1" in x)
    monkeypatch.setenv("COLUMNS", "40")
    lines = command(*given).out.splitlines()
    assert "layer 1 head 2" in next(line for line in lines if "layer 1 head 1" in line)
    assert not any("layer 1" in line and "layer 2" in line for line in lines)


def test_a_long_sequence_gets_narrow_cells_and_then_a_refusal(run: str, command: Command) -> None:
    def given(count: int) -> tuple[str, ...]:
        return ("attention", " ".join("1" * count), "--run", run, "--part", "encoder")

    wide = command(*given(30))
    assert wide.code == 0 and "^ 1 1" in wide.out
    narrow = command(*given(60))
    assert narrow.code == 0 and f"^{'1' * 60}$" in narrow.out
    assert max(len(line) for line in narrow.out.splitlines() if "->" not in line) <= 80
    refused = command(*given(90))
    assert (refused.code, refused.out) == (2, "")
    assert "92 tokens do not fit" in refused.err and "--plot" in refused.err
    assert command(*given(90), "--json").code == 0


class Screen(io.StringIO):
    """A terminal to print to."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def on_screen(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> str:
    for name, value in ({"TERM": "xterm-256color", "COLUMNS": "80"} | environment).items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        assert call("attention", *arguments) == 0
    return screen.getvalue()


def test_colour_is_an_extra_and_ascii_will_do(
    run: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("1 2 3", "4", "--run", run)
    piped = command("attention", *given).out
    shown = on_screen(monkeypatch, *given)
    assert "\x1b[" in shown and "\x1b" not in piped
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == piped
    assert on_screen(monkeypatch, *given, NO_COLOR="1") == piped
    plain = on_screen(monkeypatch, *given, TERM="dumb")
    encoder = plain.split("Encoder")[2].split("Decoder")[0]
    assert plain.isascii() and re.search(r"^\^ [1-9] [\d ]+", encoder, re.M)
    assert re.search(r"[1-9]+ +\. \.", encoder), "pads"


def test_symbols_that_look_like_marks_or_are_wide_or_long(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["$", "\uac00\ub098", "an_uncommonly_long_word", "[bold]", "\x1b"]
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{w} {v}\t{v} {w}\n" for w in words for v in words)
    )
    files = (
        f"data: {{files: {{train: {tmp_path / 'pairs.tsv'}, valid: {tmp_path / 'pairs.tsv'}}}}}\n"
    )
    run = trained(tmp_path, files + TINY.split("\n", 2)[2])
    given = ("attention", " ".join(words[:4]), "--run", run, "--part", "encoder", "--head", "1")
    out = command(*given).out
    assert "an_u~ord" in out and "~ letters left out" in " ".join(out.split())
    assert "<eos>" in out and "_ <pad>" not in out
    assert "$ \uac00\ub098 an_uncommonly_long_word [bold]  ->" in out
    assert "\x1b" not in out
    from rich.cells import cell_len

    header = [line for line in out.splitlines() if "\uac00" in line and "->" not in line]
    assert header[0].index("\uac00") == cell_len(header[0][: header[0].index("\uac00")])
    (tmp_path / "pairs.tsv").unlink()
    gone = command(*given)
    assert gone.code == 2 and "pairs.tsv" in gone.err and gone.err.count("\n") == 1
    assert command(*given, "--sample", "0").code == 0
    picture = tmp_path / "a.svg"
    drawn = command(*given, "--sample", "0", "--plot", str(picture))
    assert drawn.code == 0 and "font lacks" in drawn.err
    assert "\uac00\ub098" in picture.read_text(encoding="utf-8")


def test_plots(run: str, command: Command, tmp_path: Path) -> None:
    given = ("attention", "1 2 3 4", "2", "--run", run)
    answer = command(*given, "--plot", str(tmp_path / "a.png"))
    assert answer.code == 0 and "layer head" in answer.out and "█" not in answer.out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {tmp_path / 'a.png'}" in answer.err
    for name in ("a.svg", "b.SVG"):
        assert command(*given, "--part", "cross", "--plot", str(tmp_path / name)).code == 0
    page = (tmp_path / "a.svg").read_text()
    assert page == (tmp_path / "b.SVG").read_text(), "the same picture, the same bytes"
    assert page.count("cross, layer 1, head 2") == 2, "one for each pair"
    assert "1 2 3 4  -&gt;" in page and "&lt;pad&gt;" in page
    assert page.count("<image") >= 4
    both = command(*given, "--json", "--plot", str(tmp_path / "c.png"))
    assert json.loads(both.out)["heads"] and (tmp_path / "c.png").exists()


def test_a_plot_is_written_over_nothing(run: str, command: Command, tmp_path: Path) -> None:
    """As trace --save: neither a file nor what a link points to."""
    picture, nothing = tmp_path / "a.png", tmp_path / "nothing"
    picture.write_text("a diary")
    (tmp_path / "b.svg").symlink_to(nothing)
    for name in ("a.png", "b.svg"):
        answer = command("attention", "1", "--run", run, "--plot", str(tmp_path / name))
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert f"{name}: there is such a file already; remove it, or name another" in answer.err
    assert picture.read_text() == "a diary" and not nothing.exists()


def test_a_broken_run_says_so(run: str, command: Command, tmp_path: Path) -> None:
    broken = trained(tmp_path, TINY, "--set", "fault=pad_visible")
    answer = command("attention", "1 2 3 4", "2", "--run", broken, "--part", "encoder")
    assert answer.err.startswith("broken on purpose: pad_visible")
    assert "broken on purpose: pad_visible" in answer.out.splitlines()[0]
    words = " ".join(answer.out.split())
    (largest,) = re.findall(r"the largest weight on a pad is (\S+)", words)
    assert float(largest) > 0 and CLOSED not in answer.out.split("Encoder")[2]


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("1 2", "1 9"), ("argument 2", "'9'", "such as '0'")),
        (("--layer", "2", "--part", "cross"), ("--layer 2", "cross 1")),
        (("--layer", "3"), ("--layer 3", "encoder 2, decoder 1, cross 1")),
        (("--head", "3"), ("--head 3", "1 to 2")),
        (("--plot", "a.pdf"), ("--plot a.pdf", ".png or .svg")),
        (("--plot", "no/such/a.png"), ("no/such", "make it")),
        (("--checkpoint", "7"), ("7",)),
        (("1",) * 400 + ("--plot", "a.png"), ("too many", "--part")),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    run: str, command: Command, arguments: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    answer = command("attention", "--run", run, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("toytrans: ") and answer.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in answer.err


def test_without_matplotlib_the_way_to_get_it_is_told(
    run: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = command("attention", "1", "--run", run, "--plot", "a.png")
    assert (answer.code, answer.out) == (2, "")
    assert "pip install 'toytrans[plot]'" in answer.err


def test_weights_that_are_no_numbers_are_refused() -> None:
    from toytrans.errors import UserError

    batch = batch_of(ROWS, False)
    model = model_of(VOCABULARY)
    with torch.no_grad():
        model.decoder_stack()[0].cross_attention.in_proj.weight.fill_(torch.nan)
    with pytest.raises(UserError, match=r"layer \d: .* not finite.*diverged"):
        h.attend(model, batch)


def test_a_translation_that_is_cut_off_has_no_end() -> None:
    model = model_of(VOCABULARY)
    with torch.no_grad():
        model.output.weight[EOS_ID] = 0
    src = batch_of([[5, 6, 7], [5]], False).src
    said = h.translated(model, src, 2)
    assert EOS_ID not in said.tgt_out
    assert (said.tgt_in != PAD_ID).equal(said.tgt_out != PAD_ID)
    assert said.tgt_in[0, 1:].equal(said.tgt_out[0, :-1])
