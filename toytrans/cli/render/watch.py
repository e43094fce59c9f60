"""The view of `toytrans train --watch`: progress, loss, translations and attention on one screen.

It is drawn every two seconds at most, and changes no number of the training.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from toytrans.cli.common import output, printable, share
from toytrans.cli.render.heat_maps import axis_names, map_of
from toytrans.cli.render.tables import GAP, fitting, has_unicode
from toytrans.data.batches import make_batch
from toytrans.data.pairs import all_pairs
from toytrans.errors import UserError
from toytrans.inspection.heads import AttentionMaps, Choice, attend, few, measure
from toytrans.model.decoding import greedy
from toytrans.tokens import EOS_ID
from toytrans.training.run import Run, RunFolder
from toytrans.training.trainer import Trainer

if TYPE_CHECKING:
    from toytrans.cli.train import Moment

SECONDS_BETWEEN_VIEWS = 2.0
WIDEST, CURVE_HEIGHT = 100, 5
LENGTHS = (6, 4)
"""Symbols of the sources that are translated, roughly."""


def can_watch() -> bool:
    """Whether standard error is a terminal that can be drawn on."""
    console = output(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


@contextlib.contextmanager
def watch(trainer: Trainer) -> Iterator[Callable[["Moment"], None]]:
    """The view, on standard error. Yields what shows a moment."""
    console = output(stderr=True)
    live = Live(
        console=console, auto_refresh=False, redirect_stdout=False, vertical_overflow="crop"
    )
    before = ((r["step"], r.get("loss")) for r in RunFolder.open(trainer.run).records)
    losses = [(step, loss) for step, loss in before if isinstance(loss, float)]
    sample, drawn_at = Table.grid(), -math.inf

    def show(moment: "Moment") -> None:
        nonlocal sample, drawn_at
        losses.append((moment.record["step"], moment.record["loss"]))
        width, total = min(console.width, WIDEST) - 1, trainer.config.train.max_steps
        if "valid_loss" in moment.record:
            sample = sampled(trainer, width)
        elif time.monotonic() - drawn_at < SECONDS_BETWEEN_VIEWS:
            return
        drawn_at = time.monotonic()
        parts = (*_progress(trainer, moment, total, width), *curve(losses, total, width), sample)
        with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
            live.update(Group(*parts), refresh=True)

    try:
        with contextlib.suppress(OSError):
            live.start()
            console.show_cursor()  # a process that is killed leaves the terminal as it was
        yield show
    finally:
        with contextlib.suppress(OSError):
            live.stop()


def _progress(trainer: Trainer, moment: "Moment", total: int, width: int) -> Iterator[Table | Text]:
    """A bar, and the numbers of the moment."""
    record = moment.record
    line = Table.grid(padding=(0, 1, 0, 0))
    line.width = width
    line.add_column(no_wrap=True, overflow="crop")
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    name = Text(fitting(printable(trainer.run.name)), "bold")
    line.add_row(
        Text.assemble(name, f" step {record['step']:,}/{total:,}"),
        ProgressBar(total=total, completed=int(record["step"])),
        f"{moment.seconds_left(total):,.0f} s left",
    )
    yield line
    match = "-" if moment.match is None else share(moment.match)
    yield Text(
        f"loss {record['loss']:.4f}  exact match {match}  learning rate {record['lr']:.1e}  "
        f"{moment.rate:,.0f} tokens/s\n"
    )


def curve(losses: Iterable[tuple[int, float]], total: int, width: int) -> Iterator[Text]:
    """The logarithm of the loss over the steps, as columns of blocks below a title."""
    columns: dict[int, list[float]] = {}
    for step, loss in losses:
        if loss > 0 and math.isfinite(loss):
            columns.setdefault(min(width - 1, step * width // total), []).append(math.log10(loss))
    if not columns:
        return
    means = {column: sum(values) / len(values) for column, values in columns.items()}
    low, high = min(means.values()), max(means.values())
    shades = " ▁▂▃▄▅▆▇█" if has_unicode() else " .:|"
    full, heights, height = len(shades) - 1, [], 0
    for column in range(max(means) + 1):
        if column in means:
            part = (means[column] - low) / max(high - low, 1e-9)
            height = max(1, round(part * CURVE_HEIGHT * full))
        heights.append(height)
    yield Text(f"loss, from {10**high:.3g} to {10**low:.3g}, logarithmic")
    for row in reversed(range(CURVE_HEIGHT)):
        filled = (min(full, max(0, height - row * full)) for height in heights)
        yield Text("".join(shades[level] for level in filled).rstrip())


@torch.no_grad()
def sampled(trainer: Trainer, width: int) -> Table:
    """The head of cross-attention that follows a rule best, beside a few translations."""
    model, dataset = trainer.model, trainer.dataset
    pairs = few(all_pairs(dataset, "valid"), LENGTHS)
    run = Run(trainer.run, trainer.config, dataset.facts, model, trainer.progress.step)
    batch = make_batch(pairs, run.config.source_bos).to(trainer.device)
    head = Text()
    model.eval()
    try:
        answers = greedy(model, batch.src, run.facts.target_growth).tokens.tolist()
        with contextlib.suppress(UserError):  # no finite weights, another model, or no room
            attentions = attend(model, batch, Choice("cross"))
            maps = AttentionMaps(run, batch, attentions, measure([(attentions, batch)]), "")
            heads = maps.of_pair(0, axis_names(run.vocabulary.symbols).__getitem__)
            head = map_of(max(heads, key=lambda shown: shown.head.best.weight), width)
    finally:
        model.train()
    texts = Table.grid(padding=(0, 1, 0, 0))
    texts.add_column(style="dim", no_wrap=True)
    texts.add_column(no_wrap=True, overflow="ellipsis" if has_unicode() else "crop")
    decode = run.vocabulary.decode
    for src, tgt, out in zip(pairs.src.tolist(), pairs.tgt.tolist(), answers, strict=True):
        texts.add_row("source", _shown(decode(src)))
        texts.add_row("target", _shown(decode(tgt)))
        texts.add_row("translation", marked(decode(tgt), decode(out), EOS_ID in out))
        texts.add_row()
    texts.add_row(f"at step {run.step:,}")
    grid = Table.grid(padding=(1, len(GAP), 0, 0))
    grid.add_row(head, texts)
    return grid


def marked(wanted: list[str], answer: list[str], ended: bool) -> Text:
    """An answer, its first wrong token in brackets, and the verdict."""
    places = zip_longest([*wanted, None], [*answer, None if ended else "..."])
    wrong = next((place for place, (a, b) in enumerate(places) if a != b), None)
    if wrong is None:
        return _shown(answer).append("  right", "green")
    token = answer[wrong] if wrong < len(answer) else "end" if ended else "no end"
    rest = _shown([*answer[:wrong], f"[{token}]", *answer[wrong + 1 :]])
    start = len(_shown([*answer[:wrong], ""]))
    rest.stylize("bold red", start, start + len(_shown([f"[{token}]"])))
    return rest.append(f"  wrong from {wrong + 1}", "red")


def _shown(symbols: list[str]) -> Text:
    return Text(fitting(printable(" ".join(symbols))))
