"""The view of `toytrans train --watch`: progress, loss, translations and attention on one screen.

The view takes at most SHARE of the time of the training, and changes none of its numbers.
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
from toytrans.cli.render.heat_maps import map_of
from toytrans.cli.render.tables import GAP, fitting, has_unicode, side_by_side, wrapped
from toytrans.data.batches import make_batch
from toytrans.data.pairs import Dataset, all_pairs
from toytrans.errors import UserError
from toytrans.insight.attention.heads import Choice, attend, count
from toytrans.insight.attention.maps import AttentionMaps, few
from toytrans.model.decoding import greedy
from toytrans.tokens import EOS_ID
from toytrans.training.run import Run, RunFolder
from toytrans.training.trainer import Trainer

if TYPE_CHECKING:
    from toytrans.cli.train import Moment

SHARE = 0.007
"""Of the training's time: what the view may take."""

SECONDS_BETWEEN_VIEWS, SECONDS_BETWEEN_SAMPLES = 1.0, 5.0
"""Between two drawings, and between two translations of the sample, at least."""

WIDEST, CURVE_HEIGHT = 100, 5
LENGTHS = (6, 4)
"""Symbols of the sources that are translated, roughly."""


@contextlib.contextmanager
def watch(trainer: Trainer, dataset: Dataset) -> Iterator[Callable[["Moment"], None]]:
    """The view, on standard error. Yields what draws a moment, if there is time for it."""
    console = output(stderr=True)
    live = Live(
        console=console, auto_refresh=False, redirect_stdout=False, vertical_overflow="crop"
    )
    view = _View(trainer, dataset)
    size = console.size

    def draw() -> None:
        nonlocal size
        if console.size != size:  # lines that the terminal has folded are not counted by Live
            size = console.size
            console.clear()
        live.update(view.drawn(min(console.width, WIDEST)), refresh=True)

    def show(moment: "Moment") -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
            if view.takes(moment):
                draw()
                view.rests()

    try:
        with contextlib.suppress(OSError):
            live.start()
            console.show_cursor()  # a process that is killed leaves the terminal as it was
        yield show
    finally:
        with contextlib.suppress(OSError):
            if view.moment:
                draw()
            live.stop()


