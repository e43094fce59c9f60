"""The view of `toytrans train --watch`: numbers, translations and attention on one screen.

The view takes about a hundredth of the time of the training, and changes none of its numbers.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.text import Text

from toytrans.cli.attention import map_of_head
from toytrans.cli.tables import axis_names
from toytrans.cli.terminal import output, printable
from toytrans.cli.train import Moment
from toytrans.data.batches import make_batch
from toytrans.data.pairs import Pairs, all_pairs
from toytrans.errors import UserError, share
from toytrans.inspection.heads import AttentionMaps, Choice, attend, few, measure
from toytrans.model.decoding import search
from toytrans.training.run import Run
from toytrans.training.trainer import Trainer

WAIT = 100
"""After a drawing: so many times as long as it took, and a second at least."""


@contextlib.contextmanager
def watch(trainer: Trainer) -> Iterator[Callable[[Moment], None]]:
    """The view, on standard error. Yields what draws a moment, if it is time for it."""
    console, pairs = output(stderr=True), few(all_pairs(trainer.dataset, "valid"))
    due = 0.0

    def show(moment: Moment) -> None:
        nonlocal due
        began = time.monotonic()
        if began >= due or moment.step == trainer.settings.train.max_steps:
            view = view_of(trainer, pairs, moment, console.width - 1)
            with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
                live.update(view, refresh=True)
            due = time.monotonic() + max(1.0, WAIT * (time.monotonic() - began))

    live = Live(console=console, auto_refresh=False, redirect_stdout=False)
    try:
        with contextlib.suppress(OSError):
            live.start()
            console.show_cursor()  # a process that is killed leaves the terminal as it was
        yield show
    finally:
        with contextlib.suppress(OSError):
            live.stop()


def view_of(trainer: Trainer, pairs: Pairs, moment: Moment, width: int) -> Group:
    """Everything that is known. pairs: what is translated."""
    total, match = trainer.settings.train.max_steps, moment.match
    name = trainer.writer.path.name if trainer.writer else ""
    lines = [
        f"{printable(name)} step {moment.step:,}/{total:,}, {moment.left:,.0f} s left, "
        f"{moment.rate:,.0f} tokens/s",
        f"loss {moment.loss:.4f}  free-running exact match "
        f"{'-' if match is None else share(match)}  learning rate {moment.lr:.1e}",
        "",
    ]
    texts = (Text(line, no_wrap=True, overflow="crop") for line in lines)
    return Group(*texts, Columns(list(_sample(trainer, pairs, width)), padding=(0, 2)))


@torch.no_grad()
def _sample(trainer: Trainer, pairs: Pairs, width: int) -> Iterator[Text]:
    """The pairs translated, and the clearest head of cross-attention on the first."""
    model, facts = trainer.model, trainer.dataset.facts
    batch = make_batch(pairs, trainer.settings.source_bos).to(trainer.device)
    model.eval()
    try:
        answers, translations = search(model, batch.src, facts.target_growth).tokens, []
        for ids in zip(*(x.tolist() for x in (pairs.src, pairs.tgt, answers)), strict=True):
            src, tgt, answer = (printable(" ".join(facts.vocabulary.decode(each))) for each in ids)
            verdict = "[green]right[/]" if answer == tgt else "[red]wrong[/]"
            lines = Text(f"source      {src}\ntarget      {tgt}\ntranslation {answer}  ")
            translations.append(lines + Text.from_markup(verdict))
        yield Text("\n\n").join(translations)
        heads = attend(model, batch, Choice("cross"))
        reports = zip(measure([(heads, batch)]), heads, strict=True)
        best, head = max(reports, key=lambda pair: pair[0].best.weight)
        place = trainer.writer.path if trainer.writer else Path()
        run = Run(place, trainer.settings, facts).with_model(model, trainer.progress.step)
        names = axis_names(facts.vocabulary.symbols)
        for shown in AttentionMaps(run, batch, [head], [best], "").of_pair(0, names.__getitem__):
            yield map_of_head(shown, width)
    except UserError:  # a diverged model, or one without our attention; too narrow a terminal
        pass
    finally:
        model.train()
