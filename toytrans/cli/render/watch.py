"""The view of `toytrans train --watch`: progress, loss, translations and attention on one screen.

The view takes about a hundredth of the time of the training, and changes none of its numbers.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.text import Text

from toytrans.cli.common import output, printable, share
from toytrans.cli.render.heat_maps import axis_names, map_of
from toytrans.data.batches import make_batch
from toytrans.data.pairs import Pairs, all_pairs
from toytrans.errors import UserError
from toytrans.inspection.heads import AttentionMaps, Choice, attend, few, measure
from toytrans.model.decoding import greedy
from toytrans.training.run import Run
from toytrans.training.trainer import Trainer

if TYPE_CHECKING:
    from toytrans.cli.train import Moment

WAIT = 100
"""After a drawing: so many times as long as it took, and a second at least."""

WIDEST = 100
"""Columns of the view."""


@contextlib.contextmanager
def watch(trainer: Trainer) -> Iterator[Callable[["Moment"], None]]:
    """The view, on standard error. Yields what draws a moment, if it is time for it."""
    console, pairs = output(stderr=True), few(all_pairs(trainer.dataset, "valid"))
    live = Live(console=console, auto_refresh=False, redirect_stdout=False)
    losses: dict[int, float] = {}
    due, last = 0.0, None

    def draw(moment: "Moment") -> None:
        view = view_of(trainer, pairs, moment, losses, min(console.width, WIDEST) - 1)
        live.update(view, refresh=True)

    def show(moment: "Moment") -> None:
        nonlocal due, last
        last, began = moment, time.monotonic()
        losses[moment.record["step"]] = moment.record["loss"]
        if began >= due:
            with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
                draw(moment)
            due = time.monotonic() + max(1.0, WAIT * (time.monotonic() - began))

    try:
        with contextlib.suppress(OSError):
            live.start()
            console.show_cursor()  # a process that is killed leaves the terminal as it was
        yield show
    finally:
        with contextlib.suppress(OSError):
            if last:
                draw(last)
            live.stop()


def can_watch() -> bool:
    """Whether standard error is a terminal that can be drawn on."""
    console = output(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


def view_of(
    trainer: Trainer, pairs: Pairs, moment: "Moment", losses: Mapping[int, float], width: int
) -> Group:
    """Everything that is known. losses: by step. pairs: what is translated."""
    record, total = moment.record, trainer.config.train.max_steps
    match = "-" if moment.match is None else share(moment.match)
    lines = [
        Text(f"{printable(trainer.run.name)} step {record['step']:,}/{total:,}, ", "bold")
        + Text(f"{moment.seconds_left(total):,.0f} s left, {moment.rate:,.0f} tokens/s"),
        Text(
            f"loss {record['loss']:.4f}  free-running exact match {match}  "
            f"learning rate {record['lr']:.1e}"
        ),
        *curve(losses, total, width),
        Text(),
    ]
    blocks = list(_sample(trainer, pairs, width))
    for line in lines:
        line.truncate(width)
    return Group(*lines, Columns(blocks, padding=(0, 2)))


@torch.no_grad()
def _sample(trainer: Trainer, pairs: Pairs, width: int) -> Iterator[Text]:
    """The pairs translated, and the clearest head of cross-attention on the first of them."""
    model, facts = trainer.model, trainer.dataset.facts
    batch = make_batch(pairs, trainer.config.source_bos).to(trainer.device)
    model.eval()
    try:
        answers = greedy(model, batch.src, facts.target_growth).tokens.tolist()
        ids = zip(pairs.src.tolist(), pairs.tgt.tolist(), answers, strict=True)
        texts = [translation(*map(facts.vocabulary.decode, each)) for each in ids]
        yield Text("\n\n").join(texts)
        heads = attend(model, batch, Choice("cross"))
        reports = zip(measure([(heads, batch)]), heads, strict=True)
        best, head = max(reports, key=lambda pair: pair[0].best.weight)
        run = Run(trainer.run, trainer.config, facts, model, trainer.progress.step)
        names = axis_names(facts.vocabulary.symbols)
        for shown in AttentionMaps(run, batch, [head], [best], "").of_pair(0, names.__getitem__):
            yield map_of(shown, width)
    except UserError:  # a diverged model, or one without our attention; too narrow a terminal
        pass
    finally:
        model.train()


def curve(losses: Mapping[int, float], total: int, width: int) -> list[Text]:
    """The logarithm of the loss over the steps: a title and a row of blocks."""
    known = {k: math.log10(x) for k, x in losses.items() if x > 0 and math.isfinite(x)}
    columns = {min(width - 1, step * width // total): known[step] for step in sorted(known)}
    if not columns:
        return []
    low, high = min(columns.values()), max(columns.values())
    shades = "▁▂▃▄▅▆▇█"
    row, shade = "", " "
    for column in range(max(columns) + 1):
        if column in columns:
            part = (columns[column] - low) / max(high - low, 1e-9)
            shade = shades[round(part * (len(shades) - 1))]
        row += shade
    title = f"loss, from {10**high:.3g} to {10**low:.3g}, logarithmic"
    return [Text(title), Text(row)]


def translation(source: list[str], target: list[str], answer: list[str]) -> Text:
    """A source, its target and what the model says, which is right or wrong."""
    named = {"source": source, "target": target, "translation": answer}
    lines = [f"{name:11} {printable(' '.join(each))}" for name, each in named.items()]
    verdict = Text("  right", "green") if answer == target else Text("  wrong", "red")
    return Text("\n").join(map(Text, lines)) + verdict