def can_watch() -> bool:
    """Whether standard error is a terminal that can be drawn on."""
    console = output(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


class _View:
    """What is shown, and the time that it takes."""

    def __init__(self, trainer: Trainer, dataset: Dataset) -> None:
        self.trainer, self.facts = trainer, dataset.facts
        self.pairs = few(all_pairs(dataset, "valid"), LENGTHS)
        self.maps: AttentionMaps | None = None
        self.answers: list[list[int]] = []
        self.sampled_step = 0
        self.moment: Moment | None = None
        before = ((r["step"], r.get("loss")) for r in RunFolder.open(trainer.run).records)
        self.losses = [(step, loss) for step, loss in before if isinstance(loss, float)]
        self._sample()  # the first takes longer, so it comes before the first step
        self.began = self.drawn_at = self.sampled_at = time.monotonic()
        self.spent, self.cost = 0.0, {False: 0.0, True: 0.0}
        self._now, self._samples = self.began, False

    def takes(self, moment: "Moment") -> bool:
        """Remember a moment; whether it is to be drawn. `rests` follows then."""
        self.moment, self._now = moment, time.monotonic()
        self.losses.append((moment.record["step"], moment.record["loss"]))
        evaluated = "valid_loss" in moment.record
        if not evaluated and self._now - self.drawn_at < SECONDS_BETWEEN_VIEWS:
            return False
        due = evaluated or self._now - self.sampled_at >= SECONDS_BETWEEN_SAMPLES
        self._samples = due and self._affords(True)
        if self._samples:
            self._sample()
            self.sampled_at = self._now
        return self._samples or self._affords(False)

    def _affords(self, samples: bool) -> bool:
        """Whether there is time for what took so long before."""
        return self.spent + self.cost[samples] <= SHARE * (self._now - self.began)

    def rests(self) -> None:
        """Count the time since `takes`."""
        self.drawn_at = time.monotonic()
        self.cost[self._samples] = self.drawn_at - self._now
        self.spent += self.cost[self._samples]

    @torch.no_grad()
    def _sample(self) -> None:
        """Translate the pairs, and look at the heads of cross-attention on their targets."""
        trainer, model = self.trainer, self.trainer.model
        run = Run(trainer.run, trainer.config, self.facts, model, trainer.progress.step)
        batch = make_batch(self.pairs, run.config.source_bos).to(trainer.device)
        self.maps, self.sampled_step = None, run.step
        model.eval()
        try:
            self.answers = greedy(model, batch.src, self.facts.target_growth).tokens.tolist()
            attentions = attend(model, batch, Choice("cross"))
            heads = [head for each in attentions for head in count(each, batch).result()]
            self.maps = AttentionMaps(run, batch, attentions, heads, "")
        except UserError:  # weights that are not finite, or a model without our attention
            pass
        finally:
            model.train()

    def drawn(self, width: int) -> Group:
        """Everything that is known, for a terminal of some width."""
        assert self.moment is not None
        total = self.trainer.config.train.max_steps
        parts: list[Text | Table] = [_progress(self.trainer, self.moment, total, width)]
        numbers = wrapped(fitting(_numbers(self.moment)), width - 1)
        parts += map(Text, numbers[:2])  # the rest of the view needs the other lines
        parts.append(Text())
        parts += [Text(line) for line in curve(self.losses, total, width - 1)]
        if self.answers:
            parts += [Text(), *self._sampled(width - 1)]
        return Group(*parts)

    def _sampled(self, width: int) -> Iterator[Text]:
        """The map of the clearest head beside the translations."""
        block = [Text()]
        with contextlib.suppress(UserError):  # too narrow
            if self.maps:
                clearest = max(self.maps.heads, key=lambda head: head.best.weight)
                block = map_of(self.maps, clearest, 0, width)
        left = block[0].cell_len
        room = max(0, width - left - len(GAP))
        return side_by_side([block, list(self._translations(room))], [left, room])

    def _translations(self, width: int) -> Iterator[Text]:
        decode = self.facts.vocabulary.decode
        texts = (self.pairs.src.tolist(), self.pairs.tgt.tolist(), self.answers)
        for src, tgt, out in zip(*texts, strict=True):
            yield from translation(decode(src), decode(tgt), decode(out), EOS_ID in out, width)
            yield Text()
        step = Text(f"at step {self.sampled_step:,}", "dim")
        step.truncate(width)
        yield step


def _progress(trainer: Trainer, moment: "Moment", total: int, width: int) -> Table:
    step = int(moment.record["step"])
    line = Table.grid(padding=(0, 1, 0, 0))
    line.width = width - 1
    bar = ProgressBar(total=total, completed=step)
    line.add_column(no_wrap=True, overflow="crop")
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    name = Text(fitting(printable(trainer.run.name)), "bold")
    line.add_row(
        Text.assemble(name, f" step {step:,}/{total:,}"),
        bar,
        f"{moment.seconds_left(total):,.0f} s left",
    )
    return line


def _numbers(moment: "Moment") -> str:
    record = moment.record
    match = "-" if moment.match is None else share(moment.match)
    return (
        f"loss {record['loss']:.4f}  exact match {match}  "
        f"learning rate {record['lr']:.1e}  {moment.rate:,.0f} tokens/s"
    )


def curve(losses: Iterable[tuple[int, float]], total: int, width: int) -> Iterator[str]:
    """The logarithm of the loss over the steps, as columns of blocks below a title."""
    columns: dict[int, list[float]] = {}
    kept = [(step, loss) for step, loss in losses if loss > 0 and math.isfinite(loss)]
    for step, loss in kept:
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
    yield f"loss, from {10**high:.3g} to {10**low:.3g}, logarithmic"
    for row in reversed(range(CURVE_HEIGHT)):
        filled = (min(full, max(0, height - row * full)) for height in heights)
        yield "".join(shades[level] for level in filled).rstrip()


def translation(
    source: list[str], wanted: list[str], answer: list[str], ended: bool, width: int
) -> Iterator[Text]:
    """A source, its target and the answer, in lines of some width. The first wrong token is in
    brackets. The verdict has a line of its own where the answer leaves no room."""
    pairs = zip_longest([*wanted, None], [*answer, None if ended else "..."], fillvalue=None)
    wrong = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    line = _symbols("translation", answer[:wrong])
    verdict = Text("  right", "green")
    if wrong is not None:
        token = answer[wrong] if wrong < len(answer) else "end" if ended else "no end"
        line.append(f" [{fitting(printable(token))}]", "bold red")
        line.append(_symbols("", answer[wrong + 1 :]).plain)
        verdict = Text(f"  wrong from {wrong + 1}", "red")
    lines = [_symbols("source     ", source), _symbols("target     ", wanted), line]
    if line.cell_len + verdict.cell_len <= width:
        line.append(verdict)
    else:
        lines.append(verdict)
    for each in lines:
        each.truncate(width)
        yield each


def _symbols(title: str, symbols: list[str]) -> Text:
    text = Text(title, "dim")
    text.append("".join(f" {fitting(printable(symbol))}" for symbol in symbols), "not dim")
    return text
