"""The tables of `train` and `eval`."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from toytrans.cli.common import argument, broken, columns, output, plain, print_table, share
from toytrans.user_code import is_shipped

if TYPE_CHECKING:
    from toytrans.data.pairs import Dataset, Pairs, Split
    from toytrans.evaluation import Scores, Summary
    from toytrans.training.run import Run
    from toytrans.training.trainer import Trainer

SAMPLES = 4
SHORT = 10
"""Longest source of the translations that are shown."""


def interval(counts: dict[str, Any]) -> str:
    return f"{counts['low']:.3f}..{counts['high']:.3f}"


def results_table(title: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """A table of summaries: (label, summary)."""
    some = any(counts["decoded"] < counts["examples"] for _, counts in rows)
    headings = ("\npairs", *["\ndecoded"] * some, "exact\nmatch", "\n95%", "token\nacc.", "\nloss")
    table = columns(
        ("\ndata, lengths",),
        headings,
        title=plain(title),
        caption="exact match: free-running; token accuracy and loss (nats): teacher-forced",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0 if some else 1),
    )
    for label, counts in rows:
        table.add_row(
            label,
            f"{counts['examples']:,}",
            *[f"{counts['decoded']:,}"] * some,
            share(counts["exact_match"]),
            interval(counts),
            share(counts["token_accuracy"]),
            f"{counts['loss']:.4f}",
        )
    return table


def ranges(data: str, scores: "Scores") -> list[tuple[str, "Summary"]]:
    """Label and summary below, in and beyond the training lengths, where there are pairs."""
    from toytrans.evaluation import part_of

    rows = []
    for part, summary in scores.parts().items():
        lengths = [n for n in scores.lengths if part_of(n, scores.train_length) == part]
        name = "" if part == "in_range" else f", {part}"
        rows.append((f"{data} {lengths[0]} to {lengths[-1]}{name}", summary))
    return rows


def print_results(trainer: "Trainer", dataset: "Dataset") -> None:
    """The table at the end of a training. All its processes measure the best checkpoint together,
    like `toytrans eval`."""
    from toytrans import load
    from toytrans.data.pairs import all_pairs
    from toytrans.evaluation import evaluate
    from toytrans.model.initialisation import count_parameters

    context = trainer.context
    run = context.on_main(lambda: load(trainer.run, "best", "cpu"))
    run.model.to(trainer.device)
    console, progress = output(), trainer.progress
    reason = {
        "stop_at_exact_match": ", stopped at the exact match asked for",
        "patience": ", stopped for lack of progress",
        "max_seconds": ", stopped at the seconds allowed",
    }.get(trainer.stop_reason or "", "")
    best = " (best validation)" if run.step != progress.step else ""
    title = (
        f"{count_parameters(run.model):,} parameters, {progress.step:,} steps in "
        f"{progress.elapsed_s:.1f} s{reason}; measured: step {run.step}{best}"
        f"{broken(run.config.fault)}"
    )
    rows: list[tuple[str, dict[str, Any]]] = []
    files = run.config.data.files
    splits: list[Split] = ["valid", "test"] if files is None or files.test else ["valid"]
    for split in splits:
        pairs = all_pairs(dataset, split)
        scores = trainer.scores.get(run.step) if split == "valid" else None
        if scores is None:
            own = context.shard_pairs(pairs)
            counted = evaluate(run.model, own, run.facts, source_bos=run.config.source_bos)
            scores = context.all_scores(counted)
        rows += ranges(split, scores)
    if context.is_main:
        print_table(console, results_table(title, rows))
        _print_translations(console, run, pairs)


def _print_translations(console: Console, run: "Run", pairs: "Pairs") -> None:
    """A few translations, the run directory and the next commands."""
    console.print("[bold]translations[/bold]")
    decode = run.vocabulary.decode
    short = (pairs.src_length <= SHORT).nonzero()[:, 0]
    shown = pairs.take(short[:SAMPLES] if len(short) else slice(SAMPLES))
    sources = [decode(ids) for ids in shown.src.tolist()]
    answers = run.translate([" ".join(symbols) for symbols in sources])
    for symbols, answer, ids in zip(sources, answers, shown.tgt.tolist(), strict=True):
        expected = " ".join(decode(ids))
        verdict = "right" if answer == expected else f"wrong: {expected}"
        console.print(plain(f"  {' '.join(symbols)}  ->  {answer}  ({verdict})"))
    longest: list[str] = max(sources, key=len)
    where, example = argument(run.path), shlex.quote(" ".join(longest))
    if not all(map(is_shipped, run.config.references.values())):
        where = f"{where} --trust-code"
    if longest and longest[0].startswith("-"):
        example = f"-- {example}"
    console.print("[bold]run[/bold]", plain(str(run.path)))
    console.print("[bold]next[/bold]")
    commands = [f"toytrans eval {where}", f"toytrans translate {where} {example}"]
    if run.config.model.class_ is None:  # the layers of others are not known
        commands.append(f"toytrans inspect-masks {where}")
    for command in (*commands, f"toytrans check {where}"):
        console.print(plain(f"  {command}"), soft_wrap=True)
